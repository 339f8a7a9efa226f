#include "offload/host_update.h"

#include "ckpt/base/trace.h"
#include "offload/staged_copy.h"

#include <stdlib.h>

struct pd_host_update {
    struct pd_host_update_options options;
    struct pd_staged_copy *staged;
    uint64_t extent_elements, copy_bytes;
};

pd_status pd_host_update_new(const struct pd_host_update_options *o, struct pd_host_update **ret_update,
                             struct pd_error *err)
{
    struct pd_host_update *u = calloc(1, sizeof *u);
    if (!u) PD_FAIL(err, PD_NO_MEMORY, "no memory for updates on the host");
    u->options = *o;
    u->copy_bytes = pd_dtype_bytes(o->copy_dtype);
    u->extent_elements = pd_staged_copy_extent_elements(o->buffer_bytes, u->copy_bytes);
    const struct pd_staged_copy_options staged = {.dev = o->dev,
                                                  .compute = o->compute,
                                                  .copies_in = o->copies_in,
                                                  .copies_out = o->copies_out,
                                                  .extent_elements = u->extent_elements,
                                                  .copy_bytes = u->copy_bytes,
                                                  .buffers = o->buffers,
                                                  .spans = o->spans};
    pd_status st = pd_staged_copy_new(&staged, &u->staged, err);
    if (st)
        pd_host_update_free(u);
    else
        *ret_update = u;
    return st;
}

void pd_host_update_free(struct pd_host_update *u)
{
    if (!u) return;
    pd_staged_copy_free(u->staged);
    free(u);
}

/* Iterates over the extents of some ranges, each a range. */
struct cursor {
    const struct pd_update_range *ranges;
    uint32_t count;
    uint64_t first;
};

static bool cut(const struct pd_host_update *u, struct cursor *c, struct pd_update_range *ret_range)
{
    while (c->count && c->first == c->ranges->n) {
        c->ranges++;
        c->count--;
        c->first = 0;
    }
    if (!c->count) return false;
    const uint64_t left = c->ranges->n - c->first;
    const struct pd_update_range range =
        pd_update_range_cut(c->ranges, c->first, left < u->extent_elements ? left : u->extent_elements);
    c->first += range.n;
    *ret_range = range;
    return true;
}

static pd_status host_update_expect(struct pd_host_update *u, const struct pd_update_range *range, struct pd_error *err)
{
    return pd_staged_copy_expect(u->staged, range->grad, range->copy, range->n, true, err);
}

static pd_status host_update_work(struct pd_host_update *u, const struct pd_update_step *step, struct pd_update_range range,
                                  struct pd_error *err)
{
    PD_TRY(pd_staged_copy_meet(u->staged, range.grad, range.copy, range.n, &range.grad, &range.copy, err));
    const uint64_t begin = pd_trace_begin();
    pd_update(u->options.pool, u->options.isa, step, &range);
    pd_trace_end(begin, "compute", step->rule->title, range.n);
    return pd_staged_copy_leave(u->staged, err);
}

pd_status pd_host_update_run(struct pd_host_update *u, const struct pd_update_step *step,
                             const struct pd_update_range *ranges, uint32_t count, struct pd_error *err)
{
    struct cursor cursor = {.ranges = ranges, .count = count};
    struct pd_update_range now, next;
    PD_TRY(pd_staged_copy_begin(u->staged, err));
    bool has_now = cut(u, &cursor, &now);
    if (has_now) PD_TRY(host_update_expect(u, &now, err));
    while (has_now) {
        const bool has_next = cut(u, &cursor, &next);
        if (has_next) PD_TRY(host_update_expect(u, &next, err));
        PD_TRY(host_update_work(u, step, now, err));
        now = next;
        has_now = has_next;
    }
    return pd_staged_copy_end(u->staged, err);
}
