/* Writing compressed shards, from memory or out of another file.
 *
 *   a batch of chunks:  hash blocks, shuffle, compress   (all threads of the pool)
 *                       place, stage, send               (the caller, in order, while the disk is busy with batches before)
 *
 * The staging buffers are cut into pieces of a chunk's size: one to shuffle into for each thread, one to compress into for
 * each chunk of a batch (and what is read for it, out of a file), the others a ring on the way to the disk. What does not
 * shrink by a page is stored as it is.
 *
 * `auto` does not let the disk wait for a compressor: a batch is compressed only while more is on its way to the disk than
 * that takes, by the rates measured so far; all else is written as it is, from where it lies. Where the disk ran dry all the
 * same, because rates are what they were and others want the processors too, more must be on its way the next time. So a
 * save takes as long as an uncompressed one, and what the processors have time for becomes smaller.
 *
 *   invariants  1. whatever happens, nothing is in flight when pd_shard_write_chunks returns
 *               2. at a fixed level the bytes of the file do not depend on threads, batches or time */
#include "ckpt/base/stream_copy.h"
#include "ckpt/shard/squeeze.h"
#include "ckpt/shard/writer.h"

#include <stdatomic.h>
#include <string.h>

#define UNIT_BYTES PD_SHARD_CHUNK_MAX
#define THREADS_MAX 16u
#define BATCH_MAX 32u
#define INPUT_BYTES (UNIT_BYTES + 2 * PD_SHARD_BLOCK_BYTES) /* a chunk, and the rest of the blocks it begins and ends in */
#define RING_MAX 64u
#define LENT_BYTES_MIN (UNIT_BYTES / 2) /* smaller ones are staged: fewer, larger writes */

struct scratch {
    atomic_flag is_taken;
    unsigned char *memory;
    struct pd_zstd *zstd;
};

struct slot {
    struct pd_transfer transfer;
    unsigned char *buffer;
    bool in_flight;
};

struct packing {
    struct pd_shard_writer *w;
    struct pd_shard_stream *stream;
    const void *const *data;              /* (boxes), or */
    const struct pd_shard_source *source; /* NULL with data */
    const struct pd_shard_codec *codec;
    struct scratch scratch[THREADS_MAX];
    uint32_t threads;
    struct pd_shard_job jobs[BATCH_MAX];
    uint32_t job_count, batch;
    bool is_compressing; /* this batch */
    struct slot ring[RING_MAX];
    uint32_t ring_count;
    struct slot *current; /* being filled */
    uint64_t current_offset, current_bytes;
    uint64_t in_flight_bytes, in_flight;
    struct pd_shard_rates *rates;
    uint64_t busy_since_ns; /* the disk, when anything is in flight */
    pd_status failed;       /* first failed transfer; its message is in *err */
    struct pd_error *err;
};

/* ---- on the way to the disk ---- */

/* Completions tell how fast the disk is while it has something to do. */
static void note_write(struct packing *p, uint64_t bytes)
{
    const uint64_t now = pd_clock_monotonic_ns(p->codec->clock);
    pd_shard_rates_moved(p->rates, bytes, now - p->busy_since_ns, p->in_flight > 0);
    p->busy_since_ns = now;
}

static pd_status reap_some(struct packing *p)
{
    struct pd_transfer *done[RING_MAX];
    uint32_t count = 0;
    uint64_t bytes = 0;
    PD_TRY(pd_queue_reap(p->w->queue, done, RING_MAX, &count, p->failed ? NULL : p->err));
    PD_CHECK(count > 0);
    for (uint32_t d = 0; d < count; d++) {
        ((struct slot *)done[d]->user)->in_flight = false;
        bytes += done[d]->bytes;
        if (done[d]->status && !p->failed) p->failed = pd_transfer_error(done[d], p->err);
    }
    p->in_flight -= count;
    p->in_flight_bytes -= bytes;
    note_write(p, bytes);
    return PD_OK;
}

