/* Gradients to sums: adds up a lane's micro-batch gradients in fp32, then converts them to terms, each placed where its
 * owner reads it. Terms for other tensor-parallel ranks follow the terms of this rank's parts. */
#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

#include <string.h>

bool pd_zero_is_redirected(const struct pd_zero *zero, uint32_t bucket, uint32_t e, enum pd_zero_use use)
{
    return (use == PD_ZERO_TERMS ? zero->joins_tied : zero->reads_once) && bucket > 0 &&
           zero->buckets[bucket].tensors[e] == 0;
}

/* Every tensor-parallel rank has the gradient of an uncut tensor; the owner uses its own. */
static bool is_shared(const struct pd_zero *zero, uint32_t bucket, uint32_t e, enum pd_zero_use use, bool is_own)
{
    if (use == PD_ZERO_PARAMETERS) return !pd_zero_is_redirected(zero, bucket, e, use);
    return is_own || zero->model->tensors.tensors[zero->buckets[bucket].tensors[e]].tp_dim >= 0;
}

pd_status pd_zero_each_share(const struct pd_zero *zero, uint32_t bucket, enum pd_zero_use use, uint32_t user_tp,
                             uint32_t owner_tp,
                             pd_status (*visit)(void *context, const struct pd_zero_share *share, struct pd_error *err),
                             void *context, struct pd_error *err)
{
    struct pd_zero_run runs[PD_LAYOUT_CHUNKS_MAX];
    struct pd_zero_place *user = zero->users, *owner = zero->owners;
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    for (uint32_t e = 0; e < s->count; e++) {
        user[e] = pd_zero_place_of(zero, s->tensors[e], user_tp);
        owner[e] = pd_zero_place_of(zero, s->tensors[e], owner_tp);
    }
    for (uint32_t at = 0; at < zero->parts + pd_zero_parts(zero, PD_ZERO_SPREAD); at++) {
        const uint32_t side = at < zero->parts ? PD_ZERO_COMMON : PD_ZERO_SPREAD, part = at - (side ? zero->parts : 0);
        uint64_t before = 0;
        if (!s->sides[side].stride) break;
        for (uint32_t e = 0; e < s->count; e++) {
            if (pd_zero_side_of(zero, s->tensors[e]) != side) continue;
            const struct pd_zero_slice held = pd_zero_held_slice(zero, &owner[e], pd_zero_part_rank(zero, side, part)),
                                       *used = use == PD_ZERO_TERMS ? &user[e].computed : &user[e].needed;
            const bool is_tied = pd_zero_is_redirected(zero, bucket, e, use);
            const uint32_t count = is_shared(zero, bucket, e, use, user_tp == owner_tp)
                                       ? pd_zero_runs(zero, s->tensors[e], used, &held, runs)
                                       : 0;
            for (uint32_t i = 0; i < count; i++) {
                const struct pd_zero_share share = {
                    e, side, part, is_tied, runs[i].at_a, (is_tied ? 0 : before) + runs[i].at_b, runs[i].elements};
                PD_TRY(visit(context, &share, err));
            }
            before += is_tied ? 0 : pd_zero_slice_elements(zero, s->tensors[e], &held);
        }
    }
    return PD_OK;
}

/* ---- a batch of runs ---- */

struct batch {
    struct pd_zero *zero;
    uint32_t bucket;
    enum pd_term_source source;
    const float *gradients; /* of the bucket's elements [begin, end), as they are computed */
    uint64_t begin, end;
    uint32_t filled[2]; /* tensors that had terms before: of the bucket, of bucket 0 */
    char *elsewhere;    /* destination of the next term owned by another rank; NULL: this rank owns them */
    struct pd_term_run runs[PD_TERM_RUNS_MAX];
    uint32_t count;
};

