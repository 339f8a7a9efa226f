/* A shard file in pieces, in order: whole pages of consecutive segments that never end inside a block, so that each can be
 * verified where it lies. For whoever carries the file somewhere else. */
#pragma once

#include "ckpt/shard/shard.h"

struct pd_shard_cursor { /* zero: the start */
    uint32_t segment;
    uint64_t at; /* in that segment */
};

struct pd_shard_piece {
    uint32_t segment; /* where it begins */
    uint64_t at;
    uint64_t offset, bytes; /* in the file */
};

bool pd_shard_is_at_end(const struct pd_shard *shard, const struct pd_shard_cursor *cursor);
/* At most `room` bytes, at least a block; less than a block short of `room` only at the end. 0 bytes: there is none. */
struct pd_shard_piece pd_shard_cut_piece(const struct pd_shard *shard, struct pd_shard_cursor *cursor, uint64_t room);
/* The blocks of boxes of a page and more in it; one that mismatches is read once more, into `data`. */
PD_MUST_USE pd_status pd_shard_verify_piece(struct pd_shard *shard, const struct pd_shard_piece *piece, void *data,
                                            struct pd_error *err);
/* What no piece covers, in a file that was made of them and opened: boxes under a page, and everything in chunks. */
PD_MUST_USE pd_status pd_shard_verify_made(struct pd_shard *made, void *buffers, uint64_t buffer_bytes,
                                           struct pd_error *err);
