/* A transfer plan delivers every wanted element exactly once, reads every stored block once, and stays within its window,
 * for random models, layouts, readers and hosts. */
#include "resharder/plan.h"

#include <criterion/criterion.h>
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
    }
}

static struct pd_layout random_layout(void)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, 1 + (uint32_t)random_below(4));
    l.virtual_tp = 4;
    l.tp = 1u << random_below(3);
    l.pp = 1 + (uint32_t)random_below(2);
    l.stage_count = l.pp;
    for (uint32_t s = 0; s < l.stage_count; s++)
        l.first_unit[s] = (uint16_t)(s * 2);
    l.small_bytes = random_below(2) ? 0 : 8192;
    return l;
}

struct tally {
    uint8_t *seen[256];
    struct pd_transfer_run last;
    uint64_t item_bytes;
};

static void visit(void *context, const struct pd_transfer_run *run)
{
    struct tally *t = context;
    cr_assert_leq(run->item_offset + run->bytes, t->item_bytes);
    for (uint64_t i = 0; i < run->bytes; i += 4)
        t->seen[run->wanted_box][(run->wanted_offset + i) / 4]++;
}

static void check_delivery(const struct pd_plan *plan, uint32_t tensor, uint32_t rank)
{
    struct pd_box boxes[256];
    const struct pd_tensor *t = &plan->input.tensors->tensors[tensor];
    uint32_t count = pd_layout_owned_boxes(plan->input.wanted, t, tensor, rank, boxes, 256);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        struct tally tally = {0};
        for (uint32_t b = 0; b < count; b++)
            tally.seen[b] = calloc(pd_box_elements(&boxes[b]), 1);
        for (uint64_t i = 0; i < plan->item_count; i++) {
            const struct pd_read_item *item = &plan->items[i];
            const struct pd_shard_box *stored = &plan->shard_boxes[item->shard][item->box];
            if (stored->tensor != tensor || (int)stored->kind != kind) continue;
            tally.item_bytes = item->bytes;
            pd_plan_runs(plan, item, rank, visit, &tally);
        }
        bool wanted = plan->input.kinds >> kind & 1;
        for (uint32_t b = 0; b < count; b++) {
            for (uint64_t e = 0; e < pd_box_elements(&boxes[b]); e++)
                cr_assert_eq(tally.seen[b][e], wanted ? 1 : 0);
            free(tally.seen[b]);
        }
    }
}

static void check_reading(const struct pd_plan *plan)
{
    uint64_t stored = 0, read = 0;
    for (uint32_t s = 0; s < plan->shard_count; s++)
        for (uint32_t b = 0; b < plan->shard_box_count[s]; b++)
            if (plan->input.kinds >> plan->shard_boxes[s][b].kind & 1)
                stored += pd_box_elements(&plan->shard_boxes[s][b].box) * 4;
    for (uint32_t r = 0; r < plan->input.readers; r++)
        for (uint64_t i = plan->reader_first[r]; i < plan->reader_first[r + 1]; i++) {
            const struct pd_read_item *item = &plan->items[i];
            cr_assert_eq(item->reader, r);
            cr_assert_leq(item->window_offset + item->bytes, plan->input.window_bytes);
            cr_assert(plan->input.host_has[plan->input.reader_host[r] * plan->shard_count + item->shard]);
            cr_assert(i == plan->reader_first[r] || item->round >= plan->items[i - 1].round);
            cr_assert_lt(item->round, plan->round_count);
            read += item->bytes;
        }
    cr_assert_eq(read, stored);
}

Test(plan, delivers_everything_once)
{
    for (int round = 0; round < 60; round++) {
        struct pd_tensor tensors[TENSORS];
        random_tensors(tensors);
        struct pd_tensor_table table = {tensors, TENSORS};
        struct pd_layout stored = random_layout(), wanted = random_layout();
        uint32_t readers = pd_layout_world(&wanted), hosts = 1 + (uint32_t)random_below(readers < 3 ? readers : 3);
        uint32_t shards = pd_layout_world(&stored), reader_host[64];
        uint8_t *host_has = calloc(hosts, shards);
        for (uint32_t r = 0; r < readers; r++)
            reader_host[r] = r * hosts / readers;
        bool shared = random_below(2);
        for (uint32_t s = 0; s < shards; s++)
            for (uint32_t h = 0; h < hosts; h++)
                host_has[h * shards + s] = shared || h == s % hosts;
        struct pd_plan_input input = {.tensors = &table,
                                      .stored = &stored,
                                      .wanted = &wanted,
                                      .kinds = random_below(2) ? 7 : 1,
                                      .readers = readers,
                                      .reader_host = reader_host,
                                      .host_count = hosts,
                                      .host_has = host_has,
                                      .window_bytes = 65536 * (1 + random_below(6))};
        struct pd_plan *plan;
        cr_assert_eq(pd_plan_new(&input, &plan, NULL), PD_OK);
        check_reading(plan);
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint32_t r = 0; r < readers; r++)
                check_delivery(plan, t, r);
        pd_plan_free(plan);
        free(host_has);
    }
}

Test(plan, a_shard_nobody_has_is_named)
{
    struct pd_tensor tensor = {.ndim = 2, .shape = {512, 512, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    struct pd_tensor_table table = {&tensor, 1};
    struct pd_layout stored, wanted;
    pd_layout_init_dp(&stored, 2);
    pd_layout_init_dp(&wanted, 1);
    const uint32_t reader_host[1] = {0};
    const uint8_t host_has[2] = {1, 0};
    struct pd_plan_input input = {.tensors = &table,
                                  .stored = &stored,
                                  .wanted = &wanted,
                                  .kinds = 7,
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