static pd_status make_runs(const struct pd_zero *zero, enum pd_term_source source, const struct pd_term_run *runs,
                           uint32_t count, struct pd_error *err)
{
    const struct pd_terms terms = {.runs = runs,
                                   .run_count = count,
                                   .source = source,
                                   .limit = zero->quantum.limit,
                                   .mark = zero->attempt,
                                   .are_narrow = zero->term_bytes < sizeof(int64_t)};
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

static void *check_of(const struct pd_zero *zero, const struct pd_zero_bucket *s, uint32_t side, uint32_t part)
{
    return pd_zero_term(zero, s->terms->data, s->sides[side].terms_at + (part + 1) * s->sides[side].stride - 1);
}

static float term_scale_of(const struct pd_zero *zero, uint32_t tensor)
{
    return (float)(pd_zero_quantum(zero, tensor).scale / zero->loss_scale);
}

/* Adds this batch's elements of a share. The receiver computes checksums for other owners. */
static pd_status put_share(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct batch *b = context;
    const struct pd_zero_bucket *s = &b->zero->buckets[b->bucket], *to = share->is_tied ? &b->zero->buckets[0] : s;
    const uint64_t first = s->computed[share->e] + share->used_at, from = pd_max_u64(first, b->begin),
                   end = pd_min_u64(first + share->elements, b->end);
    const struct pd_zero_side *side = &to->sides[share->side];
    char *terms = b->elsewhere
                      ? b->elsewhere
                      : pd_zero_term(b->zero, to->terms->data, side->terms_at + share->part * side->stride + share->part_at);
    const struct pd_term_run run = {.from = b->gradients + (from - b->begin),
                                    .to = pd_zero_term(b->zero, terms, from - first),
                                    .n = end - from,
                                    .scale = term_scale_of(b->zero, s->tensors[share->e]),
                                    .adds = (b->filled[share->is_tied] >> (!share->is_tied && share->e > 0) & 1) != 0,
                                    .check = b->elsewhere ? NULL : check_of(b->zero, to, share->side, share->part),
                                    .flags = &b->zero->marks[2 * s->tensors[share->e]]};
    if (b->elsewhere) b->elsewhere = pd_zero_term(b->zero, b->elsewhere, share->elements);
    return from < end ? zero_terms_put(b, &run, err) : PD_OK;
}

/* ---- a bucket's terms ---- */

pd_status pd_zero_add_run(const struct pd_zero *zero, const struct pd_term_run *run, struct pd_error *err)
{
    return make_runs(zero, PD_TERM_INTEGER, run, 1, err);
}

/* Buffer for the bucket's next terms: the other of two, if it has none of its own. */
static void choose_terms(struct pd_zero *zero, uint32_t bucket)
{
    if (zero->buckets[bucket].own_terms.data) return;
    zero->buckets[bucket].terms = &zero->turns[zero->next_turn];
    zero->next_turn = 1 - zero->next_turn;
}

pd_status pd_zero_clear_terms(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    struct pd_zero_bucket *s = &zero->buckets[bucket];
    choose_terms(zero, bucket);
    const struct pd_term_run zeros = {.to = s->terms->data, .n = pd_zero_terms_end(zero, s) + s->elsewhere};
    s->filled = UINT32_MAX;
    return pd_zero_add_run(zero, &zeros, err);
}

/* Before the first terms since the last exchange. Pieces, and micro-batches of several ranks, are parts of a sum, so they are
 * added to zeros. */
static pd_status begin_terms(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    struct pd_zero_bucket *s = &zero->buckets[bucket];
    struct batch b = {.zero = zero, .source = PD_TERM_INTEGER};
    if (s->filled) return PD_OK;
    if (zero->pieces > 1 || s->spread_end) return pd_zero_clear_terms(zero, bucket, err);
    choose_terms(zero, bucket);
    for (uint32_t part = 0; part < zero->parts; part++) {
        const struct pd_term_run clear = {.check = check_of(zero, s, PD_ZERO_COMMON, part), .check_begins = true};
        PD_TRY(zero_terms_put(&b, &clear, err));
    }
    return zero_terms_flush(&b, err);
}

static const char the_terms[] = "the terms";

/* Converts elements [begin, end) of the bucket to terms, or adds them to terms. */
static pd_status make_terms(struct pd_zero *zero, uint32_t bucket, const float *gradients, uint64_t begin, uint64_t end,
                            struct pd_error *err)
{
    struct pd_zero_bucket *s = &zero->buckets[bucket];
    const uint32_t me = zero->grid->place.tp;
    const bool has_tied = pd_zero_is_redirected(zero, bucket, s->count - 1, PD_ZERO_TERMS);
    PD_TRY(begin_terms(zero, bucket, err));
    if (has_tied) PD_TRY(begin_terms(zero, 0, err));
    struct batch b = {
        .zero = zero, .bucket = bucket, .source = PD_TERM_F32, .gradients = gradients, .begin = begin, .end = end};
    b.filled[0] = s->filled, b.filled[1] = zero->buckets[0].filled;
    pd_owner_acquire(&s->terms->owner, the_terms);
    pd_status st = pd_zero_each_share(zero, bucket, PD_ZERO_TERMS, me, me, put_share, &b, err);
    b.elsewhere = pd_zero_term(zero, s->terms->data, pd_zero_terms_end(zero, s));
    for (uint32_t t = 0; !st && s->elsewhere && t < zero->grid->layout.tp; t++)
        if (t != me) st = pd_zero_each_share(zero, bucket, PD_ZERO_TERMS, me, t, put_share, &b, err);
    if (!st) st = zero_terms_flush(&b, err);
    pd_owner_release(&s->terms->owner, the_terms);
    s->filled |= s->count - has_tied > 1 ? 3 : s->count - has_tied;
    if (has_tied) zero->buckets[0].filled |= 1;
    return st;
}

/* ---- micro-batches ---- */

static bool begins_lane(const struct pd_zero *zero, uint32_t rank, uint32_t slot)
{
    return slot != PD_ZERO_NO_SLOT && pd_lanes_begins(&zero->lanes, rank, slot);
}

/* Whether backward of data rank `rank`'s micro-batch writes or accumulates in the lane; without a slot, in memory of a lane
 * that is already terms. */
static bool writes_lane(const struct pd_zero *zero, uint32_t bucket, uint32_t rank, uint32_t slot)
{
    return zero->buckets[bucket].lane && (!zero->micro_batch || begins_lane(zero, rank, slot));
}

uint32_t pd_zero_source_group(const struct pd_zero *zero, uint32_t source)
{
    return (zero->q - zero->q % zero->ep + source) / zero->grid->layout.sp;
}

static uint32_t own_source(const struct pd_zero *zero)
{
    return zero->q % zero->ep;
}

static bool has_micro_batch(const struct pd_zero *zero, uint32_t rank, uint32_t slot)
{
    return slot == PD_ZERO_NO_SLOT || !pd_lanes_is_padding(&zero->lanes, rank, slot);
}

pd_status pd_zero_micro_batch_gradients(struct pd_zero *zero, uint32_t bucket, uint32_t slot, float *const **ret_gradients,
                                        bool *ret_adds, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    const uint32_t rank = zero->grid->place.dp;
    float *base = writes_lane(zero, bucket, rank, slot) ? s->lane : zero->micro_batch;
    if (slot == 0) PD_TRY(pd_zero_take_sums(zero, bucket, err));
    if (slot != PD_ZERO_NO_SLOT && !begins_lane(zero, rank, slot)) PD_TRY(pd_zero_bring_sums(zero, bucket, err));
    zero->made_bucket = bucket;
    zero->made_slot = slot;
    for (uint32_t e = 0; e < s->count; e++)
        zero->micro_batch_pointers[e] = base + s->computed[e];
    for (uint32_t i = 0; i < zero->ep; i++) {
        float *to = writes_lane(zero, bucket, pd_zero_source_group(zero, i), slot) ? s->lane : zero->micro_batch;
        zero->sources[i] =
            has_micro_batch(zero, pd_zero_source_group(zero, i), slot) ? to + pd_zero_source_at(zero, s, i) : NULL;
    }
    *ret_gradients = zero->micro_batch_pointers;
    *ret_adds = zero->options.adds_in_place && slot != PD_ZERO_NO_SLOT && !begins_lane(zero, rank, slot);
    return PD_OK;
}

void pd_zero_rehearse(struct pd_zero *zero, uint32_t bucket, void *const **ret_weights, float *const **ret_gradients)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    float *base = zero->micro_batch ? zero->micro_batch : s->lane;
    for (uint32_t e = 0; e < s->count; e++)
        zero->micro_batch_pointers[e] = base + s->computed[e];
    for (uint32_t i = 0; i < zero->ep; i++)
        zero->sources[i] = base + pd_zero_source_at(zero, s, i);
    *ret_weights = pd_zero_places(zero, bucket, true);
    *ret_gradients = zero->micro_batch_pointers;
}

