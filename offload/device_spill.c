/* A span in a file has a slot of the staging from write or read until the slot is taken again:
 *
 *   FREE ──write──▶ COMES_OUT ──copied──▶ TO_FILE ──written──▶ FREE
 *   FREE ──read───▶ FROM_FILE ──read, waited for──▶ GOES_IN ──copied──▶ FREE
 *
 * A span in the host's memory has none. */
#include "offload/device_spill.h"

#include "offload/spill_file.h"

#include "ckpt/base/owner.h"

#include "ckpt/base/checked.h"

#include <stdlib.h>

#define SLOTS PD_SPILL_STAGING_SLOTS
#define BEHIND 2u /* operations after which a copy that goes to a file is waited for: a place has two spans */

enum slot_state { FREE, COMES_OUT, TO_FILE, FROM_FILE, GOES_IN };

struct slot {
    enum slot_state state;
    uint32_t span;
    uint64_t turn;           /* of the operation that took it */
    char *staging;           /* whoever `owner` names has it: a copy on a stream, or the drive */
    struct pd_owner owner;   /* named by the state; the caller's thread waits for one before it starts the next */
    void *data;              /* the device's, of what is read */
    struct pd_event *room;   /* there is, in data */
    struct pd_event *copied; /* out or in */
};

struct span {
    uint64_t bytes, offset;  /* offset: in the host's memory */
    struct pd_event *copied; /* of spans in memory: the copy that was started last */
    bool moves;
};

struct pd_device_spill {
    struct pd_spill_device device;
    struct pd_spill_file *file; /* NULL: in memory */
    char *memory;
    struct span *spans; /* (span_count) */
    uint32_t span_count;
    struct slot slots[SLOTS];
    uint64_t turn;
    struct pd_event *computed, *arrived;
};

uint64_t pd_spill_memory_bytes(const uint64_t *span_bytes, uint32_t span_count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < span_count; i++)
        bytes += pd_round_up(span_bytes[i], PD_VFS_ALIGN);
    return bytes;
}

uint64_t pd_spill_staging_bytes(const uint64_t *span_bytes, uint32_t span_count)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < span_count; i++)
        if (pd_round_up(span_bytes[i], PD_VFS_ALIGN) > most) most = pd_round_up(span_bytes[i], PD_VFS_ALIGN);
    return SLOTS * most;
}

/* ---- life ---- */

static pd_status build_file(struct pd_device_spill *f, const struct pd_spill_options *o, struct pd_error *err)
{
    struct pd_spill_options near = *o;
    const uint64_t slot_bytes = pd_spill_staging_bytes(o->span_bytes, o->span_count) / SLOTS;
    near.device = NULL;
    for (uint32_t i = 0; i < SLOTS; i++) {
        f->slots[i].staging = (char *)f->device.staging + i * slot_bytes;
        PD_TRY(pd_dev_event_new(f->device.dev, &f->slots[i].room, err));
        PD_TRY(pd_dev_event_new(f->device.dev, &f->slots[i].copied, err));
    }
    return pd_spill_file_new(&near, &f->file, err);
}

static pd_status build(struct pd_device_spill *f, const struct pd_spill_options *o, struct pd_error *err)
{
    uint64_t offset = 0;
    f->spans = calloc(o->span_count + 1ull, sizeof *f->spans);
    if (!f->spans) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u spans", o->span_count);
    f->span_count = o->span_count;
    PD_TRY(pd_dev_event_new(f->device.dev, &f->computed, err));
    PD_TRY(pd_dev_event_new(f->device.dev, &f->arrived, err));
    for (uint32_t i = 0; i < o->span_count; i++) {
        f->spans[i] = (struct span){.bytes = o->span_bytes[i], .offset = offset};
        offset += pd_round_up(o->span_bytes[i], PD_VFS_ALIGN);
        if (f->memory && o->span_bytes[i]) PD_TRY(pd_dev_event_new(f->device.dev, &f->spans[i].copied, err));
    }
    return f->memory ? PD_OK : build_file(f, o, err);
}

