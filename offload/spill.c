/* Spans in host memory go straight to the file (struct spill_file). Spans in device memory go through the host: each uses
 * a slot, which has staging of its own in `memory`, or one of a few bounce buffers for the file:
 *
 *   FREE ──write──▶ COMES_OUT ──copied──▶ TO_FILE ──written──▶ FREE
 *   FREE ──read───▶ FROM_FILE ──read, waited for──▶ GOES_IN ──copied──▶ FREE
 *
 * Without a file a slot belongs to its span for good, and is COMES_OUT or GOES_IN from its first write on.
 *
 *   write   compute, copies_in, others ─▶ copies_out ─▶ staging ─▶ file
 *   read    file ─▶ staging ─▶ copies_in ─▶ compute
 *
 * The host waits for drives, and for copies to them, each two spans later, and never for the device's computation. */
#include "offload/spill.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/owner.h"

#include <stdlib.h>

#define REQUEST_BYTES (UINT64_C(1) << 20)
#define REAP_MAX 16u

enum span_state { SPAN_IDLE, SPAN_WRITING, SPAN_READING };

struct span {
    uint64_t offset, bytes; /* file offset; data bytes */
    uint64_t first_block, writes;
    void *data;                    /* while in flight */
    struct pd_transfer *transfers; /* (transfer_count) */
    uint32_t transfer_count, in_flight;
    enum span_state state;
    pd_status failed; /* first failed transfer, until waited for */
    struct pd_error error;
};

struct spill_file {
    struct pd_spill_options options;
    struct pd_file *file;
    struct pd_queue *queue;
    struct span *spans;
    uint64_t *digests; /* by block */
    struct pd_transfer *transfers, **batch;
    uint64_t salt;
};

static uint64_t requests_of(uint64_t bytes)
{
    return pd_divide_up(pd_round_up(bytes, PD_VFS_ALIGN), REQUEST_BYTES);
}

static uint64_t spill_file_heap_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes)
{
    uint64_t bytes = sizeof(struct spill_file) + span_count * sizeof(struct span), most = 0;
    for (uint32_t i = 0; i < span_count; i++) {
        const uint64_t requests = requests_of(span_bytes[i]);
        bytes += pd_divide_up(span_bytes[i], block_bytes) * sizeof(uint64_t) + requests * sizeof(struct pd_transfer);
        if (requests > most) most = requests;
    }
    return bytes + most * sizeof(struct pd_transfer *);
}

uint64_t pd_spill_file_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < span_count; i++)
        bytes += pd_round_up(span_bytes[i], block_bytes);
    return bytes;
}

/* ---- life ---- */

static pd_status take_tables(struct spill_file *s, uint64_t *ret_file_bytes, struct pd_error *err)
{
    const struct pd_spill_options *o = &s->options;
    uint64_t offset = 0, blocks = 0, requests = 0, most = 0;
    s->spans = calloc(o->span_count + 1ull, sizeof *s->spans);
    if (!s->spans) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u spans", o->path, o->span_count);
    for (uint32_t i = 0; i < o->span_count; i++) {
        struct span *span = &s->spans[i];
        *span = (struct span){.offset = offset, .bytes = o->span_bytes[i], .first_block = blocks};
        span->transfer_count = (uint32_t)requests_of(span->bytes);
        offset += pd_round_up(span->bytes, o->block_bytes);
        blocks += pd_divide_up(span->bytes, o->block_bytes);
        requests += span->transfer_count;
        if (span->transfer_count > most) most = span->transfer_count;
    }
    s->digests = calloc(blocks + 1, sizeof *s->digests);
    s->transfers = calloc(requests + 1, sizeof *s->transfers);
    s->batch = calloc(most + 1, sizeof *s->batch);
    if (!s->digests || !s->transfers || !s->batch)
        PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u spans", o->path, o->span_count);
    for (uint32_t i = 0, at = 0; i < o->span_count; at += s->spans[i].transfer_count, i++)
        s->spans[i].transfers = s->transfers + at;
    *ret_file_bytes = offset;
    return PD_OK;
}

