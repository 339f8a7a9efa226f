/* Gradients to sums: adds up a lane's micro-batch gradients in fp32, then converts them to terms, each placed where its
 * owner reads it. Terms for other tensor-parallel ranks follow those of this rank's parts. */
#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

bool pd_zero_is_redirected(const struct pd_zero *zero, uint32_t set, uint32_t e, enum pd_zero_use use)
{
    return (use == PD_ZERO_TERMS ? zero->joins_tied : zero->reads_once) && set > 0 && zero->sets[set].tensors[e] == 0;
}

/* Every tensor-parallel rank has the gradient of an uncut tensor; the owner uses its own. */
static bool is_shared(const struct pd_zero *zero, uint32_t set, uint32_t e, enum pd_zero_use use, bool is_own)
{
    if (use == PD_ZERO_PARAMETERS) return !pd_zero_is_redirected(zero, set, e, use);
    return is_own || zero->model->tensors.tensors[zero->sets[set].tensors[e]].tp_dim >= 0;
}

pd_status pd_zero_each_share(const struct pd_zero *zero, uint32_t set, enum pd_zero_use use, uint32_t user_tp,
                             uint32_t owner_tp,
                             pd_status (*visit)(void *context, const struct pd_zero_share *share, struct pd_error *err),
                             void *context, struct pd_error *err)
{
    struct pd_zero_run runs[PD_LAYOUT_CHUNKS_MAX];
    struct pd_zero_place user[PD_ZERO_SET_TENSORS_MAX], owner[PD_ZERO_SET_TENSORS_MAX];
    const struct pd_zero_set *s = &zero->sets[set];
    for (uint32_t e = 0; e < s->count; e++) {
        user[e] = pd_zero_place_of(zero, s->tensors[e], user_tp);
        owner[e] = pd_zero_place_of(zero, s->tensors[e], owner_tp);
    }
    for (uint32_t part = 0; part < zero->parts; part++) {
        uint64_t before = 0;
        for (uint32_t e = 0; e < s->count; e++) {
            const struct pd_zero_slab held = pd_zero_held_slab(zero, &owner[e], part),
                                      *used = use == PD_ZERO_TERMS ? &user[e].computed : &user[e].needed;
            const bool is_tied = pd_zero_is_redirected(zero, set, e, use);
            const uint32_t count =
                is_shared(zero, set, e, use, user_tp == owner_tp) ? pd_zero_runs(zero, s->tensors[e], used, &held, runs) : 0;
            for (uint32_t i = 0; i < count; i++) {
                const struct pd_zero_share share = {
                    e, part, is_tied, runs[i].at_a, (is_tied ? 0 : before) + runs[i].at_b, runs[i].elements};
                PD_TRY(visit(context, &share, err));
            }
            before += is_tied ? 0 : pd_zero_slab_elements(zero, s->tensors[e], &held);
        }
    }
    return PD_OK;
}

/* ---- a batch of runs ---- */

struct batch {
    struct pd_zero *zero;
    uint32_t set;
    enum pd_term_source source;
    const float *gradients; /* of the set's elements [begin, end), as they are computed */
    uint64_t begin, end;
    uint32_t filled[2]; /* tensors that had terms before: of the set, of set 0 */
    int64_t *elsewhere; /* destination of the next term owned by another rank; NULL: this rank owns them */
    struct pd_term_run runs[PD_TERM_RUNS_MAX];
    uint32_t count;
};

static pd_status make_runs(const struct pd_zero *zero, enum pd_term_source source, const struct pd_term_run *runs,
                           uint32_t count, struct pd_error *err)
{
    const struct pd_terms terms = {.runs = runs,
                                   .run_count = count,
                                   .source = source,
                                   .scale = zero->quantum.scale / zero->loss_scale,
                                   .limit = zero->quantum.limit,
                                   .mark = zero->attempt};
    return pd_terms(zero->math, &terms, err);
}

static pd_status zero_terms_flush(struct batch *b, struct pd_error *err)
{
    const uint32_t count = b->count;
    b->count = 0;
    return make_runs(b->zero, b->source, b->runs, count, err);
}

