/* Ranks that need the same bytes, found without planning each of them.
 *
 *   1. What a rank computes and what it owns are described by words; equal descriptions have equal numbers. Descriptions
 *      are compared as a whole: a hash finds them and decides nothing.
 *   2. Within one shape (stage, tensor-parallel part, tokens) bytes = place + state. The first rank of a shape is its
 *      origin: its place takes all of its bytes, its state none.
 *   3. A rank whose place and state are both known costs an addition; any other one run of the engine's recipe. */
#include "trainer/plan/memory_plan.h"

#include "ckpt/base/digest.h"
#include "trainer/parallel/schedule.h"

#include <stdlib.h>
#include <string.h>

/* Keys of any length, numbered from 0 in the order in which they came. */
struct table {
    uint64_t *words; /* of all keys, one behind the other */
    struct row {
        size_t first, count; /* of its words */
    } * rows;
    size_t word_count, word_room;
    uint32_t *slots; /* number + 1 of a key, by its hash; 0: free */
    uint32_t count, room, slot_count;
};

/* What bytes are known of. */
enum { ORIGIN, PLACE, STATE };
struct key {
    uint64_t shape, tp, tokens; /* numbers of descriptions; tokens as they are */
    uint64_t what, part;        /* part of a place: what it keeps; of a state: what it owns */
};

struct survey {
    const struct pd_config *config;
    const struct pd_model *model;
    const struct pd_laid_out *laid_out;
    uint32_t threads, world, shares;    /* shares: dp * sp, ranks of a pipeline place */
    struct table descriptions;          /* of shapes, of tensor-parallel parts, of depths, of shares of a unit */
    struct table owned_sets;            /* what a share owns: pairs of such a number and how often, by number */
    struct table additions;             /* of one more to such a set: {set, number} */
    uint32_t *addition_to;              /* (additions) the set that it makes */
    struct table known, groups;         /* by struct key; by struct pd_memory_plan: the group's index */
    struct pd_memory_plan *known_bytes; /* (known); what a state or a place adds, modulo 2^64 */
    uint64_t *text;                     /* the description that is being written */
    size_t text_count, text_room, addition_room, known_room, group_room;
    uint32_t *tp_parts;  /* (tp) what a tensor-parallel rank computes */
    uint64_t *sp_tokens; /* (sp) that a sequence-parallel rank holds */
    uint32_t *owned;     /* (shares) the set that each share of the current place owns */
    struct pd_world_memory *memory;
};

/* ---- numbers of descriptions ---- */

static bool grow(void *array, size_t item_bytes, size_t needed, size_t *room)
{
    void **items = array;
    const size_t more = needed < 128 ? 256 : 2 * needed;
    if (needed <= *room) return true;
    void *grown = realloc(*items, more * item_bytes);
    if (!grown) return false;
    *items = grown;
    *room = more;
    return true;
}

/* The slot of a key, or the free one where it belongs. */
static uint32_t *slot_of(const struct table *t, const uint64_t *words, size_t count)
{
    uint64_t at = pd_digest_words(words, count, 0);
    for (;; at++) {
        uint32_t *slot = &t->slots[at & (t->slot_count - 1)];
        const struct row *row = *slot ? &t->rows[*slot - 1] : NULL;
        if (!row) return slot;
        if (row->count == count && !memcmp(t->words + row->first, words, count * sizeof *words)) return slot;
    }
}

static bool make_room(struct table *t, size_t words)
{
    size_t rows = t->room;
    if (!grow(&t->words, sizeof *t->words, t->word_count + words, &t->word_room)) return false;
    if (!grow(&t->rows, sizeof *t->rows, t->count + 1ull, &rows)) return false;
    t->room = (uint32_t)rows;
    if (2 * (t->count + 1) <= t->slot_count) return true;
    uint32_t *slots = calloc(t->slot_count ? 2ull * t->slot_count : 256, sizeof *slots);
    if (!slots) return false;
    free(t->slots);
    t->slots = slots;
    t->slot_count = t->slot_count ? 2 * t->slot_count : 256;
    for (uint32_t i = 0; i < t->count; i++)
        *slot_of(t, t->words + t->rows[i].first, t->rows[i].count) = i + 1;
    return true;
}

/* False: there is no such key. */
static bool find(const struct table *t, const void *key, size_t bytes, uint32_t *ret_number)
{
    const uint32_t slot = t->count ? *slot_of(t, key, bytes / sizeof(uint64_t)) : 0;
    if (slot) *ret_number = slot - 1;
    return slot;
}