float *const *pd_zero_sources(const struct pd_zero *zero)
{
    return zero->sources;
}

void pd_zero_watch(struct pd_zero *zero, const uint32_t *slots, int64_t *sums)
{
    if (sums) memcpy(zero->watched_slots, slots, zero->ep * sizeof *slots);
    zero->watched_sums = sums;
}

/* Makes the terms of elements [begin, end) once more, only to sum them. */
static pd_status watch(const struct pd_zero *zero, uint32_t bucket, uint32_t source, uint32_t slot, const float *gradients,
                       uint64_t begin, uint64_t end, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    for (uint32_t e = 0; zero->watched_sums && slot == zero->watched_slots[source] && e < s->count; e++) {
        const uint64_t first = pd_max_u64(s->computed[e], begin), last = pd_min_u64(s->computed[e + 1], end);
        const struct pd_term_run run = {.from = gradients + (first - begin),
                                        .n = last - first,
                                        .scale = term_scale_of(zero, s->tensors[e]),
                                        .check = zero->watched_sums + pd_zero_side_of(zero, s->tensors[e])};
        if (first < last) PD_TRY(make_runs(zero, PD_TERM_F32, &run, 1, err));
    }
    return PD_OK;
}

pd_status pd_zero_take_piece(void *context, uint32_t source, const float *gradient, uint64_t elements, struct pd_error *err)
{
    struct pd_zero *zero = context;
    const uint64_t begin = (uint64_t)(gradient - zero->micro_batch);
    PD_TRY(watch(zero, zero->made_bucket, source, zero->made_slot, gradient, begin, begin + elements, err));
    if (zero->made_slot == PD_ZERO_NO_SLOT) return PD_OK;
    return make_terms(zero, zero->made_bucket, gradient, begin, begin + elements, err);
}

