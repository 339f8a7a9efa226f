#include "trainer/plan/memory_plan.h"

#include <stdlib.h>
#include <string.h>

/* Bytes by category as numbers that can be subtracted. */
struct bytes {
    int64_t of[PD_MEMORY_CATEGORY_COUNT], host[PD_MEMORY_CATEGORY_COUNT], noted[PD_MEMORY_CATEGORY_COUNT]; /* as its plan */
    int64_t library;
};

/* Open addressing by a key that is never 0. */
struct memo {
    struct entry {
        uint64_t key;
        struct bytes bytes;
        uint32_t index;
    } * entries;
    uint32_t capacity, count;
};

struct survey {
    const struct pd_config *config;
    const struct pd_model *model;
    const struct pd_laid_out *laid_out;
    uint32_t threads, world, shares; /* shares: dp * sp, ranks of a pipeline place */
    struct memo places, states;      /* first and second part of a rank, by key */
    struct memo groups;              /* by bytes */
    uint64_t *tp_keys;               /* (tp) of what a tensor-parallel rank computes */
    uint64_t *sp_keys;               /* (sp) of the tokens a sequence-parallel rank holds */
    uint64_t *owned;                 /* (shares) keys of what each share owns of the state */
    uint64_t *differences;           /* (shares + 1) of the sum that becomes such a key */
    struct pd_world_memory *memory;
};

/* ---- keys ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0xd1b54a32d192ed03);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 29;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return (x ^ x >> 32) | 1;
}

static pd_status memo_reserve(struct memo *memo, struct pd_error *err)
{
    if (4 * (memo->count + 1) < 3 * memo->capacity) return PD_OK;
    struct memo grown = {.capacity = memo->capacity ? 2 * memo->capacity : 256, .count = memo->count};
    grown.entries = calloc(grown.capacity, sizeof *grown.entries);
    if (!grown.entries) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    for (uint32_t i = 0; i < memo->capacity; i++) {
        if (!memo->entries[i].key) continue;
        uint64_t at = memo->entries[i].key & (grown.capacity - 1);
        while (grown.entries[at].key)
            at = (at + 1) & (grown.capacity - 1);
        grown.entries[at] = memo->entries[i];
    }
    free(memo->entries);
    *memo = grown;
    return PD_OK;
}

/* The entry of the key; a new one has key 0. Reserve first. */
static struct entry *memo_at(struct memo *memo, uint64_t key)
{
    uint64_t at = key & (memo->capacity - 1);
    while (memo->entries[at].key && memo->entries[at].key != key)
        at = (at + 1) & (memo->capacity - 1);
    return &memo->entries[at];
}

static void memo_put(struct memo *memo, uint64_t key, struct bytes bytes)
{
    struct entry *e = memo_at(memo, key);
    if (!e->key) memo->count++;
    *e = (struct entry){.key = key, .bytes = bytes};
}

/* Sizes of what a tensor-parallel rank computes: those of every block are the first one's. */
static uint64_t tp_key(const struct survey *s, uint32_t tp_rank)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const struct pd_partition p = {.tp = l->tp, .tp_rank = tp_rank, .virtual_tp = l->virtual_tp, .sp = 1, .virtual_sp = 1};
    const uint32_t units[] = {0, 1, s->model->unit_count - 1};
    uint64_t key = 1;
    for (int u = 0; u < 3; u++) {
        for (uint32_t t = s->model->unit_first[units[u]]; t < s->model->unit_first[units[u] + 1]; t++) {
            struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
            for (int pass = 0; pass < 2; pass++) {
                const uint32_t count =
                    (pass ? pd_partition_computed : pd_partition_needed)(s->model, &p, t, boxes, PD_LAYOUT_CHUNKS_MAX);
                key = mix(key, count);
                for (uint32_t b = 0; b < count; b++)
                    key = mix(mix(key, boxes[b].count[0]), s->model->tensors.tensors[t].ndim > 1 ? boxes[b].count[1] : 1);
            }
        }
    }
    return key;
}

