/* Gathers parameters: packs this rank's held boxes of a bucket as its part, all-gathers the parts of its group, and copies them
 * to where the bucket is read. Data held by other tensor-parallel ranks (norms, shared key-value heads) comes from the one at
 * the same place among their data ranks, which has gathered all of it too. */
#include "ckpt/base/trace.h"
#include "trainer/parallel/zero_internal.h"

static const char a_gather[] = "a gather", what[] = "gather of parameters";

/* All needed parameters of the bucket are in place. */
static bool is_current(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->buckets[bucket].gathered == zero->gathers.version;
}

/* ---- parts ---- */

/* Parts hold tensors contiguously, like terms. */
static pd_status zero_gather_pack(struct pd_zero *zero, uint32_t bucket, char *parts, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    const uint32_t last = s->count - 1;
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    char *to[PD_ZERO_SIDES];
    for (uint32_t i = 0; i < PD_ZERO_SIDES; i++)
        to[i] = parts + (s->sides[i].parts_at + pd_zero_own_part(zero, i) * s->sides[i].part) * bytes;
    PD_TRY(pd_zero_pack(zero, bucket, to, err));
    if (bucket == 0 || s->tensors[last] > 0 || pd_zero_is_redirected(zero, bucket, last, PD_ZERO_PARAMETERS)) return PD_OK;
    return pd_math_copy(zero->math, to[PD_ZERO_COMMON], pd_zero_parameters(zero, bucket, last),
                        pd_zero_held_elements(zero, 0) * bytes, err);
}

static struct pd_zero_gather *oldest(struct pd_zero *zero)
{
    return &zero->gathers.turns[zero->gathers.oldest];
}

static struct pd_zero_gather *turn(struct pd_zero *zero, uint32_t i)
{
    return &zero->gathers.turns[(zero->gathers.oldest + i) % zero->gathers.most];
}

pd_status pd_zero_copy(const struct pd_zero *zero, struct pd_copies *copies, void *to, const void *from, uint64_t bytes,
                       struct pd_error *err)
{
    if (copies->count == PD_COPIES_MAX) {
        PD_TRY(pd_copy_pieces(zero->math, copies, err));
        copies->count = 0;
    }
    copies->pieces[copies->count++] = (struct pd_copy){to, from, bytes};
    return PD_OK;
}

struct unpacking {
    struct pd_zero *zero;
    struct pd_copies copies;
};

static pd_status unpack(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct unpacking *u = context;
    const struct pd_zero *zero = u->zero;
    const struct pd_zero_gather *g = oldest(u->zero);
    const struct pd_zero_bucket *s = &zero->buckets[g->bucket];
    const struct pd_zero_side *side = &s->sides[share->side];
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    return pd_zero_copy(zero, &u->copies, s->place + (s->needed[share->e] + share->used_at) * bytes,
                        g->parts + (side->parts_at + share->part * side->part + share->part_at) * bytes,
                        share->elements * bytes, err);
}

static pd_status unpack_all(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    const uint32_t me = zero->grid->place.tp;
    struct unpacking u = {.zero = zero};
    PD_TRY(pd_zero_each_share(zero, bucket, PD_ZERO_PARAMETERS, me, me, unpack, &u, err));
    return pd_copy_pieces(zero->math, &u.copies, err);
}

/* ---- one gather ---- */

static struct pd_comm *comm_of(const struct pd_zero *zero, uint32_t side)
{
    return side == PD_ZERO_COMMON ? zero->grid->gathers : zero->grid->expert_gathers;
}

static pd_status zero_gather_start(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    PD_CHECK(zero->gathers.count < zero->gathers.most);
    struct pd_zero_gather *g = turn(zero, zero->gathers.count);
    pd_owner_acquire(&g->owner, a_gather);
    zero->gathers.count++;
    g->bucket = bucket;
    PD_TRY(zero_gather_pack(zero, bucket, g->parts, err));
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    for (uint32_t i = 0; i < PD_ZERO_SIDES; i++) {
        const struct pd_zero_side *side = &zero->buckets[bucket].sides[i];
        if (!comm_of(zero, i) || !side->part) continue;
        g->ops[i] = (struct pd_comm_op){.what = what};
        PD_TRY(pd_comm_start_all_gather(comm_of(zero, i), &g->ops[i], g->parts + side->parts_at * bytes, side->part * bytes,
                                        err));
        g->in_flight[i] = true;
    }
    return PD_OK;
}

