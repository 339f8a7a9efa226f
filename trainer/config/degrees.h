/* Degrees: how many ranks share what of a run, and which of them a configuration admits. Arithmetic only.
 *
 * Numerics, batch and model admit (tp divides virtual_tp, sp divides virtual_sp, dp <= L, a block for every stage); the
 * number of ranks and what layout.* names choose among those. Every refusal is one sentence that names what would fit. */
#pragma once

#include "trainer/config/config.h"

struct pd_degrees {
    uint32_t dp, tp, pp, sp, interleave; /* interleave 1 where pp is 1 */
};

/* layout.* by itself: admitted by numerics, batch and model; for layout.ranks where that is given.   errors  PD_INVALID */
PD_MUST_USE pd_status pd_degrees_check(const struct pd_config *config, struct pd_error *err);
/* What the configuration says for `world` ranks: named degrees hold, dp takes what is left.
 *   errors  PD_INVALID: the product is not world, or dp is above L; names the nearest layouts of this many ranks that fit */
PD_MUST_USE pd_status pd_degrees_of(const struct pd_config *config, uint32_t world, struct pd_degrees *ret_degrees,
                                    struct pd_error *err);
/* Ranks of a start that nothing says more about, where `devices` could run one each. */
uint32_t pd_degrees_first_world(const struct pd_config *config, uint32_t devices);
/* All admitted degrees of `world` ranks, in a fixed order; a member of `held` that is not 0 is held. Returns the count,
 * writes at most `capacity`. */
uint32_t pd_degrees_list(const struct pd_config *config, uint32_t world, const struct pd_degrees *held,
                         struct pd_degrees *ret, uint32_t capacity);
/* A start with at most `left` ranks of a run whose layout needs more: tp, pp and sp stay where they divide what is left,
 * otherwise the largest world with an admitted layout, and of those the nearest to `before`. False: nothing fits. */
bool pd_degrees_fewer(const struct pd_config *config, uint32_t left, const struct pd_degrees *before,
                      struct pd_degrees *ret_degrees);
uint32_t pd_degrees_world(const struct pd_degrees *degrees);
/* "dp=2 tp=4", degrees of 1 left out but for dp.   ret (bytes) */
void pd_degrees_text(const struct pd_degrees *degrees, char *ret, size_t bytes);
