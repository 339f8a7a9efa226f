#include "trainer/parallel/schedule.h"

#include <stdlib.h>

/* Number of forwards before a rank's first backward, out of `total`. Interleaved, a rank runs two forwards per following
 * stage, since its own next chunk comes pp forwards later. */
static uint64_t warmup_of(const struct pd_schedule_options *o, uint64_t total)
{
    uint64_t after = o->pp - 1 - o->pp_rank, warmup = total;
    if (!o->forward_only) warmup = o->interleave == 1 ? after : 2 * after + (o->interleave - 1ull) * o->pp;
    return warmup < total ? warmup : total;
}

/* The k-th forward or backward of a rank: pp slots of one chunk, the same slots of the next, and so on. */
static struct pd_action action_at(const struct pd_schedule_options *o, bool is_backward, uint64_t k)
{
    const uint64_t round = (uint64_t)o->pp * o->interleave;
    struct pd_action a = {.is_backward = is_backward, .unit = PD_ALL_UNITS};
    a.chunk = (uint32_t)(k % round / o->pp);
    a.slot = (uint32_t)(k / round * o->pp + k % o->pp);
    if (is_backward) a.chunk = o->interleave - 1 - a.chunk;
    return a;
}

/* State of a walk over a rank's actions. */
struct walk {
    const struct pd_schedule_options *options;
    uint64_t total, warmup, forwards, backwards;
};

static struct walk walk_begin(const struct pd_schedule_options *o)
{
    uint64_t total = (uint64_t)o->slots * o->interleave;
    return (struct walk){.options = o, .total = total, .warmup = warmup_of(o, total)};
}

static bool walk_next(struct walk *w, struct pd_action *ret_action)
{
    bool more = w->forwards < w->total && w->forwards <= w->backwards + w->warmup;
    if (!more && (w->options->forward_only || w->backwards == w->total)) return false;
    *ret_action = action_at(w->options, !more, more ? w->forwards++ : w->backwards++);
    return true;
}

/* The head runs with the backward, which computes its gradients with the loss. */
static pd_status schedule_layers(const struct pd_schedule_options *o, struct pd_schedule *ret_schedule, struct pd_error *err)
{
    const uint32_t forwards = o->forward_only ? o->units : o->units - 1;
    struct pd_schedule s = {.actions = calloc(2ull * o->units * o->slots + 1, sizeof *s.actions)};
    PD_CHECK(o->pp == 1 && o->interleave == 1);
    if (!s.actions) PD_FAIL(err, PD_NO_MEMORY, "schedule: no memory for %u units of %u micro-batches", o->units, o->slots);
    for (uint32_t unit = 0; unit < forwards; unit++)
        for (uint32_t slot = 0; slot < o->slots; slot++)
            s.actions[s.count++] = (struct pd_action){.slot = slot, .unit = unit};
    for (uint32_t unit = o->units; unit-- > 0 && !o->forward_only;)
        for (uint32_t slot = 0; slot < o->slots; slot++)
            s.actions[s.count++] = (struct pd_action){.is_backward = true, .slot = slot, .unit = unit};
    pd_schedule_depth(o, s.depth);
    *ret_schedule = s;
    return PD_OK;
}

uint32_t pd_schedule_slots(uint32_t most, uint32_t pp, uint32_t interleave)
{
    return interleave > 1 ? (most + pp - 1) / pp * pp : most;
}

pd_status pd_schedule_new(const struct pd_schedule_options *options, struct pd_schedule *ret_schedule, struct pd_error *err)
{
    PD_CHECK(options->pp_rank < options->pp && options->interleave >= 1 && options->interleave <= 256);
    PD_CHECK(options->interleave == 1 || options->slots % options->pp == 0);
    if (options->units) return schedule_layers(options, ret_schedule, err);
    struct pd_schedule s = {0};
    struct walk w = walk_begin(options);
    const uint64_t count = options->forward_only ? w.total : 2 * w.total;
    if (count <= UINT32_MAX) s.actions = calloc(count ? count : 1, sizeof *s.actions);
    if (!s.actions) PD_FAIL(err, PD_NO_MEMORY, "schedule: no memory for %llu actions", (unsigned long long)count);
    while (walk_next(&w, &s.actions[s.count]))
        if (++s.count == count) break;
    pd_schedule_depth(options, s.depth);
    *ret_schedule = s;
    return PD_OK;
}

void pd_schedule_deinit(struct pd_schedule *schedule)
{
    free(schedule->actions);
    *schedule = (struct pd_schedule){0};
}

void pd_schedule_depth(const struct pd_schedule_options *options, uint32_t *ret_depth)
{
    struct pd_schedule_options o = *options;
    uint32_t alive[256] = {0};
    struct pd_action a;
    if (o.units) {
        ret_depth[0] = o.slots;
        return;
    }
    for (uint32_t c = 0; c < o.interleave; c++)
        ret_depth[c] = o.forward_only;
    if (o.forward_only) return;
    /* The warm-up spans at most three rounds of pp slots; then every forward is followed by a backward. */
    if (o.slots > 4 * o.pp) o.slots = 4 * o.pp;
    struct walk w = walk_begin(&o);
    while (walk_next(&w, &a)) {
        if (a.is_backward)
            alive[a.chunk]--;
        else if (++alive[a.chunk] > ret_depth[a.chunk])
            ret_depth[a.chunk] = alive[a.chunk];
    }
}

double pd_schedule_bubble(uint32_t pp, uint32_t interleave, uint32_t slots)
{
    return (pp - 1.0) / ((double)interleave * slots + pp - 1.0);
}
