#include "tools/bench/gemm.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"

#ifdef PERDURE_ONEDNN
#include <dnnl.h>
#include <omp.h>
#endif
#include <stdlib.h>
#include <string.h>

/* After a product OpenMP threads spin for some milliseconds before they sleep; wait for that. */
#define SETTLE_NS UINT64_C(10000000)

enum { LINEARS_MAX = 8 };

struct gemm_case {
    uint64_t m, n, k;
    bool trans_a, trans_b;
    uint32_t count; /* occurrences in a step */
};

struct pd_gemm_bench {
    struct gemm_case cases[3 * LINEARS_MAX]; /* (count) */
    uint32_t count;
    struct pd_thread_pool *pool;
    float *a, *b, *c; /* size of the largest product */
};

/* Magnitudes between 1/2 and 1, with either sign. */
static float *operand_new(uint64_t count)
{
    float *data = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    if (!data) return NULL;
    uint32_t state = 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t bits = 0x3f000000u | (state & 0x80000000u) | (state >> 8 & 0x7fffffu);
        memcpy(&data[i], &bits, sizeof bits);
    }
    return data;
}

pd_status pd_gemm_bench_new(uint64_t tokens, const struct pd_gemm_linear *linears, uint32_t count,
                            struct pd_thread_pool *pool, struct pd_gemm_bench **ret_bench, struct pd_error *err)
{
    struct pd_gemm_bench *bench = calloc(1, sizeof *bench);
    if (!bench) PD_FAIL(err, PD_NO_MEMORY, "no memory for the GEMM benchmark");
    uint64_t a = 1, b = 1, c = 1;
    PD_CHECK(count <= LINEARS_MAX);
    bench->pool = pool;
    for (const struct pd_gemm_linear *l = linears; l < linears + count; l++) {
        const uint64_t rows = l->rows ? l->rows : tokens;
        const struct gemm_case cases[3] = {{rows, l->out, l->in, false, true, l->count},
                                           {rows, l->in, l->out, false, false, l->count},
                                           {l->out, l->in, rows, true, false, l->count}};
        for (int i = 0; i < 3; i++) {
            bench->cases[bench->count++] = cases[i];
            a = pd_max_u64(a, cases[i].m * cases[i].k);
            b = pd_max_u64(b, cases[i].k * cases[i].n);
            c = pd_max_u64(c, cases[i].m * cases[i].n);
        }
    }
    bench->a = operand_new(a);
    bench->b = operand_new(b);
    bench->c = operand_new(c);
    if (!bench->a || !bench->b || !bench->c) {
        pd_gemm_bench_free(bench);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the operands of the GEMM benchmark: %zu MiB",
                (size_t)((a + b + c) * sizeof(float) >> 20));
    }
    *ret_bench = bench;
    return PD_OK;
}

void pd_gemm_bench_free(struct pd_gemm_bench *bench)
{
    if (!bench) return;
    free(bench->a);
    free(bench->b);
    free(bench->c);
    free(bench);
}

#ifdef PERDURE_ONEDNN

/* Flush-to-zero is set per thread, and OpenMP's threads are not the pool's. */
static pd_status gemm_once(struct pd_gemm_bench *bench, const struct gemm_case *one, double *ret_s, struct pd_error *err)
{
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    omp_set_num_threads((int)pd_thread_pool_size(bench->pool));
#pragma omp parallel
    pd_numerics_thread_init();
    const int status = dnnl_sgemm(one->trans_a ? 'T' : 'N', one->trans_b ? 'T' : 'N', (dnnl_dim_t)one->m, (dnnl_dim_t)one->n,
                                  (dnnl_dim_t)one->k, 1.0f, bench->a, (dnnl_dim_t)(one->trans_a ? one->m : one->k), bench->b,
                                  (dnnl_dim_t)(one->trans_b ? one->k : one->n), 0.0f, bench->c, (dnnl_dim_t)one->n);
    *ret_s = pd_clock_seconds_since(start);
    if (status == dnnl_success) return PD_OK;
    PD_FAIL(err, status == dnnl_out_of_memory ? PD_NO_MEMORY : PD_BUG,
            "dnnl_sgemm refused m %zu, n %zu, k %zu with status %d; --pairs=0 leaves it out", (size_t)one->m, (size_t)one->n,
            (size_t)one->k, status);
}

#else

static pd_status gemm_once(struct pd_gemm_bench *bench, const struct gemm_case *one, double *ret_s, struct pd_error *err)
{
    (void)bench, (void)one, (void)ret_s;
    PD_FAIL(err, PD_UNSUPPORTED,
            "the GEMM benchmark is oneDNN's, which this build does not have: install libdnnl-dev and configure with "
            "-DPERDURE_ONEDNN=ON, or leave it out with --pairs=0");
}

#endif

pd_status pd_gemm_bench_run_onednn(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err)
{
    double sum = 0, once;
    for (uint32_t i = 0; i < bench->count; i++) {
        for (uint32_t j = 0; j < bench->cases[i].count; j++) {
            PD_TRY(gemm_once(bench, &bench->cases[i], &once, err));
            sum += once;
        }
    }
    pd_clock_sleep_ns(SETTLE_NS);
    *ret_s = sum;
    return PD_OK;
}
