/* Writes compressed shards:
 *
 *   a batch of chunks:  hash blocks, shuffle, compress   (all threads of the pool)
 *                       place, stage                     (the caller, in order, while earlier batches are written)
 *
 * The staging buffers are divided anew:
 *
 *   | shuffle scratch of each thread | output, and input, of each chunk of a batch | staging slots |
 *
 * A chunk that compression does not shrink by a page is stored unchanged.
 *
 *   invariants  1. nothing is in flight when pd_shard_compress_boxes returns
 *               2. the bytes of the file depend on data and level alone, not on threads, batches or time */
#include "ckpt/shard/compress.h"

#include "ckpt/base/checked.h"
#include "ckpt/shard/job.h"
#include "ckpt/shard/stream.h"

#include <stdatomic.h>

#define UNIT_BYTES PD_SHARD_CHUNK_MAX
#define THREADS_MAX 16u
#define BATCH_MAX (2 * THREADS_MAX)
#define INPUT_BYTES (UNIT_BYTES + 2 * PD_SHARD_BLOCK_BYTES) /* a chunk, and the rest of the blocks at both its ends */
#define ZERO_COPY_BYTES_MIN (UNIT_BYTES / 2)                /* smaller ones are staged: fewer, larger writes */

struct compressing {
    struct pd_shard_writer *w;
    struct pd_shard_stream *stream;
    const void *const *data;              /* (boxes), or */
    const struct pd_shard_source *source; /* NULL with data */
    const struct pd_shard_codec *codec;
    struct pd_zstd *zstd[THREADS_MAX]; /* (threads) indexed by thread of pd_parallel, like its scratch */
    /* (batch) The caller fills job_count of them; during a batch a job belongs to the thread that took its number. */
    struct pd_shard_job jobs[BATCH_MAX];
    uint32_t threads, batch, job_count;
    atomic_uint next_job;
    struct pd_error *err;
};

/* ---- in the threads of the pool ---- */

/* Hashes blocks that begin in the chunk; the last may reach into the next one. */
static void hash_blocks(struct compressing *c, const struct pd_shard_job *job)
{
    const uint64_t box_bytes = c->w->places[job->box].bytes;
    for (uint64_t block = pd_divide_up(job->begin, PD_SHARD_BLOCK_BYTES);
         block * PD_SHARD_BLOCK_BYTES < job->begin + job->bytes; block++) {
        const unsigned char *data = job->data - job->begin + block * PD_SHARD_BLOCK_BYTES;
        pd_shard_stream_block(c->stream, job->box, block, data, pd_shard_block_length(box_bytes, block));
    }
}

static void run_jobs(void *context, uint64_t thread)
{
    struct compressing *c = context;
    unsigned char *scratch = c->w->buffers + thread * UNIT_BYTES;
    for (uint32_t j; (j = atomic_fetch_add_explicit(&c->next_job, 1, memory_order_relaxed)) < c->job_count;) {
        hash_blocks(c, &c->jobs[j]);
        pd_shard_job_compress(&c->jobs[j], c->codec->level, c->zstd[thread], scratch);
    }
}

/* ---- batches ---- */

/* The next batch overwrites input that was read, so it is never written zero-copy. */
static pd_status write_job(struct compressing *c, const struct pd_shard_job *job)
{
    struct pd_shard_staging *staging = &c->stream->staging;
    const uint64_t at = pd_shard_job_place(c->w, job), bytes = job->stored_bytes;
    const bool is_zero_copy = !c->source && job->stored == job->data && bytes >= ZERO_COPY_BYTES_MIN &&
                              bytes % PD_VFS_ALIGN == 0 && (uintptr_t)job->data % PD_VFS_ALIGN == 0;
    if (is_zero_copy) return pd_shard_staging_write(staging, at, job->data, bytes, c->err);
    PD_TRY(pd_shard_staging_put(staging, at, job->stored, bytes, c->err));
    return pd_shard_staging_put(staging, at + bytes, NULL, pd_round_up(bytes, PD_SHARD_PAGE_BYTES) - bytes, c->err);
}

