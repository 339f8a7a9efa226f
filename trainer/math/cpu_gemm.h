/* Packed GEMM on the CPU. Its bits depend only on K and the operands; see struct pd_gemm in math.h.
 *
 * Every element is: sum = accumulate ? C : 0; for k ascending: sum = fmaf(A[i][k], B[k][j], sum), in fp32 with denormals
 * flushed; then + bias, + residual, one rounding. README.md explains the blocking.
 *   workspace  borrowed, 64-byte aligned, pd_cpu_gemm_workspace_bytes(threads of the pool), need not be initialised
 *   errors     none: it allocates nothing and calls nothing that fails
 *   threads    one caller per pool and per workspace
 */
#pragma once

#include "trainer/math/math.h"

/* Depends only on the thread count, not on machine or instruction set. */
uint64_t pd_cpu_gemm_workspace_bytes(unsigned thread_count);

/* `isa` is resolved: available here and not AUTO. pool NULL: one thread. C overlaps neither A nor B; residual may be C. */
void pd_cpu_gemm(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace, const struct pd_gemm *gemm);
