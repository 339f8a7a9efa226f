/* Finds ranks that need the same bytes, without planning each of them.
 *
 *   1. Descriptions of what a rank computes and what it owns are compared by 64-bit digests: with ten thousand different
 *      descriptions two digests collide once in 10^11 plans.
 *   2. Within one shape (stage, tensor-parallel part, tokens) bytes = place + state. The first rank of a shape is its
 *      origin: its place counts all of its bytes, its state none.
 *   3. A rank whose place and state are both known costs an addition; any other one dry run of the engine.
 *   4. A state's bytes are the same whatever is recomputed, and so are origins: both may be from a plan before. */
#include "trainer/plan/memory_plan.h"

#include "ckpt/base/digest.h"
#include "ckpt/base/grow.h"
#include "trainer/parallel/schedule.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of bytes. A share beyond the first zero_shard is a replica of another. */
enum { ORIGIN, PLACE, STATE, REPLICA };
struct key {
    uint64_t layout;            /* digest of all but recomputation */
    uint64_t shape, tp, tokens; /* digests of descriptions; tokens as they are */
    uint64_t what, part;        /* part of a place: what it keeps; of a state: what it owns */
};

struct known {
    struct key key;
    struct pd_memory_plan bytes; /* bytes added by a state or place, modulo 2^64 */
};

struct survey {
    const struct pd_config *config;
    const struct pd_model *model;
    const struct pd_laid_out *laid_out;
    uint32_t threads, world, shares; /* shares: dp * sp, ranks of a pipeline place */
    void *places;                    /* tsearch's tree of struct known, by key */
    struct pd_memory_states *states; /* another, of origins and states */
    uint64_t layout;                 /* as in keys */
    uint64_t *tp_parts;              /* (tp, ep) what a tensor-parallel rank with some of the experts computes */
    uint64_t *sp_tokens;             /* (sp) that a sequence-parallel rank holds */
    uint64_t *owned;                 /* (shares) digest of each share's parts of the current place, summed */
    uint32_t group;                  /* of the rank before, whose neighbours mostly need the same */
    struct pd_digest_stream text;    /* the description that is being written */
    struct pd_world_memory *memory;
};

static void memory_plan_append(struct survey *s, uint64_t word)
{
    pd_digest_stream_add(&s->text, &word, sizeof word);
}

/* Returns the digest of the appended text and clears it. */
static uint64_t memory_plan_take_text(struct survey *s)
{
    const uint64_t digest = pd_digest_stream_value(&s->text);
    pd_digest_stream_init(&s->text, 0);
    return digest;
}

/* ---- computation of a rank ---- */

static void append_boxes(struct survey *s, const struct pd_partition *p, uint32_t t, bool is_computed)
{
    struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
    const uint32_t count =
        (is_computed ? pd_partition_computed : pd_partition_needed)(s->model, p, t, boxes, PD_LAYOUT_CHUNKS_MAX);
    memory_plan_append(s, count);
    for (uint32_t b = 0; b < count; b++) {
        memory_plan_append(s, boxes[b].count[0]);
        memory_plan_append(s, s->model->tensors.tensors[t].ndim > 1 ? boxes[b].count[1] : 1);
    }
}

/* Sizes of a tensor-parallel part; all blocks are as large as the first. by_part (zero_shard): scratch memory. */
static uint64_t describe_tp(struct survey *s, uint32_t tp_rank, uint32_t ep_rank, uint64_t *by_part)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const struct pd_partition p = {.tp = l->tp, .tp_rank = tp_rank, .virtual_tp = l->virtual_tp, .sp = 1, .virtual_sp = 1};
    const uint32_t units[] = {0, 1, s->model->unit_count - 1};
    for (int u = 0; u < 3; u++)
        for (uint32_t t = s->model->unit_first[units[u]]; t < s->model->unit_first[units[u] + 1]; t++) {
            append_boxes(s, &p, t, false);
            append_boxes(s, &p, t, true);
        }
    /* Sums of gradients also depend on the largest part of every unit, and on the owners of key-value heads. */
    const struct pd_model_config *m = &s->model->config;
    const struct pd_range owned = pd_partition_units(&p, m->kv_heads),
                          computed = pd_partition_kv_computed(m, pd_partition_units(&p, m->heads));
    for (uint32_t unit = 0; unit < s->model->unit_count; unit++) {
        memory_plan_append(s, pd_zero_part_elements(s->model, l, unit, p.tp_rank, PD_ZERO_ALL_RANKS, by_part));
        if (l->ep > 1) memory_plan_append(s, pd_zero_part_elements(s->model, l, unit, p.tp_rank, ep_rank, by_part));
    }
    memory_plan_append(s, owned.end - owned.begin);
    memory_plan_append(s, owned.begin - computed.begin);
    return memory_plan_take_text(s);
}

