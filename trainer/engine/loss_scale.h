/* The dynamic loss scale of fp16 (Micikevicius et al. 2018): gradients that overflow cost a step and halve it, a run of good
 * steps doubles it. Always a power of two, so that what it multiplies is divided out exactly. Its state travels with the
 * checkpoint; every rank advances its own copy by the same outcome. */
#ifndef PD_TRAINER_ENGINE_LOSS_SCALE_H
#define PD_TRAINER_ENGINE_LOSS_SCALE_H

#include "ckpt/store/commit.h"

#define PD_LOSS_SCALE_MAX 0x1p24
#define PD_LOSS_SCALE_MIN 0x1p-24

/* After a step that was skipped, or that was not; doubles after `interval` good steps.
 *   errors  PD_DIVERGED: skipped at the smallest scale */
PD_MUST_USE pd_status pd_loss_scale_advance(struct pd_run_state *state, bool skipped, uint32_t interval,
                                            struct pd_error *err);

#endif
