/* What the files of the tiers share. Each struct has one file that writes it:
 *
 *   tier          open.c (the store, the directory), capacity.c (is_left_out)
 *   tier_schedule schedule.c; what the saver's thread has decided
 *   tier_worker   worker.c; the thread that runs jobs
 *   tier_outcome  report.c; what came of them
 *   staging       the worker that copies, through copy.c or replicate.c
 */
#pragma once

#include "ckpt/objects/bucket_store.h"
#include "ckpt/store/paths.h"
#include "ckpt/tiers/schedule.h"

#define TIERS_MODULE "tiers"

struct tier_outcome {
    pthread_mutex_t mutex; /* guards the rest: workers write it, metrics and the saver read it */
    struct pd_tier_report report;
    pd_status status; /* of the job done last */
    struct pd_error error;
    bool has_logged_skip;
    uint64_t newest_ns;    /* when newest_step got there; 0: in an earlier launch */
    _Atomic uint64_t sent; /* bytes of this rank into a bucket, of the upload under way; the worker's senders add to it */
    struct tier_upload {   /* under way; step 0: none */
        uint64_t step, bytes, bytes_here, begin_ns;
    } upload;
};

struct tier {
    struct pd_tiers *tiers;
    uint32_t number;
    bool is_replicator; /* no tier: what copies the first one to other hosts; it has no store */
    char dir[TIERS_PATH_MAX];
    struct pd_tier_options options;
    struct pd_group *group;
    uint64_t bytes_per_second; /* this rank's share of the bandwidth */
    bool in_memory, is_left_out;
    bool is_remote;                 /* a bucket: gets copies and no saves; `store` looks at what lies there */
    struct pd_bucket_store *bucket; /* of the store's user; NULL: not open for writing, or not remote */
    bool was_absent;                /* when the launch began: what lies there later was not looked at yet */
    uint32_t unreadable;            /* newest checkpoints that cannot be read */
    struct pd_store *store; /* its user is the saver's thread for the first tier, the worker for the others; both are the
                              * opener's thread before pd_tiers_start and after the worker has ended */
    bool is_writable;       /* the store is; otherwise it is only read from so far, or there is none */
    uint64_t fence;
    void *staging; /* (staging_bytes) of the copy that the worker makes; nobody else touches it */
    uint64_t staging_bytes;
    struct pd_owner staging_is;
    char prune_cause[400]; /* why the last pruning left something, as it was logged; of the store's user */

    struct tier_schedule schedule; /* the saver's thread alone */
    struct tier_worker worker;     /* not started in the first tier */
    struct tier_outcome outcome;
};

struct tiers_told {  /* what a rank says of its workers */
    uint64_t now_ns; /* the root's counts, and its idle_ns */
    struct {
        uint64_t done, status, idle_ns;
    } workers[PD_TIERS_MAX];
};

struct pd_tiers {
    struct pd_vfs *vfs;
    struct pd_group *group; /* groups[0] */
    struct pd_tiers_options options;
    struct tier tiers[PD_TIERS_MAX];
    uint32_t count;
    struct tier *replicator; /* NULL: there are no replicas */
    struct tiers_told *told; /* (size) */
    uint64_t now_ns;         /* of the root's clock, when all ranks told each other last */
    const void *index;       /* borrowed */
    uint64_t index_bytes;
    uint64_t lineage;   /* the highest that was seen */
    uint64_t run_id[2]; /* of what is saved; set by the first save */
    bool is_started;
    _Atomic uint32_t saving_into; /* a tier's number; the saver's thread writes it */
};

static inline bool tiers_is_fatal(pd_status st)
{
    return st == PD_PEER_LOST || st == PD_BUSY;
}

/* The saver's own thread works in the first tier, so that its place is the replicator's. NULL: nobody's. */
static inline struct tier *tiers_worker_at(struct pd_tiers *tiers, uint32_t i)
{
    return i ? &tiers->tiers[i] : tiers->replicator;
}