static pd_status build(struct spill_file *s, struct pd_error *err)
{
    uint64_t bytes = 0;
    PD_CHECK(s->options.block_bytes && s->options.block_bytes % PD_VFS_ALIGN == 0);
    PD_TRY(take_tables(s, &bytes, err));
    /* Unlinked at once, so nothing is left behind however the process ends. */
    const struct pd_spill_options *o = &s->options;
    const unsigned flags = PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE | PD_OPEN_DIRECT;
    PD_TRY(pd_file_open(o->vfs, o->path, flags, &s->file, err));
    PD_TRY(pd_vfs_unlink(o->vfs, o->path, err));
    pd_status st = bytes ? pd_file_preallocate(s->file, bytes, err) : PD_OK;
    PD_TRY(st == PD_UNSUPPORTED ? PD_OK : st);
    return pd_queue_open(s->options.vfs, NULL, 0, &s->queue, err);
}

/* ---- checksums ---- */

struct hashing {
    struct spill_file *spill;
    uint32_t span;
    const char *data;
    _Atomic uint64_t mismatches;
};

static uint64_t digest_of(const struct hashing *h, uint64_t block)
{
    const struct spill_file *s = h->spill;
    const struct span *span = &s->spans[h->span];
    const uint64_t begin = block * s->options.block_bytes, words[] = {s->salt, h->span, span->writes, block};
    return pd_digest64(h->data + begin, pd_min_u64(span->bytes - begin, s->options.block_bytes),
                       pd_digest_words(words, 4, 0));
}

static void hash_one(void *context, uint64_t block)
{
    struct hashing *h = context;
    h->spill->digests[h->spill->spans[h->span].first_block + block] = digest_of(h, block);
}

static void verify_one(void *context, uint64_t block)
{
    struct hashing *h = context;
    h->mismatches += h->spill->digests[h->spill->spans[h->span].first_block + block] != digest_of(h, block);
}

static uint64_t block_count(const struct spill_file *s, uint32_t span)
{
    return pd_divide_up(s->spans[span].bytes, s->options.block_bytes);
}

/* ---- transfers ---- */

static pd_status spill_reap(struct spill_file *s, struct pd_error *err)
{
    struct pd_transfer *done[REAP_MAX];
    uint32_t count;
    PD_TRY(pd_queue_reap(s->queue, done, REAP_MAX, &count, err));
    PD_CHECK(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        struct span *span = done[i]->user;
        span->in_flight--;
        if (done[i]->status && !span->failed) span->failed = pd_transfer_error(done[i], &span->error);
    }
    return PD_OK;
}

static pd_status spill_start(struct spill_file *s, uint32_t index, void *data, bool is_write, struct pd_error *err)
{
    struct span *span = &s->spans[index];
    const uint64_t bytes = pd_round_up(span->bytes, PD_VFS_ALIGN);
    PD_CHECK(span->state == SPAN_IDLE && span->bytes && (uintptr_t)data % PD_VFS_ALIGN == 0);
    for (uint32_t i = 0; i < span->transfer_count; i++) {
        const uint64_t at = i * REQUEST_BYTES, left = bytes - at;
        span->transfers[i] = (struct pd_transfer){.file = s->file,
                                                  .data = (char *)data + at,
                                                  .offset = span->offset + at,
                                                  .bytes = left < REQUEST_BYTES ? left : REQUEST_BYTES,
                                                  .is_write = is_write,
                                                  .what = is_write ? s->options.what_out : s->options.what_in,
                                                  .user = span};
        s->batch[i] = &span->transfers[i];
    }
    span->data = data;
    span->state = is_write ? SPAN_WRITING : SPAN_READING;
    span->in_flight = span->transfer_count;
    return pd_queue_submit(s->queue, s->batch, span->transfer_count, err);
}

static pd_status spill_file_write(struct spill_file *s, uint32_t span, void *data, struct pd_error *err)
{
    struct hashing h = {.spill = s, .span = span, .data = data};
    PD_CHECK(s->spans[span].state == SPAN_IDLE);
    s->spans[span].writes++;
    pd_parallel(s->options.pool, block_count(s, span), hash_one, &h);
    return spill_start(s, span, data, true, err);
}

static pd_status spill_file_read(struct spill_file *s, uint32_t span, void *data, struct pd_error *err)
{
    PD_CHECK(s->spans[span].writes);
    return spill_start(s, span, data, false, err);
}

