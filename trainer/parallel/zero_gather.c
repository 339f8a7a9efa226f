/* Gathers parameters: packs this rank's held boxes of a set as its part, all-gathers the parts of its group, and copies them
 * to where the set is read. Data held by other tensor-parallel ranks (norms, shared key-value heads) comes from the one at
 * the same place among their data ranks, which has gathered all of it too. */
#include "ckpt/base/trace.h"
#include "trainer/parallel/zero_internal.h"

static const char a_gather[] = "a gather", what[] = "gather of parameters";

/* All needed parameters of the set are in place. */
static bool is_current(const struct pd_zero *zero, uint32_t set)
{
    return zero->sets[set].gathered == zero->gathers.version;
}

/* ---- parts ---- */

/* Parts hold tensors contiguously, like terms. */
static pd_status zero_gather_pack(struct pd_zero *zero, uint32_t set, char *parts, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    const uint32_t last = s->count - 1;
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    char *to = parts + zero->q % zero->parts * s->part * bytes;
    PD_TRY(pd_zero_pack(zero, set, &to, err));
    if (set == 0 || s->tensors[last] > 0 || pd_zero_is_redirected(zero, set, last, PD_ZERO_PARAMETERS)) return PD_OK;
    return pd_math_copy(zero->math, to, pd_zero_parameters(zero, set, last), pd_zero_held_elements(zero, 0) * bytes, err);
}

static struct pd_zero_gather *oldest(struct pd_zero *zero)
{
    return &zero->gathers.turns[zero->gathers.oldest];
}

static struct pd_zero_gather *turn(struct pd_zero *zero, uint32_t i)
{
    return &zero->gathers.turns[(zero->gathers.oldest + i) % zero->gathers.most];
}

static pd_status unpack(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct pd_zero *zero = context;
    const struct pd_zero_gather *g = oldest(zero);
    const struct pd_zero_set *s = &zero->sets[g->set];
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    return pd_math_copy(zero->math, s->place + (s->needed[share->e] + share->used_at) * bytes,
                        g->parts + (share->part * s->part + share->part_at) * bytes, share->elements * bytes, err);
}

/* ---- one gather ---- */

static pd_status zero_gather_start(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    PD_CHECK(zero->gathers.count < zero->gathers.most);
    struct pd_zero_gather *g = turn(zero, zero->gathers.count);
    pd_owner_acquire(&g->owner, a_gather);
    zero->gathers.count++;
    g->set = set;
    g->op = (struct pd_comm_op){.what = what};
    PD_TRY(zero_gather_pack(zero, set, g->parts, err));
    if (!zero->grid->gathers) return PD_OK;
    PD_TRY(pd_comm_start_all_gather(zero->grid->gathers, &g->op, g->parts,
                                    zero->sets[set].part * pd_dtype_bytes(zero->options.compute), err));
    g->in_flight = true;
    return PD_OK;
}

static pd_status wait(struct pd_zero_gather *g, struct pd_comm *comm, struct pd_error *err)
{
    const uint64_t begin = pd_trace_begin();
    if (!g->in_flight) return PD_OK;
    g->in_flight = false;
    const pd_status st = pd_comm_wait(comm, &g->op, err);
    pd_trace_end(begin, "wait", what, g->set);
    return st;
}

static void zero_gather_leave(struct pd_zero *zero)
{
    pd_owner_release(&oldest(zero)->owner, a_gather);
    zero->gathers.oldest = (zero->gathers.oldest + 1) % zero->gathers.most;
    zero->gathers.count--;
}

/* Ends the oldest gather. With a single buffer this overwrites the previous set. */
static pd_status zero_gather_end(struct pd_zero *zero, struct pd_error *err)
{
    const struct pd_zero_gather *g = oldest(zero);
    const uint32_t me = zero->grid->place.tp;
    PD_TRY(wait(oldest(zero), zero->grid->gathers, err));
    if (zero->gathers.has_one_place) zero->gathers.version++;
    if (!zero->in_place) PD_TRY(pd_zero_each_share(zero, g->set, PD_ZERO_PARAMETERS, me, me, unpack, zero, err));
    PD_TRY(pd_zero_cross(zero, g->set, PD_ZERO_PARAMETERS, err));
    zero->sets[g->set].gathered = zero->gathers.version;
    zero_gather_leave(zero);
    return PD_OK;
}

void pd_zero_forget_gathers(struct pd_zero *zero)
{
    while (zero->gathers.count) {
        (void)!wait(oldest(zero), zero->grid->gathers, NULL);
        zero_gather_leave(zero);
    }
}

/* ---- the caller's ---- */

/* It is read where it is held. */
static bool is_here(const struct pd_zero *zero, uint32_t set)
{
    return zero->in_place && !pd_zero_is_filed(zero, set);
}

/* No other set will use its buffer before it is acquired. */
static bool stays(const struct pd_zero *zero, uint32_t set)
{
    return is_current(zero, set) && !(zero->gathers.has_one_place && zero->gathers.count);
}

static bool is_on_its_way(struct pd_zero *zero, uint32_t set)
{
    for (uint32_t i = 0; i < zero->gathers.count; i++)
        if (turn(zero, i)->set == set) return true;
    return false;
}

/* A set in files is read ahead and gathered when read. So is a block that a budget keeps in memory: another rank may have it
 * in files, and all must gather at the same time. */
pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    PD_CHECK(set < zero->has.set_count && zero->sets[set].count);
    if (is_here(zero, set) || stays(zero, set) || is_on_its_way(zero, set)) return PD_OK;
    if (pd_zero_is_filed(zero, set)) return pd_zero_fetch(zero, set, err);
    return zero->options.parameters_in_files && !pd_zero_is_end(zero, set) ? PD_OK : zero_gather_start(zero, set, err);
}

uint32_t pd_zero_prefetches(const struct pd_zero *zero)
{
    return zero->gathers.most;
}

static void *weights_of(struct pd_zero *zero, uint32_t set, uint32_t e)
{
    const struct pd_zero_set *s = &zero->sets[set];
    if (is_here(zero, set)) return pd_zero_parameters(zero, set, e);
    if (!pd_zero_is_redirected(zero, set, e, PD_ZERO_PARAMETERS))
        return s->place + s->needed[e] * pd_dtype_bytes(zero->options.compute);
    PD_CHECK(is_current(zero, 0));
    return zero->sets[0].place;
}

pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t set, void *const **ret_weights, struct pd_error *err)
{
    if (!is_here(zero, set) && !is_current(zero, set)) {
        if (!zero->gathers.count) PD_TRY(zero_gather_start(zero, set, err));
        PD_CHECK(oldest(zero)->set == set);
        PD_TRY(zero_gather_end(zero, err));
    }
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        zero->gathers.pointers[e] = weights_of(zero, set, e);
    *ret_weights = zero->gathers.pointers;
    return PD_OK;
}

pd_status pd_zero_updated(struct pd_zero *zero, struct pd_error *err)
{
    PD_CHECK(!zero->gathers.count);
    zero->gathers.version++;
    return pd_zero_mirror_parameters(zero, err);
}
