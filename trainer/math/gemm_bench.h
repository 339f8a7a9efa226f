/* The packed GEMM against oneDNN, alternately, on one list of products.
 *
 * A step is timed against the sum of its products, so the list carries how often each occurs. Operands of one product are
 * made once and used again; they lie where the products before them left them, in caches or not, the same for both sides.
 *   ownership  the bench owns its memory; the pool is borrowed
 *   threads    one caller
 */
#ifndef PD_TRAINER_MATH_GEMM_BENCH_H
#define PD_TRAINER_MATH_GEMM_BENCH_H

#include "trainer/math/math.h"

struct pd_gemm_case {
    uint64_t m, n, k;
    bool trans_a, trans_b;
    enum pd_dtype a_dtype, b_dtype, c_dtype; /* of our side; oneDNN always multiplies fp32 */
    uint32_t count;                          /* occurrences in a step */
};

struct pd_gemm_timing {
    double own_s, onednn_s; /* medians, of one product */
    double ratio;           /* median over pairs of onednn / own: 1 is as fast, more is faster */
};

/* The three products of a linear layer of `count` equal ones: y = x W^T, dx = dy W, dW = dy^T x (fp32). */
void pd_gemm_cases_of_linear(uint64_t tokens, uint64_t in, uint64_t out, enum pd_dtype act, uint32_t count,
                             struct pd_gemm_case ret_cases[3]);

struct pd_gemm_bench;

/* isa resolved.   errors  PD_NO_MEMORY; PD_UNSUPPORTED without oneDNN */
PD_MUST_USE pd_status pd_gemm_bench_new(const struct pd_gemm_case *cases, uint32_t count, struct pd_thread_pool *pool,
                                        enum pd_isa isa, struct pd_gemm_bench **ret_bench, struct pd_error *err);
void pd_gemm_bench_free(struct pd_gemm_bench *bench);

/* Seconds of all products, each as often as it counts. */
PD_MUST_USE pd_status pd_gemm_bench_run_own(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err);
PD_MUST_USE pd_status pd_gemm_bench_run_onednn(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err);
/* One product after the other, `pairs` times alternately. */
PD_MUST_USE pd_status pd_gemm_bench_compare(struct pd_gemm_bench *bench, uint32_t pairs, struct pd_gemm_timing *ret_timings,
                                            struct pd_error *err);

#endif
