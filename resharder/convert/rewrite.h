/* Shared by the files of an import: the reading thread (feed.c), shards being written (target.c, compress.c) and the
 * whole (import.c).
 *
 * One thread hashes data, passes it to its shard's staging (ckpt/shard/staging.h), creates HDF5 metadata and finishes
 * shards. Each open shard has a part of the buffers and a queue of its own. */
#pragma once

#include "resharder/convert/chunk_stream.h"
#include "resharder/convert/import.h"

#define REWRITE_GROUP_MAX 128u             /* target shards open at once */
#define REWRITE_BYTES (UINT64_C(52) << 20) /* of the request's buffers; the reader has the rest */

struct feed;
struct rewrite_compressor;

struct rewrite_target {
    struct pd_shard_box *boxes;
    struct pd_shard_writer *writer;
    struct pd_shard_stream *stream; /* NULL before it is planned and after it is finished */
    uint32_t box_count, next;       /* next: the box to begin next */
    bool is_written;
    unsigned char block[PD_SHARD_BLOCK_BYTES]; /* collects a block that arrives in several pieces */
};

struct rewriter {
    struct pd_vfs *vfs;
    const struct pd_import_request *request;
    struct feed *feed;
    struct pd_layout source; /* layout of a checkpoint that one rank has: how the feed cuts */
    char directory[4096];    /* being prepared */

    struct rewrite_target targets[REWRITE_GROUP_MAX];
    uint32_t group_begin, group_count;
    uint64_t buffer_bytes; /* bytes in use: touching all memory for the first time would take longer than a small rewrite */
    unsigned char *parts;  /* (parts_bytes) of the buffers, after the compressor's; shared by the targets of a group */
    uint64_t parts_bytes;
    struct rewrite_compressor *compressor; /* or NULL: targets are not compressed */

    struct pd_shard_summary *summaries; /* (target shards) */
    void *index;
    uint64_t done, total;
    struct pd_import_report report;
};

/* ---- feed.c ---- */

/* Resolves the request's links, and prepares the thread that will read them.   errors  of pd_import_check */
PD_MUST_USE pd_status feed_new(struct pd_vfs *vfs, const struct pd_import_request *request, uint32_t *ret_zeroed,
                               struct feed **ret_feed, struct pd_error *err);
void feed_free(struct feed *feed);                 /* NULL is fine */
uint64_t feed_bytes_read(const struct feed *feed); /* in groups that have ended */
/* Call before the first range of a group of targets: feed_next returns the ranges of `cursor`, in that order. */
PD_MUST_USE pd_status feed_begin(struct feed *feed, const struct pd_chunk_stream_cursor *cursor, struct pd_error *err);
/* Returns the next bytes, at most `wanted`; valid until the next call.   wanted  the rest of a range */
PD_MUST_USE pd_status feed_next(struct feed *feed, uint64_t wanted, const void **ret_data, uint64_t *ret_bytes,
                                struct pd_error *err);
void feed_end(struct feed *feed); /* ends the group, also after begin or next failed */

/* ---- target.c ---- */

/* Estimates the memory for rewriting a shard with these boxes. */
uint64_t rewrite_target_bytes(const struct rewriter *r, const struct rewrite_target *t);
/* Plans the metadata of a shard and opens its file. */
PD_MUST_USE pd_status rewrite_plan(struct rewriter *r, struct rewrite_target *t, struct pd_error *err);
/* Appends the next bytes of the box begun last, at `offset` in the box. */
PD_MUST_USE pd_status rewrite_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset, uint64_t box_bytes,
                                     const unsigned char *data, uint64_t bytes, struct pd_error *err);
/* Stages stored bytes of a compressed target at file offset `at`, zero-filled to whole pages. */
PD_MUST_USE pd_status rewrite_stage(struct rewriter *r, struct rewrite_target *t, uint64_t at, const unsigned char *data,
                                    uint64_t bytes, struct pd_error *err);
/* Writes the rest of a complete shard, and finishes it. */
PD_MUST_USE pd_status rewrite_complete(struct rewriter *r, struct rewrite_target *t, struct pd_error *err);
void rewrite_release_targets(struct rewriter *r);

/* ---- compress.c ---- */

/* Leaves *ret_compressor NULL without a codec. The caller frees it even after errors. */
PD_MUST_USE pd_status rewrite_compressor_new(const struct pd_shard_codec *codec, struct rewrite_compressor **ret_compressor,
                                             struct pd_error *err);
void rewrite_compressor_free(struct rewrite_compressor *compressor); /* NULL is fine */
/* Returns how much of `memory` it takes: at most `bytes`, or what compressing a single chunk needs. */
uint64_t rewrite_compressor_cut(struct rewriter *r, void *memory, uint64_t bytes);
/* As rewrite_append, for boxes of a page or more in compressed shards. */
PD_MUST_USE pd_status rewrite_compressor_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset,
                                                uint64_t box_bytes, const unsigned char *data, uint64_t bytes,
                                                struct pd_error *err);
/* Places and stages everything received for a target. */
PD_MUST_USE pd_status rewrite_compressor_finish(struct rewriter *r, const struct rewrite_target *t, struct pd_error *err);
