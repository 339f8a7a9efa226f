/* Saves a run in the background: this rank's shard, then a commit over all ranks.
 *
 *   caller             start ──▶ forward, backward ──▶ unpin ──▶ update ──▶ ... agree: finished everywhere ──▶ collect
 *   the saver's thread        begin, copy ────────────▶│ tables, sync, commit, prune ──▶ finished
 *   threads of later tiers                                                 ╰──▶ copy from the tier that has it, commit,
 *                                                                          prune
 *
 * A save pins the state until it is copied, or until its file is linked. Training waits for that in pd_saver_unpin, and in
 * pd_saver_start for an earlier save that is still running. trainer/engine/README.md lists the threads and buffers.
 *
 *   invariants  1. from start until unpin returns nothing changes the state being saved
 *               2. a save ends with the same result on all ranks, in the order of starts. Ranks learn it at different times,
 *                  so they agree on pd_saver_finished before they act on pd_saver_collect
 *               3. while a save runs, its thread owns the tiers, their first group and the writers' buffers
 *   memory      pd_saver_new allocates everything, except what the store allocates and frees during a save
 *   threads     one caller, and the saver's own thread */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"

#define PD_SAVER_IN_FLIGHT_MAX 2u /* one being committed, one being copied */

struct pd_saver;

/* Result of a save. */
struct pd_saver_outcome {
    uint64_t step;
    pd_status status;      /* PD_OK: committed everywhere. Otherwise the previous checkpoint is untouched */
    struct pd_error error; /* set if status is not PD_OK */
    double save_seconds;   /* from start until committed and older ones pruned */
    double stall_seconds;  /* time the caller waited, in start and unpin */
};

/* Borrows everything for the saver's life. `group` is the first tier's, with one rank per engine rank. Only saves use it, so
 * it needs its own communicator. Call before the tiers are started. in_flight: saves that may run at once, 1 or
 * PD_SAVER_IN_FLIGHT_MAX. */
PD_MUST_USE pd_status pd_saver_new(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group,
                                   struct pd_engine *engine, uint32_t in_flight, struct pd_saver **ret_saver,
                                   struct pd_error *err);
/* Waits for running saves. If one waits for a lost peer, abort the group's communicator first. */
void pd_saver_free(struct pd_saver *saver);
/* Size of this rank's shard file in bytes. */
uint64_t pd_saver_file_bytes(const struct pd_saver *saver);

/* From now on, if files are in memory, the thread keeps a written file ready for the next save: the first touch of a page
 * costs many times the copy into it. Call once there is certainly room for checkpoints. */
void pd_saver_keep_ready(struct pd_saver *saver);
/* How many saves may run at once. */
uint32_t pd_saver_in_flight(const struct pd_saver *saver);
/* Waits until fewer are running, or `seconds` have passed. */
void pd_saver_wait_turn(struct pd_saver *saver, double seconds);
/* Starts a save of the present state, with a copy of `state` (borrows its strings), into the first tier that is due, or into
 * all if `everywhere`. Waits while in_flight others are running. */
void pd_saver_start(struct pd_saver *saver, const struct pd_run_state *state, bool everywhere);
/* Waits until no save pins the state. Call before an update. */
void pd_saver_unpin(struct pd_saver *saver);
/* Number of saves that have ended on this rank. Never decreases. */
uint64_t pd_saver_finished(struct pd_saver *saver);
/* Waits until all saves have ended. */
void pd_saver_wait(struct pd_saver *saver);
/* Returns the oldest save not yet collected, if it is among the first `finished`, which have ended on all ranks. */
bool pd_saver_collect(struct pd_saver *saver, uint64_t finished, struct pd_saver_outcome *ret_outcome);

/* Call when leaving, while nothing else runs and the state is the last save's. Copies it to every tier (pd_tiers_finish). */
PD_MUST_USE pd_status pd_saver_finish(struct pd_saver *saver, const struct pd_run_state *state, double leave_seconds,
                                      struct pd_error *err);

/* Consecutive failed saves: when to retry, and when the run gives up. Pure functions; every time is the root's clock as
 * agreed by all ranks, so all decide alike. The last attempt is at the deadline, not before: a run that gives up has just
 * seen a save fail. */
#define PD_SAVE_BRIEF_SECONDS 60.0 /* no memory or threads: this run takes them, or they are soon free */
#define PD_SAVE_LAST_SECONDS 600.0 /* after the last step: someone may free space, or no one may be there */

struct pd_save_failures {
    pd_status status;    /* of the last failure */
    uint32_t count;      /* consecutive failures; 0: saves work */
    uint64_t first_step; /* the first step not saved */
    uint64_t since_ns;   /* when the first failure was known */
    uint64_t retry_ns;   /* no save before this, unless a signal asks */
    uint64_t leave_ns;   /* a user asked to leave: no attempt after this; 0: not asked */
    uint64_t over_ns;    /* training ended: no attempt after this; 0: it continues */
};

/* Records a failed save of `step`. The next attempt follows after the backoff, or a second if someone waits to leave. */
void pd_save_failures_add(struct pd_save_failures *failures, pd_status status, uint64_t step, uint64_t now_ns,
                          double give_up_seconds);
/* A save has succeeded. */
void pd_save_failures_clear(struct pd_save_failures *failures);
/* A request to leave: retry the save now; the last attempt is after leave_seconds. */
void pd_save_failures_leave(struct pd_save_failures *failures, uint64_t now_ns, double leave_seconds);
/* Training ended: the last attempt is after PD_SAVE_LAST_SECONDS, with short backoffs. Only the first call counts. */
void pd_save_failures_over(struct pd_save_failures *failures, uint64_t now_ns);

/* The time of the last attempt. */
uint64_t pd_save_failures_deadline(const struct pd_save_failures *failures, double give_up_seconds);
bool pd_save_failures_is_backing_off(const struct pd_save_failures *failures, uint64_t now_ns);
/* Call after a failed save: have saves failed for so long that the run ends? */
bool pd_save_failures_is_too_long(const struct pd_save_failures *failures, uint64_t now_ns, double give_up_seconds);
