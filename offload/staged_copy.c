/* Extent i uses slot i % SLOTS from its first expect until its copies are on the device. Taking the slot again waits for
 * that. */
#include "offload/staged_copy.h"

#include "ckpt/base/owner.h"
#include "ckpt/base/trace.h"

#include <stdlib.h>

#define SLOTS 3u
#define PAGE_ELEMENTS 1024u

struct part {
    const float *gradient; /* device memory */
    void *copy;            /* device memory */
    uint64_t n, at;        /* at: offset in the slot, in elements */
};

/* Owner of a slot's memory: copies_out from expect until is_out has passed, the caller from meet until leave, copies_in
 * from leave until is_in has passed. The caller's thread waits for these events before it hands the slot on. */
#define BY_GRADIENTS "gradients out"
#define BY_UPDATE "update"
#define BY_COPIES "copies in"

struct slot {
    char *base; /* an extent's gradients, then its copies */
    struct pd_owner owner;
    struct part parts[PD_STAGED_COPY_PARTS_MAX];
    uint32_t count, met;
    uint64_t elements;
    struct pd_event *is_out, *is_in;
    bool goes_in; /* copies to the device are in flight */
};

struct pd_staged_copy {
    struct pd_staged_copy_options options;
    struct slot slots[SLOTS];
    uint64_t expected, left; /* extents */
    char *alone_base;
    struct part alone; /* gradient NULL: none */
    struct pd_event *computed;
};

static uint64_t slot_bytes(uint64_t extent_elements, uint64_t copy_bytes)
{
    return extent_elements * (sizeof(float) + copy_bytes);
}

uint64_t pd_staged_copy_bytes(uint64_t extent_elements, uint64_t copy_bytes)
{
    return SLOTS * slot_bytes(extent_elements, copy_bytes) + slot_bytes(PD_STAGED_COPY_ALONE_MAX, copy_bytes);
}

uint64_t pd_staged_copy_extent_elements(uint64_t buffer_bytes, uint64_t copy_bytes)
{
    const uint64_t alone = slot_bytes(PD_STAGED_COPY_ALONE_MAX, copy_bytes);
    PD_CHECK(buffer_bytes > alone);
    return (buffer_bytes - alone) / SLOTS / (sizeof(float) + copy_bytes) / PAGE_ELEMENTS * PAGE_ELEMENTS;
}

static pd_status staged_copy_build(struct pd_staged_copy *c, struct pd_error *err)
{
    const struct pd_staged_copy_options *o = &c->options;
    PD_CHECK(o->extent_elements > 0 && o->extent_elements % PAGE_ELEMENTS == 0);
    PD_TRY(pd_dev_event_new(o->dev, &c->computed, err));
    for (uint32_t i = 0; i < SLOTS; i++) {
        c->slots[i].base = (char *)o->buffers + i * slot_bytes(o->extent_elements, o->copy_bytes);
        PD_TRY(pd_dev_event_new(o->dev, &c->slots[i].is_out, err));
        PD_TRY(pd_dev_event_new(o->dev, &c->slots[i].is_in, err));
    }
    c->alone_base = (char *)o->buffers + SLOTS * slot_bytes(o->extent_elements, o->copy_bytes);
    return PD_OK;
}

pd_status pd_staged_copy_new(const struct pd_staged_copy_options *options, struct pd_staged_copy **ret_staged,
                             struct pd_error *err)
{
    struct pd_staged_copy *c = calloc(1, sizeof *c);
    if (!c) PD_FAIL(err, PD_NO_MEMORY, "no memory for what crosses between host and device");
    c->options = *options;
    pd_status st = staged_copy_build(c, err);
    if (st)
        pd_staged_copy_free(c);
    else
        *ret_staged = c;
    return st;
}

void pd_staged_copy_free(struct pd_staged_copy *c)
{
    if (!c) return;
    struct pd_dev *dev = c->options.dev;
    pd_dev_event_free(dev, c->computed);
    for (uint32_t i = 0; i < SLOTS; i++) {
        pd_dev_event_free(dev, c->slots[i].is_out);
        pd_dev_event_free(dev, c->slots[i].is_in);
    }
    free(c);
}

static pd_status copy_out(struct pd_staged_copy *c, void *dst, const float *gradient, uint64_t n, struct pd_error *err)
{
    const struct pd_staged_copy_options *o = &c->options;
    const uint64_t bytes = n * sizeof *gradient;
    const struct pd_span to = {dst, bytes, true}, from = {(void *)(uintptr_t)gradient, bytes, false};
    return pd_device_spans_copy(o->spans, o->dev, o->copies_out, PD_LANE_OPTIMIZER_OUT, "gradients", to, from, err);
}

static pd_status copy_in(struct pd_staged_copy *c, const struct part *part, const void *src, struct pd_error *err)
{
    const struct pd_staged_copy_options *o = &c->options;
    const uint64_t bytes = part->n * o->copy_bytes;
    const struct pd_span to = {part->copy, bytes, false}, from = {(void *)(uintptr_t)src, bytes, true};
    return pd_device_spans_copy(o->spans, o->dev, o->copies_in, PD_LANE_OPTIMIZER_IN, "updated parameters", to, from, err);
}

static pd_status wait_in(struct pd_staged_copy *c, struct slot *slot, struct pd_error *err)
{
    const bool waits = slot->goes_in;
    slot->goes_in = false;
    if (!waits) return PD_OK;
    const pd_status st = pd_dev_event_sync(c->options.dev, slot->is_in, err);
    pd_owner_release(&slot->owner, BY_COPIES);
    return st;
}

