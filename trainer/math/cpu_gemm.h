/* Packed GEMM on the CPU whose bits depend on K and the operands alone; see struct pd_gemm in math.h.
 *
 * Bits are those of, for each element: sum = accumulate ? C : 0; for k ascending: sum = fmaf(A[i][k], B[k][j], sum), in fp32
 * with denormals flushed; then + bias, + residual, one rounding. README.md tells how it is blocked.
 *   workspace  borrowed, 64-byte aligned, pd_cpu_gemm_workspace_bytes(threads of the pool), contents of no interest
 *   errors     none: it allocates nothing and calls nothing that fails
 *   threads    one caller per pool and per workspace
 */
#pragma once

#include "trainer/math/math.h"

/* A function of the thread count alone: the same on every machine and for every instruction set. */
uint64_t pd_cpu_gemm_workspace_bytes(unsigned thread_count);

/* `isa` is resolved: available here and not AUTO. pool NULL: one thread. C overlaps neither A nor B; residual may be C. */
void pd_cpu_gemm(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace, const struct pd_gemm *gemm);
