/* Saving a run in the background: this rank's shard, then the commit over all ranks.
 *
 *   caller             start ──▶ forward, backward ──▶ unpin ──▶ update ──▶ ... agree: finished everywhere ──▶ collect
 *   the saver's thread        begin, copy ────────────▶│ tables, sync, commit, prune ──▶ finished
 *   threads of later tiers                                                 ╰──▶ copy from the tier that has it, commit, prune
 *
 * A save pins the state until it is copied, or until its file is linked (README.md). Training waits for the rest of that in
 * pd_saver_unpin, and in pd_saver_start for a save before it that is still under way.
 *
 *   invariants  1. from start until unpin has returned nothing changes the state that is saved
 *               2. a save ends alike on all ranks, in the order of starts; but ranks learn of it at different times, so they
 *                  agree on pd_saver_finished before they act on what pd_saver_collect says
 *               3. the tiers, their first group and the writers' buffers are the thread's own while a save is under way
 *   memory      everything is taken by pd_saver_new, but for what the store takes and gives back in a save
 *   threads     one caller, beside the saver's own */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"

#define PD_SAVER_IN_FLIGHT_MAX 2u /* more cannot be: one is being committed, one copied */

struct pd_saver;

/* What became of a save. */
struct pd_saver_outcome {
    uint64_t step;
    pd_status status;      /* PD_OK: committed everywhere. Otherwise the checkpoint before it is untouched */
    struct pd_error error; /* of a status other than PD_OK */
    double save_seconds;   /* from start until it was committed and older ones were pruned */
    double stall_seconds;  /* of these the caller waited, in start and unpin */
};

/* Everything is borrowed for the saver's life. `group` is the first tier's, one rank per rank of the engine: nobody else
 * uses it while saves are under way, so it stands on a communicator of its own. The tiers are not started yet. in_flight:
 * saves that may be under way at once, 1 or PD_SAVER_IN_FLIGHT_MAX. */
PD_MUST_USE pd_status pd_saver_new(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group,
                                   struct pd_engine *engine, uint32_t in_flight, struct pd_saver **ret_saver,
                                   struct pd_error *err);
/* Waits for the save under way. Where it waits for a peer that is gone, the group's communicator was aborted before. */
void pd_saver_free(struct pd_saver *saver);
/* Bytes of this rank's shard file. */
uint64_t pd_saver_file_bytes(const struct pd_saver *saver);

/* From here on the thread keeps a written file ready for the next save where files lie in memory: a page's first touch costs
 * many times the copy into it. Once there is room for checkpoints for certain. */
void pd_saver_keep_ready(struct pd_saver *saver);
/* How many saves may be under way at once. */
uint32_t pd_saver_in_flight(const struct pd_saver *saver);
/* Until fewer are, or so many seconds have passed. */
void pd_saver_wait_turn(struct pd_saver *saver, double seconds);
/* Begins a save of the state as it is, under a copy of `state` (its texts are borrowed), into the first tier that is due;
 * `everywhere`: all are. Waits while in_flight others are under way. */
void pd_saver_start(struct pd_saver *saver, const struct pd_run_state *state, bool everywhere);
/* Waits until no save pins the state; before an update. */
void pd_saver_unpin(struct pd_saver *saver);
/* Saves that have ended on this rank, so far. Only grows. */
uint64_t pd_saver_finished(struct pd_saver *saver);
/* Waits until all have. */
void pd_saver_wait(struct pd_saver *saver);
/* The oldest save not yet collected, if it is among the first `finished`, which have ended everywhere. */
bool pd_saver_collect(struct pd_saver *saver, uint64_t finished, struct pd_saver_outcome *ret_outcome);

/* The way out, while nothing else is under way and the state is that of the last save: every tier gets it, as
 * pd_tiers_finish says. */
PD_MUST_USE pd_status pd_saver_finish(struct pd_saver *saver, const struct pd_run_state *state, double leave_seconds,
                                      struct pd_error *err);

/* Saves that fail in a row: when the next one is tried, and when the run gives up. Pure: every time is the root's clock as
 * all ranks have agreed on it, so all ranks decide alike. An attempt is made at the deadline, not before it only: a run that
 * gives up has just seen a save fail. */
#define PD_SAVE_BRIEF_SECONDS 60.0 /* for memory and threads: what takes them is this run, or goes soon */
#define PD_SAVE_LAST_SECONDS 600.0 /* after the last step: somebody may make room, and nobody may be there */

struct pd_save_failures {
    pd_status status;    /* of the last one */
    uint32_t count;      /* in a row; 0: saves work */
    uint64_t first_step; /* the one that was not saved first */
    uint64_t since_ns;   /* when that was known */
    uint64_t retry_ns;   /* no save is begun before, unless a signal asks for one */
    uint64_t leave_ns;   /* somebody asked to leave: no attempt after this; 0: nobody */
    uint64_t over_ns;    /* training is over, likewise; 0: it goes on */
};

/* A save of `step` has failed; the next one follows after the backoff, a second later where somebody waits to leave. */
void pd_save_failures_add(struct pd_save_failures *failures, pd_status status, uint64_t step, uint64_t now_ns,
                          double give_up_seconds);
/* A save has succeeded. */
void pd_save_failures_clear(struct pd_save_failures *failures);
/* Somebody waits for the run to end: the next save is tried now, and the last one after leave_seconds. */
void pd_save_failures_leave(struct pd_save_failures *failures, uint64_t now_ns, double leave_seconds);
/* Training is over: the last attempt is made after PD_SAVE_LAST_SECONDS, and none waits for minutes. Once counts. */
void pd_save_failures_over(struct pd_save_failures *failures, uint64_t now_ns);

/* When the last attempt is made. */
uint64_t pd_save_failures_deadline(const struct pd_save_failures *failures, double give_up_seconds);
bool pd_save_failures_is_backing_off(const struct pd_save_failures *failures, uint64_t now_ns);
/* After a save has failed: for so long that the run ends. */
bool pd_save_failures_is_too_long(const struct pd_save_failures *failures, uint64_t now_ns, double give_up_seconds);
