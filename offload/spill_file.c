#include "offload/spill_file.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"

#include <stdlib.h>

#define REQUEST_BYTES (UINT64_C(1) << 20)
#define REAP_MAX 16u

enum span_state { SPAN_IDLE, SPAN_WRITING, SPAN_READING };

struct span {
    uint64_t offset, bytes; /* in the file; data of it */
    uint64_t first_block, writes;
    void *data;                    /* while in flight */
    struct pd_transfer *transfers; /* (transfer_count) */
    uint32_t transfer_count, in_flight;
    enum span_state state;
    pd_status failed; /* of a transfer, until waited for */
    struct pd_error error;
};

struct pd_spill_file {
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

uint64_t pd_spill_file_heap_bytes(const uint64_t *span_bytes, uint32_t span_count, uint64_t block_bytes)
{
    uint64_t bytes = sizeof(struct pd_spill_file) + span_count * sizeof(struct span), most = 0;
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

static pd_status take_tables(struct pd_spill_file *s, uint64_t *ret_file_bytes, struct pd_error *err)
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

static pd_status build(struct pd_spill_file *s, struct pd_error *err)
{
    uint64_t bytes = 0;
    PD_CHECK(s->options.block_bytes && s->options.block_bytes % PD_VFS_ALIGN == 0);
    PD_TRY(take_tables(s, &bytes, err));
    /* Without a name nothing is left behind, however the process ends. */
    const struct pd_spill_options *o = &s->options;
    const unsigned flags = PD_OPEN_READ | PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE | PD_OPEN_DIRECT;
    PD_TRY(pd_file_open(o->vfs, o->path, flags, &s->file, err));
    PD_TRY(pd_vfs_unlink(o->vfs, o->path, err));
    pd_status st = bytes ? pd_file_preallocate(s->file, bytes, err) : PD_OK;
    PD_TRY(st == PD_UNSUPPORTED ? PD_OK : st);
    return pd_queue_open(s->options.vfs, NULL, 0, &s->queue, err);
}

pd_status pd_spill_file_new(const struct pd_spill_options *options, struct pd_spill_file **ret_spill, struct pd_error *err)
{
    struct pd_spill_file *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for scratch");
    s->options = *options;
    pd_status st = build(s, err);
    s->salt = pd_digest64(&s, sizeof s, (uint64_t)(uintptr_t)s->spans);
    s->options.span_bytes = NULL;
    s->options.path = "offload scratch";
    if (st)
        pd_spill_file_free(s);
    else
        *ret_spill = s;
    return st;
}

void pd_spill_file_free(struct pd_spill_file *s)
{
    if (!s) return;
    if (s->queue) pd_spill_file_sync(s);
    if (s->queue) pd_queue_close(s->queue);
    pd_file_close_readonly(s->file);
    free(s->spans);
    free(s->digests);
    free(s->transfers);
    free(s->batch);
    free(s);
}

/* ---- checksums ---- */

static uint64_t seed_of(const struct pd_spill_file *s, uint32_t span, uint64_t block)
{
    const uint64_t words[] = {s->salt, span, s->spans[span].writes, block};
    return pd_digest_words(words, 4, 0);
}

static void hash_block(struct pd_spill_file *s, uint32_t span, uint64_t block, const void *data, uint64_t bytes)
{
    s->digests[s->spans[span].first_block + block] = pd_digest64(data, bytes, seed_of(s, span, block));
}

static bool matches(const struct pd_spill_file *s, uint32_t span, uint64_t block, const void *data, uint64_t bytes)
{
    return s->digests[s->spans[span].first_block + block] == pd_digest64(data, bytes, seed_of(s, span, block));
}

static pd_status verify_block(const struct pd_spill_file *s, uint32_t span, uint64_t block, const void *data, uint64_t bytes,
                              struct pd_error *err)
{
    if (matches(s, span, block, data, bytes)) return PD_OK;
    PD_FAIL(err, PD_CORRUPT,
            "%s: span %u, block %llu differs from what was written there; do not trust this drive: set "
            "checkpoint.dir to another one and run the same command again",
            s->options.path, span, (unsigned long long)block);
}

struct hashing {
    struct pd_spill_file *spill;
    uint32_t span;
    char *data;
    _Atomic uint64_t mismatches;
};

static uint64_t block_length(const struct pd_spill_file *s, uint32_t span, uint64_t block)
{
    const uint64_t left = s->spans[span].bytes - block * s->options.block_bytes;
    return left < s->options.block_bytes ? left : s->options.block_bytes;
}

static void hash_one(void *context, uint64_t block)
{
    struct hashing *h = context;
    hash_block(h->spill, h->span, block, h->data + block * h->spill->options.block_bytes,
               block_length(h->spill, h->span, block));
}

static void verify_one(void *context, uint64_t block)
{
    struct hashing *h = context;
    if (!matches(h->spill, h->span, block, h->data + block * h->spill->options.block_bytes,
                 block_length(h->spill, h->span, block)))
        h->mismatches++;
}

static uint64_t block_count(const struct pd_spill_file *s, uint32_t span)
{
    return pd_divide_up(s->spans[span].bytes, s->options.block_bytes);
}

/* ---- transfers ---- */

static pd_status reap(struct pd_spill_file *s, struct pd_error *err)
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

static pd_status start(struct pd_spill_file *s, uint32_t index, void *data, bool is_write, struct pd_error *err)
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

pd_status pd_spill_file_write(struct pd_spill_file *s, uint32_t span, void *data, struct pd_error *err)
{
    struct hashing h = {.spill = s, .span = span, .data = data};
    PD_CHECK(s->spans[span].state == SPAN_IDLE);
    s->spans[span].writes++;
    pd_parallel(s->options.pool, block_count(s, span), hash_one, &h);
    return start(s, span, data, true, err);
}

pd_status pd_spill_file_read(struct pd_spill_file *s, uint32_t span, void *data, struct pd_error *err)
{
    PD_CHECK(s->spans[span].writes);
    return start(s, span, data, false, err);
}

static pd_status read_again(struct pd_spill_file *s, uint32_t index, struct pd_error *err)
{
    struct span *span = &s->spans[index];
    char *data = span->data;
    PD_TRY(pd_file_read(s->file, span->offset, data, pd_round_up(span->bytes, PD_VFS_ALIGN), err));
    for (uint64_t block = 0; block < block_count(s, index); block++)
        PD_TRY(verify_block(s, index, block, data + block * s->options.block_bytes, block_length(s, index, block), err));
    return PD_OK;
}

pd_status pd_spill_file_wait(struct pd_spill_file *s, uint32_t index, struct pd_error *err)
{
    struct span *span = &s->spans[index];
    const bool was_read = span->state == SPAN_READING;
    while (span->in_flight)
        PD_TRY(reap(s, err));
    span->state = SPAN_IDLE;
    if (span->failed) {
        const pd_status st = span->failed;
        span->failed = PD_OK;
        return pd_error_pass(err, st, &span->error);
    }
    if (!was_read) return PD_OK;
    struct hashing h = {.spill = s, .span = index, .data = span->data};
    pd_parallel(s->options.pool, block_count(s, index), verify_one, &h);
    return h.mismatches ? read_again(s, index, err) : PD_OK;
}

void pd_spill_file_sync(struct pd_spill_file *s)
{
    for (uint32_t i = 0; i < s->options.span_count; i++) {
        struct span *span = &s->spans[i];
        while (span->in_flight)
            if (reap(s, NULL)) return;
        span->state = SPAN_IDLE;
        span->failed = PD_OK;
    }
}
