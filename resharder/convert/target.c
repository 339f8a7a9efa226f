/* Writes shards as data arrives. A block is hashed while it is in a cache, then copied to the staging of its shard.
 *
 *   invariant  boxes of a target are begun in file order, each finished before the next one */
#include "resharder/convert/rewrite.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/fault.h"
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

void rewrite_release_targets(struct rewriter *r)
{
    for (uint32_t i = 0; i < r->group_count; i++)
        release_target(&r->targets[i]);
    r->group_count = 0;
}

pd_status rewrite_plan(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    const struct pd_import_request *q = r->request;
    const uint32_t number = (uint32_t)(t - r->targets), shard = r->group_begin + number;
    const uint64_t bytes = r->parts_bytes / r->group_count / PD_VFS_ALIGN * PD_VFS_ALIGN;
    char path[4096 + 32];
    PD_TRY(pd_shard_writer_new(r->vfs, q->tensors, t->boxes, t->box_count, r->parts + number * bytes, bytes, &q->codec,
                               &t->writer, err));
    snprintf(path, sizeof path, "%s/shard-%05u.h5", r->directory, shard);
    PD_TRY(pd_shard_stream_begin(t->writer, path, &q->state->identity, shard, &t->stream, err));
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

pd_status rewrite_complete(struct rewriter *r, struct rewrite_target *t, struct pd_error *err)
{
    struct pd_shard_stream *stream = t->stream;
    t->is_written = true;
    PD_TRY(pd_shard_staging_finish(&stream->staging, PD_OK, err));
    t->stream = NULL;
    PD_TRY(pd_shard_stream_finish(stream, &r->summaries[r->group_begin + (uint32_t)(t - r->targets)], err));
    pd_shard_writer_free(t->writer);
    t->writer = NULL;
    pd_fault_point("rewrite.shard.finished");
    return PD_OK;
}
