/* What the files of a rewrite share: writing (target.c, compress.c), work beside the data (workers.c) and the whole (rewrite.c).
 *
 * Files are written in long runs, whatever the boxes: a target fills a slot with box after box.
 *
 * Who uses what: one thread moves data, and slots and the compressor's memory are its own. A slot belongs to the queue while it
 * is in_flight. What the workers touch says so where it is declared: their list of jobs and its flags under its mutex, a
 * staging area under that area's mutex, HDF5 under `metadata`. A target that a job was added for is the worker's until
 * is_planned is set, and from REWRITE_FINISH on. */
#pragma once

#include "ckpt/io/transfer_ring.h"
#include "resharder/rewrite/chunk_stream.h"
#include "resharder/rewrite/rewrite.h"

#include <pthread.h>

#define REWRITE_GROUP_MAX 128u /* target shards open at once */
#define REWRITE_SLOTS_MAX 256u
#define PD_REWRITE_STAGING_BYTES (UINT64_C(2) << 20) /* of a writer's own pages */
#define REWRITE_STAGINGS (REWRITE_WORKERS + 1)
#define REWRITE_WORKERS 2u /* threads beside the one that moves data */

struct rewriter;
struct rewrite_compressor;

struct rewrite_slot {
    unsigned char *data;
    bool in_flight;
    struct rewrite_target *target; /* whose data it is */
    struct pd_owner owner;         /* of data: a "target" that fills it, then the "queue" while in_flight */
};

struct rewrite_target {
    struct pd_shard_box *boxes;
    struct pd_shard_writer *writer;
    struct pd_shard_stream *stream;
    uint32_t box_count, next; /* next: box to begin */
    struct rewrite_slot *filling;
    uint64_t begin, filled, hashed; /* of the slot: its place in the file; bytes */
    uint32_t in_flight;
    bool is_planned, is_written, is_finishing; /* is_planned: under the workers' mutex */
    unsigned char small[PD_VFS_ALIGN];         /* a box of less than a page, as it comes */
};

enum rewrite_job_kind { REWRITE_PLAN, REWRITE_INDEX, REWRITE_FINISH };
struct rewrite_job {
    enum rewrite_job_kind kind;
    uint32_t number; /* of the target in its group */
};

/* Jobs are begun in their order, by the workers and, when there is nothing left to move, by the one that moves data.
 */
struct rewrite_workers {
    pthread_t threads[REWRITE_WORKERS];
    uint32_t thread_count;
    pthread_mutex_t mutex;    /* guards all that follows, and is_planned of targets */
    pthread_mutex_t metadata; /* HDF5's turn */
    pthread_cond_t changed;   /* a job was added or done */
    struct rewrite_job jobs[2 * REWRITE_GROUP_MAX + 1];
    uint32_t begin, end, running;
    bool is_made, leaves;
    pd_status status; /* of the first job that failed */
    struct pd_error error;
    pthread_mutex_t staging[REWRITE_STAGINGS]; /* of writers: target t uses area t % REWRITE_STAGINGS */
};

struct rewriter {
    struct pd_vfs *vfs;
    const struct pd_rewrite_request *request;
    char directory[4096]; /* being prepared */
    struct pd_queue *queue;
    struct pd_transfer_ring ring; /* a transfer of each slot finds room */
    struct pd_transfer_slot transfers[REWRITE_SLOTS_MAX];
    struct rewrite_slot *sent[REWRITE_SLOTS_MAX]; /* whose transfer each one is */
    struct rewrite_workers workers;

    struct rewrite_target targets[REWRITE_GROUP_MAX];
    uint32_t group_begin, group_count;
    struct rewrite_slot slots[REWRITE_SLOTS_MAX]; /* (slot_count), for writing */
    uint32_t slot_count, writes_in_flight;
    uint64_t slot_bytes;
    unsigned char *staging;
    uint64_t
        buffer_bytes; /* of the request's, that are used: memory that is touched first takes longer than a small rewrite */
    struct rewrite_compressor *compressor; /* or NULL: targets are not compressed */

    struct pd_shard_summary *summaries; /* (target shards) */
    void *index;
    uint64_t done, total;
    struct pd_rewrite_report report;
};

/* ---- target.c ---- */

/* Waits for a transfer. */
PD_MUST_USE pd_status rewrite_reap(struct rewriter *r, struct pd_error *err);
/* What the rewrite of a shard with these boxes will hold, about. */
uint64_t rewrite_target_bytes(const struct rewriter *r, const struct rewrite_target *t);
void rewrite_cut_slots(struct rewriter *r, void *memory, uint64_t bytes);
/* The next bytes of the box that `stretch` is of; `offset` counts in the box. */
PD_MUST_USE pd_status rewrite_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset, uint64_t box_bytes,
                                     const unsigned char *data, uint64_t bytes, struct pd_error *err);
/* Stored bytes of a compressed target, for `at` of its file, filled up with zeros to whole pages. */
PD_MUST_USE pd_status rewrite_stage(struct rewriter *r, struct rewrite_target *t, uint64_t at, const unsigned char *data,
                                    uint64_t bytes, struct pd_error *err);
/* Sends what is left of a shard that is complete; the workers finish it when nothing of it is in flight. */
PD_MUST_USE pd_status rewrite_complete(struct rewriter *r, struct rewrite_target *t, struct pd_error *err);
void rewrite_release_targets(struct rewriter *r);
/* ---- compress.c ---- */

/* *ret_compressor stays NULL without a codec; the caller frees it after errors, too. */
PD_MUST_USE pd_status rewrite_compressor_new(const struct pd_shard_codec *codec, struct rewrite_compressor **ret_compressor,
                                             struct pd_error *err);
void rewrite_compressor_free(struct rewrite_compressor *compressor); /* NULL is fine */
/* Takes memory for a group: how much. At most `bytes`, or what compressing a single chunk takes. */
uint64_t rewrite_compressor_cut(struct rewriter *r, void *memory, uint64_t bytes);
/* As rewrite_append, for boxes of a page and more of compressed shards. */
PD_MUST_USE pd_status rewrite_compressor_append(struct rewriter *r, struct rewrite_target *t, uint64_t offset,
                                                uint64_t box_bytes, const unsigned char *data, uint64_t bytes,
                                                struct pd_error *err);
/* All that came of a target is placed and staged. */
PD_MUST_USE pd_status rewrite_compressor_finish(struct rewriter *r, const struct rewrite_target *t, struct pd_error *err);

/* ---- index.c ---- */

/* index.h5 of the new layout, unless it grows too large for the memory: perdure itself does without. */
PD_MUST_USE pd_status rewrite_build_index(struct rewriter *r, struct pd_error *err);

/* ---- workers.c ---- */

PD_MUST_USE pd_status rewrite_workers_start(struct rewriter *r, struct pd_error *err);
void rewrite_workers_add(struct rewriter *r, enum rewrite_job_kind kind, uint32_t number);
/* Until the flag is set, of a target that is planned or of a source that is opened. */
PD_MUST_USE pd_status rewrite_workers_wait(struct rewriter *r, const bool *flag, struct pd_error *err);
/* Until all jobs are done, with a hand from the caller. */
PD_MUST_USE pd_status rewrite_workers_finish(struct rewriter *r, struct pd_error *err);
/* Jobs that were not begun are dropped. */
void rewrite_workers_stop(struct rewriter *r);
