/* Times oneDNN on a list of fp32 products, the ceiling of a training step. Each product runs as often as it occurs.
 * Operands are created once and reused; whether they are in a cache depends on the products before.
 *   ownership  the bench owns its memory; the pool is borrowed
 *   threads    one caller
 */
#pragma once

#include "trainer/math/math.h"

/* `count` equal linear layers: y = x W^T, dx = dy W, dW = dy^T x for each. */
struct pd_gemm_linear {
    uint64_t in, out;
    uint32_t count;
    uint64_t rows; /* of x; 0: all tokens */
};

struct pd_gemm_bench;

/*   errors  PD_NO_MEMORY; PD_UNSUPPORTED without oneDNN */
PD_MUST_USE pd_status pd_gemm_bench_new(uint64_t tokens, const struct pd_gemm_linear *linears, uint32_t count,
                                        struct pd_thread_pool *pool, struct pd_gemm_bench **ret_bench, struct pd_error *err);
void pd_gemm_bench_free(struct pd_gemm_bench *bench);

/* Returns the time of all products together. */
PD_MUST_USE pd_status pd_gemm_bench_run_onednn(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err);
