/* Global norm, clipping and the update. The norm counts the boxes that a rank owns, so replicas count once. The update
 * covers all boxes that the rank holds, with the same bits everywhere.
 *
 * Gradients are sums over tokens. The update multiplies them by one scale as it reads them: 1 / valid tokens of the batch
 * (their mean), the inverse of the loss scale, and the clip. The norm does not depend on the layout: squares in fp64, rows
 * in 16 lanes, then an integer superaccumulator, summed over ranks as integers.
 *   source  Loshchilov and Hutter 2019 (AdamW); Pascanu et al. 2013 (clipping by global norm)
 */
#pragma once

#include "trainer/engine/engine.h"

/* Rows whose sums are computed before they are added up: few on a CPU, to stay in its cache; many on a GPU, where each
 * addition is a kernel launch. */
uint64_t pd_optimizer_norm_rows(const struct pd_engine *engine);

/* Replaces every rank's *sum by the sum over all ranks. Superaccumulators are added limb by limb as integers, so neither
 * order nor layout affects the result. comm NULL: one rank. Collective. */
PD_MUST_USE pd_status pd_exact_sum_reduce(struct pd_superaccumulator *sum, struct pd_comm *comm, struct pd_error *err);

/* Call before the first gradient of a step. */
PD_MUST_USE pd_status pd_optimizer_begin(struct pd_engine *engine, struct pd_error *err);
/* Problems that any rank found in a step's gradients, agreed by all; UINT32_MAX: none. */
struct pd_found {
    uint32_t out_of_range; /* the first tensor with an element too large for its terms */
    uint32_t not_finite;   /* the first tensor with an element that is not finite, ... */
    uint32_t computed_by;  /* ... and the first rank that computed one */
    uint32_t damaged, who; /* the first layer bucket whose sums arrived damaged, and the first rank that adds it up */
};
/* Norm of the gradient of the mean loss over `tokens`. Not finite if any gradient is not. Meaningless if one is out of
 * range. */
PD_MUST_USE pd_status pd_optimizer_norm(struct pd_engine *engine, uint64_t tokens, double *ret_norm,
                                        struct pd_found *ret_found, struct pd_error *err);

/* Call when all gradients are done: starts reading state from files while sums finish and the norm is computed. */
PD_MUST_USE pd_status pd_optimizer_update_begin(struct pd_engine *engine, struct pd_error *err);
/* Applies one update to all held boxes and refreshes the working copy. `updates` were applied before. After begin. */
PD_MUST_USE pd_status pd_optimizer_update(struct pd_engine *engine, uint64_t updates, uint64_t tokens, double norm,
                                          struct pd_error *err);
/* Call after an update, or instead of it. Drops whatever update_begin started. */
void pd_optimizer_update_end(struct pd_engine *engine);
