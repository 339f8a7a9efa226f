#include "trainer/engine/compare.h"

#include "ckpt/base/random_bits.h"
#include "trainer/engine/engine_internal.h"

#include <stdlib.h>
#include <string.h>

#define VOTES_MAX 4u                         /* the first is the step's own */
#define COMPARING UINT64_C(0x636f6d70617265) /* separates this use of the seed */

enum { COMMON, EXPERTS, SIDES }; /* sums of a rank, as pd_zero_watch counts them */

/* The micro-batches to compare, and who recomputes them: in pass p group g does so for g + shifts[COMMON][p]. */
struct comparison {
    struct pd_engine *e;
    uint64_t first_sample;
    uint32_t groups, passes, shifts[SIDES][VOTES_MAX - 1];
    uint64_t *own, *all; /* (world, SIDES, VOTES_MAX) sums of terms of each rank: this rank's; everyone's */
};

static bool is_due(const struct pd_engine *e)
{
    const uint64_t every = e->options.config->guard.replay_every, step = e->next_identity.step;
    return every && step && step % every == 0;
}

static uint64_t compare_draw(const struct pd_engine *e, uint64_t what)
{
    return pd_random_key(pd_random_key(pd_random_key(e->options.config->run.seed, COMPARING), e->next_identity.step), what);
}

static uint32_t micro_batch_of(const struct pd_engine *e, uint32_t group)
{
    return pd_lanes_choose(&e->own->lanes, group, compare_draw(e, group));
}

/* Starts counting for the micro-batches in the compared slots of a step, or in a pass apart. */
static pd_status begin_count(struct pd_engine *e, bool is_apart, struct pd_error *err)
{
    const struct pd_term_count *c = &e->own->counted;
    const uint64_t bytes = PD_ZERO_WATCHED * sizeof *c->sums;
    uint32_t slots[PD_LAYOUT_EP_MAX];
    for (uint32_t i = 0; i < pd_layout_ep(&e->grid.layout); i++) {
        const uint32_t group = pd_zero_source_group(e->zero, i);
        slots[i] = is_apart ? PD_ZERO_NO_SLOT : micro_batch_of(e, group) - pd_lanes_first(&e->own->lanes, group);
    }
    memset(c->host_copy, 0, bytes);
    pd_zero_watch(e->zero, slots, c->sums);
    return c->sums == c->host_copy ? PD_OK : pd_math_copy(e->math, c->sums, c->host_copy, bytes, err);
}

pd_status pd_compare_begin(struct pd_engine *e, struct pd_error *err)
{
    pd_zero_watch(e->zero, NULL, NULL);
    return is_due(e) ? begin_count(e, false, err) : PD_OK;
}

/* The rank with this one's place, `shift` groups further on. */
static uint32_t rank_at(const struct comparison *c, uint32_t rank, uint32_t shift)
{
    struct pd_rank_place place = pd_layout_place(&c->e->grid.layout, rank);
    place.dp = (place.dp + shift) % c->groups;
    return pd_layout_rank(&c->e->grid.layout, place);
}

/* Vote 0 is the step's, others are of the passes. */
static pd_status read_count(struct comparison *c, uint32_t vote, struct pd_error *err)
{
    struct pd_engine *e = c->e;
    const struct pd_term_count *n = &e->own->counted;
    if (n->sums != n->host_copy) PD_TRY(pd_math_copy(e->math, n->host_copy, n->sums, SIDES * sizeof *n->sums, err));
    PD_TRY(pd_math_sync(e->math, err));
    for (uint32_t side = 0; side < SIDES; side++) {
        const uint32_t of = rank_at(c, e->grid.rank, vote ? c->shifts[side][vote - 1] : 0);
        c->own[(of * SIDES + side) * VOTES_MAX + vote] = (uint64_t)n->host_copy[side];
    }
    return PD_OK;
}

static pd_status run_pass(struct comparison *c, uint32_t pass, struct pd_error *err)
{
    struct pd_engine *e = c->e;
    const uint32_t group = (e->grid.place.dp + c->shifts[COMMON][pass]) % c->groups;
    PD_TRY(begin_count(e, true, err));
    PD_TRY(pd_step_compare(e, c->first_sample, micro_batch_of(e, group), err));
    return read_count(c, pass + 1, err);
}

static pd_status unite(struct comparison *c, struct pd_error *err)
{
    const uint32_t words = c->e->grid.world * SIDES * VOTES_MAX;
    memcpy(c->all, c->own, words * sizeof *c->all);
    return c->e->own->comm ? pd_comm_all_reduce(c->e->own->comm, c->all, words, PD_REDUCE_SUM_U64, err) : PD_OK;
}

