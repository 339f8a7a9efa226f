/* Writes the boxes of a compressed shard, from memory or from another file. */
#pragma once

#include "ckpt/shard/writer.h"

/* Source of data that is not in memory. */
struct pd_shard_source {
    void *context;
    /* Reads whole blocks of a box into dst; only the last block of a box is short. */
    pd_status (*read)(void *context, uint32_t box, uint64_t first_block, uint64_t block_count, void *dst,
                      struct pd_error *err);
    /* Called before `bytes` more are written; may wait or fail. */
    pd_status (*pace)(void *context, uint64_t bytes, struct pd_error *err);
};

/* Hashes, compresses and writes all boxes of a stream, but does not finish it. The stream's writer is chunked and the
 * stream keeps small boxes. Either `data` (box_count) or `source` (with buffers of at least 8 MiB) is NULL. */
PD_MUST_USE pd_status pd_shard_compress_boxes(struct pd_shard_stream *stream, const void *const *data,
                                              const struct pd_shard_source *source, struct pd_error *err);
