/* guard.replay_every: every so many steps another group recomputes one micro-batch of each data group. The integers of the
 * two gradients are compared before the step updates anything.
 *
 *   3 groups and more  group g also computes for g + k; if they differ, a third group, g + k', decides
 *   2 groups           if they differ, both compute again; one that differs from itself is wrong, else it stays undecided
 *   1 group            the same ranks compute again, which finds transient errors; a third run decides
 *
 * Seed and step determine micro-batches, k and k'. A rank's peer has the same place in the other group.
 *
 * With ep > 1 a second sum covers this rank's experts: all ep ranks' micro-batches add to it. k and k' then
 * lead to other ep ranks. Where there are no others, experts compute again themselves.
 *   source  Schroeder et al. 2009 on memory, Hochschild et al. 2021 on cores: a computer that errs does so for long */
#pragma once

#include "trainer/engine/engine.h"

PD_MUST_USE pd_status pd_compare_begin(struct pd_engine *engine, struct pd_error *err);
/*   errors  PD_DEVICE_LOST: the gradients differ; engine->disagreement has the verdict */
PD_MUST_USE pd_status pd_compare_end(struct pd_engine *engine, uint64_t first_sample, bool *ret_compared,
                                     struct pd_error *err);