/* Its number, a new one where there is none. `key` lies outside the table. */
static pd_status number_of(struct table *t, const void *key, size_t bytes, uint32_t *ret_number, struct pd_error *err)
{
    const size_t count = bytes / sizeof(uint64_t);
    if (find(t, key, bytes, ret_number)) return PD_OK;
    if (!make_room(t, count)) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    *slot_of(t, key, count) = t->count + 1;
    t->rows[t->count] = (struct row){t->word_count, count};
    memcpy(t->words + t->word_count, key, bytes);
    t->word_count += count;
    *ret_number = t->count++;
    return PD_OK;
}

static pd_status append(struct survey *s, uint64_t word, struct pd_error *err)
{
    if (!grow(&s->text, sizeof *s->text, s->text_count + 1, &s->text_room))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    s->text[s->text_count++] = word;
    return PD_OK;
}

/* The number of what was appended, which is forgotten. */
static pd_status number_text(struct survey *s, struct table *t, uint32_t *ret_number, struct pd_error *err)
{
    const size_t bytes = s->text_count * sizeof *s->text;
    s->text_count = 0;
    return number_of(t, s->text, bytes, ret_number, err);
}

/* ---- what a rank computes ---- */

static pd_status append_boxes(struct survey *s, const struct pd_partition *p, uint32_t t, bool is_computed,
                              struct pd_error *err)
{
    struct pd_box boxes[PD_LAYOUT_CHUNKS_MAX];
    const uint32_t count =
        (is_computed ? pd_partition_computed : pd_partition_needed)(s->model, p, t, boxes, PD_LAYOUT_CHUNKS_MAX);
    PD_TRY(append(s, count, err));
    for (uint32_t b = 0; b < count; b++) {
        PD_TRY(append(s, boxes[b].count[0], err));
        PD_TRY(append(s, s->model->tensors.tensors[t].ndim > 1 ? boxes[b].count[1] : 1, err));
    }
    return PD_OK;
}

/* Sizes of a tensor-parallel part: those of every block are the first one's. */
static pd_status describe_tp(struct survey *s, uint32_t tp_rank, uint32_t *ret_number, struct pd_error *err)
{
    const struct pd_layout *l = &s->laid_out->layout;
    const struct pd_partition p = {.tp = l->tp, .tp_rank = tp_rank, .virtual_tp = l->virtual_tp, .sp = 1, .virtual_sp = 1};
    const uint32_t units[] = {0, 1, s->model->unit_count - 1};
    for (int u = 0; u < 3; u++)
        for (uint32_t t = s->model->unit_first[units[u]]; t < s->model->unit_first[units[u] + 1]; t++) {
            PD_TRY(append_boxes(s, &p, t, false, err));
            PD_TRY(append_boxes(s, &p, t, true, err));
        }
    /* What sums of gradients depend on besides: the largest part of every unit, and who owns the key-value heads. */
    const struct pd_model_config *m = &s->model->config;
    const struct pd_range owned = pd_partition_units(&p, m->kv_heads),
                          computed = pd_partition_kv_computed(m, pd_partition_units(&p, m->heads));
    uint64_t *by_part = calloc(s->laid_out->layout.zero_shard, sizeof *by_part);
    if (!by_part) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    pd_status st = PD_OK;
    for (uint32_t unit = 0; unit < s->model->unit_count && !st; unit++)
        st = append(s, pd_zero_part_elements(s->model, &s->laid_out->layout, unit, p.tp_rank, by_part), err);
    free(by_part);
    PD_TRY(st);
    PD_TRY(append(s, owned.end - owned.begin, err));
    PD_TRY(append(s, owned.begin - computed.begin, err));
    return number_text(s, &s->descriptions, ret_number, err);
}

/* A pipeline place but for the micro-batches it keeps. */
static pd_status describe_shape(struct survey *s, uint32_t pp, uint32_t *ret_number, struct pd_error *err)
{
    const struct pd_layout *l = &s->laid_out->layout;
    PD_TRY(append(s, pp == 0, err));
    PD_TRY(append(s, pp + 1 == l->pp, err));
    for (uint32_t c = 0; c < l->interleave; c++) {
        const struct pd_stage stage = pd_grid_stage(l, s->model, pp, c);
        PD_TRY(append(s, stage.block_count, err));
        PD_TRY(append(s, stage.has_embedding * 2u + stage.has_head, err));
    }
    return number_text(s, &s->descriptions, ret_number, err);
}

/* Micro-batches that a place keeps of each of its chunks. */
static pd_status describe_depth(struct survey *s, uint32_t pp, uint32_t *ret_number, struct pd_error *err)
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
        PD_TRY(append(s, depth[c], err));
    return number_text(s, &s->descriptions, ret_number, err);
}

/* ---- what a share of the state owns ---- */