pd_status pd_device_spill_new(const struct pd_spill_options *options, struct pd_device_spill **ret_spill,
                              struct pd_error *err)
{
    struct pd_device_spill *f = calloc(1, sizeof *f);
    if (!f) PD_FAIL(err, PD_NO_MEMORY, "no memory for spans of a device");
    f->device = *options->device;
    f->memory = options->device->memory;
    pd_status st = build(f, options, err);
    if (st)
        pd_device_spill_free(f);
    else
        *ret_spill = f;
    return st;
}

/* Files are written from what copies bring out, and read into what copies take in. */
static void end_transfers(struct pd_device_spill *f)
{
    struct pd_error ignored;
    if (pd_dev_stream_sync(f->device.dev, f->device.copies_out, &ignored)) return;
    if (f->file) pd_spill_file_sync(f->file);
    (void)!pd_dev_stream_sync(f->device.dev, f->device.copies_in, &ignored);
}

void pd_device_spill_free(struct pd_device_spill *f)
{
    if (!f) return;
    end_transfers(f);
    pd_spill_file_free(f->file);
    for (uint32_t i = 0; i < SLOTS; i++) {
        pd_dev_event_free(f->device.dev, f->slots[i].room);
        pd_dev_event_free(f->device.dev, f->slots[i].copied);
    }
    for (uint32_t i = 0; f->spans && i < f->span_count; i++)
        pd_dev_event_free(f->device.dev, f->spans[i].copied);
    pd_dev_event_free(f->device.dev, f->computed);
    pd_dev_event_free(f->device.dev, f->arrived);
    free(f->spans);
    free(f);
}

/* ---- copies ---- */

/* A stream goes on once another has done what it was given until now. */
static pd_status follow(struct pd_device_spill *f, struct pd_stream *stream, struct pd_stream *other, struct pd_event *event,
                        struct pd_error *err)
{
    PD_TRY(pd_dev_event_record(f->device.dev, event, other, err));
    return pd_dev_event_wait(f->device.dev, stream, event, err);
}

static pd_status copy(struct pd_device_spill *f, bool to_host, void *dst, void *src, uint64_t bytes, struct pd_event *copied,
                      struct pd_error *err)
{
    const struct pd_spill_device *d = &f->device;
    struct pd_stream *stream = to_host ? d->copies_out : d->copies_in;
    const struct pd_span to = {dst, bytes, to_host}, from = {src, bytes, !to_host};
    PD_TRY(pd_device_spans_copy(d->spans, d->dev, stream, to_host ? d->lane_out : d->lane_in, d->name, to, from, err));
    return pd_dev_event_record(d->dev, copied, stream, err);
}

/* What the device computed, and what came in to it. */
static pd_status copy_out(struct pd_device_spill *f, void *dst, void *src, uint64_t bytes, struct pd_event *copied,
                          struct pd_error *err)
{
    const struct pd_spill_device *d = &f->device;
    PD_TRY(follow(f, d->copies_out, d->compute, f->computed, err));
    PD_TRY(follow(f, d->copies_out, d->copies_in, f->arrived, err));
    if (d->others) PD_TRY(follow(f, d->copies_out, d->others, f->arrived, err));
    return copy(f, true, dst, src, bytes, copied, err);
}

/* ---- slots ---- */

/* The staging of a slot changes hands when its state does. */
static void pass(struct slot *slot, enum slot_state state)
{
    static const char *const owners[] = {
        [FREE] = NULL, [COMES_OUT] = "copy out", [TO_FILE] = "write", [FROM_FILE] = "read", [GOES_IN] = "copy in"};
    if (owners[slot->state]) pd_owner_release(&slot->owner, owners[slot->state]);
    if (owners[state]) pd_owner_acquire(&slot->owner, owners[state]);
    slot->state = state;
}

static pd_status to_file(struct pd_device_spill *f, struct slot *slot, struct pd_error *err)
{
    PD_TRY(pd_dev_event_sync(f->device.dev, slot->copied, err));
    pass(slot, TO_FILE);
    return pd_spill_file_write(f->file, slot->span, slot->staging, err);
}

static pd_status go_in(struct pd_device_spill *f, struct slot *slot, struct pd_error *err)
{
    PD_TRY(pd_spill_file_wait(f->file, slot->span, err));
    pass(slot, GOES_IN);
    PD_TRY(pd_dev_event_wait(f->device.dev, f->device.copies_in, slot->room, err));
    return copy(f, false, slot->data, slot->staging, f->spans[slot->span].bytes, slot->copied, err);
}

