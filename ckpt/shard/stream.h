/* One shard file while it is written. Shared by saves from memory (write.c), compressed saves (compress.c) and callers
 * that write boxes themselves (pd_shard_stream_begin in shard.h).
 *
 *   open ─▶ hash blocks, the owner writes data ─▶ [rest] ─▶ finish: rest, table, trailer, truncate, sync, close
 *                                                   └──────▶ abort
 *
 *   invariants  1. table and trailer are written last, then the file gets its size, then it is synced
 *               2. every byte of every page is written, so that nothing remains of a recycled file's old content
 *               3. nothing is in flight when finish or abort has returned
 *   threads     one, except for different blocks
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
    uint64_t old_bytes;              /* size of the old file, or of the preallocation: finish truncates a longer one */
    const void *const *data;         /* (box_count) data of boxes under a page: the caller's, or kept below */
    const unsigned char **kept;      /* (box_count) inside `kept_bytes`; NULL if the caller has the data */
    unsigned char *kept_bytes;       /* boxes under a page, back to back */
    struct pd_digest_stream rest;    /* digest of metadata and shared pages, small boxes read as zeros */
    uint64_t written, told;          /* bytes of boxes so far; at the last call of on_written */
    bool is_rest_written;            /* by code that walked the file in order */
    struct pd_shard_staging staging; /* one user at a time: the writer of boxes, until its finish; then the rest */
};

/* `data` (box_count): boxes in memory; NULL: the stream keeps boxes under a page as their blocks arrive. `is_in_memory`:
 * the directory is in a memory file system, so direct I/O is not requested. */
PD_MUST_USE pd_status pd_shard_stream_open(struct pd_shard_writer *writer, const char *path,
                                           const struct pd_identity *identity, uint32_t writer_rank, const void *const *data,
                                           bool is_in_memory, struct pd_shard_stream **ret_stream, struct pd_error *err);
/* Counts bytes of boxes that are done, and calls the writer's on_written now and then.   errors  of on_written */
PD_MUST_USE pd_status pd_shard_stream_wrote(struct pd_shard_stream *stream, uint64_t bytes, struct pd_error *err);
/* Stages through all of the writer's buffers, or through slots in a part of them. */
PD_MUST_USE pd_status pd_shard_stream_stage(struct pd_shard_stream *stream, bool is_in_memory, struct pd_error *err);
PD_MUST_USE pd_status pd_shard_stream_stage_in(struct pd_shard_stream *stream, void *part, uint64_t bytes,
                                               uint64_t slot_bytes, struct pd_error *err);
uint64_t pd_shard_stream_box_seed(const struct pd_shard_stream *stream, uint32_t box);
/* Hashes bytes [from, to) of a box, where `from` begins a block; data: at byte `from`. */
void pd_shard_stream_hash(struct pd_shard_stream *stream, uint32_t box, uint64_t seed, uint64_t from, uint64_t to,
                          const void *data);
/* Call begin before the first rest segment, then the other for each, in file order. */
PD_MUST_USE pd_status pd_shard_stream_rest_begin(struct pd_shard_stream *stream, struct pd_error *err);
PD_MUST_USE pd_status pd_shard_stream_rest(struct pd_shard_stream *stream, const struct pd_shard_segment *segment,
                                           struct pd_error *err);
