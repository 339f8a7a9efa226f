#include "offload/host_adam.h"

#include "ckpt/base/trace.h"
#include "offload/crossing.h"

#include <stdlib.h>

struct pd_host_adam {
    struct pd_host_adam_options options;
    struct pd_crossing *crossing;
    uint64_t extent_elements, copy_bytes;
};

pd_status pd_host_adam_new(const struct pd_host_adam_options *o, struct pd_host_adam **ret_adam, struct pd_error *err)
{
    struct pd_host_adam *a = calloc(1, sizeof *a);
    if (!a) PD_FAIL(err, PD_NO_MEMORY, "no memory for AdamW on the host");
    a->options = *o;
    a->copy_bytes = pd_dtype_bytes(o->copy_dtype);
    a->extent_elements = pd_crossing_extent_elements(o->buffer_bytes, a->copy_bytes);
    const struct pd_crossing_options crossing = {.dev = o->dev,
                                                 .compute = o->compute,
                                                 .copies_in = o->copies_in,
                                                 .copies_out = o->copies_out,
                                                 .extent_elements = a->extent_elements,
                                                 .copy_bytes = a->copy_bytes,
                                                 .buffers = o->buffers,
                                                 .spans = o->spans};
    pd_status st = pd_crossing_new(&crossing, &a->crossing, err);
    if (st) {
        pd_host_adam_free(a);
        return st;
    }
    *ret_adam = a;
    return PD_OK;
}

void pd_host_adam_free(struct pd_host_adam *a)
{
    if (!a) return;
    pd_crossing_free(a->crossing);
    free(a);
}

/* The next extent of some ranges, as a range. */
struct cursor {
    const struct pd_adam_range *ranges;
    uint32_t count;
    uint64_t first;
};

static bool cut(const struct pd_host_adam *a, struct cursor *c, struct pd_adam_range *ret_range)
{
    while (c->count && c->first == c->ranges->n) {
        c->ranges++;
        c->count--;
        c->first = 0;
    }
    if (!c->count) return false;
    const uint64_t left = c->ranges->n - c->first;
    struct pd_adam_range range = *c->ranges;
    range.n = left < a->extent_elements ? left : a->extent_elements;
    range.param += c->first;
    range.exp_avg += c->first;
    range.exp_avg_sq += c->first;
    range.grad += c->first;
    range.copy = (char *)range.copy + c->first * a->copy_bytes;
    range.copy_dtype = a->options.copy_dtype;
    c->first += range.n;
    *ret_range = range;
    return true;
}

static pd_status expect(struct pd_host_adam *a, const struct pd_adam_range *range, struct pd_error *err)
{
    return pd_crossing_expect(a->crossing, range->grad, range->copy, range->n, true, err);
}

static pd_status work(struct pd_host_adam *a, const struct pd_adam_step *step, struct pd_adam_range range,
                      struct pd_error *err)
{
    PD_TRY(pd_crossing_meet(a->crossing, range.grad, range.copy, range.n, &range.grad, &range.copy, err));
    const uint64_t begin = pd_trace_begin();
    pd_cpu_adam(a->options.pool, a->options.isa, step, &range);
    pd_trace_end(begin, "compute", "AdamW", range.n);
    return pd_crossing_leave(a->crossing, err);
}

pd_status pd_host_adam_update(struct pd_host_adam *a, const struct pd_adam_step *step, const struct pd_adam_range *ranges,
                              uint32_t count, struct pd_error *err)
{
    struct cursor cursor = {.ranges = ranges, .count = count};
    struct pd_adam_range now, next;
    PD_TRY(pd_crossing_begin(a->crossing, err));
    bool has_now = cut(a, &cursor, &now);
    if (has_now) PD_TRY(expect(a, &now, err));
    while (has_now) {
        const bool has_next = cut(a, &cursor, &next);
        if (has_next) PD_TRY(expect(a, &next, err));
        PD_TRY(work(a, step, now, err));
        now = next;
        has_now = has_next;
    }
    return pd_crossing_end(a->crossing, err);
}