static pd_status run_batch(struct compressing *c)
{
    if (c->job_count == 0) return PD_OK;
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < c->job_count; j++)
        bytes += c->jobs[j].bytes;
    if (c->source) PD_TRY(c->source->pace(c->source->context, bytes, c->err));
    atomic_store_explicit(&c->next_job, 0, memory_order_relaxed);
    pd_parallel(c->codec->pool, c->threads, run_jobs, c);
    for (uint32_t j = 0; j < c->job_count; j++) {
        if (c->jobs[j].status) PD_FAIL(c->err, c->jobs[j].status, "no memory to compress");
        PD_TRY(write_job(c, &c->jobs[j]));
        PD_TRY(pd_shard_stream_wrote(c->stream, c->jobs[j].bytes, c->err));
    }
    c->job_count = 0;
    return PD_OK;
}

/* Finds or reads the blocks that the chunk touches. */
static pd_status fetch(struct compressing *c, struct pd_shard_job *job)
{
    if (!c->source) {
        job->data = (const unsigned char *)c->data[job->box] + job->begin;
        return PD_OK;
    }
    const uint64_t first = job->begin / PD_SHARD_BLOCK_BYTES, end = pd_shard_blocks_of(job->begin + job->bytes);
    job->data = job->input + (job->begin - first * PD_SHARD_BLOCK_BYTES);
    return c->source->read(c->source->context, job->box, first, end - first, job->input, c->err);
}

static pd_status add_small(struct compressing *c, uint32_t b)
{
    unsigned char read[PD_SHARD_PAGE_BYTES];
    const void *data = c->source ? read : c->data[b];
    if (c->source) PD_TRY(c->source->read(c->source->context, b, 0, 1, read, c->err));
    pd_shard_stream_block(c->stream, b, 0, data, c->w->places[b].bytes);
    return PD_OK;
}

static pd_status compress_add_box(struct compressing *c, uint32_t b)
{
    const struct pd_shard_place *place = &c->w->places[b];
    const uint64_t count = pd_shard_grid_count(&place->grid, place->bytes);
    for (uint64_t chunk = 0; chunk < count; chunk++) {
        struct pd_shard_job *job = &c->jobs[c->job_count];
        pd_shard_job_init(c->w, b, chunk, job);
        PD_TRY(fetch(c, job));
        if (++c->job_count == c->batch) PD_TRY(run_batch(c));
    }
    return PD_OK;
}

static pd_status add_boxes(struct compressing *c)
{
    for (uint32_t b = 0; b < c->w->box_count; b++) {
        if (c->w->places[b].grid.chunk_bytes)
            PD_TRY(compress_add_box(c, b));
        else
            PD_TRY(add_small(c, b));
    }
    return run_batch(c);
}

/* ---- memory ---- */

/* Chooses the number of threads and the number of chunks in a batch. */
static void choose_sizes(struct compressing *c, uint64_t job_bytes)
{
    const uint64_t pool = pd_thread_pool_size(c->codec->pool), units = c->w->buffer_bytes / UNIT_BYTES;
    PD_CHECK(units >= (c->source ? 8 : 4));
    c->threads = (uint32_t)pd_min_u64(pd_min_u64(pool, THREADS_MAX), units / 4);
    /* The batch gets half of what scratch leaves, staging the other half; three quarters if chunks are read. */
    const uint64_t left = (units - c->threads) * UNIT_BYTES, for_batch = c->source ? left / 4 * 3 : left / 2;
    c->batch = (uint32_t)pd_min_u64(for_batch / job_bytes, 2ull * c->threads);
}

pd_status pd_shard_compress_boxes(struct pd_shard_stream *stream, const void *const *data,
                                  const struct pd_shard_source *source, struct pd_error *err)
{
    struct compressing c = {.w = stream->w, .stream = stream, .data = data, .source = source, .err = err};
    c.codec = pd_shard_chunks_codec(stream->w->chunks);
    const uint64_t job_bytes = UNIT_BYTES + (c.source ? INPUT_BYTES : 0);
    choose_sizes(&c, job_bytes);
    for (uint32_t t = 0; t < c.threads; t++)
        PD_TRY(pd_shard_chunks_zstd(c.w->chunks, t, &c.zstd[t], c.err));
    unsigned char *at = c.w->buffers + c.threads * UNIT_BYTES;
    for (uint32_t j = 0; j < c.batch; j++, at += job_bytes) {
        c.jobs[j].output = at;
        c.jobs[j].input = c.source ? at + UNIT_BYTES : NULL;
    }
    const uint64_t left = c.w->buffer_bytes - (uint64_t)(at - c.w->buffers);
    PD_TRY(pd_shard_stream_stage_in(c.stream, at, left, UNIT_BYTES, c.err));
    pd_status st = add_boxes(&c);
    return pd_shard_staging_finish(&stream->staging, st, err);
}