static pd_status follow_compute(struct pd_staged_copy *c, struct pd_error *err)
{
    const struct pd_staged_copy_options *o = &c->options;
    PD_TRY(pd_dev_event_record(o->dev, c->computed, o->compute, err));
    PD_TRY(pd_dev_event_wait(o->dev, o->copies_out, c->computed, err));
    return pd_dev_event_wait(o->dev, o->copies_in, c->computed, err);
}

pd_status pd_staged_copy_begin(struct pd_staged_copy *c, struct pd_error *err)
{
    const struct pd_staged_copy_options *o = &c->options;
    PD_TRY(follow_compute(c, err));
    if (c->expected != c->left) PD_TRY(pd_dev_stream_sync(o->dev, o->copies_out, err)); /* expected but never met */
    for (uint32_t i = 0; i < SLOTS; i++)
        if (!c->slots[i].goes_in) c->slots[i].owner = (struct pd_owner){NULL};
    c->expected = c->left = 0;
    c->alone.gradient = NULL;
    return pd_staged_copy_end(c, err);
}

static char *copy_place(const struct pd_staged_copy *c, char *base, uint64_t elements, uint64_t at)
{
    return base + elements * sizeof(float) + at * c->options.copy_bytes;
}

pd_status pd_staged_copy_expect(struct pd_staged_copy *c, const float *gradient, void *to, uint64_t n, bool begins,
                                struct pd_error *err)
{
    c->expected += begins;
    PD_CHECK(c->expected > c->left && c->expected - c->left < SLOTS);
    struct slot *slot = &c->slots[(c->expected - 1) % SLOTS];
    if (begins) {
        PD_TRY(wait_in(c, slot, err));
        PD_TRY(follow_compute(c, err));
        pd_owner_acquire(&slot->owner, BY_GRADIENTS);
        slot->count = slot->met = 0;
        slot->elements = 0;
    }
    PD_CHECK(slot->count < PD_STAGED_COPY_PARTS_MAX && n <= c->options.extent_elements - slot->elements);
    const uint64_t at = slot->elements;
    slot->parts[slot->count++] = (struct part){gradient, to, n, at};
    slot->elements += (n + PAGE_ELEMENTS - 1) / PAGE_ELEMENTS * PAGE_ELEMENTS;
    PD_TRY(copy_out(c, slot->base + at * sizeof(float), gradient, n, err));
    return pd_dev_event_record(c->options.dev, slot->is_out, c->options.copies_out, err);
}

static pd_status meet_alone(struct pd_staged_copy *c, const float *gradient, void *to, uint64_t n,
                            const float **ret_gradient, void **ret_copy, struct pd_error *err)
{
    PD_CHECK(!c->alone.gradient && n <= PD_STAGED_COPY_ALONE_MAX);
    PD_TRY(follow_compute(c, err));
    PD_TRY(copy_out(c, c->alone_base, gradient, n, err));
    PD_TRY(pd_dev_stream_sync(c->options.dev, c->options.copies_out, err));
    c->alone = (struct part){gradient, to, n, 0};
    *ret_gradient = (const float *)(const void *)c->alone_base;
    *ret_copy = copy_place(c, c->alone_base, PD_STAGED_COPY_ALONE_MAX, 0);
    return PD_OK;
}

pd_status pd_staged_copy_meet(struct pd_staged_copy *c, const float *gradient, void *to, uint64_t n,
                              const float **ret_gradient, void **ret_copy, struct pd_error *err)
{
    struct slot *slot = &c->slots[c->left % SLOTS];
    if (c->left == c->expected || slot->met == slot->count || slot->parts[slot->met].gradient != gradient)
        return meet_alone(c, gradient, to, n, ret_gradient, ret_copy, err);
    const struct part *part = &slot->parts[slot->met++];
    PD_CHECK(part->n == n && part->copy == to);
    if (slot->met == 1) {
        const uint64_t begin = pd_trace_begin();
        PD_TRY(pd_dev_event_sync(c->options.dev, slot->is_out, err));
        pd_trace_end(begin, "wait", "gradients from the device", n);
        pd_owner_release(&slot->owner, BY_GRADIENTS);
        pd_owner_acquire(&slot->owner, BY_UPDATE);
    }
    *ret_gradient = (const float *)(const void *)(slot->base + part->at * sizeof(float));
    *ret_copy = copy_place(c, slot->base, c->options.extent_elements, part->at);
    return PD_OK;
}

static pd_status leave_alone(struct pd_staged_copy *c, struct pd_error *err)
{
    const struct part part = c->alone;
    const char *from = copy_place(c, c->alone_base, PD_STAGED_COPY_ALONE_MAX, 0);
    c->alone.gradient = NULL;
    PD_TRY(copy_in(c, &part, from, err));
    return pd_dev_stream_sync(c->options.dev, c->options.copies_in, err);
}

pd_status pd_staged_copy_leave(struct pd_staged_copy *c, struct pd_error *err)
{
    if (c->alone.gradient) return leave_alone(c, err);
    PD_CHECK(c->left < c->expected);
    struct slot *slot = &c->slots[c->left++ % SLOTS];
    PD_CHECK(slot->met == slot->count);
    pd_owner_release(&slot->owner, BY_UPDATE);
    pd_owner_acquire(&slot->owner, BY_COPIES);
    for (uint32_t i = 0; i < slot->count; i++) {
        const struct part *part = &slot->parts[i];
        const char *from = copy_place(c, slot->base, c->options.extent_elements, part->at);
        PD_TRY(copy_in(c, part, from, err));
    }
    slot->goes_in = true;
    return pd_dev_event_record(c->options.dev, slot->is_in, c->options.copies_in, err);
}

pd_status pd_staged_copy_end(struct pd_staged_copy *c, struct pd_error *err)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        PD_TRY(wait_in(c, &c->slots[i], err));
    return PD_OK;
}