static pd_status spill_file_wait(struct spill_file *s, uint32_t index, struct pd_error *err)
{
    struct span *span = &s->spans[index];
    const bool was_read = span->state == SPAN_READING;
    while (span->in_flight)
        PD_TRY(spill_reap(s, err));
    span->state = SPAN_IDLE;
    if (span->failed) {
        const pd_status st = span->failed;
        span->failed = PD_OK;
        return pd_error_pass(err, st, &span->error);
    }
    if (!was_read) return PD_OK;
    struct hashing h = {.spill = s, .span = index, .data = span->data};
    pd_parallel(s->options.pool, block_count(s, index), verify_one, &h);
    if (!h.mismatches) return PD_OK;
    h.mismatches = 0; /* damage only if a second read differs too */
    PD_TRY(pd_file_read(s->file, span->offset, span->data, pd_round_up(span->bytes, PD_VFS_ALIGN), err));
    pd_parallel(s->options.pool, block_count(s, index), verify_one, &h);
    if (!h.mismatches) return PD_OK;
    PD_FAIL(err, PD_CORRUPT,
            "%s: span %u differs from what was written there; do not trust this drive: set checkpoint.dir to another one "
            "and run the same command again",
            s->options.path, index);
}

static void spill_file_sync(struct spill_file *s)
{
    for (uint32_t i = 0; i < s->options.span_count; i++) {
        struct span *span = &s->spans[i];
        while (span->in_flight)
            if (spill_reap(s, NULL)) return;
        span->state = SPAN_IDLE;
        span->failed = PD_OK;
    }
}

static void spill_file_free(struct spill_file *s)
{
    if (!s) return;
    if (s->queue) spill_file_sync(s);
    if (s->queue) pd_queue_close(s->queue);
    pd_file_close_readonly(s->file);
    free(s->spans);
    free(s->digests);
    free(s->transfers);
    free(s->batch);
    free(s);
}

/* Ignores options->device. */
static pd_status spill_file_new(const struct pd_spill_options *options, struct spill_file **ret_spill, struct pd_error *err)
{
    struct spill_file *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for scratch");
    s->options = *options;
    pd_status st = build(s, err);
    s->salt = pd_digest64(&s, sizeof s, (uint64_t)(uintptr_t)s->spans);
    s->options.span_bytes = NULL;
    s->options.path = "offload scratch";
    if (st)
        spill_file_free(s);
    else
        *ret_spill = s;
    return st;
}

#define BEHIND 2u /* number of operations after which a copy for the file is waited for; a slot serves two spans */

enum slot_state { FREE, COMES_OUT, TO_FILE, FROM_FILE, GOES_IN };

struct slot {
    enum slot_state state;
    uint32_t span;
    uint64_t turn;             /* number of the operation that took it */
    char *staging;             /* used by `owner`: a copy on a stream, or the drive */
    struct pd_owner owner;     /* named by the state; the caller's thread waits for one user before it starts the next */
    void *data;                /* device memory to read into */
    struct pd_event *reusable; /* recorded when `data` may be overwritten */
    struct pd_event *copied;   /* out or in */
};

struct pd_spill {
    bool has_device;         /* otherwise only `file` is used */
    struct spill_file *file; /* NULL: spans in device memory, kept in host memory */
    struct pd_spill_device device;
    uint64_t *span_bytes; /* (span_count) */
    struct slot *slots;   /* (slot_count): a few with a file, else one a span */
    uint32_t span_count, slot_count;
    uint64_t turn;
    struct pd_event *computed, *arrived;
};

uint64_t pd_spill_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes)
{
    return sizeof(struct pd_spill) + spill_file_heap_bytes(span_bytes, span_count, block_bytes);
}

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
        most = pd_max_u64(most, pd_round_up(span_bytes[i], PD_VFS_ALIGN));
    return PD_SPILL_STAGING_SLOTS * most;
}

/* ---- life ---- */

static pd_status spill_build(struct pd_spill *s, const struct pd_spill_options *o, struct pd_error *err)
{
    const bool in_memory = s->has_device && s->device.memory;
    if (!in_memory) PD_TRY(spill_file_new(o, &s->file, err));
    if (!s->has_device) return PD_OK;
    const uint64_t place_bytes = pd_spill_staging_bytes(o->span_bytes, o->span_count) / PD_SPILL_STAGING_SLOTS;
    char *place = in_memory ? s->device.memory : s->device.staging;
    s->span_count = o->span_count;
    s->slot_count = in_memory ? o->span_count : PD_SPILL_STAGING_SLOTS;
    s->span_bytes = calloc(s->span_count + 1ull, sizeof *s->span_bytes);
    s->slots = calloc(s->slot_count + 1ull, sizeof *s->slots);
    if (!s->span_bytes || !s->slots) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u spans of a device", o->span_count);
    for (uint32_t i = 0; i < s->span_count; i++)
        s->span_bytes[i] = o->span_bytes[i];
    PD_TRY(pd_dev_event_new(s->device.dev, &s->computed, err));
    PD_TRY(pd_dev_event_new(s->device.dev, &s->arrived, err));
    for (uint32_t i = 0; i < s->slot_count; i++) {
        s->slots[i] = (struct slot){.span = i, .staging = place};
        place += in_memory ? pd_round_up(s->span_bytes[i], PD_VFS_ALIGN) : place_bytes;
        PD_TRY(pd_dev_event_new(s->device.dev, &s->slots[i].reusable, err));
        PD_TRY(pd_dev_event_new(s->device.dev, &s->slots[i].copied, err));
    }
    return PD_OK;
}

