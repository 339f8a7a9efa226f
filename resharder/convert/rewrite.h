/* What the files of an import share: the thread that reads (feed.c), shards as they are written (target.c, compress.c) and the
 * whole (import.c).
 *
 * One thread hashes data, hands it to the staging of its shard (ckpt/shard/staging.h), makes HDF5's metadata and finishes
 * shards. Each open shard has a part of the buffers and a queue of its own. */
#pragma once

#include "resharder/convert/chunk_stream.h"
#include "resharder/convert/import.h"

#define REWRITE_GROUP_MAX 128u             /* target shards open at once */
#define REWRITE_BYTES (UINT64_C(52) << 20) /* of the request's buffers; the rest is the reader's */

struct feed;
struct rewrite_compressor;

struct rewrite_target {
    struct pd_shard_box *boxes;
    struct pd_shard_writer *writer;
    struct pd_shard_stream *stream; /* NULL until it is planned and once it is finished */
    uint32_t box_count, next;       /* next: box to begin */
    bool is_written;
    unsigned char block[PD_SHARD_BLOCK_BYTES]; /* one that comes in several pieces */
};

struct rewriter {
    struct pd_vfs *vfs;
    const struct pd_import_request *request;
    struct feed *feed;
    struct pd_layout source; /* of a checkpoint that one rank has: how the feed cuts */
    char directory[4096];    /* being prepared */

    struct rewrite_target targets[REWRITE_GROUP_MAX];
    uint32_t group_begin, group_count;
    uint64_t buffer_bytes; /* that are used: memory that is touched first takes longer than a small rewrite */
    unsigned char *parts;  /* (parts_bytes) of those, behind the compressor's; the targets of a group share it */
    uint64_t parts_bytes;
    struct rewrite_compressor *compressor; /* or NULL: targets are not compressed */

    struct pd_shard_summary *summaries; /* (target shards) */
    void *index;
    uint64_t done, total;
    struct pd_import_report report;
};

/* ---- feed.c ---- */

/* What the request links, and a thread that will read it.   errors  of pd_import_check */
PD_MUST_USE pd_status feed_new(struct pd_vfs *vfs, const struct pd_import_request *request, uint32_t *ret_zeroed,
                               struct feed **ret_feed, struct pd_error *err);
void feed_free(struct feed *feed);                 /* NULL is fine */
uint64_t feed_bytes_read(const struct feed *feed); /* of the groups that have ended */
/* Before the first stretch of a group of targets: `cursor` yields what feed_next has to give, in that order. */
PD_MUST_USE pd_status feed_begin(struct feed *feed, const struct pd_chunk_stream_cursor *cursor, struct pd_error *err);
/* The next bytes, some multiple of 4, never across the end of a stretch; valid until the next call. */
PD_MUST_USE pd_status feed_next(struct feed *feed, const void **ret_data, uint64_t *ret_bytes, struct pd_error *err);
void feed_end(struct feed *feed); /* of the group, also where begin or next failed */

/* ---- target.c ---- */

/* What the rewrite of a shard with these boxes will hold, about. */
uint64_t rewrite_target_bytes(const struct rewriter *r, const struct rewrite_target *t);
/* The metadata of a shard, and its file. */
PD_MUST_USE pd_status rewrite_plan(struct rewriter *r, struct rewrite_target *t, struct pd_error *err);
/* The next bytes of the box begun last; `offset` counts in the box. */
PD_MUST_USE pd_status rewrite_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset, uint64_t box_bytes,
                                     const unsigned char *data, uint64_t bytes, struct pd_error *err);
/* Stored bytes of a compressed target, for `at` of its file, filled up with zeros to whole pages. */
PD_MUST_USE pd_status rewrite_stage(struct rewriter *r, struct rewrite_target *t, uint64_t at, const unsigned char *data,
                                    uint64_t bytes, struct pd_error *err);
/* Writes what is left of a shard that is complete, and finishes it. */
PD_MUST_USE pd_status rewrite_complete(struct rewriter *r, struct rewrite_target *t, struct pd_error *err);
void rewrite_release_targets(struct rewriter *r);

/* ---- compress.c ---- */

/* *ret_compressor stays NULL without a codec; the caller frees it after errors, too. */
PD_MUST_USE pd_status rewrite_compressor_new(const struct pd_shard_codec *codec, struct rewrite_compressor **ret_compressor,
                                             struct pd_error *err);
void rewrite_compressor_free(struct rewrite_compressor *compressor); /* NULL is fine */
/* Takes memory: how much. At most `bytes`, or what compressing a single chunk takes. */
uint64_t rewrite_compressor_cut(struct rewriter *r, void *memory, uint64_t bytes);
/* As rewrite_append, for boxes of a page and more of compressed shards. */
PD_MUST_USE pd_status rewrite_compressor_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset,
                                                uint64_t box_bytes, const unsigned char *data, uint64_t bytes,
                                                struct pd_error *err);
/* All that came of a target is placed and staged. */
PD_MUST_USE pd_status rewrite_compressor_finish(struct rewriter *r, const struct rewrite_target *t, struct pd_error *err);