/* What a rank's pipeline place is but for the micro-batches it keeps. */
static uint64_t shape_key(const struct survey *s, uint32_t pp)
{
    const struct pd_layout *l = &s->laid_out->layout;
    uint64_t key = mix(pp == 0, pp + 1 == l->pp);
    for (uint32_t c = 0; c < l->interleave; c++) {
        const struct pd_stage stage = pd_grid_stage(l, s->model, pp, c);
        key = mix(mix(key, stage.block_count), stage.has_embedding * 2u + stage.has_head);
    }
    return key;
}

static uint64_t depth_key(const struct survey *s, uint32_t pp)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const uint32_t micro_batches = s->config->batch.sequences / s->config->batch.micro_batch,
                   interleave = l->pp > 1 ? l->interleave : 1;
    uint32_t depth[256];
    const struct pd_schedule_options options = {.kind = s->config->layout.schedule,
                                                .pp = l->pp,
                                                .pp_rank = pp,
                                                .interleave = interleave,
                                                .slots = pd_schedule_slots(micro_batches, l->dp, l->pp, interleave),
                                                .units = pd_is_breadth_first(s->config, l) ? s->model->unit_count : 0};
    pd_schedule_depth(&options, depth);
    uint64_t key = 3;
    for (uint32_t c = 0; c < interleave; c++)
        key = mix(key, depth[c]);
    return key;
}

/* What the shares own of a tensor, as differences: a run of equal parts costs two additions. */
static void own_tensor(struct survey *s, uint32_t tensor, uint32_t tp_rank, uint64_t number)
{
    struct pd_layout_cut cut;
    const struct pd_tensor *t = &s->model->tensors.tensors[tensor];
    if (!pd_layout_cut_of(&s->laid_out->layout, t, tensor, tp_rank, &cut)) return;
    const uint64_t last_rows = cut.row_end - cut.row_begin - (cut.part_count - 1) * cut.part_rows,
                   full = mix(number, cut.part_rows), last = mix(number, last_rows);
    s->differences[cut.q_first] += full;
    s->differences[cut.q_first + cut.part_count - 1] += last - full;
    s->differences[cut.q_first + cut.part_count] -= last;
}

/* One unit's differences become part of the keys. Blocks are alike and their sum does not tell them apart: a share that owns
 * a norm of one takes what a share takes that owns the same norm of another, but where budgets keep some of the blocks. */
static void own_unit_end(struct survey *s, uint64_t kind)
{
    uint64_t sum = 0;
    for (uint32_t q = 0; q < s->shares; q++) {
        sum += s->differences[q];
        if (sum) s->owned[q] += mix(kind, sum);
    }
    memset(s->differences, 0, (s->shares + 1ull) * sizeof *s->differences);
}

static bool has_budgets(const struct pd_config *c)
{
    return c->offload.optimizer_budget || c->offload.parameters_budget || c->offload.gradients_budget;
}

static void own_stage(struct survey *s, uint32_t pp, uint32_t tp_rank)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const uint32_t last = s->model->unit_count - 1;
    bool is_first = true;
    memset(s->owned, 0, s->shares * sizeof *s->owned);
    for (uint32_t unit = 0; unit <= last; unit++) {
        if (pd_layout_unit_pp(l, unit) != pp) continue;
        const uint32_t begin = s->model->unit_first[unit];
        for (uint32_t t = begin; t < s->model->unit_first[unit + 1]; t++)
            own_tensor(s, t, tp_rank, t - begin + 1);
        own_unit_end(s, unit == 0 ? 11 : unit == last ? 12 : is_first ? 13 : has_budgets(s->config) ? mix(16, unit) : 14);
        is_first = unit == 0;
    }
    if (s->model->config.tie_embeddings && l->pp > 1 && pp + 1 == l->pp) {
        own_tensor(s, 0, tp_rank, 1);
        own_unit_end(s, 15);
    }
}

/* A share beyond the first zero_shard holds what another owns. */
static uint64_t state_key(const struct survey *s, uint32_t q)
{
    const uint32_t parts = s->laid_out->layout.zero_shard;
    return mix(s->owned[q % parts], q < parts);
}

/* ---- bytes ---- */

