#include "trainer/engine/state_mirror.h"

#include <stdlib.h>

#define BY_COPY "copy out of the device"

#define PAGE_ELEMENTS (PD_ARENA_ALIGN / sizeof(float))

/* Boxes of a page and more come first, in whole pages. Saves and loads then move them by direct I/O, and the size depends
 * only on which boxes are owned. */
static uint64_t place_boxes(struct pd_state_mirror *m, bool is_large, uint64_t elements)
{
    for (uint32_t i = 0; i < m->held->box_count; i++) {
        const struct pd_zero_box *b = &m->held->boxes[i];
        if (!b->owned || (b->elements >= PAGE_ELEMENTS) != is_large) continue;
        m->offsets[i] = elements;
        elements += is_large ? (b->elements + PAGE_ELEMENTS - 1) / PAGE_ELEMENTS * PAGE_ELEMENTS : b->elements;
    }
    return elements;
}

static bool owns_all(const struct pd_zero_held *held)
{
    for (uint32_t i = 0; i < held->box_count; i++)
        if (!held->boxes[i].owned) return false;
    return true;
}

pd_status pd_state_mirror_init(struct pd_state_mirror *m, struct pd_rank_device *device, const struct pd_zero_held *held,
                               struct pd_arena *arena, struct pd_error *err)
{
    *m = (struct pd_state_mirror){.held = held, .is_whole = owns_all(held)};
    m->offsets = calloc(held->box_count + 1ull, sizeof *m->offsets);
    if (!m->offsets) PD_FAIL(err, PD_NO_MEMORY, "no memory for the mirror of %u boxes", held->box_count);
    for (uint32_t i = 0; m->is_whole && i < held->box_count; i++)
        m->offsets[i] = held->boxes[i].offset;
    const uint64_t elements = m->is_whole ? held->elements : place_boxes(m, false, place_boxes(m, true, 0));
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        m->state[kind] =
            pd_arena_take_host(arena, PD_MEMORY_OPTIMIZER, elements * pd_zero_element_bytes(held, (enum pd_kind)kind));
    if (pd_arena_is_dry(arena)) return PD_OK;
    m->device = device;
    PD_TRY(pd_dev_event_new(device->dev, &m->computed, err));
    return pd_dev_event_new(device->dev, &m->copied, err);
}

void pd_state_mirror_deinit(struct pd_state_mirror *m)
{
    free(m->offsets);
    if (!m->device) return;
    pd_dev_event_free(m->device->dev, m->computed);
    pd_dev_event_free(m->device->dev, m->copied);
}

static struct pd_span span_of(void *data, uint64_t bytes, bool is_host)
{
    return (struct pd_span){data, bytes, is_host};
}

void *pd_state_mirror_box(const struct pd_state_mirror *m, enum pd_kind kind, const struct pd_zero_box *b)
{
    PD_CHECK(b->owned);
    return (char *)m->state[kind] + m->offsets[b - m->held->boxes] * pd_zero_element_bytes(m->held, kind);
}

/* How a copy of the state goes. */
struct way {
    struct pd_stream *stream;
    const char *lane;
    const char *what;
    bool is_in;
};

static pd_status copy_span(struct pd_state_mirror *m, const struct way *way, int kind, uint64_t held, uint64_t mirrored,
                           uint64_t elements, struct pd_error *err)
{
    const uint64_t element_bytes = pd_zero_element_bytes(m->held, (enum pd_kind)kind), bytes = elements * element_bytes;
    const struct pd_span device = span_of(pd_zero_state(m->held, (enum pd_kind)kind, held), bytes, false),
                         host = span_of((char *)m->state[kind] + mirrored * element_bytes, bytes, true);
    return pd_device_spans_copy(m->device->spans, m->device->dev, way->stream, way->lane, way->what,
                                way->is_in ? device : host, way->is_in ? host : device, err);
}

static pd_status copy_kind(struct pd_state_mirror *m, const struct way *way, int kind, struct pd_error *err)
{
    if (m->is_whole) return copy_span(m, way, kind, 0, 0, m->held->elements, err);
    for (uint32_t i = 0; i < m->held->box_count; i++) {
        const struct pd_zero_box *b = &m->held->boxes[i];
        if (b->owned) PD_TRY(copy_span(m, way, kind, b->offset, m->offsets[i], b->elements, err));
    }
    return PD_OK;
}

pd_status pd_state_mirror_in(struct pd_state_mirror *m, struct pd_error *err)
{
    const struct way way = {m->device->compute, PD_LANE_COMPUTE, "copy of the state", true};
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(copy_kind(m, &way, kind, err));
    return pd_dev_stream_sync(m->device->dev, m->device->compute, err);
}

static pd_status copy_out(struct pd_state_mirror *m, struct pd_error *err)
{
    struct pd_dev *dev = m->device->dev;
    struct way way = {.lane = PD_LANE_SAVES, .what = "state for a save"};
    PD_TRY(pd_rank_device_stream(m->device, PD_STREAM_SAVES, &way.stream, err));
    PD_TRY(pd_dev_event_record(dev, m->computed, m->device->compute, err));
    PD_TRY(pd_dev_event_wait(dev, way.stream, m->computed, err));
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        PD_TRY(copy_kind(m, &way, kind, err));
    PD_TRY(pd_dev_event_record(dev, m->copied, way.stream, err));
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
