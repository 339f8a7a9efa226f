/* Packing and multiplying by themselves, in the tile shape of AVX-512 (14 x 32) built with AVX2 vectors: a machine without
 * AVX-512 still runs the packing and the loops that AVX-512 uses. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define PD_ISA_LEVEL 1
#define PD_ISA_NAME wide_test
#define MR 14
#define NR 32
#include "trainer/math/cpu_gemm_kernel.c"
#endif

#include <criterion/criterion.h>
#include <stdlib.h>

#if defined(__x86_64__)
static uint32_t state = 1;

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static float value(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

static void check_panels(const struct pd_gemm_operand *x, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc,
                         const float *panels, uint64_t stride, uint64_t width)
{
    for (uint64_t w = 0; w < (count + width - 1) / width * width; w++) {
        for (uint64_t k = 0; k < kc; k++) {
            uint64_t at = x->k_contiguous ? (first + w) * x->ld + k0 + k : (k0 + k) * x->ld + first + w;
            float expected = w < count ? value(x->dtype, x->data, at) : 0.0f;
            float got = panels[w / width * stride + k * width + w % width];
            cr_assert_eq(pd_f32_bits(got), pd_f32_bits(expected), "width %zu dtype %d vector %zu k %zu", (size_t)width,
                         x->dtype, (size_t)w, (size_t)k);
        }
    }
}

static void check_multiply(uint64_t mc, uint64_t nc, uint64_t kc, const float *a, uint64_t a_stride, const float *b,
                           uint64_t b_stride, bool load)
{
    float tile[70 * 80], before[70 * 80];
    for (uint64_t i = 0; i < 70 * 80; i++)
        before[i] = tile[i] = (float)(int32_t)next() * 1e-9f;
    pd_gemm_kernel_wide_test.multiply(mc, nc, kc, a, a_stride, b, b_stride, tile, 80, load);
    for (uint64_t i = 0; i < 70 * 80; i++) {
        uint64_t row = i / 80, column = i % 80;
        float sum = load || row >= mc || column >= nc ? before[i] : 0.0f;
        for (uint64_t k = 0; k < kc && row < mc && column < nc; k++)
            sum = fmaf(a[row / MR * a_stride + k * MR + row % MR], b[column / NR * b_stride + k * NR + column % NR], sum);
        cr_assert_eq(pd_f32_bits(tile[i]), pd_f32_bits(sum), "(%zu, %zu) of (%zu, %zu)", (size_t)row, (size_t)column,
                     (size_t)mc, (size_t)nc);
    }
}

static void check_random(void)
{
    enum { VECTORS_MAX = 90, K_MAX = 60, LD = 160 };
    static float source[LD * LD], a[VECTORS_MAX * (K_MAX + 20)], b[VECTORS_MAX * 2 * (K_MAX + 20)];
    enum pd_dtype dtype = (enum pd_dtype)(next() % 3);
    for (uint64_t i = 0; i < LD * LD; i++)
        source[i] = dtype == PD_F32 ? (float)(int32_t)next() * 1e-9f : pd_f32_of_bits((next() & 0x83ff83ffu) | 0x3c003c00u);
    uint64_t mc = 1 + next() % 64, nc = 1 + next() % 72, kc = next() % K_MAX, k0 = next() % 40, first = next() % 20;
    struct pd_gemm_operand x = {source, dtype, LD, first + mc + next() % 3, next() % 2, NULL};
    struct pd_gemm_operand y = {source, dtype, LD, first + nc + next() % 3, next() % 2, NULL};
    uint64_t a_stride = MR * kc + 16, b_stride = NR * kc + 16;
    pd_gemm_kernel_wide_test.pack_a(&x, first, mc, k0, kc, a, a_stride);
    pd_gemm_kernel_wide_test.pack_b(&y, first, nc, k0, kc, b, b_stride);
    check_panels(&x, first, mc, k0, kc, a, a_stride, MR);
    check_panels(&y, first, nc, k0, kc, b, b_stride, NR);
    check_multiply(mc, nc, kc, a, a_stride, b, b_stride, next() % 2);
}
#endif

Test(gemm_kernel, the_shape_of_avx512_is_right)
{
#if defined(__x86_64__)
    if (!pd_isa_available(PD_ISA_AVX2)) cr_skip_test("this processor has no AVX2 with FMA and F16C");
    for (unsigned i = 0; i < 300; i++)
        check_random();
#else
    cr_skip_test("kernels of x86 only");
#endif
}