static pd_status run_recipe(struct survey *s, uint32_t rank, struct bytes *ret_bytes, struct pd_error *err)
{
    const struct pd_engine_options options = {.config = s->config,
                                              .model = s->model,
                                              .world = s->world,
                                              .rank = rank,
                                              .threads = s->threads,
                                              .laid_out = s->laid_out,
                                              .is_gpu = s->config->run.device == PD_DEVICE_GPU};
    struct pd_memory_plan plan;
    PD_TRY(pd_engine_plan_of(&options, &plan, err));
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        ret_bytes->of[c] = (int64_t)plan.bytes[c];
        ret_bytes->host[c] = (int64_t)plan.host_bytes[c];
        ret_bytes->noted[c] = (int64_t)plan.noted_bytes[c];
    }
    ret_bytes->library = (int64_t)plan.library_bytes;
    s->memory->recipes++;
    return PD_OK;
}

static struct bytes combine(struct bytes a, struct bytes b, int64_t sign)
{
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        a.of[c] += sign * b.of[c];
        a.host[c] += sign * b.host[c];
        a.noted[c] += sign * b.noted[c];
    }
    a.library += sign * b.library;
    return a;
}

/* `shape` ties both parts together: within one shape, bytes = place + state, where the first rank seen has state 0. */
static pd_status bytes_of(struct survey *s, uint32_t rank, uint64_t shape, uint64_t place, uint64_t state,
                          struct bytes *ret_bytes, struct pd_error *err)
{
    const uint64_t place_key = mix(shape, place), state_key_here = mix(shape, state);
    PD_TRY(memo_reserve(&s->places, err));
    PD_TRY(memo_reserve(&s->states, err));
    const struct entry *p = memo_at(&s->places, place_key), *z = memo_at(&s->states, state_key_here);
    if (p->key && z->key) {
        *ret_bytes = combine(p->bytes, z->bytes, 1);
        return PD_OK;
    }
    PD_TRY(run_recipe(s, rank, ret_bytes, err));
    const struct entry *shape_entry = memo_at(&s->places, shape);
    if (p->key) {
        memo_put(&s->states, state_key_here, combine(*ret_bytes, p->bytes, -1));
    } else if (z->key) {
        memo_put(&s->places, place_key, combine(*ret_bytes, z->bytes, -1));
    } else if (!shape_entry->key) {
        memo_put(&s->places, shape, (struct bytes){0});
        PD_TRY(memo_reserve(&s->places, err));
        memo_put(&s->places, place_key, *ret_bytes);
        memo_put(&s->states, state_key_here, (struct bytes){0});
    }
    return PD_OK;
}

static pd_status add_ranks(struct survey *s, uint32_t rank, const struct bytes *bytes, struct pd_error *err)
{
    struct pd_world_memory *m = s->memory;
    uint64_t key = 5, total = 0;
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        key = mix(mix(mix(key, (uint64_t)bytes->of[c]), (uint64_t)bytes->host[c]), (uint64_t)bytes->noted[c]);
        total += (uint64_t)bytes->of[c] - (s->config->run.device == PD_DEVICE_GPU ? (uint64_t)bytes->host[c] : 0);
    }
    key = mix(key, (uint64_t)bytes->library);
    total += (uint64_t)bytes->library;
    m->mean_bytes += (double)total / s->world;
    PD_TRY(memo_reserve(&s->groups, err));
    struct entry *e = memo_at(&s->groups, key);
    if (e->key) {
        m->groups[e->index].ranks++;
        if (rank < m->groups[e->index].first_rank) m->groups[e->index].first_rank = rank;
        return PD_OK;
    }
    struct pd_memory_group *grown = realloc(m->groups, (m->group_count + 1) * sizeof *grown);
    if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    m->groups = grown;
    struct pd_memory_group *group = &m->groups[m->group_count];
    *group = (struct pd_memory_group){.first_rank = rank, .ranks = 1};
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        group->plan.bytes[c] = (uint64_t)bytes->of[c];
        group->plan.host_bytes[c] = (uint64_t)bytes->host[c];
        group->plan.noted_bytes[c] = (uint64_t)bytes->noted[c];
    }
    group->plan.library_bytes = (uint64_t)bytes->library;
    memo_put(&s->groups, key, *bytes);
    memo_at(&s->groups, key)->index = m->group_count++;
    return PD_OK;
}

