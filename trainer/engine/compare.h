/* guard.replay_every: every so many steps one micro-batch of each data group is computed once more by another group, and the
 * integers that both make of its gradients are compared, before the step updates anything.
 *
 *   3 groups and more  group g computes for g + k as well; a difference is decided by g + k', a third
 *   2 groups           by both once more: who does not come to his own again is wrong; where both do, nobody knows
 *   1 group            the same ranks compute again, which finds what does not last, and a third time decides
 *
 * Which micro-batches, k and k' follow from seed and step. Ranks are compared with those of the same place in their group.
 *   source  Schroeder et al. 2009 on memory, Hochschild et al. 2021 on cores: computers that compute wrongly do so for long */
#pragma once

#include "trainer/engine/engine.h"

PD_MUST_USE pd_status pd_compare_begin(struct pd_engine *engine, struct pd_error *err);
/* errors  PD_DEVICE_LOST: they differ; engine->disagreement says what was decided */
PD_MUST_USE pd_status pd_compare_end(struct pd_engine *engine, uint64_t first_sample, bool *ret_compared,
                                     struct pd_error *err);
