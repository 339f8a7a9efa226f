/* Checks whether the planned memory of a rank fits its device. If not, the configuration is wrong and a retry would not
 * help: PD_INVALID, which no launcher retries, with needed and free memory and what to change. */
#pragma once

#include "trainer/engine/engine.h"

/* Makes an empty arena for an engine with these options, in its device's memory. ret_plan: its plan
 *   errors  PD_INVALID: does not fit, by the plan or on allocation; memory of libraries is not counted */
PD_MUST_USE pd_status pd_engine_arena(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                                      struct pd_arena **ret_arena, struct pd_error *err);
