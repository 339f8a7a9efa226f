/* Writes shards as data arrives. A block is hashed while it is in a cache, then copied to the staging of its shard. HDF5
 * takes 30 us for each box; a thread makes that metadata while data of other shards moves.
 *
 *   invariants  1. boxes of a target are begun in file order, each finished before the next one
 *               2. the planner goes through shards in order, whatever their groups, and ends with the first error */
#include "resharder/convert/rewrite.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/thread.h"
#include "ckpt/shard/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOX_BYTES 1536u /* a writer's memory for a box: HDF5's pages, tables. Measured: 1.1 KiB */
#define CHUNK_BYTES 64u /* plus this for a chunk of a compressed box. Measured: 56 */

uint64_t rewrite_target_bytes(const struct rewriter *r, const struct rewrite_target *t)
{
    uint64_t data = 0;
    for (uint32_t b = 0; b < t->box_count; b++)
        data += pd_box_elements(&t->boxes[b].box) *
                pd_tensor_element_bytes(&r->request->tensors->tensors[t->boxes[b].tensor], t->boxes[b].kind);
    const uint64_t chunks = r->compressor ? t->box_count + data / (PD_SHARD_CHUNK_MAX / 2) : 0;
    return t->box_count * (BOX_BYTES + sizeof *t->boxes) + chunks * CHUNK_BYTES +
           data / PD_SHARD_BLOCK_BYTES * sizeof(uint64_t) +
           r->request->tensors->count * (sizeof(struct pd_tensor) + sizeof(uint64_t));
}

static void release_target(struct rewrite_target *t)
{
    if (t->stream) (void)!pd_shard_staging_finish(&t->stream->staging, PD_STOPPED, NULL); /* leave nothing in flight */
    pd_shard_stream_abort(t->stream);
    pd_shard_writer_free(t->writer);
    free(t->boxes);
    *t = (struct rewrite_target){0};
}

struct rewrite_target *rewrite_target_of(struct rewriter *r, uint32_t shard)
{
    return &r->targets[shard % REWRITE_TARGETS];
}

void rewrite_release_targets(struct rewriter *r, uint32_t begin, uint32_t end)
{
    for (uint32_t s = begin; s < end; s++)
        release_target(rewrite_target_of(r, s));
}

/* ---- the planner ---- */

static void *planner_run(void *context)
{
    struct rewriter *r = context;
    struct rewrite_planner *p = &r->planner;
    const struct pd_import_request *q = r->request;
    pthread_mutex_lock(&p->mutex);
    while (!p->leaves && !p->status) {
        if (p->planned == p->laid_out) {
            pthread_cond_wait(&p->changed, &p->mutex);
            continue;
        }
        struct rewrite_target *t = rewrite_target_of(r, p->planned);
        pthread_mutex_unlock(&p->mutex);
        struct pd_error error = {0};
        const pd_status st = pd_shard_writer_new(r->vfs, q->tensors, t->boxes, t->box_count, t->part, t->part_bytes,
                                                 &q->codec, &t->writer, &error);
        pthread_mutex_lock(&p->mutex);
        p->status = st;
        p->error = error;
        p->planned += !st;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

pd_status rewrite_planner_start(struct rewriter *r, struct pd_error *err)
{
    struct rewrite_planner *p = &r->planner;
    (void)pthread_mutex_init(&p->mutex, NULL);
    (void)pthread_cond_init(&p->changed, NULL);
    const int error = pd_thread_start(&p->thread, NULL, planner_run, r);
    p->runs = !error;
    if (p->runs) return PD_OK;
    (void)pthread_cond_destroy(&p->changed);
    (void)pthread_mutex_destroy(&p->mutex);
    PD_FAIL_THREAD(err, error, "to plan shards");
}

void rewrite_planner_goes_on(struct rewriter *r)
{
    struct rewrite_planner *p = &r->planner;
    pthread_mutex_lock(&p->mutex);
    p->laid_out = r->next_end;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

void rewrite_planner_stop(struct rewriter *r)
{
    struct rewrite_planner *p = &r->planner;
    if (!p->runs) return;
    pthread_mutex_lock(&p->mutex);
    p->leaves = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    (void)pthread_join(p->thread, NULL);
    (void)pthread_cond_destroy(&p->changed);
    (void)pthread_mutex_destroy(&p->mutex);
    p->runs = false;
}

static pd_status wait_for_writer(struct rewriter *r, uint32_t shard, struct pd_error *err)
{
    struct rewrite_planner *p = &r->planner;
    pthread_mutex_lock(&p->mutex);
    while (p->planned <= shard && !p->status)
        pthread_cond_wait(&p->changed, &p->mutex);
    const pd_status st = p->planned > shard ? PD_OK : pd_error_pass(err, p->status, &p->error);
    pthread_mutex_unlock(&p->mutex);
    return st;
}

/* ---- a target ---- */

pd_status rewrite_open(struct rewriter *r, uint32_t shard, struct pd_error *err)
{
    struct rewrite_target *t = rewrite_target_of(r, shard);
    char path[4096 + 32];
    PD_TRY(wait_for_writer(r, shard, err));
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, shard);
    PD_TRY(pd_shard_stream_begin(t->writer, path, &r->request->state->identity, shard, &t->stream, err));
    return pd_shard_stream_stage(t->stream, false, err);
}

pd_status rewrite_stage(struct rewriter *r, struct rewrite_target *t, uint64_t at, const unsigned char *data, uint64_t bytes,
                        struct pd_error *err)
{
    const uint64_t pages = pd_round_up(bytes, PD_VFS_ALIGN);
    r->report.bytes_written += pages;
    PD_TRY(pd_shard_staging_put(&t->stream->staging, at, data, bytes, err));
    return pd_shard_staging_put(&t->stream->staging, at + bytes, NULL, pages - bytes, err);
}

pd_status rewrite_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset, uint64_t box_bytes,
                         const unsigned char *data, uint64_t bytes, struct pd_error *err)
{
    const uint32_t box = t->next - 1;
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t number = (offset + done) / PD_SHARD_BLOCK_BYTES, begin = number * PD_SHARD_BLOCK_BYTES,
                       block_bytes = pd_min_u64(box_bytes - begin, PD_SHARD_BLOCK_BYTES), have = offset + done - begin,
                       piece = pd_min_u64(block_bytes - have, bytes - done);
        const unsigned char *block = data + done;
        if (piece < block_bytes) {
            memcpy(t->block + have, block, piece);
            block = t->block;
        }
        done += piece;
        if (have + piece < block_bytes) continue;
        pd_shard_stream_block(t->stream, box, number, block, block_bytes);
        if (box_bytes >= PD_VFS_ALIGN) /* otherwise the stream has kept it */
            PD_TRY(rewrite_stage(r, t, pd_shard_writer_box_offset(t->writer, box) + begin, block, block_bytes, err));
    }
    return PD_OK;
}

pd_status rewrite_complete(struct rewriter *r, uint32_t shard, struct pd_error *err)
{
    struct rewrite_target *t = rewrite_target_of(r, shard);
    struct pd_shard_stream *stream = t->stream;
    t->is_written = true;
    PD_TRY(pd_shard_staging_finish(&stream->staging, PD_OK, err));
    t->stream = NULL;
    PD_TRY(pd_shard_stream_finish(stream, &r->summaries[shard], err));
    pd_shard_writer_free(t->writer);
    t->writer = NULL;
    pd_fault_point("rewrite.shard.finished");
    return PD_OK;
}