static pd_status take_slot(struct packing *p, struct slot **ret_slot)
{
    for (;;) {
        for (uint32_t i = 0; i < p->ring_count; i++) {
            if (p->ring[i].in_flight || &p->ring[i] == p->current) continue;
            *ret_slot = &p->ring[i];
            return PD_OK;
        }
        PD_TRY(reap_some(p));
        PD_TRY(p->failed);
    }
}

static pd_status send(struct packing *p, struct slot *slot, const void *data, uint64_t offset, uint64_t bytes)
{
    slot->transfer = (struct pd_transfer){.file = pd_shard_stream_file(p->stream),
                                          .data = (void *)(uintptr_t)data,
                                          .offset = offset,
                                          .bytes = bytes,
                                          .is_write = true,
                                          .what = "write of a save",
                                          .user = slot};
    struct pd_transfer *transfer = &slot->transfer;
    if (p->in_flight == 0) p->busy_since_ns = pd_clock_monotonic_ns(p->codec->clock);
    PD_TRY(pd_queue_submit(p->w->queue, &transfer, 1, p->err));
    slot->in_flight = true;
    p->in_flight++;
    p->in_flight_bytes += bytes;
    return PD_OK;
}

static pd_status flush_current(struct packing *p)
{
    struct slot *slot = p->current;
    p->current = NULL;
    if (!slot || p->current_bytes == 0) return PD_OK;
    return send(p, slot, slot->buffer, p->current_offset, p->current_bytes);
}

/* `bytes`, then zeros up to the end of the page. Chunks follow each other, so a slot goes on where it ended. */
static pd_status stage(struct packing *p, uint64_t offset, const unsigned char *data, uint64_t bytes)
{
    const uint64_t pages = (bytes + PD_SHARD_PAGE_BYTES - 1) / PD_SHARD_PAGE_BYTES * PD_SHARD_PAGE_BYTES;
    for (uint64_t done = 0; done < pages;) {
        if (!p->current || p->current_bytes == UNIT_BYTES || p->current_offset + p->current_bytes != offset + done) {
            struct slot *slot = NULL;
            PD_TRY(flush_current(p));
            PD_TRY(take_slot(p, &slot));
            p->current = slot;
            p->current_offset = offset + done;
            p->current_bytes = 0;
        }
        const uint64_t room = UNIT_BYTES - p->current_bytes, piece = pages - done < room ? pages - done : room;
        const uint64_t real = bytes > done ? (bytes - done < piece ? bytes - done : piece) : 0;
        unsigned char *to = p->current->buffer + p->current_bytes;
        pd_stream_copy(to, data + done, real);
        memset(to + real, 0, piece - real);
        p->current_bytes += piece;
        done += piece;
    }
    return PD_OK;
}

static pd_status write_job(struct packing *p, const struct pd_shard_job *job)
{
    const uint64_t at = pd_shard_job_place(p->w, job);
    if (p->source || job->stored != job->data || job->stored_bytes < LENT_BYTES_MIN || job->stored_bytes % PD_VFS_ALIGN ||
        (uintptr_t)job->data % PD_VFS_ALIGN)
        return stage(p, at, job->stored, job->stored_bytes);
    struct slot *slot = NULL;
    PD_TRY(flush_current(p));
    PD_TRY(take_slot(p, &slot));
    return send(p, slot, job->data, at, job->stored_bytes);
}

/* Buffers are lent until reaped, whatever failed. */
static pd_status drain(struct packing *p)
{
    while (p->in_flight)
        PD_TRY(reap_some(p));
    return PD_OK;
}

/* ---- in the threads of the pool ---- */

/* Blocks that begin in the chunk; the last may reach into the next one. */
static void hash_blocks(struct packing *p, const struct pd_shard_job *job)
{
    const uint64_t box_bytes = p->w->places[job->box].bytes;
    for (uint64_t block = (job->begin + PD_SHARD_BLOCK_BYTES - 1) / PD_SHARD_BLOCK_BYTES;
         block * PD_SHARD_BLOCK_BYTES < job->begin + job->bytes; block++) {
        const uint64_t at = block * PD_SHARD_BLOCK_BYTES, left = box_bytes - at;
        pd_shard_stream_block(p->stream, job->box, block, job->data - job->begin + at,
                              left < PD_SHARD_BLOCK_BYTES ? left : PD_SHARD_BLOCK_BYTES);
    }
}