static uint64_t describe_layout(struct survey *s)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const uint64_t words[] = {l->dp,
                              l->tp,
                              l->pp,
                              l->sp,
                              l->ep,
                              l->virtual_tp,
                              l->virtual_sp,
                              l->zero_shard,
                              l->zero_stage,
                              l->interleave,
                              l->small_bytes,
                              l->stage_count,
                              s->laid_out->by_lane,
                              s->laid_out->updates_on_device};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        memory_plan_append(s, words[i]);
    for (uint32_t i = 0; i < l->stage_count; i++)
        memory_plan_append(s, l->first_unit[i]);
    return memory_plan_take_text(s);
}

/* A pipeline place without its number of kept micro-batches. */
static uint64_t describe_shape(struct survey *s, uint32_t pp)
{
    const struct pd_layout *l = &s->laid_out->layout;
    memory_plan_append(s, pp == 0);
    memory_plan_append(s, pp + 1 == l->pp);
    for (uint32_t c = 0; c < l->interleave; c++) {
        const struct pd_stage stage = pd_grid_stage(l, s->model, pp, c);
        memory_plan_append(s, stage.block_count);
        const uint32_t dense = s->model->config.experts ? s->model->config.dense_blocks : 0;
        memory_plan_append(s, stage.first_block < dense ? dense - stage.first_block : 0);
        memory_plan_append(s, stage.has_embedding * 2u + stage.has_head);
    }
    return memory_plan_take_text(s);
}

/* Micro-batches that a place keeps for each of its chunks. */
static uint64_t describe_depth(struct survey *s, uint32_t pp)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const struct pd_lanes lanes = pd_lanes_of(s->config, l->dp);
    const uint32_t interleave = l->pp > 1 ? l->interleave : 1;
    uint32_t depth[256];
    const struct pd_schedule_options options = {.pp = l->pp,
                                                .pp_rank = pp,
                                                .interleave = interleave,
                                                .slots = pd_schedule_slots(pd_lanes_slots(&lanes), l->pp, interleave),
                                                .units = pd_is_breadth_first(s->config, l) ? s->model->unit_count : 0};
    pd_schedule_depth(&options, depth);
    for (uint32_t c = 0; c < interleave; c++)
        memory_plan_append(s, depth[c]);
    return memory_plan_take_text(s);
}

/* ---- state of a share ---- */

/* What matters of a tensor: elements of a row, boxes, and whether it begins a page (zero.c). */
struct owned_tensor {
    struct pd_layout_cut cut;
    uint64_t row, kind;
    uint32_t experts_left; /* from its expert on; 0: of none */
};

static struct owned_tensor owned_tensor_of(const struct survey *s, uint32_t t, uint32_t tp_rank)
{
    const struct pd_tensor *tensor = &s->model->tensors.tensors[t];
    struct owned_tensor o = {0};
    uint64_t begin, end, unused;
    if (!pd_layout_cut_of(&s->laid_out->layout, tensor, t, tp_rank, &o.cut) || o.cut.chunk_begin == o.cut.chunk_end)
        return o;
    pd_layout_chunk_columns(&s->laid_out->layout, tensor, o.cut.chunk_begin, &begin, &unused);
    pd_layout_chunk_columns(&s->laid_out->layout, tensor, o.cut.chunk_end - 1, &unused, &end);
    o.row = end - begin;
    o.experts_left = tensor->expert ? s->model->config.experts - (tensor->expert - 1) : 0;
    const bool follows_vector = t > 0 && s->model->tensors.tensors[t - 1].ndim == 1;
    o.kind = 4ull * (o.cut.chunk_end - o.cut.chunk_begin) + 2 * (tensor->ndim > 1 && follows_vector) + (o.cut.q_stride > 1);
    return o;
}

/* Appends what share q owns of some tensors of a unit, and up to which share it is the same. list (count) Returns whether it
 * owns anything. */
static bool append_cuts(struct survey *s, const struct owned_tensor *list, uint32_t count, uint32_t q, uint32_t *ret_end)
{
    uint32_t end = s->shares;
    bool owns_any = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_layout_cut *cut = &list[i].cut;
        const uint32_t stride = cut->q_stride, last = cut->q_first + (cut->part_count - 1) * stride,
                       bounds[] = {cut->q_first, last, last + 1};
        if (!cut->part_count) continue;
        for (int k = 0; k < 3; k++)
            if (bounds[k] > q && bounds[k] < end) end = bounds[k];
        if (stride > 1) end = q + 1;
        if (stride > 1 && list[i].experts_left) {
            /* Experts of other ep ranks: goes on with the next one of q's rank. Their tensors follow each other. */
            const uint32_t ahead = (q % stride + stride - cut->q_first % stride) % stride;
            if (ahead) i += PD_EXPERT_TENSORS * (ahead < list[i].experts_left ? ahead : list[i].experts_left) - 1;
            if (ahead) continue;
        }
        if (q < cut->q_first || q > last || (q - cut->q_first) % stride) continue;
        owns_any = true;
        const uint64_t rows =
            q < last ? cut->part_rows : cut->row_end - cut->row_begin - (cut->part_count - 1) * cut->part_rows;
        memory_plan_append(s, rows * list[i].row);
        memory_plan_append(s, list[i].kind);
    }
    *ret_end = end;
    return owns_any;
}

