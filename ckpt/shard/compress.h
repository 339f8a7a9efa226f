/* Boxes of a compressed shard, from memory or out of another file. */
#pragma once

#include "ckpt/shard/writer.h"

/* Data that is not in memory. */
struct pd_shard_source {
    void *context;
    /* Whole blocks of a box, only its last is short, into dst. */
    pd_status (*read)(void *context, uint32_t box, uint64_t first_block, uint64_t block_count, void *dst,
                      struct pd_error *err);
    /* Before `bytes` more are written: may wait, or give up. */
    pd_status (*pace)(void *context, uint64_t bytes, struct pd_error *err);
};

/* Hashes, compresses and writes all boxes of a stream whose writer is one in chunks and which keeps small boxes. Of `data`
 * (box_count) and `source` (with buffers of 8 MiB and more) one is NULL. The stream is still to be finished. */
PD_MUST_USE pd_status pd_shard_compress_boxes(struct pd_shard_stream *stream, const void *const *data,
                                              const struct pd_shard_source *source, struct pd_error *err);
