/* One rank of a run: open.c builds it, loop.c runs its steps, worker.c calls both. Only the rank's own thread writes here.
 * The saver's thread and those of tiers use `engine`, `tiers` and the groups as save.h and tiers.h say. */
#pragma once

#include "trainer/comm/comm.h"
#include "trainer/engine/advance.h"
#include "trainer/run/directories.h"
#include "trainer/run/metrics.h"
#include "trainer/run/save.h"
#include "trainer/run/step_log.h"

struct pd_scratch;

struct run {
    const struct pd_config *config;
    struct pd_comm *comm;
    struct pd_comm *nccl;                     /* over comm, moves engine data between GPUs; NULL: comm does */
    struct pd_comm *tier_comms[PD_TIERS_MAX]; /* the first for background saves, the others for copies into their tiers */
    struct pd_comm *replica_comm;             /* for replicas on other hosts */
    struct pd_group group, tier_groups[PD_TIERS_MAX], replica_group;
    struct pd_vfs *vfs;
    struct pd_tiers *tiers;
    struct pd_tier_places places;
    struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_rank_device device;
    struct pd_model *model;
    struct pd_arena *arena;
    struct pd_engine *engine;
    struct pd_scratch *scratch;
    struct pd_saver *saver;
    char tokenizer_path[4096];  /* in run.dir; buckets get a copy */
    struct pd_metrics *metrics; /* rank 0 */
    struct pd_step_log step_log;
    struct pd_run_state state;
    uint32_t threads; /* of this rank */
    bool is_thread;   /* ranks are threads of a process */
    uint64_t planned_bytes, lanes_bytes; /* rank 0: of these, sums that one lane a data rank would not need */
    uint32_t validation_sequences;        /* of a pass: validation.sequences, or what there is */
    uint64_t saved_step;                  /* newest that is known on all ranks to be committed; 0: none */
    uint64_t started_step;                /* newest whose save is under way or ended well; 0: none */
    uint64_t saves_begun, saves_finished; /* of this saver; finished: on all ranks */
    uint64_t saves_moved_ns;              /* when one ended last, or was begun while none was under way; of now_ns */
    bool has_said_short;                  /* that an upload takes longer than there is after a notice */
    bool is_save_owed;                    /* one was due while storage was stuck */
    uint64_t now_ns;                      /* of the root's clock, at the ranks' last agreement */
    struct pd_save_failures failures;
    struct pd_stragglers stragglers;
    struct pd_rollbacks *rollbacks; /* borrowed: a rollback closes and reopens this rank, and they outlive that */
    uint32_t saves;
    struct pd_metrics_step *unwritten;  /* step whose validation is running; NULL: its line is written */
    double save_seconds, stall_seconds; /* of saves that ended since the last metrics line */
};

/* open.c. If opening fails, everything is closed. Collective. */
PD_MUST_USE pd_status pd_run_open(struct run *r, struct pd_error *err);
void pd_run_close(struct run *r);
/* loop.c: runs all remaining steps and the saves that are due. errors PD_STOPPED: a signal asked to leave; all is saved. If
 * rollbacks->goes_back, close and reopen the rank before calling again. */
PD_MUST_USE pd_status pd_run_steps(struct run *r, struct pd_error *err);
/* For the engine: saves during a validation if a signal asked to. run a struct run. Collective. */
PD_MUST_USE pd_status pd_run_save_in_validation(void *run, struct pd_error *err);
/* Call after opening if rollbacks->doubts: returns what the ranks disagreed about. A checkpoint to resume from exists. */
PD_MUST_USE pd_status pd_run_end_in_doubt(struct run *r, struct pd_error *err);
