/* Optimizer state in host memory beside a GPU (offload.optimizer: cpu). Master and moments are pinned host memory; saves and
 * loads use them in place, without a mirror. Gradients and working copies are on the GPU and cross in extents
 * (offload/host_update.h) through `buffers`, used by nothing else. */
#include "trainer/engine/state_internal.h"

#include "offload/host_update.h"

#include <stdlib.h>

struct on_host {
    struct pd_host_update *updates;
    struct pd_update_range *ranges; /* (count) of the boxes that are held */
    uint32_t count;
    void *buffers; /* (buffer_bytes) the rank's thread and the streams of its updates, which wait for each other there */
    uint64_t buffer_bytes;
};

static struct on_host *own(const struct pd_state *s)
{
    return s->own;
}

static pd_status state_host_build(struct pd_state *s, struct pd_error *err)
{
    struct pd_rank_device *device = s->engine->options.device;
    struct pd_host_update_options options = {.dev = device->dev,
                                             .compute = device->compute,
                                             .pool = s->engine->pool,
                                             .copy_dtype = s->engine->options.config->numerics.precision,
                                             .buffers = own(s)->buffers,
                                             .buffer_bytes = own(s)->buffer_bytes,
                                             .spans = device->spans};
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_IN, &options.copies_in, err));
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_OUT, &options.copies_out, err));
    PD_TRY(pd_isa_resolve(PD_ISA_AUTO, &options.isa, err));
    for (uint32_t i = 0; i < own(s)->count; i++)
        own(s)->ranges[i] = pd_state_range(s, &pd_zero_held(s->engine->zero)->boxes[i]);
    return pd_host_update_new(&options, &own(s)->updates, err);
}

static pd_status state_host_take(struct pd_state *s, struct pd_arena *arena, struct pd_error *err)
{
    PD_TRY(pd_state_own_new(s, sizeof(struct on_host), err));
    struct on_host *o = own(s);
    o->count = pd_zero_held(s->engine->zero)->box_count;
    o->ranges = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, o->count * sizeof *o->ranges);
    o->buffer_bytes = s->staging_bytes;
    o->buffers = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, o->buffer_bytes);
    return pd_arena_is_dry(arena) ? PD_OK : state_host_build(s, err);
}

static pd_status update_buckets(struct pd_state *s, const struct pd_update_step *step, struct pd_error *err)
{
    struct pd_zero *zero = s->engine->zero;
    PD_TRY(pd_zero_update_begin(zero, err));
    for (uint32_t bucket = 0; bucket < pd_zero_held(zero)->bucket_count; bucket++) {
        struct pd_update_range *ranges = own(s)->ranges;
        const uint32_t first = pd_zero_held(s->engine->zero)->first_box[bucket],
                       end = pd_zero_held(s->engine->zero)->first_box[bucket + 1];
        for (uint32_t i = first; i < end; i++)
            PD_TRY(pd_zero_update_box(s->engine->zero, i, &ranges[i].grad, &ranges[i].copy, err));
        PD_TRY(pd_host_update_run(own(s)->updates, step, ranges + first, end - first, err));
    }
    return pd_zero_update_end(zero, err);
}

static pd_status state_host_update(struct pd_state *s, const struct pd_update_step *step,
                                   const struct pd_before_update *before, struct pd_error *err)
{
    pd_state_wait_for_readers(before);
    if (pd_updates_by_bucket(&s->engine->options))
        PD_TRY(update_buckets(s, step, err));
    else
        PD_TRY(pd_host_update_run(own(s)->updates, step, own(s)->ranges, own(s)->count, err));
    return pd_zero_updated(s->engine->zero, err);
}

static void free_own(struct pd_state *s)
{
    if (own(s)) pd_host_update_free(own(s)->updates);
    free(s->own);
}

const struct pd_state_ops pd_state_on_host = {PD_STATE_MEMORY_SLOTS, .take = state_host_take, .update = state_host_update,
                                              .free = free_own};
