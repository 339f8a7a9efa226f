/* Finds where a run continues: the newest complete checkpoint, saved under any layout, or the first step.
 *
 * The newest of all tiers counts; of equal ones, that of the faster tier. A damaged checkpoint is moved to quarantine, with
 * an error in the log, and the one before it is used. A storage error is not damage; it ends the launch. A run begins at the
 * first step only if there is nothing else: with damaged or incomplete checkpoints, in quarantine or not, the launch fails,
 * and also if run.dir records checkpoints that are gone (events.h). pd_config_compare decides about a changed configuration.
 *
 * If all checkpoints are of later steps than the limit, the run begins again, as the same run. */
#pragma once

#include "ckpt/group/group.h"
#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"
#include "trainer/run/step_log.h"

struct pd_resume_report {
    bool resumed; /* false: a fresh start */
    uint32_t from_tier;
    uint32_t from_world; /* ranks that wrote it */
    uint32_t damaged;    /* checkpoints skipped as damaged */
    double seconds;
    uint64_t lost_steps; /* steps the run had done beyond the one it resumes from; for people */
    char other_run[512]; /* rank 0: run.dir of the run that saved it, if another one; or "" */
};

/* Which checkpoints may be used. */
struct pd_resume_limit {
    uint64_t step;             /* newest allowed; UINT64_MAX: any */
    const char *doubt;         /* reason to quarantine newer ones; NULL: leave them alone */
    struct pd_step_line known; /* newest that any host knows; while hosts are away, none before its `kept` is used */
};
extern const struct pd_resume_limit pd_resume_newest; /* any */

/* Fills the engine's state and *ret_state (the caller deinits it): identity, counters, layout of this launch. Collective.
 * Call before the tiers are started.
 *   errors  PD_INVALID: the configuration may not change so, or run.dir is of another run; PD_CORRUPT: no checkpoint is
 *           complete, or run.dir records checkpoints that are gone */
PD_MUST_USE pd_status pd_resume(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group, struct pd_engine *engine,
                                struct pd_resume_limit limit, struct pd_run_state *ret_state,
                                struct pd_resume_report *ret_report, struct pd_error *err);