static pd_status zero_terms_put(struct batch *b, const struct pd_term_run *run, struct pd_error *err)
{
    b->runs[b->count++] = *run;
    return b->count == PD_TERM_RUNS_MAX ? zero_terms_flush(b, err) : PD_OK;
}

static int64_t *check_of(const struct pd_zero_set *s, uint32_t part)
{
    return s->terms->data + (part + 1) * s->stride - 1;
}

/* Adds this batch's elements of a share. The receiver computes checksums for other owners. */
static pd_status put_share(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct batch *b = context;
    const struct pd_zero_set *s = &b->zero->sets[b->set], *to = share->is_tied ? &b->zero->sets[0] : s;
    const uint64_t first = s->computed[share->e] + share->used_at, from = pd_max_u64(first, b->begin),
                   end = pd_min_u64(first + share->elements, b->end);
    int64_t *terms = b->elsewhere ? b->elsewhere : to->terms->data + share->part * to->stride + share->part_at;
    const struct pd_term_run run = {.from = b->gradients + (from - b->begin),
                                    .to = terms + (from - first),
                                    .n = end - from,
                                    .adds = (b->filled[share->is_tied] >> (share->is_tied ? 0 : share->e) & 1) != 0,
                                    .check = b->elsewhere ? NULL : check_of(to, share->part),
                                    .flags = &b->zero->marks[2 * s->tensors[share->e]]};
    if (b->elsewhere) b->elsewhere += share->elements;
    return from < end ? zero_terms_put(b, &run, err) : PD_OK;
}

/* ---- a set's terms ---- */

pd_status pd_zero_add_run(const struct pd_zero *zero, const struct pd_term_run *run, struct pd_error *err)
{
    return make_runs(zero, PD_TERM_INTEGER, run, 1, err);
}

/* Buffer for the set's next terms: the other of two, if it has none of its own. */
static void choose_terms(struct pd_zero *zero, uint32_t set)
{
    if (zero->sets[set].own_terms.data) return;
    zero->sets[set].terms = &zero->turns[zero->next_turn];
    zero->next_turn = 1 - zero->next_turn;
}

pd_status pd_zero_clear_terms(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    struct pd_zero_set *s = &zero->sets[set];
    choose_terms(zero, set);
    const struct pd_term_run zeros = {.to = s->terms->data, .n = zero->parts * s->stride + s->elsewhere};
    s->filled = UINT32_MAX;
    return pd_zero_add_run(zero, &zeros, err);
}

/* Before the first terms since the last exchange. Pieces are parts of a tensor, so they are added to zeros. */
static pd_status begin_terms(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    struct pd_zero_set *s = &zero->sets[set];
    struct batch b = {.zero = zero, .source = PD_TERM_INTEGER};
    if (s->filled) return PD_OK;
    if (zero->pieces > 1) return pd_zero_clear_terms(zero, set, err);
    choose_terms(zero, set);
    for (uint32_t part = 0; part < zero->parts; part++) {
        const struct pd_term_run clear = {.check = check_of(s, part), .check_begins = true};
        PD_TRY(zero_terms_put(&b, &clear, err));
    }
    return zero_terms_flush(&b, err);
}

static const char the_terms[] = "the terms";