pd_status pd_spill_new(const struct pd_spill_options *options, struct pd_spill **ret_spill, struct pd_error *err)
{
    struct pd_spill *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for scratch");
    s->has_device = options->device;
    if (options->device) s->device = *options->device;
    const pd_status st = spill_build(s, options, err);
    if (st)
        pd_spill_free(s);
    else
        *ret_spill = s;
    return st;
}

/* Finishes copies out, which files are written from, and reads, which copies in take. */
static void end_transfers(struct pd_spill *s)
{
    struct pd_error ignored;
    if (pd_dev_stream_sync(s->device.dev, s->device.copies_out, &ignored)) return;
    if (s->file) spill_file_sync(s->file);
    (void)!pd_dev_stream_sync(s->device.dev, s->device.copies_in, &ignored);
}

void pd_spill_free(struct pd_spill *s)
{
    if (!s) return;
    if (s->has_device) end_transfers(s);
    spill_file_free(s->file);
    for (uint32_t i = 0; s->slots && i < s->slot_count; i++) {
        pd_dev_event_free(s->device.dev, s->slots[i].reusable);
        pd_dev_event_free(s->device.dev, s->slots[i].copied);
    }
    if (s->has_device) {
        pd_dev_event_free(s->device.dev, s->computed);
        pd_dev_event_free(s->device.dev, s->arrived);
    }
    free(s->slots);
    free(s->span_bytes);
    free(s);
}

/* ---- copies ---- */

/* Makes `stream` wait for the work given to another one so far. */
static pd_status follow(struct pd_spill *s, struct pd_stream *stream, struct pd_stream *other, struct pd_event *event,
                        struct pd_error *err)
{
    PD_TRY(pd_dev_event_record(s->device.dev, event, other, err));
    return pd_dev_event_wait(s->device.dev, stream, event, err);
}

static pd_status spill_copy(struct pd_spill *s, bool to_host, void *dst, void *src, uint64_t bytes, struct pd_event *copied,
                            struct pd_error *err)
{
    const struct pd_spill_device *d = &s->device;
    struct pd_stream *stream = to_host ? d->copies_out : d->copies_in;
    const struct pd_span to = {dst, bytes, to_host}, from = {src, bytes, !to_host};
    PD_TRY(pd_device_spans_copy(d->spans, d->dev, stream, to_host ? d->lane_out : d->lane_in, d->name, to, from, err));
    return pd_dev_event_record(d->dev, copied, stream, err);
}

/* Copies out after what the device computed, and what was copied in. */
static pd_status copy_out(struct pd_spill *s, void *dst, void *src, uint64_t bytes, struct pd_event *copied,
                          struct pd_error *err)
{
    const struct pd_spill_device *d = &s->device;
    PD_TRY(follow(s, d->copies_out, d->compute, s->computed, err));
    PD_TRY(follow(s, d->copies_out, d->copies_in, s->arrived, err));
    if (d->others) PD_TRY(follow(s, d->copies_out, d->others, s->arrived, err));
    return spill_copy(s, true, dst, src, bytes, copied, err);
}

/* ---- slots ---- */

/* Changes the state of a slot, and with it the owner of its staging. */
static void pass(struct slot *slot, enum slot_state state)
{
    static const char *const owners[] = {
        [FREE] = NULL, [COMES_OUT] = "copy out", [TO_FILE] = "write", [FROM_FILE] = "read", [GOES_IN] = "copy in"};
    if (owners[slot->state]) pd_owner_release(&slot->owner, owners[slot->state]);
    if (owners[state]) pd_owner_acquire(&slot->owner, owners[state]);
    slot->state = state;
}

