/* Boxes in chunks. Chunks come out of the windows of their source in order; when one is needed that is not at hand, it and
 * those behind it that lie in the same window and will be needed too are decompressed together, a thread each.
 *
 *   invariants  1. a chunk leaves its window once, also when it is at hand from the stretch before: so windows end when they
 *                  should
 *               2. the two chunks used last stay: a block may lie in two, and a stretch begin where the one before ended
 *               3. a mismatch is read again, once, when it is the chunk's turn; not before */
#include "resharder/rewrite/internal.h"

#include "ckpt/base/thread_pool.h"
#include "ckpt/shard/decompress.h"

#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 8u /* that decompress: 2 MiB each */

struct kept {
    unsigned char *data;
    uint32_t shard, box;
    uint64_t chunk;
    bool is_valid;
};

struct decompression { /* one chunk, one thread */
    struct pd_shard_chunk chunk;
    unsigned char *pages;
    struct kept *place;
    pd_status status;
};

struct rewrite_decompressor {
    unsigned char *memory;                          /* of all that follows */
    struct pd_shard_decoder *decoders[THREADS_MAX]; /* (threads) */
    uint32_t threads, kept_count, oldest, job_count;
    struct kept kept[THREADS_MAX + 2]; /* (kept_count) */
    struct decompression jobs[THREADS_MAX];
    const struct pd_shard *source; /* of the jobs */
    unsigned char *block;          /* one that lies in two chunks, or was read anew */
};

static pd_status make(struct pd_thread_pool *pool, struct rewrite_decompressor **ret_decompressor, struct pd_error *err)
{
    const uint32_t size = pd_thread_pool_size(pool), threads = size < THREADS_MAX ? size : THREADS_MAX, kept = threads + 2;
    struct rewrite_decompressor *e = calloc(1, sizeof *e);
    if (e) e->memory = malloc((kept + threads) * (uint64_t)PD_SHARD_CHUNK_MAX + PD_SHARD_BLOCK_BYTES);
    *ret_decompressor = e;
    if (!e || !e->memory) PD_FAIL(err, PD_NO_MEMORY, "reshard: no memory to decompress");
    unsigned char *at = e->memory;
    for (; e->kept_count < kept; e->kept_count++, at += PD_SHARD_CHUNK_MAX)
        e->kept[e->kept_count].data = at;
    for (; e->threads < threads; e->threads++, at += PD_SHARD_CHUNK_MAX)
        PD_TRY(pd_shard_decoder_new(at, &e->decoders[e->threads], err));
    e->block = at;
    return PD_OK;
}

void rewrite_decompressor_free(struct rewrite_decompressor *e)
{
    if (!e) return;
    for (uint32_t t = 0; t < e->threads; t++)
        pd_shard_decoder_free(e->decoders[t]);
    free(e->memory);
    free(e);
}

static const unsigned char *find_kept(const struct rewrite_decompressor *e, uint32_t shard, uint32_t box, uint64_t chunk)
{
    for (uint32_t k = 0; k < e->kept_count; k++)
        if (e->kept[k].is_valid && e->kept[k].shard == shard && e->kept[k].box == box && e->kept[k].chunk == chunk)
            return e->kept[k].data;
    return NULL;
}

static void decode(void *context, uint64_t number)
{
    struct rewrite_decompressor *e = context;
    struct decompression *job = &e->jobs[number];
    job->status = pd_shard_chunk_decode(e->source, job->place->box, &job->chunk, job->pages, e->decoders[number],
                                        job->place->data, NULL);
}

/* The oldest goes. */
static void add_job(struct rewrite_decompressor *e, uint32_t shard, uint32_t box, const struct pd_shard_chunk *chunk,
                    unsigned char *pages)
{
    struct kept *place = &e->kept[e->oldest];
    e->oldest = (e->oldest + 1) % e->kept_count;
    place->is_valid = false;
    place->shard = shard;
    place->box = box;
    place->chunk = chunk->number;
    e->jobs[e->job_count++] = (struct decompression){*chunk, pages, place, PD_OK};
}

