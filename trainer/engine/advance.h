/* What a step does to the counters of a run: steps, updates, samples, the loss scale, and what guards say of it. All of it
 * follows from the step's result and the state before it, so whoever computes the step again, under whatever layout and after
 * whatever restart, comes to the same.
 *
 * A rollback of step s by guard.rollback_steps = k takes the state of step t = s - k and goes on with step s + 1: what the
 * steps in between updated is undone, their batches are not used again, and step numbers only grow. Going back is loading the
 * newest checkpoint of step t or before and computing up to t; there pd_rollbacks_pass makes it step s.
 *
 *   invariant  a checkpoint of a step from t to s - 1 that was made before the rollback is as good as one before t: going on
 *              from it comes to step s, to the same judgement and back to t */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/engine/engine.h"

#define PD_LOSS_SCALE_MAX 0x1p24
#define PD_LOSS_SCALE_MIN 0x1p-24
#define PD_ROLLBACKS_MAX 64u

/* What is known of a run's rollbacks: to go back over one again takes no second judgement. Past the last one the oldest gives
 * way, and is judged again. */
struct pd_rollbacks {
    struct pd_rollback {
        uint64_t at, to;
        uint64_t in_a_row; /* with less than guard.rollback_steps between them */
    } known[PD_ROLLBACKS_MAX];
    uint32_t count;
    bool goes_back; /* the last step was judged so: nothing is to follow but loading a checkpoint of `target` or before */
    uint64_t target;
    bool
        doubts; /* it goes back since ranks disagreed: checkpoints beyond `target` are put aside, and the start ends with this */
    struct pd_error doubt;
    uint32_t wrong_rank; /* UINT32_MAX: nobody knows */
};

/* says: skips are logged.
 *   errors  PD_DIVERGED: more than guard.skips skips, or rollbacks, in a row */
PD_MUST_USE pd_status pd_advance(const struct pd_config *config, const struct pd_step_result *result, bool says,
                                 struct pd_run_state *state, struct pd_rollbacks *rollbacks, struct pd_error *err);
/* After loading and after every step: makes step t step s where a rollback is known. */
void pd_rollbacks_pass(const struct pd_rollbacks *rollbacks, const struct pd_config *config, bool says,
                       struct pd_run_state *state);
/* The state is computed again on its way to a rollback that is known: there are checkpoints of later steps. */
bool pd_rollbacks_is_behind(const struct pd_rollbacks *rollbacks, const struct pd_run_state *state);

/* The dynamic loss scale of fp16 (Micikevicius et al. 2018): gradients that overflow cost a step and halve it, `interval` good
 * steps double it. Always a power of two, so that what it multiplies is divided out exactly.
 *   errors  PD_DIVERGED: skipped at the smallest scale */
PD_MUST_USE pd_status pd_loss_scale_advance(struct pd_run_state *state, bool skipped, uint32_t interval,
                                            struct pd_error *err);
