/* Schedules of all pp ranks at once: complete, in order, free of deadlock over links of few messages, as deep as they say
 * and as idle as theory says. */
#include "trainer/parallel/schedule.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { PP_MAX = 8, INTERLEAVE_MAX = 4, SLOTS_MAX = 40, LINK_MESSAGES = 2 };

struct pipeline {
    struct pd_schedule_options options;
    struct pd_schedule ranks[PP_MAX];
};

static void make(struct pipeline *p, uint32_t pp, uint32_t interleave, uint32_t slots, bool forward_only)
{
    struct pd_error err;
    p->options =
        (struct pd_schedule_options){.pp = pp, .interleave = interleave, .slots = slots, .forward_only = forward_only};
    for (uint32_t r = 0; r < pp; r++) {
        struct pd_schedule_options o = p->options;
        o.pp_rank = r;
        cr_assert_eq(pd_schedule_new(&o, &p->ranks[r], &err), PD_OK, "%s", err.message);
    }
}

static void release(struct pipeline *p)
{
    for (uint32_t r = 0; r < p->options.pp; r++)
        pd_schedule_deinit(&p->ranks[r]);
}

/* Every (chunk, slot) once forward and once backward, in order; the depth is what the list needs and no more. */
static void check_list(const struct pd_schedule_options *o, const struct pd_schedule *s)
{
    uint32_t forwards[INTERLEAVE_MAX] = {0}, backwards[INTERLEAVE_MAX] = {0}, deepest[INTERLEAVE_MAX] = {0};
    for (uint32_t i = 0; i < s->count; i++) {
        const struct pd_action *a = &s->actions[i];
        cr_assert_lt(a->chunk, o->interleave);
        uint32_t *next = a->is_backward ? backwards : forwards;
        cr_assert_eq(a->slot, next[a->chunk]++, "slots of a chunk ascend");
        cr_assert_leq(backwards[a->chunk], forwards[a->chunk], "backward before forward");
        uint32_t alive = o->forward_only ? 1 : forwards[a->chunk] - backwards[a->chunk];
        if (alive > deepest[a->chunk]) deepest[a->chunk] = alive;
    }
    for (uint32_t c = 0; c < o->interleave; c++) {
        cr_assert_eq(forwards[c], o->slots);
        cr_assert_eq(backwards[c], o->forward_only ? 0 : o->slots);
        cr_assert_eq(s->depth[c], deepest[c], "pp %u rank %u interleave %u slots %u chunk %u: depth %u, needed %u", o->pp,
                     o->pp_rank, o->interleave, o->slots, c, s->depth[c], deepest[c]);
        cr_assert_leq(deepest[c], deepest[0], "the first chunk keeps a micro-batch longest");
    }
}

/* Where the input of an action comes from: the same action of this stage's neighbour. False: from nowhere (first stage's
 * forward) or from this rank (the last stage's backward follows its forward). */
static bool input_of(const struct pd_schedule_options *o, uint32_t rank, const struct pd_action *a, uint32_t *ret_rank,
                     struct pd_action *ret_action)
{
    const uint32_t pp = o->pp, stage = a->chunk * pp + rank, stages = pp * o->interleave;
    if (a->is_backward ? stage == stages - 1 : stage == 0) return false;
    uint32_t from = a->is_backward ? stage + 1 : stage - 1;
    *ret_rank = from % pp;
    *ret_action = (struct pd_action){a->is_backward, from / pp, a->slot, a->unit};
    return true;
}

/* A link carries messages first in, first out; index [backward][receiver]. */
struct link {
    struct pd_action messages[LINK_MESSAGES];
    uint32_t count;
};

static bool send_is_possible(const struct pd_schedule_options *o, uint32_t rank, const struct pd_action *a,
                             struct link links[2][PP_MAX], struct link **ret_link)
{
    const uint32_t pp = o->pp, stage = a->chunk * pp + rank, stages = pp * o->interleave;
    *ret_link = NULL;
    if (a->is_backward ? stage == 0 : stage == stages - 1) return true;
    *ret_link = &links[a->is_backward][(a->is_backward ? rank + pp - 1 : rank + 1) % pp];
    return (*ret_link)->count < LINK_MESSAGES;
}

static bool advance(const struct pipeline *p, uint32_t rank, const struct pd_action *a, struct link links[2][PP_MAX])
{
    struct link *in = &links[a->is_backward][rank], *out;
    struct pd_action wanted;
    uint32_t from;
    bool receives = input_of(&p->options, rank, a, &from, &wanted);
    if (receives && in->count == 0) return false;
    if (!send_is_possible(&p->options, rank, a, links, &out)) return false;
    if (receives) {
        cr_assert(in->messages[0].chunk == wanted.chunk && in->messages[0].slot == wanted.slot,
                  "rank %u expects chunk %u slot %u and gets chunk %u slot %u", rank, wanted.chunk, wanted.slot,
                  in->messages[0].chunk, in->messages[0].slot);
        in->messages[0] = in->messages[--in->count];
    }
    if (out) out->messages[out->count++] = *a;
    return true;
}

