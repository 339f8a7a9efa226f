/* Every element of the packed GEMM equals, bit for bit, one scalar chain of fused multiply-adds: for random shapes, strides,
 * transposes, dtypes and threads, and for every instruction set this machine has.
 * PERDURE_TEST_SEED replays a failure, PERDURE_TEST_SCALE multiplies the number of shapes. */
#include "ckpt/base/half.h"
#include "trainer/math/cpu_gemm.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define THREADS_MAX 4
#define GUARD 37.25f

static uint64_t random_state;

static uint64_t random_u64(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t random_below(uint64_t bound)
{
    return random_u64() % bound;
}

/* Mostly ordinary numbers; now and then a zero of either sign, a denormal, something huge or tiny. */
static float random_value(void)
{
    uint64_t kind = random_below(64);
    if (kind == 0) return random_below(2) ? -0.0f : 0.0f;
    if (kind == 1) return pd_f32_of_bits((uint32_t)random_below(1u << 23) | (uint32_t)(random_below(2) << 31));
    float value = (float)((double)random_u64() / 9223372036854775808.0 - 1.0);
    if (kind == 2) return value * 1e12f;
    if (kind == 3) return value * 1e-30f;
    return value;
}

static void element_put(enum pd_dtype dtype, void *data, uint64_t index, float value)
{
    if (dtype == PD_F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = dtype == PD_BF16 ? pd_bf16_from_f32(value) : pd_f16_from_f32(value);
}

static float element_get(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

/* Arrays end where memory ends: reading or writing beyond them kills the test. */
static struct mapping {
    void *start;
    size_t bytes;
} mappings[8];
static unsigned mapping_count;

static void *array_before_guard(size_t bytes)
{
    size_t page = 4096, whole = (bytes + page - 1) / page * page;
    cr_assert(mapping_count < sizeof mappings / sizeof mappings[0]);
    char *start = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(start != MAP_FAILED && mprotect(start + whole, page, PROT_NONE) == 0);
    mappings[mapping_count++] = (struct mapping){start, whole + page};
    return start + whole - bytes;
}

static void arrays_free(void)
{
    while (mapping_count > 0) {
        mapping_count--;
        munmap(mappings[mapping_count].start, mappings[mapping_count].bytes);
    }
}

static void *random_array(enum pd_dtype dtype, uint64_t count)
{
    void *data = array_before_guard(count * pd_dtype_bytes(dtype));
    for (uint64_t i = 0; i < count; i++)
        element_put(dtype, data, i, random_value());
    return data;
}

static struct pd_matrix random_matrix(enum pd_dtype dtype, uint64_t rows, uint64_t columns)
{
    uint64_t ld = columns + (random_below(2) ? random_below(20) : 0);
    return (struct pd_matrix){.data = random_array(dtype, rows ? (rows - 1) * ld + columns : 0), .dtype = dtype, .ld = ld};
}

static void reference(const struct pd_gemm *gemm)
{
    for (uint64_t i = 0; i < gemm->m; i++) {
        for (uint64_t j = 0; j < gemm->n; j++) {
            uint64_t at = i * gemm->c.ld + j;
            float sum = gemm->accumulate ? element_get(PD_F32, gemm->c.data, at) : 0.0f;
            for (uint64_t k = 0; k < gemm->k; k++) {
                float a = element_get(gemm->a.dtype, gemm->a.data, gemm->trans_a ? k * gemm->a.ld + i : i * gemm->a.ld + k);
                float b = element_get(gemm->b.dtype, gemm->b.data, gemm->trans_b ? j * gemm->b.ld + k : k * gemm->b.ld + j);
                sum = fmaf(a, b, sum);
            }
            if (gemm->bias) sum += element_get(gemm->bias_dtype, gemm->bias, j);
            if (gemm->residual.data)
                sum += element_get(gemm->residual.dtype, gemm->residual.data, i * gemm->residual.ld + j);
            element_put(gemm->c.dtype, gemm->c.data, at, sum);
        }
    }
}

static enum pd_dtype random_dtype(void)
{
    uint64_t kind = random_below(8);
    return kind == 0 ? PD_F16 : kind < 4 ? PD_BF16 : PD_F32;
}

static struct pd_gemm random_gemm(uint64_t m, uint64_t n, uint64_t k)
{
    struct pd_gemm gemm = {.m = m, .n = n, .k = k, .trans_a = random_below(2), .trans_b = random_below(2)};
    gemm.a = random_matrix(random_dtype(), gemm.trans_a ? k : m, gemm.trans_a ? m : k);
    gemm.b = random_matrix(random_dtype(), gemm.trans_b ? n : k, gemm.trans_b ? k : n);
    gemm.accumulate = random_below(3) == 0;
    gemm.c = random_matrix(gemm.accumulate ? PD_F32 : random_dtype(), m, n);
    gemm.bias_dtype = random_dtype();
    if (random_below(3) == 0) gemm.bias = random_array(gemm.bias_dtype, n);
    if (random_below(3) == 0) gemm.residual = random_matrix(random_dtype(), m, n);
    if (!gemm.accumulate && random_below(4) == 0) gemm.residual = gemm.c; /* read before it is written */
    return gemm;
}

static struct pd_thread_pool *pools[THREADS_MAX + 1];
static float *workspace;

static void setup(void)
{
    pd_numerics_thread_init();
    const char *seed = getenv("PERDURE_TEST_SEED");
    random_state = seed ? strtoull(seed, NULL, 10) : 1;
    for (unsigned t = 1; t <= THREADS_MAX; t++)
        cr_assert_eq(pd_thread_pool_new(t, &pools[t], NULL), PD_OK);
    workspace = aligned_alloc(64, pd_cpu_gemm_workspace_bytes(THREADS_MAX));
    cr_assert_not_null(workspace);
    memset(workspace, 0xff, pd_cpu_gemm_workspace_bytes(THREADS_MAX)); /* NaN: what is not written must not be used */
}

static void teardown(void)
{
    for (unsigned t = 1; t <= THREADS_MAX; t++)
        pd_thread_pool_free(pools[t]);
    free(workspace);
}

static uint64_t scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    uint64_t value = text ? strtoull(text, NULL, 10) : 1;
    return value ? value : 1;
}

static bool same_value(enum pd_dtype dtype, const void *x, const void *y, uint64_t at)
{
    if (isnan(element_get(dtype, x, at))) return isnan(element_get(dtype, y, at));
    return memcmp((const char *)x + at * pd_dtype_bytes(dtype), (const char *)y + at * pd_dtype_bytes(dtype),
                  pd_dtype_bytes(dtype)) == 0;
}

static void check_one(struct pd_gemm gemm, const void *before, const void *expected, enum pd_isa isa, unsigned threads)
{
    uint64_t count = (gemm.m - 1) * gemm.c.ld + gemm.n;
    memcpy(gemm.c.data, before, count * pd_dtype_bytes(gemm.c.dtype));
    pd_cpu_gemm(pools[threads], isa, workspace, &gemm);
    for (uint64_t at = 0; at < count; at++) {
        if (same_value(gemm.c.dtype, expected, gemm.c.data, at)) continue;
        cr_assert_fail("%s, %u threads: m %" PRIu64 " n %" PRIu64 " k %" PRIu64
                       " trans %d%d dtypes %s %s %s accumulate %d bias "
                       "%d residual %d: element (%" PRIu64 ", %" PRIu64 ") is %a and not %a",
                       pd_isa_name(isa), threads, gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b,
                       pd_dtype_name(gemm.a.dtype), pd_dtype_name(gemm.b.dtype), pd_dtype_name(gemm.c.dtype),
                       gemm.accumulate, gemm.bias != NULL, gemm.residual.data != NULL, at / gemm.c.ld, at % gemm.c.ld,
                       (double)element_get(gemm.c.dtype, gemm.c.data, at), (double)element_get(gemm.c.dtype, expected, at));
    }
}

/* The reference once, then every instruction set with `thread_sets` thread counts. */
static void check_shape(uint64_t m, uint64_t n, uint64_t k, unsigned thread_sets, bool portable)
{
    struct pd_gemm gemm = random_gemm(m, n, k);
    uint64_t bytes = ((m - 1) * gemm.c.ld + n) * pd_dtype_bytes(gemm.c.dtype);
    void *before = malloc(bytes), *expected = malloc(bytes);
    cr_assert(before && expected);
    memcpy(before, gemm.c.data, bytes);
    reference(&gemm);
    memcpy(expected, gemm.c.data, bytes);
    for (enum pd_isa isa = portable ? PD_ISA_PORTABLE : PD_ISA_AVX2; isa < PD_ISA_COUNT; isa++) {
        for (unsigned t = 0; pd_isa_available(isa) && t < thread_sets; t++)
            check_one(gemm, before, expected, isa, 1 + (unsigned)((random_below(THREADS_MAX) + t) % THREADS_MAX));
    }
    free(before);
    free(expected);
    arrays_free();
}

TestSuite(gemm, .init = setup, .fini = teardown);

Test(gemm, random_small_shapes)
{
    for (uint64_t i = 0; i < 3000 * scale(); i++)
        check_shape(1 + random_below(60), 1 + random_below(70), random_below(50), 1, true);
}

Test(gemm, random_shapes_with_long_chains)
{
    for (uint64_t i = 0; i < 150 * scale(); i++)
        check_shape(1 + random_below(70), 1 + random_below(70), 200 + random_below(900), 2, i % 4 == 0);
}

/* Shapes beyond a superblock, a k-block or the space for partial sums, so that every loop of the blocking runs twice. */
Test(gemm, random_shapes_beyond_the_blocks)
{
    static const uint64_t shapes[][3] = {{1100, 1150, 20}, {1010, 40, 1030}, {40, 1040, 1030}, {1, 3000, 300},
                                         {3000, 1, 300},   {4200, 4300, 1},  {13, 17, 5000},   {257, 300, 513},
                                         {150, 600, 256},  {600, 150, 257}};
    for (uint64_t repeat = 0; repeat < scale(); repeat++) {
        for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            check_shape(shapes[i][0], shapes[i][1], shapes[i][2], 2, false);
    }
}

Test(gemm, partial_sums_of_bf16_wait_in_the_workspace)
{
    struct pd_gemm gemm = {.m = 700, .n = 1600, .k = 1030, .trans_b = true};
    gemm.a = random_matrix(PD_BF16, 700, 1030);
    gemm.b = random_matrix(PD_BF16, 1600, 1030);
    gemm.c = random_matrix(PD_BF16, 700, 1600);
    for (enum pd_isa isa = PD_ISA_AVX2; isa < PD_ISA_COUNT; isa++) {
        if (!pd_isa_available(isa)) continue;
        pd_cpu_gemm(pools[2], isa, workspace, &gemm);
        for (unsigned probe = 0; probe < 3000; probe++) {
            uint64_t i = random_below(gemm.m), j = random_below(gemm.n);
            float sum = 0;
            for (uint64_t k = 0; k < gemm.k; k++)
                sum = fmaf(element_get(PD_BF16, gemm.a.data, i * gemm.a.ld + k),
                           element_get(PD_BF16, gemm.b.data, j * gemm.b.ld + k), sum);
            uint16_t got = ((uint16_t *)gemm.c.data)[i * gemm.c.ld + j];
            if (isnan(sum)) continue;
            cr_assert_eq(got, pd_bf16_from_f32(sum), "(%" PRIu64 ", %" PRIu64 ")", i, j);
        }
    }
    arrays_free();
}

Test(gemm, empty_products)
{
    float c[6] = {1, 2, 3, 4, 5, 6}, bias[3] = {10, 20, 30};
    struct pd_gemm gemm = {.m = 2, .n = 3, .c = {c, PD_F32, 3}, .accumulate = true, .bias = bias};
    pd_cpu_gemm(pools[2], PD_ISA_PORTABLE, workspace, &gemm); /* K = 0: C + bias */
    cr_assert(c[0] == 11 && c[1] == 22 && c[5] == 36);
    gemm.accumulate = false;
    gemm.bias = NULL;
    pd_cpu_gemm(NULL, PD_ISA_PORTABLE, workspace, &gemm);
    cr_assert(c[0] == 0 && c[5] == 0);
    c[0] = GUARD;
    gemm.m = 0;
    pd_cpu_gemm(NULL, PD_ISA_PORTABLE, workspace, &gemm);
    gemm.m = 2;
    gemm.n = 0;
    pd_cpu_gemm(NULL, PD_ISA_PORTABLE, workspace, &gemm);
    cr_assert(c[0] == GUARD);
}

Test(gemm, not_a_number_and_infinity_stay)
{
    uint16_t a[2] = {0x7fc0, 0x3f80}, b[1] = {0x3f80}, c[2] = {0, 0}; /* NaN, 1; 1 */
    float big[1] = {3.4e38f};
    struct pd_gemm gemm = {.m = 2, .n = 1, .k = 1, .a = {a, PD_BF16, 1}, .b = {b, PD_BF16, 1}, .c = {c, PD_BF16, 1}};
    for (enum pd_isa isa = PD_ISA_PORTABLE; isa < PD_ISA_COUNT; isa++) {
        if (!pd_isa_available(isa)) continue;
        gemm.bias = NULL;
        pd_cpu_gemm(NULL, isa, workspace, &gemm);
        cr_assert(isnan(pd_f32_from_bf16(c[0])) && c[1] == 0x3f80);
        gemm.bias = big;
        pd_cpu_gemm(NULL, isa, workspace, &gemm);
        cr_assert_eq(c[1], 0x7f80, "3.4e38 rounds to infinity in bf16");
    }
}

Test(gemm, avx512_runs_where_it_can)
{
    if (!pd_isa_available(PD_ISA_AVX512))
        cr_skip_test("this processor has no AVX-512 (f, dq, bw, vl): its kernels were compiled and not run");
    check_shape(100, 100, 100, 4, false);
}

Test(half, every_16_bit_value_survives)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float bf = pd_f32_from_bf16((uint16_t)h), f = pd_f32_from_f16((uint16_t)h);
        if (!isnan(bf)) cr_assert_eq(pd_bf16_from_f32(bf), h);
        if (!isnan(f)) cr_assert_eq(pd_f16_from_f32(f), h, "%x", h);
        if (isnan(f)) cr_assert(isnan(pd_f32_from_f16(pd_f16_from_f32(f))));
    }
}

/* Between two neighbours the nearer one wins, and the even one in the middle. */
Test(half, rounding_is_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = pd_f32_from_f16((uint16_t)h), high = pd_f32_from_f16((uint16_t)(h + 1)), middle = (low + high) / 2;
        cr_assert_eq(pd_f16_from_f32(middle), h + (h & 1), "%x", h);
        cr_assert_eq(pd_f16_from_f32(nextafterf(middle, low)), h, "%x", h);
        cr_assert_eq(pd_f16_from_f32(nextafterf(middle, high)), h + 1, "%x", h);
        cr_assert_eq(pd_f16_from_f32(-middle), 0x8000 | (h + (h & 1)), "%x", h);
    }
    cr_assert_eq(pd_f16_from_f32(65519.996f), 0x7bff);
    cr_assert_eq(pd_f16_from_f32(65520.0f), 0x7c00);
    cr_assert_eq(pd_bf16_from_f32(pd_f32_of_bits(0x3f808000)), 0x3f80);
    cr_assert_eq(pd_bf16_from_f32(pd_f32_of_bits(0x3f818000)), 0x3f82);
    cr_assert_eq(pd_bf16_from_f32(pd_f32_of_bits(0x3f808001)), 0x3f81);
}
