/* A transfer plan delivers every wanted element exactly once, reads every stored block once, and stays within its window,
 * for random models, layouts, readers and hosts. */
#include "resharder/plan.h"

#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 11;
static uint64_t random_below(uint64_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) % n;
}

enum { TENSORS = 6 };

static void random_tensors(struct pd_tensor *tensors)
{
    for (int i = 0; i < TENSORS; i++) {
        struct pd_tensor *t = &tensors[i];
        *t = (struct pd_tensor){.ndim = 2,
                                .shape = {1 + random_below(500), 1 + random_below(300), 1, 1},
                                .dtype = PD_F32,
                                .tp_dim = (int32_t)random_below(3) - 1,
                                .tp_unit = 1 + random_below(3),
                                .unit = (uint32_t)random_below(4)};
        if (t->tp_dim >= 0) t->shape[t->tp_dim] = t->tp_unit * (1 + random_below(100));
        if (random_below(2)) t->expert = 1 + (uint32_t)random_below(5);
    }
}

static struct pd_layout random_layout(void)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, 1 + (uint32_t)random_below(4));
    l.virtual_tp = 4u << random_below(2);
    l.tp = 1u << random_below(3);
    l.virtual_sp = 2;
    l.sp = 1 + (uint32_t)random_below(2);
    l.pp = 1 + (uint32_t)random_below(2);
    l.zero_shard = 1 + (uint32_t)random_below(l.dp * l.sp);
    do
        l.ep = 1 + (uint32_t)random_below(l.zero_shard);
    while (l.zero_shard % l.ep);
    l.interleave = 1 + (uint32_t)random_below(2);
    l.stage_count = l.pp * l.interleave;
    for (uint32_t s = 0; s < l.stage_count; s++)
        l.first_unit[s] = (uint16_t)(s * 4 / l.stage_count);
    l.small_bytes = random_below(2) ? 0 : 8192;
    return l;
}

struct tally {
    uint8_t *seen[256];
    uint64_t item_bytes;
};

static void visit(void *context, const struct pd_transfer_run *run)
{
    struct tally *t = context;
    cr_assert_leq(run->item_offset + run->bytes, t->item_bytes);
    for (uint64_t i = 0; i < run->bytes; i += 4)
        t->seen[run->wanted_box][(run->wanted_offset + i) / 4]++;
}

/* Everything that rank gets, read by itself or by others, is each element it owns, once. */
static void check_delivery(const struct pd_plan *plan, uint32_t tensor)
{
    struct pd_box boxes[256];
    const struct pd_tensor *t = &plan->input.tensors->tensors[tensor];
    const uint32_t rank = plan->input.rank;
    uint32_t count = pd_layout_owned_boxes(plan->input.wanted, t, tensor, rank, boxes, 256);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        struct tally tally = {0};
        for (uint32_t b = 0; b < count; b++)
            tally.seen[b] = calloc(pd_box_elements(&boxes[b]), 1);
        for (uint64_t i = 0; i < plan->item_count + plan->coming_count; i++) {
            const struct pd_read_item *item = i < plan->item_count ? &plan->items[i] : &plan->coming[i - plan->item_count];
            if (item->tensor != tensor || (int)item->kind != kind) continue;
            tally.item_bytes = item->bytes;
            pd_plan_runs(plan, item, rank, visit, &tally);
        }
        bool wanted = plan->input.kinds >> kind & 1;
        if (plan->input.tensor_wanted) wanted = wanted && plan->input.tensor_wanted[tensor];
        for (uint32_t b = 0; b < count; b++) {
            for (uint64_t e = 0; e < pd_box_elements(&boxes[b]); e++)
                cr_assert_eq(tally.seen[b][e], wanted ? 1 : 0);
            free(tally.seen[b]);
        }
    }
}

/* ---- the reference: every block of every shard, one by one, by the words of plan.h ---- */

struct reference {
    struct pd_read_item *items;
    uint64_t count;
};

static uint32_t reference_line(const struct pd_plan_input *in, uint32_t shard, uint32_t shards)
{
    uint32_t first = UINT32_MAX, count = 0;
    for (uint32_t h = 0; h < in->host_count; h++) {
        if (!in->host_has[h * shards + shard]) continue;
        if (first == UINT32_MAX) first = h;
        count++;
    }
    return count == in->host_count ? in->host_count : first;
}

static uint64_t reference_pages(uint64_t bytes)
{
    return bytes < 4096 ? 2 : (bytes + 4095) / 4096;
}

