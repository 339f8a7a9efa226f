/* Update rules (offload/update_rule.h) where the math table computes: a row for each rule. */
#ifndef PD_TRAINER_ENGINE_UPDATE_DEVICE_H
#define PD_TRAINER_ENGINE_UPDATE_DEVICE_H

#include "offload/update_rule.h"
#include "trainer/math/math.h"

/* state, grad and copy are memory of what `math` computes on. */
PD_MUST_USE pd_status pd_update_on_device(struct pd_math *math, const struct pd_update_step *step,
                                          const struct pd_update_range *range, struct pd_error *err);

#endif
