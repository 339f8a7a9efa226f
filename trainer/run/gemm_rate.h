/* How fast the GEMM of this run is on these ranks: the bound that the progress line compares a step with. */
#pragma once

#include "trainer/engine/engine.h"

/* Operations a second of all ranks of `comm` together, which compute at the same time. Collective. On a CPU the operands lie
 * in the engine's I/O buffers, on a GPU in memory for gradients or the plan's: before the first step and the first save. */
PD_MUST_USE pd_status pd_gemm_rate_measure(struct pd_engine *engine, struct pd_comm *comm, double *ret_flops_per_second,
                                           struct pd_error *err);
