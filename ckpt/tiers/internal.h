/* Shared by the files of ckpt/tiers. Each struct is written by one file or thread:
 *
 *   tier          open.c (the store, the directory), capacity.c (is_left_out)
 *   tier_schedule schedule.c; decisions of the saver's thread
 *   tier_worker   worker.c; the thread that runs jobs
 *   tier_outcome  report.c; results of jobs
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
    pd_status status; /* of the last finished job */
    struct pd_error error;
    bool has_logged_skip;
    uint64_t newest_ns;    /* when newest_step was committed; 0: by an earlier launch */
    _Atomic uint64_t sent; /* bytes that this rank has sent of the running upload; its sender threads add to it */
    struct tier_upload {   /* running; step 0: none */
        uint64_t step, bytes, bytes_here, begin_ns;
    } upload;
};

struct tier {
    struct pd_tiers *tiers;
    uint32_t number;
    bool is_replicator; /* not a tier: copies the first one to other hosts; has no store */
    char dir[TIERS_PATH_MAX];
    struct pd_tier_options options;
    struct pd_group *group;
    uint64_t bytes_per_second; /* this rank's share of the bandwidth */
    bool in_memory, is_left_out;
    bool is_remote;                 /* a bucket: gets copies, never saves; `store` lists its checkpoints */
    struct pd_bucket_store *bucket; /* used by the store's thread; NULL: not open for writing, or not remote */
    bool was_absent;                /* directory missing when the launch began: its content was not checked */
    uint32_t unreadable;            /* how many of the newest checkpoints cannot be read */
    struct pd_store *store; /* used by the saver's thread for the first tier, by the worker for others; by the opener's
                              * thread before pd_tiers_start and after the worker has ended */
    bool is_writable;       /* false: the store is only open for reading so far, or NULL */
    uint64_t fence;
    void *staging; /* (staging_bytes) buffer of the worker's copy; only the worker uses it */
    uint64_t staging_bytes;
    struct pd_owner staging_is;
    char prune_cause[400]; /* why the last pruning failed, as logged; used by the store's thread */

    struct tier_schedule schedule; /* saver's thread only */
    struct tier_worker worker;     /* not started in the first tier */
    struct tier_outcome outcome;
};

struct tiers_told {  /* each rank sends this about its workers */
    uint64_t now_ns; /* only the root's is used, with its idle_ns */
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
    struct tier *replicator; /* NULL: no replicas */
    struct tiers_told *told; /* (size) */
    uint64_t now_ns;         /* the root's clock at the last exchange between ranks */
    const void *index;       /* borrowed */
    uint64_t index_bytes;
    uint64_t lineage;   /* the highest seen */
    uint64_t run_id[2]; /* set by the first save */
    bool is_started;
    _Atomic uint32_t saving_into; /* a tier's number; the saver's thread writes it */
};

static inline bool tiers_is_fatal(pd_status st)
{
    return st == PD_PEER_LOST || st == PD_BUSY;
}

/* The first tier needs no worker (the saver's thread does its work), so index 0 is the replicator. May be NULL. */
static inline struct tier *tiers_worker_at(struct pd_tiers *tiers, uint32_t i)
{
    return i ? &tiers->tiers[i] : tiers->replicator;
}

/* ---- report.c ---- */

void tier_report_init(struct tier *tier);
void tier_report_deinit(struct tier *tier);
/* Records the result of a job. The group's first rank logs it. */
void tier_report_result(struct tier *tier, uint64_t step, double seconds, pd_status st, const struct pd_error *err);
/* Records the newest step found when the launch begins. */
void tier_report_found(struct tier *tier, uint64_t newest_step);
void tier_report_begin_failed(struct tier *tier, const struct pd_error *cause);
/* Records that a newer step replaced the pending one. */
void tier_report_skip(struct tier *tier, uint64_t skipped, uint64_t by);
/* Returns the status of the last failed job, PD_IO if none has run; `cause` says why. */
pd_status tier_report_cause(struct tier *tier, char cause[600]);
/* Begins an upload of `bytes`, of which this rank sends `bytes_here`. Step 0: the upload has ended. */
void tier_report_upload(struct tier *tier, uint64_t step, uint64_t bytes, uint64_t bytes_here);
/* Copies the error of the last finished job. */
void tier_report_error(struct tier *tier, struct pd_error *ret_error);

/* ---- open.c ---- */

PD_MUST_USE pd_status tier_make_staging(struct tier *tier, uint64_t bytes, struct pd_error *err);
void tier_leave_out(struct tier *tier); /* if in memory: no more saves there, because it failed or is too small */
/* `run`: the function of its worker. */
void tier_init(struct tier *tier, struct pd_tiers *tiers, tier_work *run);
void tier_deinit(struct tier *tier);
PD_MUST_USE pd_status tier_open(struct tier *tier, struct pd_error *err);
/* Reads the store's newest step into the schedule and the report. */
void tier_look_at_newest(struct tier *tier);
/* Opens for writing a store that could only be read so far. Collective over the tier's group. */
PD_MUST_USE pd_status tier_make_writable(struct tier *tier, struct pd_error *err);

/* ---- copy.c ---- */

/* Reads the commit record of the checkpoint to copy. */
PD_MUST_USE pd_status tier_read_source(const struct tier *tier, const struct tier_job *job, struct pd_commit *ret_commit,
                                       struct pd_error *err);
PD_MUST_USE pd_status tier_copy(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- upload.c: into a bucket ---- */

PD_MUST_USE pd_status tier_upload(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- replicate.c: replicas on other hosts ---- */

uint64_t tier_replicate_staging_bytes(const struct pd_store_replicas *ring);
PD_MUST_USE pd_status tier_replicate(struct tier *tier, struct tier_job *job, struct pd_error *err);

/* ---- job.c ---- */

/* Runs a job in the thread that owns the tier's store and reports the result. `context`: the tier. */
PD_MUST_USE pd_status tier_run_job(void *context, struct tier_job *job, struct pd_error *err);

/* ---- replicator.c ---- */

/* Call it after opening the stores. Creates tiers->replicator if replicas are requested and possible. */
PD_MUST_USE pd_status tier_replicator_open(struct pd_tiers *tiers, struct pd_error *err);
/* Call it before the first save. Pins the checkpoint that other hosts have a replica of until they have a newer one. */
void tier_replicator_start(struct pd_tiers *tiers);
/* True if there are other hosts to copy to, as far as we know. */
bool tier_replicator_works(const struct pd_tiers *tiers);

/* ---- sync.c ---- */

/* Ranks exchange their workers' progress. A job counts as ended when every rank has ended it. Collective. */
PD_MUST_USE pd_status tiers_sync(struct pd_tiers *tiers, struct pd_error *err);
void tier_begin_copy(struct tier *tier, const struct tier_source *source);
/* Waits for the running copy. Collective: all ranks have one, or none has. */
PD_MUST_USE pd_status tier_await_copy(struct tier *tier, struct pd_error *err);
/* Saves into one tier, which must not be busy, and waits. *ret_job: the finished job. */
PD_MUST_USE pd_status tier_save_into(struct tier *tier, const struct pd_tiers_save *save, uint32_t pins,
                                     struct tier_job *ret_job, struct pd_error *err);
