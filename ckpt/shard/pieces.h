/* Cuts a shard file, in order, into pieces of whole pages from consecutive segments. No piece ends inside a block, so
 * each can be verified on its own. For code that copies the file elsewhere. */
#pragma once

#include "ckpt/shard/shard.h"

struct pd_shard_cursor { /* zero-initialised: the start */
    uint32_t segment;
    uint64_t at; /* in that segment */
};

struct pd_shard_piece {
    uint32_t segment; /* where it begins */
    uint64_t at;
    uint64_t offset, bytes; /* in the file */
};

bool pd_shard_is_at_end(const struct pd_shard *shard, const struct pd_shard_cursor *cursor);
/* Returns a piece of at most `bytes_max` bytes; only the last may be more than a block shorter. 0 bytes: there is none left. */
struct pd_shard_piece pd_shard_cut_piece(const struct pd_shard *shard, struct pd_shard_cursor *cursor, uint64_t bytes_max);
/* Verifies the blocks in it that belong to boxes of a page or more. Rereads a mismatching block once, into `data`. */
PD_MUST_USE pd_status pd_shard_verify_piece(struct pd_shard *shard, const struct pd_shard_piece *piece, void *data,
                                            struct pd_error *err);
/* `data` holds bytes of the file from `offset` on, up to `end`. Verifies the blocks of boxes of a page or more that end in
 * (begin, end]; reads one whose start is not in `data`. PD_CORRUPT: read the data once more before calling it damage.
 *   threads  any number on one shard */
PD_MUST_USE pd_status pd_shard_verify_part(const struct pd_shard *shard, uint64_t offset, const void *data, uint64_t begin,
                                           uint64_t end, struct pd_error *err);
/* Verifies what pieces and parts do not cover, in the opened copy: boxes under a page, and all chunks. */
PD_MUST_USE pd_status pd_shard_verify_made(struct pd_shard *made, void *buffers, uint64_t buffer_bytes,
                                           struct pd_error *err);