static void check_runs(const struct pipeline *p)
{
    static struct link links[2][PP_MAX];
    uint32_t done[PP_MAX] = {0}, finished = 0;
    memset(links, 0, sizeof links);
    for (bool moved = true; moved && finished < p->options.pp;) {
        moved = false;
        finished = 0;
        for (uint32_t r = 0; r < p->options.pp; r++) {
            const struct pd_schedule *s = &p->ranks[r];
            while (done[r] < s->count && advance(p, r, &s->actions[done[r]], links)) {
                done[r]++;
                moved = true;
            }
            finished += done[r] == s->count;
        }
    }
    cr_assert_eq(finished, p->options.pp, "deadlock: pp %u interleave %u slots %u", p->options.pp, p->options.interleave,
                 p->options.slots);
    for (uint32_t r = 0; r < p->options.pp; r++)
        cr_assert(links[0][r].count == 0 && links[1][r].count == 0);
}

/* Time at which everything is done when a forward takes `forward` and a backward `backward` and transfers take none. */
static double simulate(const struct pipeline *p, double forward, double backward)
{
    static double end[PP_MAX][2][INTERLEAVE_MAX][SLOTS_MAX];
    uint32_t done[PP_MAX] = {0};
    double free_at[PP_MAX] = {0}, last = 0;
    memset(end, 0, sizeof end);
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < p->options.pp; r++) {
            while (done[r] < p->ranks[r].count) {
                const struct pd_action *a = &p->ranks[r].actions[done[r]];
                struct pd_action in;
                uint32_t from;
                double start = free_at[r], ready;
                if (input_of(&p->options, r, a, &from, &in)) {
                    ready = end[from][in.is_backward][in.chunk][in.slot];
                    if (ready == 0) break;
                    if (ready > start) start = ready;
                }
                free_at[r] = end[r][a->is_backward][a->chunk][a->slot] = start + (a->is_backward ? backward : forward);
                if (free_at[r] > last) last = free_at[r];
                done[r]++;
                moved = true;
            }
        }
    }
    return last;
}

static void check_bubble(const struct pipeline *p)
{
    const struct pd_schedule_options *o = &p->options;
    const double costs[2][2] = {{1, 1}, {1, 2}};
    for (int i = 0; i < 2; i++) {
        double busy = o->slots * o->interleave * (costs[i][0] + costs[i][1]);
        double span = simulate(p, costs[i][0], costs[i][1]), bubble = (span - busy) / span;
        double theory = pd_schedule_bubble(o->pp, o->interleave, o->slots);
        cr_assert_float_eq(bubble, theory, 1e-9, "pp %u interleave %u slots %u costs %g %g: bubble %g, theory %g", o->pp,
                           o->interleave, o->slots, costs[i][0], costs[i][1], bubble, theory);
    }
}

static void check_all(bool forward_only)
{
    struct pipeline p;
    for (uint32_t pp = 1; pp <= PP_MAX; pp++)
        for (uint32_t interleave = 1; interleave <= INTERLEAVE_MAX; interleave++)
            for (uint32_t slots = 1; slots <= SLOTS_MAX; slots++) {
                if (interleave > 1 && slots % pp) continue;
                make(&p, pp, interleave, slots, forward_only);
                for (uint32_t r = 0; r < pp; r++) {
                    struct pd_schedule_options o = p.options;
                    o.pp_rank = r;
                    check_list(&o, &p.ranks[r]);
                }
                check_runs(&p);
                if (!forward_only) check_bubble(&p);
                release(&p);
            }
}

Test(schedule, one_forward_one_backward)
{
    check_all(false);
}

Test(schedule, forward_only)
{
    check_all(true);
}

/* 1F1B keeps as many micro-batches as stages follow, whatever the number of slots. */
Test(schedule, depth_is_bounded)
{
    struct pipeline p;
    for (uint32_t pp = 1; pp <= PP_MAX; pp++)
        for (uint32_t interleave = 1; interleave <= INTERLEAVE_MAX; interleave++) {
            make(&p, pp, interleave, 100 * pp, false);
            for (uint32_t r = 0; r < pp; r++) {
                struct pd_schedule_options o = p.options;
                o.pp_rank = r;
                check_list(&o, &p.ranks[r]);
                if (interleave == 1) cr_assert_eq(p.ranks[r].depth[0], pp - r);
                cr_assert_leq(p.ranks[r].depth[0], 3 * pp);
            }
            release(&p);
        }
}

/* Forward every unit but the head for all micro-batches, then backward from the head down; micro-batches ascend in each. */
Test(schedule, is_breadth_first)
{
    enum { UNITS = 4, SLOTS = 3 };
    struct pd_error err;
    struct pd_schedule s;
    struct pd_schedule_options o = {.pp = 1, .interleave = 1, .slots = SLOTS, .units = UNITS};
    cr_assert_eq(pd_schedule_new(&o, &s, &err), PD_OK, "%s", err.message);
    cr_assert_eq(s.count, (2 * UNITS - 1) * SLOTS);
    cr_assert_eq(s.depth[0], SLOTS);
    for (uint32_t i = 0; i < s.count; i++) {
        const uint32_t run = i / SLOTS;
        cr_assert_eq(s.actions[i].slot, i % SLOTS);
        cr_assert_eq(s.actions[i].is_backward, run >= UNITS - 1);
        cr_assert_eq(s.actions[i].unit, run < UNITS - 1 ? run : 2 * UNITS - 2 - run);
    }
    pd_schedule_deinit(&s);
}

Test(schedule, slots)
{
    cr_assert_eq(pd_schedule_slots(4, 3, 1), 4);
    cr_assert_eq(pd_schedule_slots(4, 3, 2), 6);
    cr_assert_eq(pd_schedule_slots(1, 1, 1), 1);
}