/* Adds every share's part of tensors [begin, end) to its digest, by the kind of unit. */
static pd_status own_tensors(struct survey *s, uint32_t begin, uint32_t end, uint32_t tp_rank, uint64_t kind,
                             struct pd_error *err)
{
    const uint32_t count = end - begin;
    struct owned_tensor *list = calloc(count, sizeof *list);
    if (!list) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    for (uint32_t i = 0; i < count; i++)
        list[i] = owned_tensor_of(s, begin + i, tp_rank);
    for (uint32_t q = 0, same = 0; q < s->shares; q = same) {
        if (!append_cuts(s, list, count, q, &same)) continue;
        memory_plan_append(s, kind);
        const uint64_t part = memory_plan_take_text(s);
        for (uint32_t k = q; k < same; k++)
            s->owned[k] += part;
    }
    free(list);
    return PD_OK;
}

/* Blocks are alike: a share that owns a norm in one block needs as much as one that owns it in another, except in a stage's
 * first block, and if budgets keep some blocks. */
static pd_status own_stage(struct survey *s, uint32_t pp, uint32_t tp_rank, struct pd_error *err)
{
    enum { EMBEDDING, HEAD, FIRST_BLOCK, BLOCK, TIED, BLOCK_BY_ITSELF };
    const struct pd_layout *l = &s->laid_out->layout;
    const uint32_t last = s->model->unit_count - 1, *first = s->model->unit_first;
    const bool has_budgets =
        s->config->offload.optimizer_budget || s->config->offload.parameters_budget || s->config->offload.gradients_budget;
    bool is_first = true;
    memset(s->owned, 0, s->shares * sizeof *s->owned);
    for (uint32_t unit = 0; unit <= last; unit++) {
        if (pd_layout_unit_pp(l, unit) != pp) continue;
        const uint64_t kind = unit == 0      ? EMBEDDING
                              : unit == last ? HEAD
                              : is_first     ? FIRST_BLOCK
                              : has_budgets  ? BLOCK_BY_ITSELF + (uint64_t)unit
                                             : BLOCK;
        const bool is_dense = unit > 0 && unit < last && !pd_model_has_experts(&s->model->config, unit - 1);
        PD_TRY(own_tensors(s, first[unit], first[unit + 1], tp_rank, 2 * kind + is_dense, err));
        is_first = unit == 0;
    }
    if (s->model->config.tie_embeddings && l->pp > 1 && pp + 1 == l->pp)
        PD_TRY(own_tensors(s, 0, 1, tp_rank, 2 * TIED, err));
    return PD_OK;
}

/* ---- bytes ---- */

static struct pd_memory_plan sum_of(struct pd_memory_plan a, const struct pd_memory_plan *b, uint64_t sign)
{
    for (int c = 0; c < PD_MEMORY_CATEGORY_COUNT; c++) {
        a.bytes[c] += sign * b->bytes[c];
        a.host_bytes[c] += sign * b->host_bytes[c];
        a.noted_bytes[c] += sign * b->noted_bytes[c];
    }
    a.library_bytes += sign * b->library_bytes;
    return a;
}

static int by_key(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct key));
}

static void **tree_of(struct survey *s, const struct key *key)
{
    return key->what == PLACE ? &s->places : &s->states->tree;
}

/* NULL: not yet. */
static const struct pd_memory_plan *memory_plan_find(struct survey *s, const struct key *key)
{
    struct known *const *found = tfind(key, tree_of(s, key), by_key);
    return found ? &(*found)->bytes : NULL;
}

static pd_status remember(struct survey *s, const struct key *key, struct pd_memory_plan bytes, struct pd_error *err)
{
    struct known *known = malloc(sizeof *known);
    if (known) *known = (struct known){*key, bytes};
    if (known && tsearch(known, tree_of(s, key), by_key)) return PD_OK;
    free(known);
    PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
}

