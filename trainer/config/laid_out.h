/* What a configuration is for so many ranks: degrees, stages, recomputation. Pipeline stages are cut where the
 * costliest is cheapest, and of those cuts the most even is taken. Pure functions: ranks that call them agree.
 *
 *   errors   PD_INVALID: no admitted layout of this many ranks; the message names the degree, the cause and the nearest
 *            layouts that fit
 */
#pragma once

#include "ckpt/store/commit.h"
#include "trainer/config/degrees.h"

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
