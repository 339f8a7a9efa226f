/* One rank of a run: what open.c makes, loop.c steps with, and worker.c takes through both. Everything here is written by
 * the rank's own thread; the saver's thread and those of tiers reach `engine`, `tiers` and groups as save.h and tiers.h
 * say. */
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
    struct pd_comm *nccl;                     /* over comm, for what engines move between GPUs; NULL: comm moves it */
    struct pd_comm *tier_comms[PD_TIERS_MAX]; /* the first: of background saves; the others: of copies into their tiers */
    struct pd_comm *replica_comm;             /* of replicas on other hosts */
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
    struct pd_metrics *metrics; /* rank 0 */
    struct pd_step_log step_log;
    struct pd_run_state state;
    uint32_t threads; /* of this rank */
    bool is_thread;   /* ranks are threads of one process */
    uint64_t planned_bytes;
    uint32_t validation_sequences;        /* of a pass: validation.sequences, or what there is */
    uint64_t saved_step;                  /* newest that is known on all ranks to be committed; 0: none */
    uint64_t started_step;                /* newest whose save is under way or ended well; 0: none */
    uint64_t saves_begun, saves_finished; /* of this saver; finished: on all ranks */
    uint64_t saves_moved_ns;              /* when one ended last, or was begun while none was under way; of now_ns */
    bool is_save_owed;                    /* one was due while storage was stuck */
    uint64_t now_ns;                      /* of the root's clock, at the ranks' last agreement */
    struct pd_save_failures failures;
    struct pd_stragglers stragglers;
    struct pd_rollbacks *rollbacks; /* borrowed: they outlive the opening and closing that going back is */
    uint32_t saves;
    struct pd_metrics_step *unwritten;  /* of the step whose validation runs; NULL: its line is written */
    double save_seconds, stall_seconds; /* of the saves that ended since the last line of metrics */
};

/* open.c. What could not be opened is closed all the same. Collective. */
PD_MUST_USE pd_status pd_run_open(struct run *r, struct pd_error *err);
void pd_run_close(struct run *r);
/* loop.c: every step that is left, and the saves that are due.   errors  PD_STOPPED: a signal asked to leave, all is saved.
 * rollbacks->goes_back: the rank is to be closed and opened again, before that step. */
PD_MUST_USE pd_status pd_run_steps(struct run *r, struct pd_error *err);
/* For the engine: what a signal asks for in a validation.   run  a struct run. Collective. */
PD_MUST_USE pd_status pd_run_save_in_validation(void *run, struct pd_error *err);
/* After an opening for which rollbacks->doubts: returns what the ranks disagreed about. There is a checkpoint to go on from. */
PD_MUST_USE pd_status pd_run_end_in_doubt(struct run *r, struct pd_error *err);
