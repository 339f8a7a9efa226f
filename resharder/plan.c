#include "resharder/plan.h"

#include <stdlib.h>
#include <string.h>

static uint64_t box_bytes(const struct pd_plan *plan, const struct pd_shard_box *b)
{
    return pd_box_elements(&b->box) * pd_dtype_bytes(plan->input.tensors->tensors[b->tensor].dtype);
}

static bool is_wanted(const struct pd_plan *plan, const struct pd_shard_box *b)
{
    if (!(plan->input.kinds >> b->kind & 1)) return false;
    return !plan->input.tensor_wanted || plan->input.tensor_wanted[b->tensor];
}

static uint64_t blocks_of(uint64_t bytes)
{
    return (bytes + PD_SHARD_BLOCK_BYTES - 1) / PD_SHARD_BLOCK_BYTES;
}

/* ---- who may read a shard: all ranks, or those of one host ---- */

static bool everywhere(const struct pd_plan *plan, uint32_t shard)
{
    for (uint32_t h = 0; h < plan->input.host_count; h++)
        if (!plan->input.host_has[(uint64_t)h * plan->shard_count + shard]) return false;
    return true;
}

/* Pool of readers a shard belongs to: host_count stands for "all ranks"; UINT32_MAX: nobody has it. */
static uint32_t pool_of(const struct pd_plan *plan, uint32_t shard)
{
    if (everywhere(plan, shard)) return plan->input.host_count;
    for (uint32_t h = 0; h < plan->input.host_count; h++)
        if (plan->input.host_has[(uint64_t)h * plan->shard_count + shard]) return h;
    return UINT32_MAX;
}

static bool in_pool(const struct pd_plan *plan, uint32_t pool, uint32_t reader)
{
    return pool == plan->input.host_count || plan->input.reader_host[reader] == pool;
}

static uint64_t wanted_blocks(const struct pd_plan *plan, uint32_t shard)
{
    uint64_t blocks = 0;
    for (uint32_t b = 0; b < plan->shard_box_count[shard]; b++)
        if (is_wanted(plan, &plan->shard_boxes[shard][b]))
            blocks += blocks_of(box_bytes(plan, &plan->shard_boxes[shard][b]));
    return blocks;
}

/* ---- items ---- */

struct builder {
    struct pd_plan *plan;
    const uint32_t *pool; /* (shards) */
    uint64_t capacity;
    uint32_t reader, round;
    uint64_t round_bytes;
    bool failed;
};

static void append(struct builder *b, struct pd_read_item item)
{
    struct pd_plan *plan = b->plan;
    if (plan->item_count == b->capacity) {
        uint64_t capacity = b->capacity ? b->capacity * 2 : 1024;
        struct pd_read_item *items = realloc(plan->items, capacity * sizeof *items);
        if (!items) {
            b->failed = true;
            return;
        }
        plan->items = items;
        b->capacity = capacity;
    }
    plan->items[plan->item_count++] = item;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + PD_DOOR_ALIGN - 1) / PD_DOOR_ALIGN * PD_DOOR_ALIGN;
}

