#include "trainer/state_mirror.h"

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
    PD_TRY(pd_dev_event_new(device->dev, &m->settled, err));
    return pd_dev_event_new(device->dev, &m->copied, err);
}

void pd_state_mirror_deinit(struct pd_state_mirror *m)
{
    if (!m->device) return;
    pd_dev_event_free(m->device->dev, m->settled);
    pd_dev_event_free(m->device->dev, m->copied);
}

static struct pd_span span_of(void *data, uint64_t bytes, bool is_host)
{
    return (struct pd_span){data, bytes, is_host};
}

pd_status pd_state_mirror_in(struct pd_state_mirror *m, struct pd_error *err)
{
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(pd_dev_copy(m->device->dev, m->device->compute, span_of(m->device_state[kind], m->bytes, false), 0,
                           span_of(m->state[kind], m->bytes, true), 0, m->bytes, err));
    return pd_dev_stream_sync(m->device->dev, m->device->compute, err);
}

pd_status pd_state_mirror_begin_out(struct pd_state_mirror *m, struct pd_error *err)
{
    struct pd_dev *dev = m->device->dev;
    struct pd_stream *out = m->device->copies_out;
    PD_TRY(pd_dev_event_record(dev, m->settled, m->device->compute, err));
    PD_TRY(pd_dev_event_wait(dev, out, m->settled, err));
    const uint32_t span = pd_device_spans_begin(m->device->spans, out, "GPU copies out", "state to the host", 3 * m->bytes);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(pd_dev_copy(dev, out, span_of(m->state[kind], m->bytes, true), 0,
                           span_of(m->device_state[kind], m->bytes, false), 0, m->bytes, err));
    pd_device_spans_end(m->device->spans, span, out);
    PD_TRY(pd_dev_event_record(dev, m->copied, out, err));
    m->is_copied = true;
    return PD_OK;
}

pd_status pd_state_mirror_wait_out(struct pd_state_mirror *m, struct pd_error *err)
{
    return pd_dev_event_sync(m->device->dev, m->copied, err);
}

pd_status pd_state_mirror_before_update(struct pd_state_mirror *m, struct pd_error *err)
{
    return m->is_copied ? pd_dev_event_wait(m->device->dev, m->device->compute, m->copied, err) : PD_OK;
}
