/* What a configuration is for so many ranks: degrees, stages, recomputation. Pipeline stages are cut where the
 * costliest is cheapest, and of those cuts the most even is taken. Pure functions: ranks that call them agree.
 *
 *   errors   PD_INVALID: no admitted layout of this many ranks; the message names the degree, the cause and the nearest
 *            layouts that fit
 */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/config/config.h"

/* Degrees: how many ranks share what of a run, and which of them a configuration admits. Arithmetic only.
 *
 * Numerics, batch and model admit (tp divides virtual_tp, sp divides virtual_sp, dp <= L, a block for every stage); the
 * number of ranks and what layout.* names choose among those. Every refusal is one sentence that names what would fit. */
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

/* A configuration with everything of its layout decided: what an engine is made from. */
struct pd_laid_out {
    struct pd_layout layout;
    enum pd_recompute recompute;
    uint32_t recompute_layers; /* of the first so many blocks of each rank, at most all; none: PD_LAYERS_ALL */
    bool by_lane;              /* gradients of blocks are exchanged as lanes end */
    bool updates_on_device;    /* of state on the host beside a GPU; with offload.update auto a planner says so */
};

/* Whether a step under this layout goes breadth first. */
bool pd_is_breadth_first(const struct pd_config *config, const struct pd_layout *layout);
/* Blocks of the rank that has most of them. */
uint32_t pd_laid_out_blocks(const struct pd_laid_out *laid_out, const struct pd_model *model);
/* "recompute=full", and where not all blocks are meant `between` and "recompute_layers=12".   ret (bytes) */
void pd_recompute_text(enum pd_recompute recompute, uint32_t layers, const char *between, char *ret, size_t bytes);

/* The layout of a configuration without layout.auto; with it a planner chooses, and this must not be called. */
PD_MUST_USE pd_status pd_lay_out_given(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                       struct pd_laid_out *ret_laid_out, struct pd_error *err);
/* Degrees that were decided, with ZeRO stage and recomputation of the configuration. */
PD_MUST_USE pd_status pd_lay_out_degrees(const struct pd_config *config, const struct pd_model *model,
                                         const struct pd_degrees *degrees, struct pd_laid_out *ret_laid_out,
                                         struct pd_error *err);

/* first_unit of `stages` stages over units of the model: the largest sum of unit costs is least.   first_unit (stages)
 *   errors  PD_INVALID: more stages than blocks */
PD_MUST_USE pd_status pd_balance_stages(const struct pd_model *model, uint32_t length, uint32_t stages,
                                        uint16_t *ret_first_unit, struct pd_error *err);
