/* Whether what a rank was planned to take fits its device. What does not is the configuration's fault, however often it is
 * tried: PD_INVALID, which no launcher repeats, with what is needed, what is free and what to change. */
#pragma once

#include "trainer/engine/engine.h"

/* An empty arena of what the engine of these options takes, in the memory of their device.   ret_plan: what it was made from
 *   errors  PD_INVALID: it does not fit, by the plan or when it is taken; what libraries take is not counted */
PD_MUST_USE pd_status pd_engine_arena(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                                      struct pd_arena **ret_arena, struct pd_error *err);
