/* Updates a run's counters after a step: steps, updates, samples, the loss scale and the guards' decisions. Everything
 * follows from the step's result and the state before it. So recomputing the step gives the same, under any layout and after
 * any restart.
 *
 * A rollback at step s with guard.rollback_steps = k restores the state of step t = s - k and continues with step s + 1. It
 * undoes the updates in between and does not reuse their batches; step numbers only grow. To roll back, load the newest
 * checkpoint of step t or earlier and compute up to t; there pd_rollbacks_pass turns it into step s.
 *
 *   invariant  a checkpoint of a step from t to s - 1 that was made before the rollback is as good as one before t: training
 *              from it reaches step s, the same decision, and goes back to t */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/engine/engine.h"

#define PD_LOSS_SCALE_MAX 0x1p24
#define PD_LOSS_SCALE_MIN 0x1p-24
#define PD_ROLLBACKS_MAX 64u

/* The known rollbacks of a run, so that replaying one needs no second decision. If the table is full, the oldest is dropped
 * and will be decided again. */
struct pd_rollbacks {
    struct pd_rollback {
        uint64_t at, to;
        uint64_t in_a_row; /* rollbacks less than guard.rollback_steps apart */
    } known[PD_ROLLBACKS_MAX];
    uint32_t count;
    bool goes_back; /* the last step decided to roll back: now only load a checkpoint of `target` or earlier */
    uint64_t target;
    bool doubts; /* ranks disagreed: set aside checkpoints after `target`; this start then ends with `doubt` */
    struct pd_error doubt;
    uint32_t wrong_rank; /* UINT32_MAX: unknown */
};

/* says: log skipped steps.
 *   errors  PD_DIVERGED: more than guard.skips skips, or rollbacks, in a row */
PD_MUST_USE pd_status pd_advance(const struct pd_config *config, const struct pd_step_result *result, bool says,
                                 struct pd_run_state *state, struct pd_rollbacks *rollbacks, struct pd_error *err);
/* Call after loading and after every step. If a rollback to this step is known, turns step t into step s. */
void pd_rollbacks_pass(const struct pd_rollbacks *rollbacks, const struct pd_config *config, bool says,
                       struct pd_run_state *state);
/* Returns whether the run is recomputing steps before a known rollback, so that checkpoints of later steps exist. */
bool pd_rollbacks_is_behind(const struct pd_rollbacks *rollbacks, const struct pd_run_state *state);

/* The dynamic loss scale of fp16 (Micikevicius et al. 2018). If gradients overflow, the step is skipped and the scale
 * halved; `interval` good steps double it. It stays a power of two, so that dividing it out is exact.
 *   errors  PD_DIVERGED: skipped at the smallest scale */
PD_MUST_USE pd_status pd_loss_scale_advance(struct pd_run_state *state, bool skipped, uint32_t interval,
                                            struct pd_error *err);