/* Reader r's range of a line. */
static void reference_range(const struct pd_plan_input *in, const uint64_t *line_pages, uint32_t line, uint32_t r,
                            uint64_t *begin, uint64_t *end)
{
    uint64_t members = 0, place = 0;
    *begin = *end = 0;
    for (uint32_t i = 0; i < in->readers; i++) {
        if (line != in->host_count && in->reader_host[i] != line) continue;
        if (i < r) place++;
        members++;
    }
    if (line != in->host_count && in->reader_host[r] != line) return;
    *begin = line_pages[line] * place / members;
    *end = line_pages[line] * (place + 1) / members;
}

static bool wants(const struct pd_plan_input *in, const struct pd_shard_box *b)
{
    return (in->kinds >> b->kind & 1) && (!in->tensor_wanted || in->tensor_wanted[b->tensor]);
}

/* One pass counts the pages of the lines, the next one places blocks. */
static struct reference reference_of(const struct pd_plan_input *in, uint32_t r)
{
    struct reference ref = {calloc(200000, sizeof *ref.items), 0};
    const uint32_t shards = pd_layout_world(in->stored);
    uint64_t line_pages[8] = {0}, window = in->window_bytes / 4096 - 15, base = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t line = 0; line <= in->host_count; line++) {
            uint64_t position = 0, begin, end;
            reference_range(in, line_pages, line, r, &begin, &end);
            for (uint32_t s = 0; s < shards; s++) {
                struct pd_shard_box *boxes;
                uint32_t count;
                if (reference_line(in, s, shards) != line) continue;
                cr_assert_eq(pd_layout_shard_boxes(in->stored, in->tensors, s, &boxes, &count, NULL), PD_OK);
                for (uint32_t b = 0; b < count; b++) {
                    if (!wants(in, &boxes[b])) continue;
                    uint64_t bytes = pd_box_elements(&boxes[b].box) * 4;
                    for (uint64_t k = 0; pass && k * 65536 < bytes; k++) {
                        uint64_t page = position + 16 * k;
                        if (page < begin || page >= end) continue;
                        uint64_t at = base + page - begin, left = bytes - k * 65536;
                        struct pd_read_item *last = &ref.items[ref.count - 1];
                        if (ref.count && last->shard == s && last->box == b && last->round == at / window) {
                            last->block_count++;
                            last->bytes += left < 65536 ? left : 65536;
                            continue;
                        }
                        ref.items[ref.count++] = (struct pd_read_item){.shard = s,
                                                                       .box = b,
                                                                       .tensor = boxes[b].tensor,
                                                                       .kind = boxes[b].kind,
                                                                       .stored = boxes[b].box,
                                                                       .first_block = k,
                                                                       .block_count = 1,
                                                                       .bytes = left < 65536 ? left : 65536,
                                                                       .reader = r,
                                                                       .round = (uint32_t)(at / window),
                                                                       .window_offset = at % window * 4096};
                    }
                    position += reference_pages(bytes);
                }
                free(boxes);
            }
            if (!pass) line_pages[line] = position;
            if (pass && line < in->host_count && end > begin) base = end - begin + 15;
        }
    }
    return ref;
}

static bool same_item(const struct pd_read_item *a, const struct pd_read_item *b)
{
    return a->shard == b->shard && a->box == b->box && a->tensor == b->tensor && a->kind == b->kind &&
           !memcmp(&a->stored, &b->stored, sizeof a->stored) && a->first_block == b->first_block &&
           a->block_count == b->block_count && a->bytes == b->bytes && a->reader == b->reader && a->round == b->round &&
           a->window_offset == b->window_offset;
}

static void count_run(void *context, const struct pd_transfer_run *run)
{
    (void)run;
    (*(uint64_t *)context)++;
}

static bool owns(const struct pd_plan *plan, const struct pd_read_item *item, uint32_t rank)
{
    struct pd_owner_run runs[PD_LAYOUT_CHUNKS_MAX];
    uint32_t count = pd_plan_owners(plan, item, runs), times = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < runs[i].count; k++)
            times += runs[i].first + k * runs[i].stride == rank;
    cr_assert_leq(times, 1u, "an owner is named once");
    return times;
}

