/* oneDNN behind the words of struct pd_gemm: numerics fast, and the denominator of benchmarks.
 *
 * Operands of 16 bits are converted block by block through a workspace, where they mostly fit whole; the product itself is
 * dnnl_sgemm. Its bits depend on shapes, strides, threads and instruction set.
 *
 *   errors   PD_UNSUPPORTED: built without oneDNN; PD_BUG: oneDNN refused the call
 *   threads  one caller
 */
#pragma once

#include "trainer/math/math.h"

bool pd_onednn_available(void);
const char *pd_onednn_version(void); /* "2.6.0", or "none" */

/* The same on every machine. */
uint64_t pd_onednn_workspace_bytes(void);

/* One slice of C a thread of the pool, each by oneDNN on that thread; conversions and what follows the product are those of
 * `isa`, which is resolved. workspace: pd_onednn_workspace_bytes, 64-byte aligned. C overlaps neither A nor B;
 * residual may be C. */
PD_MUST_USE pd_status pd_onednn_gemm(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace,
                                     const struct pd_gemm *gemm, struct pd_error *err);

/* dnnl_sgemm as it is: C (m,n) = op(A) op(B) [+ C], row-major, on `threads` OpenMP threads. */
PD_MUST_USE pd_status pd_onednn_sgemm(unsigned threads, bool trans_a, bool trans_b, uint64_t m, uint64_t n, uint64_t k,
                                      const float *a, uint64_t lda, const float *b, uint64_t ldb, bool accumulate, float *c,
                                      uint64_t ldc, struct pd_error *err);