/* What follows `chunk` in the window and in the stretch. */
static void add_followers(struct rewriter *r, uint32_t shard, uint32_t box, struct pd_shard_chunk chunk,
                          const struct rewrite_window *w)
{
    struct rewrite_decompressor *e = r->decompressor;
    while (e->job_count < e->threads && chunk.begin + chunk.bytes < r->stretch_end) {
        pd_shard_chunk_at(e->source, box, chunk.begin + chunk.bytes, &chunk);
        if (chunk.offset < w->begin || chunk.offset + chunk.page_bytes > w->end) return;
        if (!find_kept(e, shard, box, chunk.number))
            add_job(e, shard, box, &chunk, w->slot.data + (chunk.offset - w->begin));
    }
}

static pd_status decompress(struct rewriter *r, uint32_t shard, uint32_t box, const struct pd_shard_chunk *chunk,
                            const struct rewrite_window *w, struct pd_error *err)
{
    struct rewrite_decompressor *e = r->decompressor;
    struct decompression *first = &e->jobs[0];
    e->source = r->sources[shard].shard;
    e->job_count = 0;
    add_job(e, shard, box, chunk, w->slot.data + (chunk->offset - w->begin));
    add_followers(r, shard, box, *chunk, w);
    pd_parallel(r->request->codec.pool, e->job_count, decode, e);
    if (e->job_count > r->report.decompressed_together) r->report.decompressed_together = e->job_count;
    if (first->status == PD_CORRUPT) { /* once more before it is called damage */
        PD_TRY(pd_file_read(pd_shard_file(e->source), chunk->offset, first->pages, chunk->page_bytes, err));
        first->status = pd_shard_chunk_decode(e->source, box, chunk, first->pages, e->decoders[0], first->place->data, err);
    } else if (first->status) {
        PD_FAIL(err, first->status, "reshard: no memory to decompress");
    }
    PD_TRY(first->status);
    for (uint32_t j = 0; j < e->job_count; j++)
        e->jobs[j].place->is_valid = e->jobs[j].status == PD_OK;
    return PD_OK;
}

static pd_status need_chunk(struct rewriter *r, uint32_t shard, uint32_t box, const struct pd_shard_chunk *chunk,
                            const unsigned char **ret_data, struct pd_error *err)
{
    struct rewrite_decompressor *e = r->decompressor;
    if (rewrite_take_chunk(r, chunk->number)) {
        struct rewrite_window *w = NULL;
        PD_TRY(rewrite_need_window(r, &r->sources[shard], REWRITE_LARGE, chunk->offset, chunk->page_bytes, &w, err));
        if (!find_kept(e, shard, box, chunk->number)) PD_TRY(decompress(r, shard, box, chunk, w, err));
    }
    *ret_data = find_kept(e, shard, box, chunk->number);
    PD_CHECK(*ret_data);
    return PD_OK;
}

/* One whole block, where it is when it lies in one chunk. */
static pd_status gather(struct rewriter *r, uint32_t shard, uint32_t box, uint64_t begin, uint64_t bytes,
                        const unsigned char **ret_data, struct pd_error *err)
{
    for (uint64_t done = 0; done < bytes;) {
        struct pd_shard_chunk chunk;
        const unsigned char *data = NULL;
        pd_shard_chunk_at(r->sources[shard].shard, box, begin + done, &chunk);
        PD_TRY(need_chunk(r, shard, box, &chunk, &data, err));
        const uint64_t skip = begin + done - chunk.begin, left = chunk.bytes - skip,
                       piece = left < bytes - done ? left : bytes - done;
        *ret_data = data + skip;
        if (piece == bytes) return PD_OK;
        memcpy(r->decompressor->block + done, data + skip, piece);
        done += piece;
    }
    *ret_data = r->decompressor->block;
    return PD_OK;
}

pd_status rewrite_read_chunked(struct rewriter *r, uint32_t shard, uint32_t box, uint64_t block, uint64_t bytes,
                               const unsigned char **ret_data, struct pd_error *err)
{
    struct pd_shard *source = r->sources[shard].shard;
    if (!r->decompressor) PD_TRY(make(r->request->codec.pool, &r->decompressor, err));
    if (rewrite_has_chunk_windows(r)) {
        PD_TRY(gather(r, shard, box, block * PD_SHARD_BLOCK_BYTES, bytes, ret_data, err));
        if (pd_shard_verify_block(source, box, block, *ret_data, NULL) == PD_OK) return PD_OK;
    }
    *ret_data = r->decompressor->block;
    PD_TRY(pd_shard_read_blocks(source, box, block, 1, r->decompressor->block, err));
    if (rewrite_has_chunk_windows(r)) pd_shard_forget(source);
    return PD_OK;
}