/* A reader's items against the reference; what others must expect of them they do expect, in that order. */
static void check_reader(struct pd_plan *const *plans, uint32_t readers, uint32_t r, uint64_t *cursor)
{
    const struct pd_plan *plan = plans[r];
    struct reference ref = reference_of(&plan->input, r);
    cr_assert_eq(plan->item_count, ref.count, "reader %u: %lu items, %lu in the reference", r, plan->item_count, ref.count);
    for (uint64_t i = 0; i < ref.count; i++) {
        const struct pd_read_item *item = &plan->items[i];
        cr_assert(same_item(item, &ref.items[i]), "item %lu", i);
        cr_assert_leq(item->window_offset + item->bytes, plan->input.window_bytes);
        cr_assert_lt(item->round, plan->round_count);
        cr_assert(i == 0 || item->round >= plan->items[i - 1].round);
        for (uint32_t rank = 0; rank < readers; rank++) {
            uint64_t runs = 0, *at = &cursor[rank * readers + r];
            pd_plan_runs(plan, item, rank, count_run, &runs);
            if (!runs) continue;
            cr_assert(owns(plan, item, rank), "an owner is not named");
            if (rank == r) continue;
            const struct pd_plan *to = plans[rank];
            while (*at < to->coming_count && (to->coming[*at].reader != r || !same_item(&to->coming[*at], item)))
                ++*at; /* in order, so never back */
            cr_assert_lt(*at, to->coming_count, "rank %u does not expect item %lu of reader %u", rank, i, r);
        }
    }
    free(ref.items);
}

static void check_plans(struct pd_plan_input *input)
{
    struct pd_plan *plans[64];
    const uint32_t readers = input->readers;
    uint64_t *cursor = calloc((size_t)readers * readers, sizeof *cursor);
    for (uint32_t r = 0; r < readers; r++) {
        input->rank = r;
        cr_assert_eq(pd_plan_new(input, &plans[r], NULL), PD_OK);
        cr_assert_eq(plans[r]->round_count, plans[0]->round_count);
        for (uint32_t t = 0; t < TENSORS; t++)
            check_delivery(plans[r], t);
    }
    for (uint32_t r = 0; r < readers; r++)
        check_reader(plans, readers, r, cursor);
    for (uint32_t r = 0; r < readers; r++)
        pd_plan_free(plans[r]);
    free(cursor);
}

static void random_hosts(struct pd_plan_input *input, uint32_t *reader_host, uint8_t *host_has, uint32_t shards)
{
    const uint64_t sharing = random_below(4);
    input->host_count = 1 + (uint32_t)random_below(input->readers < 3 ? input->readers : 3);
    for (uint32_t r = 0; r < input->readers; r++)
        reader_host[r] = r * input->host_count / input->readers;
    for (uint32_t s = 0; s < shards; s++)
        for (uint32_t h = 0; h < input->host_count; h++)
            host_has[h * shards + s] = sharing == 0 || h == s % input->host_count || (sharing == 1 && s % 2);
    input->reader_host = reader_host;
    input->host_has = host_has;
}

Test(plan, delivers_everything_once)
{
    const int rounds = test_scale() >= 10 ? 60 : 30;
    for (int round = 0; round < rounds; round++) {
        struct pd_tensor tensors[TENSORS];
        random_tensors(tensors);
        struct pd_tensor_table table = {.tensors = tensors, .count = TENSORS};
        struct pd_layout stored = random_layout(), wanted = random_layout();
        cr_assert_eq(pd_layout_check(&stored, NULL), PD_OK);
        cr_assert_eq(pd_layout_check(&wanted, NULL), PD_OK);
        uint32_t shards = pd_layout_world(&stored), reader_host[64];
        bool tensor_wanted[TENSORS];
        for (int t = 0; t < TENSORS; t++)
            tensor_wanted[t] = random_below(2);
        struct pd_plan_input input = {.tensors = &table,
                                      .stored = &stored,
                                      .wanted = &wanted,
                                      .kinds = random_below(2) ? 7 : 1 + (uint32_t)random_below(6),
                                      .tensor_wanted = random_below(3) ? NULL : tensor_wanted,
                                      .readers = pd_layout_world(&wanted),
                                      .window_bytes = 65536 * (1 + random_below(6))};
        uint8_t *host_has = calloc(3, shards);
        random_hosts(&input, reader_host, host_has, shards);
        check_plans(&input);
        free(host_has);
    }
}