static pd_status to_file(struct pd_spill *s, struct slot *slot, struct pd_error *err)
{
    PD_TRY(pd_dev_event_sync(s->device.dev, slot->copied, err));
    pass(slot, TO_FILE);
    return spill_file_write(s->file, slot->span, slot->staging, err);
}

static pd_status go_in(struct pd_spill *s, struct slot *slot, struct pd_error *err)
{
    if (s->file) PD_TRY(spill_file_wait(s->file, slot->span, err));
    pass(slot, GOES_IN);
    PD_TRY(pd_dev_event_wait(s->device.dev, s->device.copies_in, slot->reusable, err));
    return spill_copy(s, false, slot->data, slot->staging, s->span_bytes[slot->span], slot->copied, err);
}

/* Completes its operation, except that somebody must wait for a read. */
static pd_status spill_finish(struct pd_spill *s, struct slot *slot, struct pd_error *err)
{
    if (slot->state == COMES_OUT) PD_TRY(to_file(s, slot, err));
    if (slot->state == TO_FILE) PD_TRY(spill_file_wait(s->file, slot->span, err));
    if (slot->state == FROM_FILE) PD_TRY(go_in(s, slot, err));
    if (slot->state == GOES_IN) PD_TRY(pd_dev_event_sync(s->device.dev, slot->copied, err));
    pass(slot, FREE);
    return PD_OK;
}

/* Returns NULL if nothing of the span is in flight. */
static struct slot *spill_find(struct pd_spill *s, uint32_t span)
{
    for (uint32_t i = s->file ? 0 : span; i < s->slot_count; i++)
        if (s->slots[i].span == span) {
            if (s->slots[i].state != FREE) return &s->slots[i];
            if (!s->file) return NULL;
        }
    return NULL;
}

/* Takes a slot for the span, once nothing of it is on its way to or from the file. Copies of much earlier operations have
 * ended: starts the writes of their spans. */
static pd_status take_slot(struct pd_spill *s, uint32_t span, struct slot **ret_slot, struct pd_error *err)
{
    struct slot *slot = s->file ? spill_find(s, span) : NULL, *oldest = &s->slots[0];
    *ret_slot = &s->slots[s->file ? 0 : span];
    if (!s->file) return PD_OK;
    if (slot) PD_TRY(spill_finish(s, slot, err));
    s->turn++;
    for (uint32_t i = 0; i < s->slot_count; i++) {
        slot = &s->slots[i];
        if (slot->state == COMES_OUT && slot->turn + BEHIND < s->turn) PD_TRY(to_file(s, slot, err));
        if (oldest->state != FREE && (slot->state == FREE || slot->turn < oldest->turn)) oldest = slot;
    }
    PD_TRY(spill_finish(s, oldest, err));
    oldest->span = span;
    oldest->turn = s->turn;
    *ret_slot = oldest;
    return PD_OK;
}

/* ---- spans ---- */

pd_status pd_spill_write(struct pd_spill *s, uint32_t span, void *data, struct pd_error *err)
{
    struct slot *slot = NULL;
    if (!s->has_device) return spill_file_write(s->file, span, data, err);
    PD_TRY(take_slot(s, span, &slot, err));
    PD_TRY(copy_out(s, slot->staging, data, s->span_bytes[span], slot->copied, err));
    pass(slot, COMES_OUT);
    return PD_OK;
}

pd_status pd_spill_read(struct pd_spill *s, uint32_t span, void *data, struct pd_error *err)
{
    const struct pd_spill_device *d = &s->device;
    struct slot *slot = NULL;
    if (!s->has_device) return spill_file_read(s->file, span, data, err);
    PD_TRY(take_slot(s, span, &slot, err));
    slot->data = data;
    PD_TRY(pd_dev_event_record(d->dev, slot->reusable, d->compute, err));
    if (!s->file) return go_in(s, slot, err); /* after `reusable`; compute waited for the copy out */
    PD_TRY(spill_file_read(s->file, span, slot->staging, err));
    pass(slot, FROM_FILE);
    return PD_OK;
}

pd_status pd_spill_wait(struct pd_spill *s, uint32_t span, struct pd_error *err)
{
    if (!s->has_device) return spill_file_wait(s->file, span, err);
    struct slot *slot = spill_find(s, span);
    if (!slot) return PD_OK;
    if (slot->state == FROM_FILE) PD_TRY(go_in(s, slot, err));
    return pd_dev_event_wait(s->device.dev, s->device.compute, slot->copied, err);
}