static bool all_agree(const struct comparison *c)
{
    for (uint32_t i = 0; i < c->e->grid.world * SIDES; i++)
        if (c->all[i * VOTES_MAX] != c->all[i * VOTES_MAX + 1]) return false;
    return true;
}

/* The vote with a majority for a rank's micro-batch, or VOTES_MAX. */
static uint32_t majority(const uint64_t *votes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t same = 0;
        for (uint32_t k = 0; k < count; k++)
            same += votes[k] == votes[i];
        if (2 * same > count) return i;
    }
    return VOTES_MAX;
}

/* The first rank that was outvoted; UINT32_MAX: none was. */
static uint32_t find_wrong(const struct comparison *c)
{
    uint32_t wrong = UINT32_MAX;
    for (uint32_t i = 0; i < c->e->grid.world * SIDES; i++) {
        const uint32_t r = i / SIDES, *shifts = c->shifts[i % SIDES];
        const uint64_t *votes = &c->all[i * VOTES_MAX];
        const uint32_t right = majority(votes, c->passes + 1);
        for (uint32_t v = 0; right < VOTES_MAX && v <= c->passes; v++) {
            const uint32_t voter = v ? rank_at(c, r, c->groups - shifts[v - 1]) : r;
            if (votes[v] != votes[right] && voter < wrong) wrong = voter;
        }
    }
    return wrong;
}

static pd_status decide(struct comparison *c, struct pd_error *err)
{
    struct pd_engine *e = c->e;
    const unsigned long long step = e->next_identity.step;
    for (uint32_t pass = 1; pass < c->passes; pass++)
        PD_TRY(run_pass(c, pass, err));
    PD_TRY(unite(c, err));
    e->disagreement = (struct pd_disagreement){true, find_wrong(c)};
    if (e->disagreement.rank < UINT32_MAX)
        PD_FAIL(err, PD_DEVICE_LOST,
                "rank %u computes wrong results: at step %llu its gradients differ from all others' (guard.replay_every); "
                "test its device and memory, or leave it out",
                e->disagreement.rank, step);
    PD_FAIL(err, PD_DEVICE_LOST,
            "ranks disagree about the gradients of one micro-batch at step %llu, again and again (guard.replay_every), and "
            "with two groups nobody can tell who is wrong: test the devices of both, or use a third",
            step);
}

static pd_status compare(struct comparison *c, struct pd_error *err)
{
    PD_TRY(read_count(c, 0, err));
    PD_TRY(run_pass(c, 0, err));
    PD_TRY(unite(c, err));
    return all_agree(c) ? PD_OK : decide(c, err);
}

/* Groups whose data ranks are whole groups of ep ranks exchange their micro-batches. If one group of ep ranks has all
 * micro-batches, its experts always compute all of them. */
static void choose_groups(struct comparison *c)
{
    const struct pd_layout *layout = &c->e->grid.layout;
    const uint32_t sp = layout->sp, ep = pd_layout_ep(layout);
    uint32_t unit = 1, *shifts = c->shifts[COMMON];
    while (unit * sp % ep)
        unit++;
    const bool has_all = ep == c->groups * sp;
    const uint32_t d = has_all ? c->groups : c->groups / unit;
    unit = has_all ? 1 : unit;
    if (d == 1) {
        c->passes = 2; /* shifts of 0 */
    } else if (d == 2) {
        c->passes = 3;
        shifts[0] = shifts[2] = unit;
    } else {
        c->passes = 2;
        const uint32_t first = 1 + (uint32_t)(compare_draw(c->e, UINT32_MAX) % (d - 1));
        shifts[0] = unit * first;
        shifts[1] = unit * (first % (d - 1) + 1);
    }
    if (!has_all) memcpy(c->shifts[EXPERTS], shifts, sizeof c->shifts[EXPERTS]);
}

pd_status pd_compare_end(struct pd_engine *e, uint64_t first_sample, bool *ret_compared, struct pd_error *err)
{
    struct comparison c = {.e = e, .first_sample = first_sample, .groups = e->grid.layout.dp};
    *ret_compared = is_due(e);
    if (!*ret_compared) return PD_OK;
    choose_groups(&c);
    c.own = calloc(2 * (size_t)e->grid.world * SIDES * VOTES_MAX, sizeof *c.own);
    if (!c.own) PD_FAIL(err, PD_NO_MEMORY, "no memory to compare gradients of %u ranks", e->grid.world);
    c.all = c.own + (size_t)e->grid.world * SIDES * VOTES_MAX;
    const pd_status st = compare(&c, err);
    free(c.own);
    return st;
}
