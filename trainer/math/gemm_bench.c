#include "trainer/math/gemm_bench.h"
#include "ckpt/base/clock.h"
#include "trainer/math/cpu_gemm.h"
#include "trainer/math/onednn.h"

#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 101u
/* OpenMP threads spin for some milliseconds after a product before they sleep; our turn starts after that. */
#define SETTLE_NS UINT64_C(10000000)

struct pd_gemm_bench {
    struct pd_gemm_case *cases; /* (count) */
    uint32_t count;
    struct pd_thread_pool *pool;
    enum pd_isa isa;
    void *a, *b, *c, *workspace; /* a, b, c: as large as the largest product in fp32 */
};

void pd_gemm_cases_of_linear(uint64_t tokens, uint64_t in, uint64_t out, enum pd_dtype act, uint32_t count,
                             struct pd_gemm_case ret_cases[3])
{
    ret_cases[0] = (struct pd_gemm_case){tokens, out, in, false, true, act, act, act, count};
    ret_cases[1] = (struct pd_gemm_case){tokens, in, out, false, false, act, act, act, count};
    ret_cases[2] = (struct pd_gemm_case){out, in, tokens, true, false, act, act, PD_F32, count};
}

/* Two bf16 in every word: numbers between 1/2 and 1 for either dtype. */
static void *operand_new(uint64_t floats)
{
    uint16_t *data = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
    if (!data) return NULL;
    uint32_t state = 1;
    for (uint64_t i = 0; i < 2 * floats; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (uint16_t)(0x3f00u | ((state >> 9) & 0x807fu));
    }
    return data;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

pd_status pd_gemm_bench_new(const struct pd_gemm_case *cases, uint32_t count, struct pd_thread_pool *pool, enum pd_isa isa,
                            struct pd_gemm_bench **ret_bench, struct pd_error *err)
{
    if (!pd_onednn_available())
        PD_FAIL(err, PD_UNSUPPORTED,
                "the GEMM benchmark compares with oneDNN, which this build does not have: configure with "
                "-DPERDURE_ONEDNN=ON");
    struct pd_gemm_bench *bench = calloc(1, sizeof *bench);
    if (!bench) PD_FAIL(err, PD_NO_MEMORY, "no memory for the GEMM benchmark");
    uint64_t a = 1, b = 1, c = 1;
    for (uint32_t i = 0; i < count; i++) {
        a = max_u64(a, cases[i].m * cases[i].k);
        b = max_u64(b, cases[i].k * cases[i].n);
        c = max_u64(c, cases[i].m * cases[i].n);
    }
    bench->count = count;
    bench->pool = pool;
    bench->isa = isa;
    bench->cases = malloc(max_u64(count, 1) * sizeof *cases);
    bench->a = operand_new(a);
    bench->b = operand_new(b);
    bench->c = operand_new(c);
    bench->workspace = aligned_alloc(64, pd_cpu_gemm_workspace_bytes(pd_thread_pool_size(pool)));
    if (!bench->cases || !bench->a || !bench->b || !bench->c || !bench->workspace) {
        pd_gemm_bench_free(bench);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the operands of the GEMM benchmark: %zu MiB",
                (size_t)((a + b + c) * sizeof(float) >> 20));
    }
    memcpy(bench->cases, cases, count * sizeof *cases);
    *ret_bench = bench;
    return PD_OK;
}

void pd_gemm_bench_free(struct pd_gemm_bench *bench)
{
    if (!bench) return;
    free(bench->cases);
    free(bench->a);
    free(bench->b);
    free(bench->c);
    free(bench->workspace);
    free(bench);
}

static double own_once(struct pd_gemm_bench *bench, const struct pd_gemm_case *one)
{
    struct pd_gemm gemm = {
        .m = one->m,
        .n = one->n,
        .k = one->k,
        .a = {bench->a, one->a_dtype, one->trans_a ? one->m : one->k},
        .b = {bench->b, one->b_dtype, one->trans_b ? one->k : one->n},
        .c = {bench->c, one->c_dtype, one->n},
        .trans_a = one->trans_a,
        .trans_b = one->trans_b,
    };
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_cpu_gemm(bench->pool, bench->isa, bench->workspace, &gemm);
    return pd_clock_seconds_since(NULL, start);
}

static pd_status onednn_once(struct pd_gemm_bench *bench, const struct pd_gemm_case *one, double *ret_s,
                             struct pd_error *err)
{
    uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_onednn_sgemm(pd_thread_pool_size(bench->pool), one->trans_a, one->trans_b, one->m, one->n, one->k, bench->a,
                           one->trans_a ? one->m : one->k, bench->b, one->trans_b ? one->k : one->n, false, bench->c, one->n,
                           err));
    *ret_s = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

pd_status pd_gemm_bench_run_own(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err)
{
    (void)err;
    double sum = 0;
    pd_clock_sleep_ns(NULL, SETTLE_NS);
    for (uint32_t i = 0; i < bench->count; i++) {
        for (uint32_t j = 0; j < bench->cases[i].count; j++)
            sum += own_once(bench, &bench->cases[i]);
    }
    *ret_s = sum;
    return PD_OK;
}

pd_status pd_gemm_bench_run_onednn(struct pd_gemm_bench *bench, double *ret_s, struct pd_error *err)
{
    double sum = 0, once;
    for (uint32_t i = 0; i < bench->count; i++) {
        for (uint32_t j = 0; j < bench->cases[i].count; j++) {
            PD_TRY(onednn_once(bench, &bench->cases[i], &once, err));
            sum += once;
        }
    }
    pd_clock_sleep_ns(NULL, SETTLE_NS);
    *ret_s = sum;
    return PD_OK;
}

static int compare_doubles(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static pd_status compare_one(struct pd_gemm_bench *bench, const struct pd_gemm_case *one, uint32_t pairs,
                             struct pd_gemm_timing *ret_timing, struct pd_error *err)
{
    double own[PAIRS_MAX], onednn[PAIRS_MAX], ratios[PAIRS_MAX];
    for (uint32_t i = 0; i < pairs; i++) {
        PD_TRY(onednn_once(bench, one, &onednn[i], err)); /* warms both alike: the first of a pair meets cold operands */
        PD_TRY(onednn_once(bench, one, &onednn[i], err));
        pd_clock_sleep_ns(NULL, SETTLE_NS);
        (void)own_once(bench, one);
        own[i] = own_once(bench, one);
        ratios[i] = onednn[i] / own[i];
    }
    *ret_timing = (struct pd_gemm_timing){median(own, pairs), median(onednn, pairs), median(ratios, pairs)};
    return PD_OK;
}

pd_status pd_gemm_bench_compare(struct pd_gemm_bench *bench, uint32_t pairs, struct pd_gemm_timing *ret_timings,
                                struct pd_error *err)
{
    if (pairs == 0 || pairs > PAIRS_MAX) PD_FAIL(err, PD_INVALID, "%u pairs were asked for: 1 to %u", pairs, PAIRS_MAX);
    for (uint32_t i = 0; i < bench->count; i++)
        PD_TRY(compare_one(bench, &bench->cases[i], pairs, &ret_timings[i], err));
    return PD_OK;
}