/* Whole pages; a box of less than a page may lie across two. */
static uint64_t window_room(uint64_t bytes)
{
    return bytes < PD_DOOR_ALIGN ? 2 * PD_DOOR_ALIGN : align_up(bytes);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Blocks [first, end) of a box, cut where the window of a round is full. */
static void append_blocks(struct builder *b, uint32_t shard, uint32_t box, uint64_t first, uint64_t end)
{
    uint64_t bytes = box_bytes(b->plan, &b->plan->shard_boxes[shard][box]);
    while (first < end && !b->failed) {
        uint64_t room = (b->plan->input.window_bytes - b->round_bytes) / PD_SHARD_BLOCK_BYTES;
        uint64_t rest = min_u64(bytes, end * PD_SHARD_BLOCK_BYTES) - first * PD_SHARD_BLOCK_BYTES;
        bool fits = window_room(rest) <= b->plan->input.window_bytes - b->round_bytes;
        if (!fits && room == 0) {
            b->round++;
            b->round_bytes = 0;
            continue;
        }
        uint64_t count = fits ? end - first : room;
        uint64_t length = min_u64(rest, count * PD_SHARD_BLOCK_BYTES);
        append(b, (struct pd_read_item){shard, box, first, count, length, b->reader, b->round, b->round_bytes});
        b->round_bytes += window_room(length);
        first += count;
    }
}

/* Blocks [begin, end) of the wanted blocks of a pool, counted over its shards in order. */
static void append_range(struct builder *b, uint32_t pool, uint64_t begin, uint64_t end)
{
    struct pd_plan *plan = b->plan;
    uint64_t position = 0;
    for (uint32_t s = 0; s < plan->shard_count && position < end; s++) {
        if (b->pool[s] != pool) continue;
        for (uint32_t x = 0; x < plan->shard_box_count[s]; x++) {
            if (!is_wanted(plan, &plan->shard_boxes[s][x])) continue;
            uint64_t blocks = blocks_of(box_bytes(plan, &plan->shard_boxes[s][x]));
            uint64_t from = begin > position ? begin - position : 0,
                     to = end > position ? min_u64(end - position, blocks) : 0;
            if (from < to) append_blocks(b, s, x, from, to);
            position += blocks;
        }
    }
}

static void assign_reader(struct builder *b, const uint64_t *pool_blocks)
{
    struct pd_plan *plan = b->plan;
    b->round = 0;
    b->round_bytes = 0;
    for (uint32_t pool = 0; pool <= plan->input.host_count; pool++) {
        if (!pool_blocks[pool] || !in_pool(plan, pool, b->reader)) continue;
        uint64_t members = 0, place = 0;
        for (uint32_t r = 0; r < plan->input.readers; r++) {
            if (!in_pool(plan, pool, r)) continue;
            if (r < b->reader) place++;
            members++;
        }
        append_range(b, pool, pool_blocks[pool] * place / members, pool_blocks[pool] * (place + 1) / members);
    }
}

static pd_status build_items(struct pd_plan *plan, uint32_t *pool, uint64_t *pool_blocks, struct pd_error *err)
{
    for (uint32_t s = 0; s < plan->shard_count; s++) {
        pool[s] = pool_of(plan, s);
        if (pool[s] == UINT32_MAX)
            PD_FAIL(err, PD_NOT_FOUND,
                    "shard-%05u.h5 can be opened on no host: bring back the host or the file, or resume from "
                    "another checkpoint",
                    s);
        pool_blocks[pool[s]] += wanted_blocks(plan, s);
    }
    struct builder b = {.plan = plan, .pool = pool};
    for (b.reader = 0; b.reader < plan->input.readers; b.reader++) {
        plan->reader_first[b.reader] = plan->item_count;
        assign_reader(&b, pool_blocks);
        if (plan->item_count > plan->reader_first[b.reader] && b.round + 1 > plan->round_count)
            plan->round_count = b.round + 1;
    }
    plan->reader_first[plan->input.readers] = plan->item_count;
    if (b.failed) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for the transfer plan");
    return PD_OK;
}

static pd_status build(struct pd_plan *plan, struct pd_error *err)
{
    const struct pd_plan_input *in = &plan->input;
    plan->shard_boxes = calloc(plan->shard_count, sizeof *plan->shard_boxes);
    plan->shard_box_count = calloc(plan->shard_count, sizeof *plan->shard_box_count);
    plan->reader_first = calloc(in->readers + 1ull, sizeof *plan->reader_first);
    uint32_t *pool = calloc(plan->shard_count, sizeof *pool);
    uint64_t *pool_blocks = calloc(in->host_count + 1ull, sizeof *pool_blocks);
    pd_status st = PD_OK;
    if (!plan->shard_boxes || !plan->shard_box_count || !plan->reader_first || !pool || !pool_blocks)
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "load: no memory for a plan over %u shards", plan->shard_count);
    for (uint32_t s = 0; !st && s < plan->shard_count; s++)
        st = pd_layout_shard_boxes(in->stored, in->tensors, s, &plan->shard_boxes[s], &plan->shard_box_count[s], err);
    if (!st) st = build_items(plan, pool, pool_blocks, err);
    free(pool);
    free(pool_blocks);
    return st;
}