static struct scratch *take_scratch(struct packing *p)
{
    for (uint32_t i = 0;; i = (i + 1) % p->threads) /* one is free: no more threads than these are at it */
        if (!atomic_flag_test_and_set_explicit(&p->scratch[i].is_taken, memory_order_acquire)) return &p->scratch[i];
}

static void squeeze(struct packing *p, struct pd_shard_job *job)
{
    struct scratch *scratch = take_scratch(p);
    pd_shard_job_squeeze(job, p->codec->level, scratch->zstd, scratch->memory);
    atomic_flag_clear_explicit(&scratch->is_taken, memory_order_release);
}

static void run_job(void *context, uint64_t index)
{
    struct packing *p = context;
    struct pd_shard_job *job = &p->jobs[index];
    hash_blocks(p, job);
    if (p->is_compressing || job->bytes < job->chunk_bytes) /* one that has to be filled up is mostly smaller compressed */
        squeeze(p, job);
    else
        pd_shard_job_keep(job);
}

/* ---- batches ---- */

static bool may_compress(const struct packing *p, uint64_t bytes)
{
    return !p->codec->is_auto ||
           pd_shard_rates_allow(p->rates, p->in_flight_bytes, p->in_flight + 1 >= p->ring_count, bytes);
}

/* After a batch that was compressed: whether the disk had enough to do. */
static pd_status learn(struct packing *p)
{
    if (p->in_flight) PD_TRY(reap_some(p));
    pd_shard_rates_learn(p->rates, p->in_flight > 0);
    return p->failed;
}

static pd_status run_batch(struct packing *p)
{
    if (p->job_count == 0) return PD_OK;
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < p->job_count; j++)
        bytes += p->jobs[j].bytes;
    if (p->source) PD_TRY(p->source->pace(p->source->context, bytes, p->err));
    p->is_compressing = may_compress(p, bytes);
    const uint64_t begin = pd_clock_monotonic_ns(p->codec->clock);
    /* Hashing alone is faster than any disk, and nobody has to be waited for. */
    pd_parallel(p->is_compressing ? p->codec->pool : NULL, p->job_count, run_job, p);
    const uint64_t took = pd_clock_monotonic_ns(p->codec->clock) - begin;
    if (p->is_compressing) pd_shard_rates_compressed(p->rates, bytes, took);
    if (p->is_compressing && p->codec->is_auto) PD_TRY(learn(p));
    for (uint32_t j = 0; j < p->job_count; j++) {
        if (p->jobs[j].status) PD_FAIL(p->err, p->jobs[j].status, "no memory to compress");
        PD_TRY(write_job(p, &p->jobs[j]));
    }
    p->job_count = 0;
    return PD_OK;
}

/* The blocks that the chunk touches, where they are or as they are read. */
static pd_status fetch(struct packing *p, struct pd_shard_job *job)
{
    if (!p->source) {
        job->data = (const unsigned char *)p->data[job->box] + job->begin;
        return PD_OK;
    }
    const uint64_t first = job->begin / PD_SHARD_BLOCK_BYTES, end = pd_shard_blocks_of(job->begin + job->bytes);
    job->data = job->input + (job->begin - first * PD_SHARD_BLOCK_BYTES);
    return p->source->read(p->source->context, job->box, first, end - first, job->input, p->err);
}

static pd_status add_small(struct packing *p, uint32_t b)
{
    unsigned char read[PD_SHARD_PAGE_BYTES];
    const void *data = p->source ? read : p->data[b];
    if (p->source) PD_TRY(p->source->read(p->source->context, b, 0, 1, read, p->err));
    pd_shard_stream_block(p->stream, b, 0, data, p->w->places[b].bytes);
    return PD_OK;
}

