#include "trainer/engine/state_mirror.h"

#define BY_COPY "copy out of the device"

pd_status pd_state_mirror_init(struct pd_state_mirror *m, struct pd_rank_device *device,
                               float *const device_state[PD_KIND_COUNT], uint64_t bytes, struct pd_arena *arena,
                               struct pd_error *err)
{
    *m = (struct pd_state_mirror){.bytes = bytes};
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        m->device_state[kind] = device_state[kind];
        m->state[kind] = pd_arena_take_host(arena, PD_MEMORY_OPTIMIZER, bytes);
    }
    if (pd_arena_is_dry(arena)) return PD_OK;
    m->device = device;
    PD_TRY(pd_dev_event_new(device->dev, &m->computed, err));
    return pd_dev_event_new(device->dev, &m->copied, err);
}

void pd_state_mirror_deinit(struct pd_state_mirror *m)
{
    if (!m->device) return;
    pd_dev_event_free(m->device->dev, m->computed);
    pd_dev_event_free(m->device->dev, m->copied);
}

static struct pd_span span_of(void *data, uint64_t bytes, bool is_host)
{
    return (struct pd_span){data, bytes, is_host};
}

pd_status pd_state_mirror_in(struct pd_state_mirror *m, struct pd_error *err)
{
    const struct pd_rank_device *d = m->device;
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(pd_device_spans_copy(d->spans, d->dev, d->compute, PD_LANE_COMPUTE, "copy of the state",
                                    span_of(m->device_state[kind], m->bytes, false), span_of(m->state[kind], m->bytes, true),
                                    err));
    return pd_dev_stream_sync(d->dev, d->compute, err);
}

static pd_status copy_out(struct pd_state_mirror *m, struct pd_error *err)
{
    struct pd_dev *dev = m->device->dev;
    struct pd_stream *out;
    PD_TRY(pd_rank_device_stream(m->device, PD_STREAM_SAVES, &out, err));
    PD_TRY(pd_dev_event_record(dev, m->computed, m->device->compute, err));
    PD_TRY(pd_dev_event_wait(dev, out, m->computed, err));
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(pd_device_spans_copy(m->device->spans, dev, out, PD_LANE_SAVES, "state for a save",
                                    span_of(m->state[kind], m->bytes, true), span_of(m->device_state[kind], m->bytes, false),
                                    err));
    PD_TRY(pd_dev_event_record(dev, m->copied, out, err));
    m->is_copied = true;
    return PD_OK;
}

pd_status pd_state_mirror_begin_out(struct pd_state_mirror *m, struct pd_error *err)
{
    pd_owner_acquire(&m->owner, BY_COPY);
    const pd_status st = copy_out(m, err);
    if (st) pd_owner_release(&m->owner, BY_COPY);
    return st;
}

pd_status pd_state_mirror_wait_out(struct pd_state_mirror *m, struct pd_error *err)
{
    const pd_status st = pd_dev_event_sync(m->device->dev, m->copied, err);
    pd_owner_release(&m->owner, BY_COPY);
    return st;
}

pd_status pd_state_mirror_before_update(struct pd_state_mirror *m, struct pd_error *err)
{
    return m->is_copied ? pd_dev_event_wait(m->device->dev, m->device->compute, m->copied, err) : PD_OK;
}