/* Converts elements [begin, end) of the set to terms, or adds them to terms. */
static pd_status make_terms(struct pd_zero *zero, uint32_t set, const float *gradients, uint64_t begin, uint64_t end,
                            struct pd_error *err)
{
    struct pd_zero_set *s = &zero->sets[set];
    const uint32_t me = zero->grid->place.tp;
    const bool has_tied = pd_zero_is_redirected(zero, set, s->count - 1, PD_ZERO_TERMS);
    PD_TRY(begin_terms(zero, set, err));
    if (has_tied) PD_TRY(begin_terms(zero, 0, err));
    struct batch b = {.zero = zero, .set = set, .source = PD_TERM_F32, .gradients = gradients, .begin = begin, .end = end};
    b.filled[0] = s->filled, b.filled[1] = zero->sets[0].filled;
    pd_owner_acquire(&s->terms->owner, the_terms);
    pd_status st = pd_zero_each_share(zero, set, PD_ZERO_TERMS, me, me, put_share, &b, err);
    b.elsewhere = s->terms->data + zero->parts * s->stride;
    for (uint32_t t = 0; !st && s->elsewhere && t < zero->grid->layout.tp; t++)
        if (t != me) st = pd_zero_each_share(zero, set, PD_ZERO_TERMS, me, t, put_share, &b, err);
    if (!st) st = zero_terms_flush(&b, err);
    pd_owner_release(&s->terms->owner, the_terms);
    s->filled |= (1u << (s->count - has_tied)) - 1;
    if (has_tied) zero->sets[0].filled |= 1;
    return st;
}

/* ---- micro-batches ---- */

static bool begins_lane(const struct pd_zero *zero, uint32_t slot)
{
    return slot != PD_ZERO_NO_SLOT && pd_lanes_begins(&zero->lanes, zero->grid->place.dp, slot);
}

/* Whether backward writes or accumulates in the lane; without a slot, in memory of a lane that is already terms. */
static bool writes_lane(const struct pd_zero *zero, uint32_t set, uint32_t slot)
{
    return zero->sets[set].lane && (!zero->micro_batch || begins_lane(zero, slot));
}

pd_status pd_zero_micro_batch_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, float *const **ret_gradients,
                                        bool *ret_adds, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    float *base = writes_lane(zero, set, slot) ? s->lane : zero->micro_batch;
    if (slot == 0) PD_TRY(pd_zero_make_room(zero, set, err));
    zero->made_set = set;
    zero->made_slot = slot;
    for (uint32_t e = 0; e < s->count; e++)
        zero->micro_batch_pointers[e] = base + s->computed[e];
    *ret_gradients = zero->micro_batch_pointers;
    *ret_adds = zero->options.adds_in_place && slot != PD_ZERO_NO_SLOT && !begins_lane(zero, slot);
    return PD_OK;
}

void pd_zero_watch(struct pd_zero *zero, uint32_t slot, int64_t *sum)
{
    zero->watched_slot = slot;
    zero->watched_sum = sum;
}

/* Makes the terms once more, only to sum them. */
static pd_status watch(const struct pd_zero *zero, uint32_t slot, const float *gradients, uint64_t n, struct pd_error *err)
{
    const struct pd_term_run run = {.from = gradients, .n = n, .check = zero->watched_sum};
    return run.check && slot == zero->watched_slot ? make_runs(zero, PD_TERM_F32, &run, 1, err) : PD_OK;
}

pd_status pd_zero_take_piece(void *context, const float *gradient, uint64_t elements, struct pd_error *err)
{
    struct pd_zero *zero = context;
    const uint64_t begin = (uint64_t)(gradient - zero->micro_batch);
    PD_TRY(watch(zero, zero->made_slot, gradient, elements, err));
    if (zero->made_slot == PD_ZERO_NO_SLOT) return PD_OK;
    return make_terms(zero, zero->made_set, gradient, begin, begin + elements, err);
}

pd_status pd_zero_add_micro_batch(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    const uint32_t rank = zero->grid->place.dp;
    const uint64_t elements = s->computed[s->count];
    const bool is_in_lane = writes_lane(zero, set, slot);
    const float *made = is_in_lane ? s->lane : zero->micro_batch;
    if (zero->pieces > 1) return PD_OK; /* each was consumed when made */
    PD_TRY(watch(zero, slot, made, elements, err));
    if (slot == PD_ZERO_NO_SLOT) return PD_OK;
    if (!s->lane) return make_terms(zero, set, made, 0, elements, err);
    if (!is_in_lane) PD_TRY(pd_add(zero->math, elements, s->lane, made, err));
    if (!zero->has.makes_terms || !pd_lanes_ends(&zero->lanes, rank, slot)) return PD_OK;
    return make_terms(zero, set, s->lane, 0, elements, err);
}