/* ---- report.c ---- */

void tier_report_init(struct tier *tier);
void tier_report_deinit(struct tier *tier);
/* What came of a job; logged by the group's first rank. */
void tier_report_result(struct tier *tier, uint64_t step, double seconds, pd_status st, const struct pd_error *err);
/* When the launch begins: what it found. */
void tier_report_found(struct tier *tier, uint64_t newest_step);
void tier_report_begin_failed(struct tier *tier, const struct pd_error *cause);
/* A step that was pending gave way to a newer one. */
void tier_report_skip(struct tier *tier, uint64_t skipped, uint64_t by);
/* Why the last job failed: its status, PD_IO where none was run. */
pd_status tier_report_cause(struct tier *tier, char cause[600]);
/* An upload of `bytes`, of which this rank sends `bytes_here`, begins, or has ended (step 0). */
void tier_report_upload(struct tier *tier, uint64_t step, uint64_t bytes, uint64_t bytes_here);
/* Of the job done last. */
void tier_report_error(struct tier *tier, struct pd_error *ret_error);

/* ---- open.c ---- */

PD_MUST_USE pd_status tier_make_staging(struct tier *tier, uint64_t bytes, struct pd_error *err);
void tier_leave_out(struct tier *tier); /* a tier in memory that has failed or is too small is left out of saves */
/* `run`: what its worker does. */
void tier_init(struct tier *tier, struct pd_tiers *tiers, tier_work *run);
void tier_deinit(struct tier *tier);
PD_MUST_USE pd_status tier_open(struct tier *tier, struct pd_error *err);
/* What the store holds, as the schedule's and the report's newest step. */
void tier_look_at_newest(struct tier *tier);
/* Opens a store that could only be read so far. Collective over the tier's group. */
PD_MUST_USE pd_status tier_make_writable(struct tier *tier, struct pd_error *err);

/* ---- copy.c ---- */

/* The record of what is to be copied. */
PD_MUST_USE pd_status tier_read_source(const struct tier *tier, const struct tier_job *job, struct pd_commit *ret_commit,
                                       struct pd_error *err);
PD_MUST_USE pd_status tier_copy(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- upload.c: into a bucket ---- */

PD_MUST_USE pd_status tier_upload(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- replicate.c: replicas on other hosts ---- */

uint64_t tier_replicate_staging_bytes(const struct pd_store_replicas *ring);
PD_MUST_USE pd_status tier_replicate(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- job.c ---- */

/* Runs a job in the thread that owns the tier's store, and reports what came of it. `context`: the tier. */
PD_MUST_USE pd_status tier_run_job(void *context, struct tier_job *job, struct pd_error *err);

/* ---- replicator.c ---- */

/* After the stores were opened: makes tiers->replicator where replicas are asked for and possible. */
PD_MUST_USE pd_status tier_replicator_open(struct pd_tiers *tiers, struct pd_error *err);
/* Before the first save: what other hosts have a replica of stays until they have a newer one. */
void tier_replicator_start(struct pd_tiers *tiers);
/* There are other hosts to copy to, as far as is known. */
bool tier_replicator_works(const struct pd_tiers *tiers);

/* ---- sync.c ---- */

/* All ranks tell how far their workers are; what has ended on every rank is counted. Collective. */
PD_MUST_USE pd_status tiers_sync(struct pd_tiers *tiers, struct pd_error *err);
void tier_begin_copy(struct tier *tier, const struct tier_source *source);
/* Waits for the copy under way. Collective: all ranks have one, or none has. */
PD_MUST_USE pd_status tier_await_copy(struct tier *tier, struct pd_error *err);
/* Saves into one tier, which is not busy, and waits for it. *ret_job: what came of it, in full. */
PD_MUST_USE pd_status tier_save_into(struct tier *tier, const struct pd_tiers_save *save, uint32_t pins,
                                     struct tier_job *ret_job, struct pd_error *err);