/* Nothing of it is left to do, but for somebody to wait for what was read. */
static pd_status finish(struct pd_device_spill *f, struct slot *slot, struct pd_error *err)
{
    if (slot->state == COMES_OUT) PD_TRY(to_file(f, slot, err));
    if (slot->state == TO_FILE) PD_TRY(pd_spill_file_wait(f->file, slot->span, err));
    if (slot->state == FROM_FILE) PD_TRY(go_in(f, slot, err));
    if (slot->state == GOES_IN) PD_TRY(pd_dev_event_sync(f->device.dev, slot->copied, err));
    pass(slot, FREE);
    return PD_OK;
}

static struct slot *find(struct pd_device_spill *f, uint32_t span)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (f->slots[i].state != FREE && f->slots[i].span == span) return &f->slots[i];
    return NULL;
}

/* Copies of operations long past have ended: their spans set out for the file. */
static pd_status take_slot(struct pd_device_spill *f, uint32_t span, struct slot **ret_slot, struct pd_error *err)
{
    struct slot *oldest = &f->slots[0];
    f->turn++;
    for (uint32_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &f->slots[i];
        if (slot->state == COMES_OUT && slot->turn + BEHIND < f->turn) PD_TRY(to_file(f, slot, err));
        if (oldest->state != FREE && (slot->state == FREE || slot->turn < oldest->turn)) oldest = slot;
    }
    PD_TRY(finish(f, oldest, err));
    oldest->span = span;
    oldest->turn = f->turn;
    *ret_slot = oldest;
    return PD_OK;
}

/* ---- spans ---- */

pd_status pd_device_spill_write(struct pd_device_spill *f, uint32_t index, void *data, struct pd_error *err)
{
    struct span *span = &f->spans[index];
    struct slot *slot = f->file ? find(f, index) : NULL;
    if (f->memory) {
        span->moves = true;
        return copy_out(f, f->memory + span->offset, data, span->bytes, span->copied, err);
    }
    if (slot) PD_TRY(finish(f, slot, err));
    PD_TRY(take_slot(f, index, &slot, err));
    PD_TRY(copy_out(f, slot->staging, data, span->bytes, slot->copied, err));
    pass(slot, COMES_OUT);
    return PD_OK;
}

static pd_status read_memory(struct pd_device_spill *f, struct span *span, void *data, struct pd_error *err)
{
    const struct pd_spill_device *d = &f->device;
    PD_TRY(pd_dev_event_wait(d->dev, d->copies_in, span->copied, err)); /* it was written */
    PD_TRY(follow(f, d->copies_in, d->compute, f->computed, err));      /* there is room */
    span->moves = true;
    return copy(f, false, data, f->memory + span->offset, span->bytes, span->copied, err);
}

pd_status pd_device_spill_read(struct pd_device_spill *f, uint32_t index, void *data, struct pd_error *err)
{
    struct slot *slot = f->file ? find(f, index) : NULL;
    if (f->memory) return read_memory(f, &f->spans[index], data, err);
    if (slot) PD_TRY(finish(f, slot, err));
    PD_TRY(take_slot(f, index, &slot, err));
    slot->data = data;
    PD_TRY(pd_dev_event_record(f->device.dev, slot->room, f->device.compute, err));
    PD_TRY(pd_spill_file_read(f->file, index, slot->staging, err));
    pass(slot, FROM_FILE);
    return PD_OK;
}

pd_status pd_device_spill_wait(struct pd_device_spill *f, uint32_t index, struct pd_error *err)
{
    struct span *span = &f->spans[index];
    struct slot *slot = f->file ? find(f, index) : NULL;
    if (f->memory) {
        const bool moves = span->moves;
        span->moves = false;
        return moves ? pd_dev_event_wait(f->device.dev, f->device.compute, span->copied, err) : PD_OK;
    }
    if (!slot) return PD_OK;
    if (slot->state == FROM_FILE) PD_TRY(go_in(f, slot, err));
    return pd_dev_event_wait(f->device.dev, f->device.compute, slot->copied, err);
}
