/* Global norm, clipping and the update. The norm counts the boxes that a rank owns, so that replicas count once; the update
 * is made on all that it holds, with the same bits everywhere.
 *
 * Gradients are sums over tokens. One scale makes them what the update needs: 1 / valid tokens of the batch (their mean), the
 * inverse of the loss scale, and the clip; the update rule applies it as it reads them. The norm does not depend on the
 * layout: squares in fp64, rows in 16 lanes, then an integer superaccumulator, combined over ranks by integer sums.
 *   source  Loshchilov and Hutter 2019 (AdamW); Pascanu et al. 2013 (clipping by global norm)
 */
#pragma once

#include "trainer/engine/engine.h"

/* Sums of rows that are made before they are added up: few on a CPU, where they stay in its cache; many on a GPU, where each
 * addition is a kernel. */
uint64_t pd_optimizer_norm_rows(const struct pd_engine *engine);

/* Every rank's *sum becomes the sum over all ranks: superaccumulators are added limb by limb as integers, so the result knows
 * no order and no layout. comm NULL: alone. Collective. */
PD_MUST_USE pd_status pd_exact_sum_reduce(struct pd_superaccumulator *sum, struct pd_comm *comm, struct pd_error *err);

/* Before the first gradient of a step. */
PD_MUST_USE pd_status pd_optimizer_begin(struct pd_engine *engine, struct pd_error *err);
/* What ranks found of a step's gradients together; UINT32_MAX: nothing. */
struct pd_found {
    uint32_t out_of_range; /* the first tensor with an element that its terms cannot hold */
    uint32_t not_finite;   /* the first tensor with an element that is not finite, ... */
    uint32_t computed_by;  /* ... and the first rank that computed one */
    uint32_t damaged, who; /* the first set whose sums arrived damaged, and the first rank that adds such up */
};
/* Norm of the gradient of the mean loss over `tokens`. Not finite when any gradient is not; it means nothing where one is out of
 * range. */
PD_MUST_USE pd_status pd_optimizer_norm(struct pd_engine *engine, uint64_t tokens, double *ret_norm,
                                        struct pd_found *ret_found, struct pd_error *err);

/* When no gradient of the step is worked on any more: state in files begins to come while sums end and the norm is made. */
PD_MUST_USE pd_status pd_optimizer_update_begin(struct pd_engine *engine, struct pd_error *err);
/* Applies one update to the held boxes and refreshes the working copy; `updates` were applied before it. After begin. */
PD_MUST_USE pd_status pd_optimizer_update(struct pd_engine *engine, uint64_t updates, uint64_t tokens, double norm,
                                          struct pd_error *err);
/* After an update, or in its place where there is to be none: what was begun for it is dropped. */
void pd_optimizer_update_end(struct pd_engine *engine);
