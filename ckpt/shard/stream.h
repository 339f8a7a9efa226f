/* One shard file while it is written: what a save from memory (write.c), a compressed one (compress.c) and a caller that
 * writes boxes itself (pd_shard_stream_begin in shard.h) have in common.
 *
 *   open ─▶ blocks hashed, data written by who has it ─▶ [rest] ─▶ finish: rest, table, trailer, truncate, sync, close
 *                                                          └──────▶ abort
 *
 *   invariants  1. table and trailer are written last, then the file gets its size, then it is synced
 *               2. every byte of every page is written: what lay in a recycled file before does not show
 *               3. nothing is in flight when finish or abort has returned
 *   threads     one, but for blocks that differ
 *   memory      the writer's staging buffers and table belong to one stream at a time; writer->owner checks it */
#pragma once

#include "ckpt/base/digest.h"
#include "ckpt/shard/staging.h"
#include "ckpt/shard/writer.h"

struct pd_shard_stream {
    struct pd_shard_writer *w;
    struct pd_file *file;
    struct pd_identity identity;
    uint32_t writer_rank;
    uint64_t old_bytes;              /* of the file before, or what was preallocated: longer ones are truncated */
    const void *const *data;         /* (box_count) where boxes under a page lie: the caller's, or kept below */
    const unsigned char **kept;      /* (box_count) inside `kept_bytes`; NULL where data is the caller's */
    unsigned char *kept_bytes;       /* boxes under a page, one behind the other */
    struct pd_digest_stream rest;    /* of metadata and shared pages, small boxes read as zeros */
    bool is_rest_written;            /* by who walked the file in order */
    struct pd_shard_staging staging; /* one user at a time: who writes boxes, until its finish; then the rest */
};

/* `data` (box_count): boxes are in memory; NULL: the stream keeps those under a page as their blocks come.
 * `is_in_memory`: the file's directory is a file system in memory, so direct I/O is not asked for. */
PD_MUST_USE pd_status pd_shard_stream_open(struct pd_shard_writer *writer, const char *path,
                                           const struct pd_identity *identity, uint32_t writer_rank, const void *const *data,
                                           bool is_in_memory, struct pd_shard_stream **ret_stream, struct pd_error *err);
/* Staging over all of the writer's buffers, or slots over a part of them. */
PD_MUST_USE pd_status pd_shard_stream_stage(struct pd_shard_stream *stream, bool is_in_memory, struct pd_error *err);
PD_MUST_USE pd_status pd_shard_stream_stage_in(struct pd_shard_stream *stream, void *part, uint64_t bytes,
                                               uint64_t slot_bytes, struct pd_error *err);
uint64_t pd_shard_stream_box_seed(const struct pd_shard_stream *stream, uint32_t box);
/* Hashes the blocks of a box from byte `from` (where one begins) to byte `to`; data: of byte `from`. */
void pd_shard_stream_hash(struct pd_shard_stream *stream, uint32_t box, uint64_t seed, uint64_t from, uint64_t to,
                          const void *data);
/* Before the first segment of rest, and then each of them, in the order of the file. */
PD_MUST_USE pd_status pd_shard_stream_rest_begin(struct pd_shard_stream *stream, struct pd_error *err);
PD_MUST_USE pd_status pd_shard_stream_rest(struct pd_shard_stream *stream, const struct pd_shard_segment *segment,
                                           struct pd_error *err);
