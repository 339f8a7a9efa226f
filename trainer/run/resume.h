/* Where a run goes on: the newest checkpoint that is whole, under whatever layout it was saved, or the first step.
 *
 * The newest over all tiers counts, of equal ones that of the faster tier. A checkpoint whose bytes are damaged is moved to
 * quarantine with an error in the log, and the one before is taken; a storage error is not damage and ends the launch. The
 * first step is for a directory that holds nothing else: beside damaged or incomplete checkpoints, in quarantine or not, a
 * launch fails, and also where run.dir has the record of checkpoints that are gone (events.h). A changed configuration
 * follows pd_config_compare.
 *
 * Where only checkpoints of later steps than the limit are there, the run begins again, as the same run. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"
#include "trainer/run/step_log.h"

struct pd_resume_report {
    bool resumed; /* false: a fresh start */
    uint32_t from_tier;
    uint32_t from_world; /* ranks that wrote it */
    uint32_t damaged;    /* checkpoints that were passed over */
    double seconds;
    uint64_t lost_steps; /* of the run, behind the one that it goes on from; for people */
    char other_run[512]; /* rank 0: run.dir of the run that saved it, where that is another one; or "" */
};

/* Which checkpoints are taken. */
struct pd_resume_limit {
    uint64_t step;             /* of the newest; UINT64_MAX: any */
    const char *doubt;         /* newer ones are put into quarantine for this reason; NULL: they are left alone */
    struct pd_step_line known; /* the newest that any host knows of; while hosts are away none before its `kept` is taken */
};
extern const struct pd_resume_limit pd_resume_newest; /* any */

/* Fills the engine's state and *ret_state (the caller's to deinit): identity, counters, layout of this launch. Collective.
 * The tiers are not started yet.
 *   errors  PD_INVALID: the configuration may not change so, or run.dir is of another run; PD_CORRUPT: there are checkpoints
 *           and none is whole, or run.dir says that there were some */
PD_MUST_USE pd_status pd_resume(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group, struct pd_engine *engine,
                                struct pd_resume_limit limit, struct pd_run_state *ret_state,
                                struct pd_resume_report *ret_report, struct pd_error *err);