/* The set with one more of `number` in it. */
static pd_status add_to_set(struct survey *s, uint32_t set, uint32_t number, uint32_t *ret_set, struct pd_error *err)
{
    const uint64_t addition[] = {set, number};
    uint32_t a, sum;
    if (find(&s->additions, addition, sizeof addition, &a)) {
        *ret_set = s->addition_to[a];
        return PD_OK;
    }
    const struct row row = s->owned_sets.rows[set];
    bool is_in = false;
    for (size_t i = 0; i <= row.count; i += 2) { /* pairs in the order of their numbers */
        const uint64_t *pair = s->owned_sets.words + row.first + i;
        const bool is_end = i == row.count;
        if (!is_in && (is_end || pair[0] >= number)) {
            const bool is_more = !is_end && pair[0] == number;
            PD_TRY(append(s, number, err));
            PD_TRY(append(s, is_more ? pair[1] + 1 : 1, err));
            is_in = true;
            if (is_more) continue;
        }
        if (is_end) break;
        PD_TRY(append(s, pair[0], err));
        PD_TRY(append(s, pair[1], err));
    }
    PD_TRY(number_text(s, &s->owned_sets, &sum, err));
    PD_TRY(number_of(&s->additions, addition, sizeof addition, &a, err));
    if (!grow(&s->addition_to, sizeof *s->addition_to, a + 1ull, &s->addition_room))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    s->addition_to[a] = *ret_set = sum;
    return PD_OK;
}

/* What share q owns of some tensors of a unit, appended; up to which share it is the same.   cuts (count) */
static pd_status append_cuts(struct survey *s, const struct pd_layout_cut *cuts, uint32_t count, uint32_t q,
                             uint32_t *ret_end, struct pd_error *err)
{
    uint32_t end = s->shares;
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_layout_cut *cut = &cuts[i];
        const uint32_t last = cut->q_first + cut->part_count - 1, bounds[] = {cut->q_first, last, last + 1};
        if (!cut->part_count) continue;
        for (int b = 0; b < 3; b++)
            if (bounds[b] > q && bounds[b] < end) end = bounds[b];
        if (q < cut->q_first || q > last) continue;
        PD_TRY(append(s, i, err));
        PD_TRY(append(s, q < last ? cut->part_rows : cut->row_end - cut->row_begin - (cut->part_count - 1) * cut->part_rows,
                      err));
    }
    *ret_end = end;
    return PD_OK;
}

/* Every share's part of tensors [begin, end) goes into its set, under the kind of their unit. */
static pd_status own_tensors(struct survey *s, uint32_t begin, uint32_t end, uint32_t tp_rank, uint64_t kind,
                             struct pd_error *err)
{
    const uint32_t count = end - begin;
    struct pd_layout_cut *cuts = calloc(count, sizeof *cuts);
    pd_status st = cuts ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a plan");
    for (uint32_t i = 0; !st && i < count; i++) {
        struct pd_layout_cut cut;
        if (pd_layout_cut_of(&s->laid_out->layout, &s->model->tensors.tensors[begin + i], begin + i, tp_rank, &cut))
            cuts[i] = cut;
    }
    for (uint32_t q = 0, same = 0; !st && q < s->shares; q = same) {
        uint32_t number;
        st = append_cuts(s, cuts, count, q, &same, err);
        if (!st && !s->text_count) continue; /* nothing */
        if (!st) st = append(s, kind, err);
        if (!st) st = number_text(s, &s->descriptions, &number, err);
        for (uint32_t k = q, before = 0, after = 0; !st && k < same; k++) { /* neighbours mostly own the same */
            if (k == q || s->owned[k] != before) st = add_to_set(s, before = s->owned[k], number, &after, err);
            s->owned[k] = after;
        }
    }
    free(cuts);
    return st;
}

/* Blocks are alike: a share that owns a norm of one takes what a share takes that owns the same norm of another, but for
 * the first of a stage, and where budgets keep some of the blocks. */
static pd_status own_stage(struct survey *s, uint32_t pp, uint32_t tp_rank, struct pd_error *err)
{
    enum { EMBEDDING, HEAD, FIRST_BLOCK, BLOCK, TIED, BLOCK_BY_ITSELF };
    const struct pd_layout *l = &s->laid_out->layout;
    const uint32_t last = s->model->unit_count - 1, *first = s->model->unit_first;
    const bool has_budgets =
        s->config->offload.optimizer_budget || s->config->offload.parameters_budget || s->config->offload.gradients_budget;
    bool is_first = true;
    memset(s->owned, 0, s->shares * sizeof *s->owned); /* set 0 is empty */
    for (uint32_t unit = 0; unit <= last; unit++) {
        if (pd_layout_unit_pp(l, unit) != pp) continue;
        const uint64_t kind = unit == 0      ? EMBEDDING
                              : unit == last ? HEAD
                              : is_first     ? FIRST_BLOCK
                              : has_budgets  ? BLOCK_BY_ITSELF + (uint64_t)unit
                                             : BLOCK;
        PD_TRY(own_tensors(s, first[unit], first[unit + 1], tp_rank, kind, err));
        is_first = unit == 0;
    }
    if (s->model->config.tie_embeddings && l->pp > 1 && pp + 1 == l->pp) PD_TRY(own_tensors(s, 0, 1, tp_rank, TIED, err));
    return PD_OK;
}

