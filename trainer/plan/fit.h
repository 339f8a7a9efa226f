/* The one search for what would fit: the planner, advice and benchmarks of a GPU ask it. */
#pragma once

#include "ckpt/base/status.h"

/* Whether it fits with so many. More never fits less. */
typedef pd_status (*pd_fit_probe)(void *context, uint32_t count, bool *ret_fits, struct pd_error *err);

/* The fewest of 1 to `enough` with which it fits, where it is known to fit with `enough`. About log2(enough) probes. */
PD_MUST_USE pd_status pd_fit_fewest(pd_fit_probe probe, void *context, uint32_t enough, uint32_t *ret_fewest,
                                    struct pd_error *err);
