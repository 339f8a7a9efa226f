/* One thread that runs jobs, one at a time. The saver posts a job and may wait for it; only the thread runs it.
 *
 *   saver                          worker
 *   post: job, posted++ ──▶        run(context, &job)      the job is the worker's
 *   wait, look  ◀── done++, status                         the job is the saver's again
 *
 *   threads  init, start, post, wait, look, stop, end, deinit: one caller, the saver */
#pragma once

#include "ckpt/base/owner.h"
#include "ckpt/tiers/tiers.h"

#include <pthread.h>
#include <stdatomic.h>

#define TIERS_PATH_MAX 4096u

enum tier_task { TIER_SAVE, TIER_COPY, TIER_REPLICATE };

struct tier_names {
    char names[PD_TIERS_MAX][64];
    uint32_t count;
};

/* One save or copy into a tier. */
struct tier_job {
    enum tier_task task;
    const struct pd_tiers_save *save; /* TIER_SAVE */
    char source[TIERS_PATH_MAX];      /* TIER_COPY, TIER_REPLICATE: directory of the checkpoint */
    uint64_t step;
    uint32_t pins;            /* TIER_SAVE: how many copies will be made of the new checkpoint */
    struct tier_names unpins; /* checkpoints in this tier whose copies have ended */
    /* set by the worker */
    bool has_begun; /* it failed after begin: the state to save may have changed since */
    char name[64];  /* the committed checkpoint; TIER_REPLICATE, set by the saver: the one to copy */
};

typedef pd_status tier_work(void *context, struct tier_job *job, struct pd_error *err);

struct tier_worker {
    tier_work *run;
    void *context;
    uint32_t rank;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop; /* give up the copy; set by the saver, read by the worker between pieces */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* guarded by the mutex: */
    bool is_closing;
    uint64_t posted, done;
    pd_status status;       /* of the last finished job */
    uint64_t done_ns;       /* when that ended */
    struct tier_job job;    /* the saver's while done == posted, else the worker's */
    struct pd_owner job_is; /* checks that */
};

struct tier_worker_view {
    uint64_t posted, done, step; /* step: of the last posted job */
    pd_status status;            /* of the last finished job */
    uint64_t idle_ns;            /* time since that ended */
};

void tier_worker_init(struct tier_worker *worker, tier_work *run, void *context);
void tier_worker_deinit(struct tier_worker *worker);
PD_MUST_USE pd_status tier_worker_start(struct tier_worker *worker, uint32_t rank, const char *what, struct pd_error *err);
/* Gives up the running copy and joins the thread. */
void tier_worker_end(struct tier_worker *worker);
/* The job before must be done. */
void tier_worker_post(struct tier_worker *worker, const struct tier_job *job);
/* Waits until the job is done or `seconds` have passed (negative: no limit). Returns true if it is done. */
bool tier_worker_wait(struct tier_worker *worker, double seconds);
struct tier_worker_view tier_worker_look(struct tier_worker *worker);
/* The last finished job. Call it only while no job runs. */
const struct tier_job *tier_worker_job(const struct tier_worker *worker);
void tier_worker_give_up(struct tier_worker *worker);
