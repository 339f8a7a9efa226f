/* What CUDA graphs of blocks may take of a rank's GPU, by an estimate: operations of all runs by what NVIDIA says of one. Beside
 * its plan, which refuses no layout for it: without room a run goes on without graphs. */
#pragma once

#include "trainer/engine/engine.h"

PD_MUST_USE pd_status pd_engine_graph_bytes(const struct pd_engine_options *options, uint64_t *ret_bytes,
                                            struct pd_error *err);