static pd_status add_box(struct packing *p, uint32_t b)
{
    const struct pd_shard_place *place = &p->w->places[b];
    const uint64_t count = pd_shard_grid_count(&place->grid, place->bytes);
    for (uint64_t c = 0; c < count; c++) {
        struct pd_shard_job *job = &p->jobs[p->job_count];
        pd_shard_job_init(p->w, b, c, job);
        PD_TRY(fetch(p, job));
        if (++p->job_count == p->batch) PD_TRY(run_batch(p));
    }
    return PD_OK;
}

static pd_status pack_boxes(struct packing *p)
{
    for (uint32_t b = 0; b < p->w->box_count; b++) {
        if (p->w->places[b].grid.chunk_bytes)
            PD_TRY(add_box(p, b));
        else
            PD_TRY(add_small(p, b));
    }
    PD_TRY(run_batch(p));
    return flush_current(p);
}

/* ---- one save ---- */

static pd_status cut_buffers(struct packing *p)
{
    const uint32_t size = pd_thread_pool_size(p->codec->pool);
    const uint64_t units = p->w->buffer_bytes / UNIT_BYTES, job_bytes = UNIT_BYTES + (p->source ? INPUT_BYTES : 0);
    PD_CHECK(units >= (p->source ? 8 : 4));
    p->threads = size < THREADS_MAX ? size : THREADS_MAX;
    if (p->threads > units / 4) p->threads = (uint32_t)(units / 4);
    uint64_t batch = (units - p->threads) * UNIT_BYTES / (p->source ? 4 : 2) * (p->source ? 3 : 1) / job_bytes;
    if (batch > 2 * p->threads) batch = 2 * p->threads;
    if (size > p->threads) batch = p->threads; /* no more at a time than have somewhere to shuffle into */
    p->batch = batch < BATCH_MAX ? (uint32_t)batch : BATCH_MAX;
    const uint64_t ring = (p->w->buffer_bytes - p->threads * UNIT_BYTES - p->batch * job_bytes) / UNIT_BYTES;
    p->ring_count = ring < RING_MAX ? (uint32_t)ring : RING_MAX;
    unsigned char *at = p->w->buffers;
    for (uint32_t t = 0; t < p->threads; t++, at += UNIT_BYTES) {
        p->scratch[t].memory = at;
        atomic_flag_clear(&p->scratch[t].is_taken);
        PD_TRY(pd_shard_chunks_zstd(p->w->chunks, t, &p->scratch[t].zstd, p->err));
    }
    for (uint32_t j = 0; j < p->batch; j++, at += job_bytes) {
        p->jobs[j].output = at;
        p->jobs[j].input = p->source ? at + UNIT_BYTES : NULL;
    }
    for (uint32_t r = 0; r < p->ring_count; r++, at += UNIT_BYTES)
        p->ring[r].buffer = at;
    return PD_OK;
}

static pd_status pack(struct packing *p)
{
    PD_TRY(cut_buffers(p));
    PD_TRY(pd_shard_writer_queue(p->w, p->err));
    pd_status st = pack_boxes(p), drained = drain(p);
    if (!st) st = drained ? drained : p->failed;
    return st;
}

pd_status pd_shard_write_chunks(struct pd_shard_writer *writer, const char *path, const struct pd_identity *identity,
                                uint32_t writer_rank, const void *const *data, const struct pd_shard_source *source,
                                struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    struct packing p = {.w = writer, .data = data, .source = source, .err = err};
    p.codec = pd_shard_chunks_codec(writer->chunks);
    p.rates = pd_shard_chunks_rates(writer->chunks);
    PD_TRY(pd_shard_stream_begin(writer, path, identity, writer_rank, &p.stream, err));
    pd_status st = pack(&p);
    if (st) {
        pd_shard_stream_abort(p.stream);
        return st;
    }
    if (writer->on_copied) writer->on_copied(writer->copied_context);
    return pd_shard_stream_finish(p.stream, ret_summary, err);
}
