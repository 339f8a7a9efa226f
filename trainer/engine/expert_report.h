/* What all ranks know of the experts of a step: counts and auxiliary losses of micro-batches, summed over ranks. Counts are
 * integers and losses exact sums, so the layout does not change them. */
#pragma once

#include "trainer/engine/engine.h"

/* After the last micro-batch. Fills router_loss and experts. Collective; does nothing for a model without experts. */
PD_MUST_USE pd_status pd_experts_report(struct pd_engine *engine, struct pd_step_result *result, struct pd_error *err);