/* The bucket's elements [begin, end), which lie at `at`, of the micro-batch of one of the ep ranks. */
static pd_status add_elements(struct pd_zero *zero, uint32_t bucket, uint32_t source, uint32_t slot, uint64_t at,
                              uint64_t begin, uint64_t end, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    const uint32_t rank = pd_zero_source_group(zero, source);
    const bool is_in_lane = writes_lane(zero, bucket, rank, slot);
    const float *made = (is_in_lane ? s->lane : zero->micro_batch) + at;
    if (begin == end || !has_micro_batch(zero, rank, slot)) return PD_OK;
    PD_TRY(watch(zero, bucket, source, slot, made, begin, end, err));
    if (slot == PD_ZERO_NO_SLOT) return PD_OK;
    if (!s->lane) return make_terms(zero, bucket, made, begin, end, err);
    if (!is_in_lane) PD_TRY(pd_add(zero->math, end - begin, s->lane + at, made, err));
    if (!zero->has.makes_terms || !pd_lanes_ends(&zero->lanes, rank, slot)) return PD_OK;
    return make_terms(zero, bucket, s->lane + at, begin, end, err);
}

/* After a micro-batch, for buckets whose sums are kept in bf16. */
static pd_status round_sums(const struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    if (!pd_zero_is_rounded(zero, bucket)) return PD_OK;
    return pd_cast(zero->math, s->computed[s->count], PD_BF16, s->rounded, PD_F32, s->lane, err);
}

pd_status pd_zero_add_micro_batch(struct pd_zero *zero, uint32_t bucket, uint32_t slot, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    const uint32_t own = own_source(zero);
    const uint64_t elements = s->computed[s->count], begin = s->spread_begin, end = s->spread_end;
    if (zero->pieces > 1) return PD_OK; /* each was consumed when made */
    PD_TRY(add_elements(zero, bucket, own, slot, 0, 0, begin, err));
    PD_TRY(add_elements(zero, bucket, own, slot, end, end, elements, err));
    for (uint32_t i = 0; i < zero->ep && begin < end; i++)
        PD_TRY(add_elements(zero, bucket, i, slot, pd_zero_source_at(zero, s, i), begin, end, err));
    const bool has_new = slot != PD_ZERO_NO_SLOT && has_micro_batch(zero, zero->grid->place.dp, slot);
    return has_new ? round_sums(zero, bucket, err) : PD_OK;
}
