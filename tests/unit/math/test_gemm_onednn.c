/* Numerics fast gives the products of numerics invariant up to rounding, for every arrangement and dtype, and the benchmark
 * that compares the two runs. */
#include "ckpt/base/half.h"
#include "trainer/math/cpu_gemm.h"
#include "trainer/math/gemm_bench.h"
#include "trainer/math/onednn.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put(enum pd_dtype dtype, void *data, uint64_t index, float value)
{
    if (dtype == PD_F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = dtype == PD_BF16 ? pd_bf16_from_f32(value) : pd_f16_from_f32(value);
}

static double get(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

static void *array(enum pd_dtype dtype, uint64_t count, uint32_t seed)
{
    void *data = malloc(count * pd_dtype_bytes(dtype));
    cr_assert_not_null(data);
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        put(dtype, data, i, (float)(int32_t)seed / 2147483648.0f);
    }
    return data;
}

/* Both sides start from the same C; they may differ by the rounding of a chain and of the last dtype. */
static void check(struct pd_thread_pool *pool, enum pd_isa isa, void *workspace, struct pd_gemm gemm)
{
    uint64_t count = gemm.m * gemm.n;
    void *own = array(gemm.c.dtype, count, 5), *fast = array(gemm.c.dtype, count, 5);
    struct pd_error err = {0};
    gemm.c.ld = gemm.n;
    gemm.c.data = own;
    pd_cpu_gemm(pool, isa, workspace, &gemm);
    gemm.c.data = fast;
    cr_assert_eq(pd_onednn_gemm(pool, isa, workspace, &gemm, &err), PD_OK, "%s", err.message);
    double unit = gemm.c.dtype == PD_F32 ? 0 : gemm.c.dtype == PD_BF16 ? 1.0 / 128 : 1.0 / 1024;
    for (uint64_t i = 0; i < count; i++) {
        double x = get(gemm.c.dtype, own, i), y = get(gemm.c.dtype, fast, i);
        cr_assert(fabs(x - y) <= unit * fabs(x) + 1e-6 * (double)(gemm.k + 4), "m %zu n %zu k %zu trans %d%d: [%zu] %g %g",
                  (size_t)gemm.m, (size_t)gemm.n, (size_t)gemm.k, gemm.trans_a, gemm.trans_b, (size_t)i, x, y);
    }
    free(own);
    free(fast);
}

Test(onednn, agrees_with_the_chain_up_to_rounding)
{
    if (!pd_onednn_available()) cr_skip_test("built without oneDNN");
    static const uint64_t sizes[][3] = {{5, 7, 9}, {33, 65, 17}, {1100, 20, 1030}, {20, 1100, 30}, {3, 4, 0}};
    enum { THREADS = 4 };
    struct pd_thread_pool *pools[THREADS + 1] = {NULL};
    for (unsigned t = 1; t <= THREADS; t++)
        cr_assert_eq(pd_thread_pool_new(t, &pools[t], NULL), PD_OK);
    void *workspace = aligned_alloc(64, pd_onednn_workspace_bytes()); /* larger than that of pd_cpu_gemm */
    cr_assert_geq(pd_onednn_workspace_bytes(), pd_cpu_gemm_workspace_bytes(THREADS));
    for (unsigned i = 0; i < 5 * 32; i++) {
        enum pd_isa isa = i % 2 && pd_isa_available(PD_ISA_AVX2) ? PD_ISA_AVX2 : PD_ISA_PORTABLE;
        const uint64_t *s = sizes[i / 32];
        enum pd_dtype dtype = (enum pd_dtype)(i % 3), c_dtype = (enum pd_dtype)(i / 4 % 3);
        struct pd_gemm gemm = {.m = s[0], .n = s[1], .k = s[2], .trans_a = i & 1, .trans_b = i >> 1 & 1};
        gemm.a = (struct pd_matrix){array(dtype, s[0] * s[2] + 1, 1), dtype, gemm.trans_a ? s[0] : s[2]};
        gemm.b = (struct pd_matrix){array(i & 8 ? dtype : PD_F32, s[1] * s[2] + 1, 2), i & 8 ? dtype : PD_F32,
                                    gemm.trans_b ? s[2] : s[1]};
        gemm.a.ld = gemm.a.ld ? gemm.a.ld : 1;
        gemm.b.ld = gemm.b.ld ? gemm.b.ld : 1;
        gemm.c.dtype = c_dtype;
        gemm.accumulate = c_dtype == PD_F32 && i & 16;
        gemm.bias = i & 4 ? array(PD_BF16, s[1], 3) : NULL;
        gemm.bias_dtype = PD_BF16;
        if (i % 5 == 0) gemm.residual = (struct pd_matrix){array(dtype, s[0] * s[1], 4), dtype, s[1]};
        check(pools[1 + i % THREADS], isa, workspace, gemm);
        free(gemm.residual.data);
        free(gemm.a.data);
        free(gemm.b.data);
        free((void *)gemm.bias);
    }
    free(workspace);
    for (unsigned t = 1; t <= THREADS; t++)
        pd_thread_pool_free(pools[t]);
}

/* Products that no block holds: of an operand, of both, of sums that cannot wait in C. */
Test(onednn, goes_block_by_block)
{
    if (!pd_onednn_available()) cr_skip_test("built without oneDNN");
    static const uint64_t sizes[][3] = {{2050, 5, 2050}, {5, 2050, 2050}, {2050, 2050, 3}, {7, 9, 4100}};
    struct pd_thread_pool *pool;
    cr_assert_eq(pd_thread_pool_new(2, &pool, NULL), PD_OK);
    void *workspace = aligned_alloc(64, pd_onednn_workspace_bytes());
    enum pd_isa isa;
    cr_assert_eq(pd_isa_resolve(PD_ISA_AUTO, &isa, NULL), PD_OK);
    for (unsigned i = 0; i < 8; i++) {
        const uint64_t *s = sizes[i / 2];
        bool half = i & 1;
        struct pd_gemm gemm = {.m = s[0], .n = s[1], .k = s[2], .trans_a = half, .trans_b = !half, .accumulate = !half};
        gemm.a = (struct pd_matrix){array(PD_BF16, s[0] * s[2], 1), PD_BF16, gemm.trans_a ? s[0] : s[2]};
        gemm.b = (struct pd_matrix){array(PD_BF16, s[1] * s[2], 2), PD_BF16, gemm.trans_b ? s[2] : s[1]};
        gemm.c.dtype = half ? PD_BF16 : PD_F32;
        if (half) gemm.residual = (struct pd_matrix){array(PD_BF16, s[0] * s[1], 4), PD_BF16, s[1]};
        check(pool, isa, workspace, gemm);
        free(gemm.residual.data);
        free(gemm.a.data);
        free(gemm.b.data);
    }
    free(workspace);
    pd_thread_pool_free(pool);
}

Test(onednn, the_benchmark_times_every_product)
{
    if (!pd_onednn_available()) cr_skip_test("built without oneDNN");
    struct pd_gemm_case cases[3];
    pd_gemm_cases_of_linear(64, 96, 160, 2, cases);
    cr_assert(cases[2].m == 160 && cases[2].n == 96 && cases[2].k == 64 && cases[2].count == 2);
    struct pd_gemm_bench *bench;
    cr_assert_eq(pd_gemm_bench_new(cases, 3, NULL, &bench, NULL), PD_OK);
    double fast = 0;
    cr_assert_eq(pd_gemm_bench_run_onednn(bench, &fast, NULL), PD_OK);
    cr_assert(fast > 0);
    pd_gemm_bench_free(bench);
}
