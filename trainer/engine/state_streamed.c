/* Optimizer state in host memory, updated by the GPU through which it streams (offload.update: device).
 *
 *   window i + 1   state of the host goes in              on PD_STREAM_OPTIMIZER_IN
 *   window i                          update              on compute
 *   window i - 1                              and out     on PD_STREAM_OPTIMIZER_OUT
 *
 * Master and moments are pinned host memory, as in state_host.c. Saves and loads use them in place; they are complete,
 * because an update returns only when all of it is back. Gradients and working copies never leave the GPU. */
#include "trainer/engine/state_internal.h"

#include <stdlib.h>

#define WINDOWS 3u

/* Device memory. Owners in turn: the stream of copies in, from the first copy until is_in; compute until is_updated; the
 * stream of copies out until is_out. On the device each waits for the event of the one before. */
struct window {
    void *state[PD_KIND_COUNT]; /* (elements) each */
    struct pd_event *is_in, *is_updated, *is_out;
};

struct streamed {
    struct pd_stream *in, *out;
    struct window windows[WINDOWS];
    uint64_t elements;
    uint32_t next; /* window */
};

static struct streamed *own(const struct pd_state *s)
{
    return s->own;
}

static uint64_t state_streamed_element_bytes(const struct pd_state *s, int kind)
{
    return pd_zero_element_bytes(pd_zero_held(s->engine->zero), (enum pd_kind)kind);
}

static pd_status state_streamed_build(struct pd_state *s, struct pd_error *err)
{
    struct pd_rank_device *device = s->engine->options.device;
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_IN, &own(s)->in, err));
    PD_TRY(pd_rank_device_stream(device, PD_STREAM_OPTIMIZER_OUT, &own(s)->out, err));
    for (uint32_t i = 0; i < WINDOWS; i++) {
        PD_TRY(pd_dev_event_new(device->dev, &own(s)->windows[i].is_in, err));
        PD_TRY(pd_dev_event_new(device->dev, &own(s)->windows[i].is_updated, err));
        PD_TRY(pd_dev_event_new(device->dev, &own(s)->windows[i].is_out, err));
    }
    return PD_OK;
}

static pd_status state_streamed_take(struct pd_state *s, struct pd_arena *arena, struct pd_error *err)
{
    PD_TRY(pd_state_own_new(s, sizeof(struct streamed), err));
    struct streamed *o = own(s);
    const uint64_t buffer = s->engine->options.config->offload.buffer_bytes,
                   bytes = s->staging_bytes < buffer ? s->staging_bytes : buffer;
    o->elements = bytes / WINDOWS / pd_kinds_bytes(pd_zero_held(s->engine->zero)->moments) / 1024 * 1024;
    for (uint32_t i = 0; i < WINDOWS; i++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            o->windows[i].state[kind] =
                pd_arena_take(arena, PD_MEMORY_BUFFERS, o->elements * state_streamed_element_bytes(s, kind));
    return pd_arena_is_dry(arena) ? PD_OK : state_streamed_build(s, err);
}

/* A part of the state, all kinds of it, between the host and a window. */
static pd_status state_streamed_copy(struct pd_state *s, bool is_in, const struct pd_update_range *host,
                                     const struct window *w, struct pd_error *err)
{
    struct pd_rank_device *device = s->engine->options.device;
    struct pd_stream *stream = is_in ? own(s)->in : own(s)->out;
    const char *lane = is_in ? PD_LANE_OPTIMIZER_IN : PD_LANE_OPTIMIZER_OUT;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        const uint64_t bytes = host->n * state_streamed_element_bytes(s, kind);
        const struct pd_span there = {host->state[kind], bytes, true}, here = {w->state[kind], bytes, false};
        PD_TRY(pd_device_spans_copy(device->spans, device->dev, stream, lane, "state", is_in ? here : there,
                                    is_in ? there : here, err));
    }
    return PD_OK;
}

static pd_status update_part(struct pd_state *s, const struct pd_update_step *step, const struct pd_update_range *host,
                             struct pd_error *err)
{
    struct pd_rank_device *device = s->engine->options.device;
    struct pd_dev *dev = device->dev;
    struct window *w = &own(s)->windows[own(s)->next++ % WINDOWS];
    struct pd_update_range here = *host;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        here.state[kind] = w->state[kind];
    PD_TRY(pd_dev_event_wait(dev, own(s)->in, w->is_out, err)); /* of an update before: passed */
    PD_TRY(state_streamed_copy(s, true, host, w, err));
    PD_TRY(pd_dev_event_record(dev, w->is_in, own(s)->in, err));
    PD_TRY(pd_dev_event_wait(dev, device->compute, w->is_in, err));
    PD_TRY(pd_state_update_on_device(s, step, &here, err));
    PD_TRY(pd_dev_event_record(dev, w->is_updated, device->compute, err));
    PD_TRY(pd_dev_event_wait(dev, own(s)->out, w->is_updated, err));
    PD_TRY(state_streamed_copy(s, false, host, w, err));
    return pd_dev_event_record(dev, w->is_out, own(s)->out, err);
}

static pd_status update_box(struct pd_state *s, const struct pd_update_step *step, const struct pd_update_range *box,
                            struct pd_error *err)
{
    for (uint64_t first = 0, n; first < box->n; first += n) {
        n = box->n - first < own(s)->elements ? box->n - first : own(s)->elements;
        const struct pd_update_range part = pd_update_range_cut(box, first, n);
        PD_TRY(update_part(s, step, &part, err));
    }
    return PD_OK;
}

static pd_status state_streamed_update(struct pd_state *s, const struct pd_update_step *step,
                                       const struct pd_before_update *before, struct pd_error *err)
{
    pd_state_wait_for_readers(before);
    PD_TRY(pd_state_update_boxes(s, step, update_box, err));
    return pd_dev_stream_sync(s->engine->options.device->dev, own(s)->out, err);
}

static void free_own(struct pd_state *s)
{
    for (uint32_t i = 0; own(s) && i < WINDOWS && s->engine->options.device; i++) {
        struct window *w = &own(s)->windows[i];
        pd_dev_event_free(s->engine->options.device->dev, w->is_in);
        pd_dev_event_free(s->engine->options.device->dev, w->is_updated);
        pd_dev_event_free(s->engine->options.device->dev, w->is_out);
    }
    free(s->own);
}

const struct pd_state_ops pd_state_streamed = {PD_STATE_MEMORY_SLOTS, .take = state_streamed_take,
                                               .update = state_streamed_update, .free = free_own};
