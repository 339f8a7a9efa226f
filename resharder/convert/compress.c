/* Compressed target shards. Data arrives box by box, each from beginning to end, and is cut into chunks as it arrives.
 * The chunks of a batch lie back to back, all threads compress them, and they are placed in their shards in order of
 * arrival.
 *
 *   memory:  | rest of a block | data of a batch ... | compressed output of each chunk ... | scratch of threads |
 *
 *   invariants  1. blocks are hashed in one piece: a block cut by the end of a batch is moved before the next batch
 *               2. at a fixed level a shard's bytes depend neither on threads nor on batches
 *               3. all chunks of a shard are placed before it is complete */
#include "resharder/convert/rewrite.h"

#include "ckpt/base/checked.h"
#include "ckpt/shard/job.h"
#include "ckpt/tensor/codec_zstd.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 8u
#define BATCH_MAX (2 * THREADS_MAX)
#define UNIT_BYTES ((uint64_t)PD_SHARD_CHUNK_MAX)

struct rewrite_compressor {
    const struct pd_shard_codec *codec;
    struct pd_shard_job jobs[BATCH_MAX];
    struct rewrite_target *targets[BATCH_MAX]; /* target of each chunk */
    uint32_t count, batch, threads;
    bool is_open;                     /* jobs[count] is being filled */
    unsigned char *data, *at, *block; /* start of a batch; next byte; start of the current block */
    unsigned char *scratch[THREADS_MAX];
    struct pd_zstd *zstd[THREADS_MAX];
    atomic_uint next_job;
};

/* ---- a batch ---- */

static void compress_some(void *context, uint64_t thread)
{
    struct rewrite_compressor *p = context;
    for (uint32_t j; (j = atomic_fetch_add_explicit(&p->next_job, 1, memory_order_relaxed)) < p->count;)
        pd_shard_job_compress(&p->jobs[j], p->codec->level, p->zstd[thread], p->scratch[thread]);
}

static pd_status run_batch(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_compressor *p = r->compressor;
    atomic_store_explicit(&p->next_job, 0, memory_order_relaxed);
    pd_parallel(p->codec->pool, p->threads, compress_some, p);
    for (uint32_t j = 0; j < p->count; j++) {
        const struct pd_shard_job *job = &p->jobs[j];
        struct rewrite_target *t = p->targets[j];
        if (job->status) PD_FAIL(err, job->status, "reshard: no memory to compress");
        PD_TRY(rewrite_stage(r, t, pd_shard_job_place(t->writer, job), job->stored, job->stored_bytes, err));
    }
    const uint64_t rest = (uint64_t)(p->at - p->block);
    memmove(p->data - rest, p->block, rest);
    p->block = p->data - rest;
    p->at = p->data;
    p->count = 0;
    return PD_OK;
}

pd_status rewrite_compressor_finish(struct rewriter *r, const struct rewrite_target *t, struct pd_error *err)
{
    const struct rewrite_compressor *p = r->compressor;
    bool has_some = false;
    for (uint32_t j = 0; p && j < p->count; j++)
        has_some = has_some || p->targets[j] == t;
    return has_some ? run_batch(r, err) : PD_OK;
}

/* ---- incoming data ---- */

static void open_job(struct rewriter *r, struct rewrite_target *t, uint64_t at)
{
    struct rewrite_compressor *p = r->compressor;
    uint64_t chunk = 0;
    const bool is_in_chunks = pd_shard_writer_chunk_at(t->writer, t->next - 1, at, &chunk);
    PD_CHECK(is_in_chunks);
    pd_shard_job_init(t->writer, t->next - 1, chunk, &p->jobs[p->count]);
    p->jobs[p->count].data = p->at;
    p->targets[p->count] = t;
    p->is_open = true;
}

pd_status rewrite_compressor_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset, uint64_t box_bytes,
                                    const unsigned char *data, uint64_t bytes, struct pd_error *err)
{
    struct rewrite_compressor *p = r->compressor;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t at = offset + done;
        if (at == 0) p->block = p->at;
        if (!p->is_open) open_job(r, t, at);
        const struct pd_shard_job *job = &p->jobs[p->count];
        const uint64_t job_end = job->begin + job->bytes, have = (uint64_t)(p->at - p->block),
                       piece = pd_min_u64(pd_min_u64(job_end - at, bytes - done), PD_SHARD_BLOCK_BYTES - have);
        memcpy(p->at, data + done, piece);
        p->at += piece;
        done += piece;
        at += piece;
        if (have + piece == PD_SHARD_BLOCK_BYTES || at == box_bytes) {
            pd_shard_stream_block(t->stream, t->next - 1, (at - 1) / PD_SHARD_BLOCK_BYTES, p->block, have + piece);
            p->block = p->at;
        }
        if (at < job_end) continue;
        p->is_open = false;
        if (++p->count == p->batch) PD_TRY(run_batch(r, err));
    }
    return PD_OK;
}

/* ---- memory ---- */

static uint64_t bytes_for(uint32_t threads, uint32_t batch)
{
    return PD_SHARD_BLOCK_BYTES + (2ull * batch + threads) * UNIT_BYTES;
}

uint64_t rewrite_compressor_cut(struct rewriter *r, void *memory, uint64_t bytes)
{
    struct rewrite_compressor *p = r->compressor;
    unsigned char *at = memory;
    if (!p) return 0;
    const unsigned size = pd_thread_pool_size(p->codec->pool);
    p->threads = size < THREADS_MAX ? size : THREADS_MAX;
    while (p->threads > 1 && bytes_for(p->threads, 2 * p->threads) > bytes)
        p->threads--;
    p->batch = bytes_for(p->threads, 2 * p->threads) <= bytes ? 2 * p->threads : 1;
    p->data = p->at = p->block = at + PD_SHARD_BLOCK_BYTES;
    at = p->data + p->batch * UNIT_BYTES;
    for (uint32_t j = 0; j < p->batch; j++, at += UNIT_BYTES)
        p->jobs[j].output = at;
    for (uint32_t t = 0; t < p->threads; t++, at += UNIT_BYTES)
        p->scratch[t] = at;
    p->count = 0;
    p->is_open = false;
    return bytes_for(p->threads, p->batch);
}

pd_status rewrite_compressor_new(const struct pd_shard_codec *codec, struct rewrite_compressor **ret_compressor,
                                 struct pd_error *err)
{
    if (codec->codec == PD_CODEC_NONE) return PD_OK;
    struct rewrite_compressor *compressor = calloc(1, sizeof *compressor);
    if (!compressor) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory to compress");
    *ret_compressor = compressor;
    compressor->codec = codec;
    for (uint32_t t = 0; t < THREADS_MAX && t < pd_thread_pool_size(codec->pool); t++)
        PD_TRY(pd_zstd_new(&compressor->zstd[t], err));
    return PD_OK;
}

void rewrite_compressor_free(struct rewrite_compressor *compressor)
{
    if (!compressor) return;
    for (uint32_t t = 0; t < THREADS_MAX; t++)
        pd_zstd_free(compressor->zstd[t]);
    free(compressor);
}