pd_status pd_plan_new(const struct pd_plan_input *input, struct pd_plan **ret_plan, struct pd_error *err)
{
    PD_CHECK(input->window_bytes >= PD_SHARD_BLOCK_BYTES && input->readers > 0 && input->host_count > 0);
    struct pd_plan *plan = calloc(1, sizeof *plan);
    if (!plan) PD_FAIL(err, PD_NO_MEMORY, "load: no memory for a plan");
    plan->input = *input;
    plan->shard_count = pd_layout_world(input->stored);
    pd_status st = build(plan, err);
    if (st) {
        pd_plan_free(plan);
        return st;
    }
    *ret_plan = plan;
    return PD_OK;
}

void pd_plan_free(struct pd_plan *plan)
{
    if (!plan) return;
    for (uint32_t s = 0; plan->shard_boxes && s < plan->shard_count; s++)
        free(plan->shard_boxes[s]);
    free(plan->shard_boxes);
    free(plan->shard_box_count);
    free(plan->items);
    free(plan->reader_first);
    free(plan);
}

/* ---- runs ---- */

struct run_walk {
    const struct pd_box *stored, *wanted; /* 2-dimensional views: rows x columns */
    uint64_t item_begin, item_end;        /* elements of the stored box */
    uint32_t wanted_box, element_bytes;
    void (*visit)(void *, const struct pd_transfer_run *);
    void *context;
};

/* Elements [begin, end) of the stored box that lie in one row, or in whole rows of equal width on both sides. */
static void visit_run(const struct run_walk *w, uint64_t begin, uint64_t end, uint64_t wanted_element)
{
    if (end > w->item_end) end = w->item_end;
    if (begin < w->item_begin) {
        wanted_element += w->item_begin - begin;
        begin = w->item_begin;
    }
    if (begin >= end) return;
    struct pd_transfer_run run = {(begin - w->item_begin) * w->element_bytes, w->wanted_box,
                                  wanted_element * w->element_bytes, (end - begin) * w->element_bytes};
    w->visit(w->context, &run);
}

static void walk_runs(const struct run_walk *w)
{
    struct pd_box part;
    if (!pd_box_intersect(w->stored, w->wanted, &part)) return;
    uint64_t width = 1, stored_width = 1, wanted_width = 1;
    for (int d = 1; d < PD_TENSOR_DIMS_MAX; d++) {
        width *= part.count[d];
        stored_width *= w->stored->count[d];
        wanted_width *= w->wanted->count[d];
    }
    uint64_t stored_first = pd_box_offset(w->stored, &part), wanted_first = pd_box_offset(w->wanted, &part);
    if (width == stored_width && width == wanted_width) {
        visit_run(w, stored_first, stored_first + part.count[0] * width, wanted_first);
        return;
    }
    uint64_t first_row = 0;
    if (w->item_begin > stored_first + width) first_row = (w->item_begin - stored_first - width) / stored_width;
    for (uint64_t row = first_row; row < part.count[0]; row++) {
        uint64_t begin = stored_first + row * stored_width;
        if (begin >= w->item_end) break;
        visit_run(w, begin, begin + width, wanted_first + row * wanted_width);
    }
}

void pd_plan_runs(const struct pd_plan *plan, const struct pd_read_item *item, uint32_t rank,
                  void (*visit)(void *context, const struct pd_transfer_run *run), void *context)
{
    const struct pd_shard_box *stored = &plan->shard_boxes[item->shard][item->box];
    const struct pd_tensor *tensor = &plan->input.tensors->tensors[stored->tensor];
    uint32_t element_bytes = pd_dtype_bytes(tensor->dtype);
    struct pd_box wanted[256];
    uint32_t count = pd_layout_owned_boxes(plan->input.wanted, tensor, stored->tensor, rank, wanted, 256);
    uint64_t begin = item->first_block * PD_SHARD_BLOCK_BYTES / element_bytes;
    for (uint32_t b = 0; b < count; b++) {
        struct run_walk walk = {&stored->box,  &wanted[b], begin,  begin + item->bytes / element_bytes, b,
                                element_bytes, visit,      context};
        walk_runs(&walk);
    }
}