/* A share beyond the first zero_shard holds what another owns. */
static uint64_t state_of(const struct survey *s, uint32_t q)
{
    const uint32_t parts = s->laid_out->layout.zero_shard;
    return 2ull * s->owned[q % parts] + (q < parts);
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

static const struct pd_memory_plan *known(const struct survey *s, const struct key *key)
{
    uint32_t i;
    return find(&s->known, key, sizeof *key, &i) ? &s->known_bytes[i] : NULL;
}

static pd_status remember(struct survey *s, const struct key *key, struct pd_memory_plan bytes, struct pd_error *err)
{
    uint32_t i;
    PD_TRY(number_of(&s->known, key, sizeof *key, &i, err));
    if (!grow(&s->known_bytes, sizeof *s->known_bytes, i + 1ull, &s->known_room))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    s->known_bytes[i] = bytes;
    return PD_OK;
}

static pd_status bytes_of(struct survey *s, uint32_t rank, struct key shape, uint64_t depth, uint64_t owned,
                          struct pd_memory_plan *ret_bytes, struct pd_error *err)
{
    struct key origin = shape, place = shape, state = shape;
    origin.what = ORIGIN;
    place.what = PLACE, place.part = depth;
    state.what = STATE, state.part = owned;
    const struct pd_memory_plan *p = known(s, &place), *z = known(s, &state);
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
    if (known(s, &origin)) return PD_OK; /* two unknowns and one sum: later ranks tell */
    PD_TRY(remember(s, &origin, (struct pd_memory_plan){0}, err));
    PD_TRY(remember(s, &place, *ret_bytes, err));
    return remember(s, &state, (struct pd_memory_plan){0}, err);
}

static pd_status add_rank(struct survey *s, uint32_t rank, const struct pd_memory_plan *bytes, struct pd_error *err)
{
    struct pd_world_memory *m = s->memory;
    uint32_t g;
    PD_TRY(number_of(&s->groups, bytes, sizeof *bytes, &g, err));
    if (g == m->group_count) {
        if (!grow(&m->groups, sizeof *m->groups, g + 1ull, &s->group_room))
            PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
        m->groups[m->group_count++] = (struct pd_memory_group){.first_rank = rank, .plan = *bytes};
    }
    struct pd_memory_group *group = &m->groups[g];
    group->ranks++;
    if (rank < group->first_rank) group->first_rank = rank;
    m->mean_bytes += (double)pd_memory_of_device(s->config, &group->plan) / s->world;
    return PD_OK;
}

static pd_status survey_place(struct survey *s, uint32_t pp, uint32_t tp, struct pd_error *err)
{
    const struct pd_layout *l = &s->laid_out->layout;
    uint32_t shape, depth;
    PD_TRY(describe_shape(s, pp, &shape, err));
    PD_TRY(describe_depth(s, pp, &depth, err));
    PD_TRY(own_stage(s, pp, tp, err));
    for (uint32_t q = 0; q < s->shares; q++) {
        const uint32_t rank = (pp * s->shares + q) * l->tp + tp;
        const struct key key = {.shape = shape, .tp = s->tp_parts[tp], .tokens = s->sp_tokens[q % l->sp]};
        struct pd_memory_plan bytes;
        PD_TRY(bytes_of(s, rank, key, depth, state_of(s, q), &bytes, err));
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
    uint32_t empty;
    s->tp_parts = calloc(l->tp, sizeof *s->tp_parts);
    s->sp_tokens = calloc(l->sp, sizeof *s->sp_tokens);
    s->owned = calloc(s->shares, sizeof *s->owned);
    if (!s->tp_parts || !s->sp_tokens || !s->owned) PD_FAIL(err, PD_NO_MEMORY, "no memory for a plan");
    PD_TRY(number_of(&s->owned_sets, "", 0, &empty, err));
    for (uint32_t tp = 0; tp < l->tp; tp++)
        PD_TRY(describe_tp(s, tp, &s->tp_parts[tp], err));
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

static void survey_deinit(struct survey *s)
{
    struct table *tables[] = {&s->descriptions, &s->owned_sets, &s->additions, &s->known, &s->groups};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        free(tables[i]->words);
        free(tables[i]->rows);
        free(tables[i]->slots);
    }
    free(s->addition_to);
    free(s->known_bytes);
    free(s->text);
    free(s->tp_parts);
    free(s->sp_tokens);
    free(s->owned);
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
    survey_deinit(&s);
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
