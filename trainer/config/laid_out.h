/* Resolves a configuration for a number of ranks: degrees, stages, recomputation. Pipeline stages are cut so that the
 * costliest is cheapest, and then most evenly. Pure functions, so ranks that call them agree.
 *
 *   errors   PD_INVALID: no valid layout for this many ranks; names the degree, the cause and the nearest layouts that fit
 */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/config/config.h"

/* Degrees: how many ranks share each dimension of a run, and which a configuration allows. Only arithmetic.
 *
 * Numerics, batch and model set limits (tp divides virtual_tp, sp divides virtual_sp, dp <= L, a block for every stage); the
 * number of ranks and layout.* choose within them. Every error is one sentence that says what would fit. */
struct pd_degrees {
    uint32_t dp, tp, pp, sp, interleave; /* interleave is 1 if pp is 1 */
};

/* Checks layout.* against numerics, batch and model; and against layout.ranks, if given. errors PD_INVALID */
PD_MUST_USE pd_status pd_degrees_check(const struct pd_config *config, struct pd_error *err);
/* The degrees for `world` ranks: given ones are kept, dp gets the rest.
 *   errors  PD_INVALID: the product is not world, or dp is above L; names the nearest layouts of this many ranks that fit */
PD_MUST_USE pd_status pd_degrees_of(const struct pd_config *config, uint32_t world, struct pd_degrees *ret_degrees,
                                    struct pd_error *err);
/* Ranks of a first start without other settings, if `devices` could run one each. */
uint32_t pd_degrees_first_world(const struct pd_config *config, uint32_t devices);
/* All valid degrees for `world` ranks, in a fixed order; non-zero members of `held` are fixed. Returns the count, writes at
 * most `capacity`. */
uint32_t pd_degrees_list(const struct pd_config *config, uint32_t world, const struct pd_degrees *held,
                         struct pd_degrees *ret, uint32_t capacity);
/* For a start with at most `left` ranks, fewer than the layout needs. Keeps tp, pp and sp if they divide `left`; otherwise
 * the largest world with a valid layout, and of its layouts the nearest to `before`. False: nothing fits. */
bool pd_degrees_fewer(const struct pd_config *config, uint32_t left, const struct pd_degrees *before,
                      struct pd_degrees *ret_degrees);
uint32_t pd_degrees_world(const struct pd_degrees *degrees);
/* "dp=2 tp=4", without degrees of 1 except dp. ret (bytes) */
void pd_degrees_text(const struct pd_degrees *degrees, char *ret, size_t bytes);

/* A configuration with its layout fully decided, from which an engine is made. */
struct pd_laid_out {
    struct pd_layout layout;
    enum pd_recompute recompute;
    uint32_t recompute_layers; /* for this many first blocks of each rank, at most all; with none: PD_LAYERS_ALL */
    bool by_lane;              /* exchanges blocks' gradients as lanes end */
    bool updates_on_device;    /* for host state beside a GPU; with offload.update auto a planner decides */
};

/* Whether a step under this layout runs breadth first. */
bool pd_is_breadth_first(const struct pd_config *config, const struct pd_layout *layout);
/* Blocks on the rank with most of them. */
uint32_t pd_laid_out_blocks(const struct pd_laid_out *laid_out, const struct pd_model *model);
/* "recompute=full", plus `between` and "recompute_layers=12" if not all blocks are recomputed. ret (bytes) */
void pd_recompute_text(enum pd_recompute recompute, uint32_t layers, const char *between, char *ret, size_t bytes);

/* The layout of a configuration without layout.auto. With it a planner chooses: do not call this. */
PD_MUST_USE pd_status pd_lay_out_given(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                       struct pd_laid_out *ret_laid_out, struct pd_error *err);
/* Given degrees, with the configuration's ZeRO stage and recomputation. */
PD_MUST_USE pd_status pd_lay_out_degrees(const struct pd_config *config, const struct pd_model *model,
                                         const struct pd_degrees *degrees, struct pd_laid_out *ret_laid_out,
                                         struct pd_error *err);

/* Divides the model's units into `stages` stages so that the largest cost of a stage is least. first_unit (stages)
 *   errors  PD_INVALID: more stages than blocks */
PD_MUST_USE pd_status pd_balance_stages(const struct pd_model *model, uint32_t length, uint32_t stages,
                                        uint16_t *ret_first_unit, struct pd_error *err);
