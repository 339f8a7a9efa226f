/* What oneDNN takes for a list of products, fp32: what a step is measured against. Each runs as often as it occurs.
 * Operands are made once and used again; they lie where the products before them left them, in caches or not.
 *   ownership  the bench owns its memory; the pool is borrowed
 *   threads    one caller
 */
#pragma once

#include "trainer/math/math.h"

/* `count` equal linear layers: y = x W^T, dx = dy W, dW = dy^T x of each. */
struct pd_gemm_linear {
    uint64_t in, out;
    uint32_t count;
};

struct pd_gemm_bench;

/*   errors  PD_NO_MEMORY; PD_UNSUPPORTED without oneDNN */
PD_MUST_USE pd_status pd_gemm_bench_new(uint64_t tokens, const struct pd_gemm_linear *linears, uint32_t count,
                                        struct pd_thread_pool *pool, struct pd_gemm_bench **ret_bench, struct pd_error *err);
void pd_gemm_bench_free(struct pd_gemm_bench *bench);

/* Seconds of all products, each as often as it counts. */
PD_MUST_USE pd_status pd_gemm_bench_run_onednn(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err);