/* Waits for both sides, and returns the first failure. */
static pd_status wait(const struct pd_zero *zero, struct pd_zero_gather *g, struct pd_error *err)
{
    const uint64_t begin = pd_trace_begin();
    pd_status st = PD_OK;
    if (!g->in_flight[PD_ZERO_COMMON] && !g->in_flight[PD_ZERO_SPREAD]) return PD_OK;
    for (uint32_t i = 0; i < PD_ZERO_SIDES; i++) {
        if (!g->in_flight[i]) continue;
        g->in_flight[i] = false;
        const pd_status now = pd_comm_wait(comm_of(zero, i), &g->ops[i], st ? NULL : err);
        st = st ? st : now;
    }
    pd_trace_end(begin, "wait", what, g->bucket);
    return st;
}

static void zero_gather_leave(struct pd_zero *zero)
{
    pd_owner_release(&oldest(zero)->owner, a_gather);
    zero->gathers.oldest = (zero->gathers.oldest + 1) % zero->gathers.most;
    zero->gathers.count--;
}

/* Ends the oldest gather. With a single buffer this overwrites the previous bucket. */
static pd_status zero_gather_end(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_zero_gather *g = oldest(zero);
    PD_TRY(wait(zero, oldest(zero), err));
    if (zero->gathers.has_one_place) zero->gathers.version++;
    if (!zero->in_place) PD_TRY(unpack_all(zero, g->bucket, err));
    PD_TRY(pd_zero_cross(zero, g->bucket, PD_ZERO_PARAMETERS, err));
    zero->buckets[g->bucket].gathered = zero->gathers.version;
    zero_gather_leave(zero);
    return PD_OK;
}

void pd_zero_forget_gathers(struct pd_zero *zero)
{
    while (zero->gathers.count) {
        (void)!wait(zero, oldest(zero), NULL);
        zero_gather_leave(zero);
    }
}

/* ---- the caller's ---- */

/* It is read where it is held. */
static bool is_here(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->in_place && !pd_zero_is_filed(zero, bucket);
}

/* No other bucket will use its buffer before it is acquired. */
static bool stays(const struct pd_zero *zero, uint32_t bucket)
{
    return is_current(zero, bucket) && !(zero->gathers.has_one_place && zero->gathers.count);
}

static bool is_on_its_way(struct pd_zero *zero, uint32_t bucket)
{
    for (uint32_t i = 0; i < zero->gathers.count; i++)
        if (turn(zero, i)->bucket == bucket) return true;
    return false;
}

/* A bucket in files is read ahead and gathered when read. So is a block that a budget keeps in memory: another rank may have it
 * in files, and all must gather at the same time. */
pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    PD_CHECK(bucket < zero->has.bucket_count && zero->buckets[bucket].count);
    if (is_here(zero, bucket) || stays(zero, bucket) || is_on_its_way(zero, bucket)) return PD_OK;
    if (pd_zero_is_filed(zero, bucket)) return pd_zero_fetch(zero, bucket, err);
    return zero->options.parameters_in_files && !pd_zero_is_end(zero, bucket) ? PD_OK : zero_gather_start(zero, bucket, err);
}

uint32_t pd_zero_prefetches(const struct pd_zero *zero)
{
    return zero->gathers.most;
}

static void *weights_of(struct pd_zero *zero, uint32_t bucket, uint32_t e, bool rehearses)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    if (is_here(zero, bucket)) return pd_zero_parameters(zero, bucket, e);
    if (!pd_zero_is_redirected(zero, bucket, e, PD_ZERO_PARAMETERS))
        return s->place + s->needed[e] * pd_dtype_bytes(zero->options.compute);
    PD_CHECK(rehearses || is_current(zero, 0));
    return zero->buckets[0].place;
}

void *const *pd_zero_places(struct pd_zero *zero, uint32_t bucket, bool rehearses)
{
    for (uint32_t e = 0; e < zero->buckets[bucket].count; e++)
        zero->gathers.pointers[e] = weights_of(zero, bucket, e, rehearses);
    return zero->gathers.pointers;
}

pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t bucket, void *const **ret_weights, struct pd_error *err)
{
    if (!is_here(zero, bucket) && !is_current(zero, bucket)) {
        if (!zero->gathers.count) PD_TRY(zero_gather_start(zero, bucket, err));
        PD_CHECK(oldest(zero)->bucket == bucket);
        PD_TRY(zero_gather_end(zero, err));
    }
    *ret_weights = pd_zero_places(zero, bucket, false);
    return PD_OK;
}

pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err)
{
    PD_CHECK(!zero->gathers.count);
    zero->gathers.version++;
    return pd_zero_mirror_parameters(zero, err);
}