static pd_status memory_plan_bytes_of(struct survey *s, uint32_t rank, struct key place, struct key state,
                                      struct pd_memory_plan *ret_bytes, struct pd_error *err)
{
    struct key origin = place;
    origin.what = ORIGIN, origin.part = 0;
    const struct pd_memory_plan *p = memory_plan_find(s, &place), *z = memory_plan_find(s, &state);
    if (p && z) {
        *ret_bytes = sum_of(*p, z, 1);
        return PD_OK;
    }
    const struct pd_engine_options options = {.config = s->config,
                                              .model = s->model,
                                              .world = s->world,
                                              .rank = rank,
                                              .threads = s->threads,
                                              .laid_out = s->laid_out,
                                              .is_gpu = s->config->run.device == PD_DEVICE_GPU};
    s->memory->recipes++;
    PD_TRY(pd_engine_plan_of(&options, ret_bytes, err));
    if (p) return remember(s, &state, sum_of(*ret_bytes, p, UINT64_MAX), err);
    if (z) return remember(s, &place, sum_of(*ret_bytes, z, UINT64_MAX), err);
    if (memory_plan_find(s, &origin)) return PD_OK; /* two unknowns and one sum: later ranks tell */
    PD_TRY(remember(s, &origin, (struct pd_memory_plan){0}, err));
    PD_TRY(remember(s, &place, *ret_bytes, err));
    return remember(s, &state, (struct pd_memory_plan){0}, err);
}

static pd_status add_rank(struct survey *s, uint32_t rank, const struct pd_memory_plan *bytes, struct pd_error *err)
{
    struct pd_world_memory *m = s->memory;
    if (s->group >= m->group_count || memcmp(&m->groups[s->group].plan, bytes, sizeof *bytes))
        for (s->group = 0; s->group < m->group_count; s->group++)
            if (!memcmp(&m->groups[s->group].plan, bytes, sizeof *bytes)) break;
    if (s->group == m->group_count) {
        if (!pd_grow(&m->groups, m->group_count, sizeof *m->groups)) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
        m->groups[m->group_count++] = (struct pd_memory_group){.first_rank = rank, .plan = *bytes};
    }
    struct pd_memory_group *group = &m->groups[s->group];
    group->ranks++;
    if (rank < group->first_rank) group->first_rank = rank;
    m->mean_bytes += (double)pd_memory_of_device(s->config, &group->plan) / s->world;
    return PD_OK;
}

static pd_status survey_place(struct survey *s, uint32_t pp, uint32_t tp, struct pd_error *err)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const uint64_t shape = describe_shape(s, pp), depth = describe_depth(s, pp);
    PD_TRY(own_stage(s, pp, tp, err));
    for (uint32_t q = 0; q < s->shares; q++) {
        const uint32_t rank = (pp * s->shares + q) * l->tp + tp;
        const struct key place = {
            s->layout, shape, s->tp_parts[tp * pd_layout_ep(l) + q % pd_layout_ep(l)], s->sp_tokens[q % l->sp],
            PLACE,     depth};
        struct key state = place;
        struct pd_memory_plan bytes;
        state.what = q < l->zero_shard ? STATE : REPLICA;
        state.part = s->owned[q % l->zero_shard];
        PD_TRY(memory_plan_bytes_of(s, rank, place, state, &bytes, err));
        PD_TRY(add_rank(s, rank, &bytes, err));
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
    const uint32_t ep = pd_layout_ep(l);
    s->tp_parts = calloc((size_t)l->tp * ep, sizeof *s->tp_parts);
    s->sp_tokens = calloc(l->sp, sizeof *s->sp_tokens);
    s->owned = calloc(s->shares, sizeof *s->owned);
    if (!s->tp_parts || !s->sp_tokens || !s->owned) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    pd_digest_stream_init(&s->text, 0);
    s->layout = describe_layout(s);
    for (uint32_t i = 0; i < l->tp * ep; i++)
        s->tp_parts[i] = describe_tp(s, i / ep, i % ep, s->owned); /* which has at least zero_shard words, unused so far */
    for (uint32_t sp = 0; sp < l->sp; sp++) {
        const struct pd_partition p = {.tp = 1, .virtual_tp = 1, .sp = l->sp, .sp_rank = sp, .virtual_sp = l->virtual_sp};
        s->sp_tokens[sp] = pd_partition_tokens(&p, s->config->batch.context);
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
                               const struct pd_laid_out *laid_out, struct pd_memory_states *states,
                               struct pd_world_memory *ret_memory, struct pd_error *err)
{
    struct pd_world_memory memory = {0};
    struct pd_memory_states own = {0};
    struct survey s = {.config = config,
                       .model = model,
                       .laid_out = laid_out,
                       .threads = threads,
                       .world = pd_layout_world(&laid_out->layout),
                       .shares = laid_out->layout.dp * laid_out->layout.sp,
                       .states = states ? states : &own,
                       .memory = &memory};
    pd_status st = survey_all(&s, err);
    tdestroy(s.places, free);
    pd_memory_states_deinit(&own);
    free(s.tp_parts);
    free(s.sp_tokens);
    free(s.owned);
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

void pd_memory_states_deinit(struct pd_memory_states *states)
{
    tdestroy(states->tree, free);
    states->tree = NULL;
}
