/* From a configuration and a number of ranks to a layout.
 *
 * Degrees that the configuration gives hold; dp takes what is left of the world. With layout.auto the planner chooses dp, tp,
 * pp, sp, recomputation and the ZeRO stage, among what the numerics admit, by the memory plan and a model of step time.
 * Stages are cut where the costliest is cheapest.
 *
 *   errors   PD_INVALID: no admitted layout of this many ranks; the message names the degree, the cause and the nearest
 *            layouts that fit
 */
#ifndef PD_TRAINER_AUTO_LAYOUT_H
#define PD_TRAINER_AUTO_LAYOUT_H

#include "ckpt/commit.h"
#include "trainer/config.h"

/* A configuration with everything of its layout decided: what an engine is made from. */
struct pd_laid_out {
    struct pd_layout layout;
    enum pd_recompute recompute;
};

PD_MUST_USE pd_status pd_lay_out(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                 struct pd_laid_out *ret_laid_out, struct pd_error *err);
/* first_unit of `stages` stages over units of the model: the largest sum of unit costs is least.   first_unit (stages)
 *   errors  PD_INVALID: more stages than blocks */
PD_MUST_USE pd_status pd_balance_stages(const struct pd_model *model, uint32_t length, uint32_t stages,
                                        uint16_t *ret_first_unit, struct pd_error *err);

#endif