static pd_status survey_place(struct survey *s, uint32_t pp, uint32_t tp, struct pd_error *err)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const uint64_t shape = mix(shape_key(s, pp), s->tp_keys[tp]), depth = depth_key(s, pp);
    own_stage(s, pp, tp);
    for (uint32_t q = 0; q < s->shares; q++) {
        const uint32_t rank = (pp * s->shares + q) * l->tp + tp;
        const uint64_t tokens = s->sp_keys[q % l->sp];
        struct bytes bytes;
        PD_TRY(bytes_of(s, rank, mix(shape, tokens), depth, state_key(s, q), &bytes, err));
        PD_TRY(add_ranks(s, rank, &bytes, err));
    }
    return PD_OK;
}

static int by_first_rank(const void *a, const void *b)
{
    const struct pd_memory_group *x = a, *y = b;
    return (x->first_rank > y->first_rank) - (x->first_rank < y->first_rank);
}

static pd_status survey_all(struct survey *s, struct pd_error *err)
{
    const struct pd_layout *l = &s->laid_out->layout;
    s->tp_keys = calloc(l->tp, sizeof *s->tp_keys);
    s->sp_keys = calloc(l->sp, sizeof *s->sp_keys);
    s->owned = calloc(s->shares, sizeof *s->owned);
    s->differences = calloc(s->shares + 1ull, sizeof *s->differences);
    if (!s->tp_keys || !s->sp_keys || !s->owned || !s->differences) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    for (uint32_t tp = 0; tp < l->tp; tp++)
        s->tp_keys[tp] = tp_key(s, tp);
    for (uint32_t sp = 0; sp < l->sp; sp++) {
        const struct pd_partition p = {.tp = 1, .virtual_tp = 1, .sp = l->sp, .sp_rank = sp, .virtual_sp = l->virtual_sp};
        s->sp_keys[sp] = pd_partition_tokens(&p, s->config->batch.context);
    }
    for (uint32_t pp = 0; pp < l->pp; pp++)
        for (uint32_t tp = 0; tp < l->tp; tp++)
            PD_TRY(survey_place(s, pp, tp, err));
    return PD_OK;
}

uint64_t pd_memory_of_device(const struct pd_config *config, const struct pd_memory_plan *plan)
{
    const uint64_t total = pd_memory_plan_total(plan);
    return config->run.device == PD_DEVICE_GPU ? total - pd_memory_plan_host(plan) + plan->library_bytes : total;
}

pd_status pd_world_memory_plan(const struct pd_config *config, const struct pd_model *model, uint32_t threads,
                               const struct pd_laid_out *laid_out, struct pd_world_memory *ret_memory, struct pd_error *err)
{
    struct pd_world_memory memory = {0};
    struct survey s = {.config = config,
                       .model = model,
                       .laid_out = laid_out,
                       .threads = threads,
                       .world = pd_layout_world(&laid_out->layout),
                       .shares = laid_out->layout.dp * laid_out->layout.sp,
                       .memory = &memory};
    pd_status st = survey_all(&s, err);
    free(s.places.entries);
    free(s.states.entries);
    free(s.groups.entries);
    free(s.tp_keys);
    free(s.sp_keys);
    free(s.owned);
    free(s.differences);
    if (st) {
        pd_world_memory_deinit(&memory);
        return st;
    }
    qsort(memory.groups, memory.group_count, sizeof *memory.groups, by_first_rank);
    for (uint32_t g = 0; g < memory.group_count; g++) {
        const uint64_t total = pd_memory_of_device(config, &memory.groups[g].plan);
        if (total <= memory.worst_bytes) continue;
        memory.worst = g;
        memory.worst_bytes = total;
    }
    *ret_memory = memory;
    return PD_OK;
}

void pd_world_memory_deinit(struct pd_world_memory *memory)
{
    free(memory->groups);
    *memory = (struct pd_world_memory){0};
}
