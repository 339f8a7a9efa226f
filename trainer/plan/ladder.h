/* Prints the memory of a rank, from everything in fp32 on one device down to sharding, half precision and recomputation
 * (Rajbhandari et al. 2020, figure 1; Chen et al. 2016). Printed if a configuration does not fit.
 *   world          ranks of the sharded rungs; degrees as configured, or of the fastest layout
 *   threads        per rank
 *   allowed_bytes  per rank
 *   errors         as of pd_lay_out; nothing was printed */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/config/config.h"

#include <stdio.h>

struct pd_model;

PD_MUST_USE pd_status pd_plan_ladder_print(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                                           uint32_t threads, double allowed_bytes, FILE *out, struct pd_error *err);
