/* What oneDNN takes for a list of products, fp32: what a step is measured against. The list carries how often each occurs.
 * Operands are made once and used again; they lie where the products before them left them, in caches or not.
 *   ownership  the bench owns its memory; the pool is borrowed
 *   threads    one caller
 */
#pragma once

#include "trainer/math/math.h"

struct pd_gemm_case {
    uint64_t m, n, k;
    bool trans_a, trans_b;
    uint32_t count; /* occurrences in a step */
};

/* The three products of a linear layer of `count` equal ones: y = x W^T, dx = dy W, dW = dy^T x. */
void pd_gemm_cases_of_linear(uint64_t tokens, uint64_t in, uint64_t out, uint32_t count, struct pd_gemm_case ret_cases[3]);

struct pd_gemm_bench;

/*   errors  PD_NO_MEMORY; PD_UNSUPPORTED without oneDNN */
PD_MUST_USE pd_status pd_gemm_bench_new(const struct pd_gemm_case *cases, uint32_t count, struct pd_thread_pool *pool,
                                        struct pd_gemm_bench **ret_bench, struct pd_error *err);
void pd_gemm_bench_free(struct pd_gemm_bench *bench);

/* Seconds of all products, each as often as it counts. */
PD_MUST_USE pd_status pd_gemm_bench_run_onednn(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err);