Test(plan, hosts_that_all_see_everything_need_no_table)
{
    struct pd_tensor tensors[TENSORS];
    random_tensors(tensors);
    struct pd_tensor_table table = {.tensors = tensors, .count = TENSORS};
    struct pd_layout stored = random_layout(), wanted = random_layout();
    struct pd_plan *told, *untold;
    const uint32_t reader_host[64] = {0};
    uint8_t host_has[256];
    memset(host_has, 1, sizeof host_has);
    struct pd_plan_input input = {.tensors = &table,
                                  .stored = &stored,
                                  .wanted = &wanted,
                                  .kinds = 7,
                                  .readers = pd_layout_world(&wanted),
                                  .host_count = 1,
                                  .reader_host = reader_host,
                                  .host_has = host_has,
                                  .window_bytes = 1 << 18};
    cr_assert_eq(pd_plan_new(&input, &told, NULL), PD_OK);
    input.reader_host = NULL;
    input.host_has = NULL;
    cr_assert_eq(pd_plan_new(&input, &untold, NULL), PD_OK);
    cr_assert_eq(told->item_count, untold->item_count);
    cr_assert_eq(told->coming_count, untold->coming_count);
    for (uint64_t i = 0; i < told->item_count; i++)
        cr_assert(same_item(&told->items[i], &untold->items[i]));
    pd_plan_free(told);
    pd_plan_free(untold);
}

Test(plan, a_shard_nobody_has_is_named)
{
    struct pd_tensor tensor = {.ndim = 2, .shape = {512, 512, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    struct pd_tensor_table table = {.tensors = &tensor, .count = 1};
    struct pd_layout stored, wanted;
    pd_layout_init_dp(&stored, 2);
    pd_layout_init_dp(&wanted, 1);
    const uint32_t reader_host[1] = {0};
    const uint8_t host_has[2] = {1, 0};
    struct pd_plan_input input = {.tensors = &table,
                                  .stored = &stored,
                                  .wanted = &wanted,
                                  .kinds = 7,
                                  .rank = 0,
                                  .readers = 1,
                                  .reader_host = reader_host,
                                  .host_count = 1,
                                  .host_has = host_has,
                                  .window_bytes = 1 << 20};
    struct pd_plan *plan;
    struct pd_error err;
    cr_assert_eq(pd_plan_new(&input, &plan, &err), PD_NOT_FOUND);
    cr_assert(strstr(err.message, "shard-00001.h5"), "%s", err.message);
}

static struct pd_layout many_ranks(uint32_t dp, uint32_t tp, uint32_t pp, uint32_t sp, uint32_t interleave, uint32_t units)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, dp);
    l.tp = tp, l.pp = pp, l.sp = sp;
    l.virtual_tp = 16, l.virtual_sp = 2;
    l.zero_shard = dp * sp;
    l.interleave = interleave;
    l.stage_count = pp * interleave;
    for (uint32_t s = 0; s < l.stage_count; s++)
        l.first_unit[s] = (uint16_t)(s * units / l.stage_count);
    return l;
}

/* 100,000 tensors of 1 T parameters: matrices split on either dimension, and vectors. */
static uint64_t heap_bytes(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

Test(plan, of_a_rank_among_many_is_small)
{
    enum { MANY = 100000, UNITS = 128 };
    static const uint32_t ranks[] = {0, 5461, 10922, 16383};
    struct pd_tensor *tensors = calloc(MANY, sizeof *tensors);
    for (uint32_t t = 0; t < MANY; t++)
        tensors[t] = (struct pd_tensor){.ndim = t % 12 < 10 ? 2 : 1,
                                        .shape = {3465, t % 12 < 10 ? 3465 : 1, 1, 1},
                                        .tp_dim = t % 12 < 10 ? (int32_t)(t % 2) : -1,
                                        .tp_unit = t % 12 < 4 ? 63 : 1,
                                        .unit = (uint32_t)((uint64_t)t * UNITS / MANY)};
    struct pd_tensor_table table = {.tensors = tensors, .count = MANY};
    struct pd_layout stored = many_ranks(128, 8, 16, 1, 1, UNITS), wanted = many_ranks(64, 16, 8, 2, 2, UNITS);
    struct pd_plan_input input = {.tensors = &table,
                                  .stored = &stored,
                                  .wanted = &wanted,
                                  .kinds = 7,
                                  .readers = pd_layout_world(&wanted),
                                  .host_count = pd_layout_world(&wanted) / 8,
                                  .window_bytes = 1 << 20};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        struct pd_plan *plan;
        input.rank = ranks[i];
        const uint64_t before = heap_bytes();
        cr_assert_eq(pd_plan_new(&input, &plan, NULL), PD_OK);
        cr_assert(plan->item_count && plan->coming_count && heap_bytes() - before < 1 << 20);
        pd_plan_free(plan);
    }
    free(tensors);
}
