/* What a step does to the counters of a run: steps, updates, samples, the loss scale, and what guards say of it. All of it
 * follows from the step's result, so that whoever computes the step again comes to the same. */
#ifndef PD_TRAINER_ENGINE_ADVANCE_H
#define PD_TRAINER_ENGINE_ADVANCE_H

#include "ckpt/store/commit.h"
#include "trainer/engine/engine.h"

#define PD_LOSS_SCALE_MAX 0x1p24
#define PD_LOSS_SCALE_MIN 0x1p-24

/* says: skips are logged. *skips: of guard.non_finite in a row.
 *   errors  PD_DIVERGED: more than guard.skips in a row */
PD_MUST_USE pd_status pd_advance(const struct pd_config *config, const struct pd_step_result *result, bool says,
                                 struct pd_run_state *state, uint32_t *skips, struct pd_error *err);
/* The dynamic loss scale of fp16 (Micikevicius et al. 2018): gradients that overflow cost a step and halve it, `interval` good
 * steps double it. Always a power of two, so that what it multiplies is divided out exactly.
 *   errors  PD_DIVERGED: skipped at the smallest scale */
PD_MUST_USE pd_status pd_loss_scale_advance(struct pd_run_state *state, bool skipped, uint32_t interval,
                                            struct pd_error *err);

#endif
