/* Compiled once per instruction set; only the vector layer below differs.
 *
 *   invariants  1. an element's chain is fma(a[k], b[k], sum) for k ascending, in one lane, never split and never reordered
 *               2. packing and blocking move values without changing them
 *               3. memory outside the matrix is neither read nor written
 */
#include "trainer/math/cpu_gemm_kernel.h"
#include "trainer/math/simd.h"

#include <math.h>

#if PD_ISA_LEVEL == 2
#define MR 14
#define NR 32
#elif PD_ISA_LEVEL == 1
#ifndef MR /* a test builds AVX-512's shape where only AVX2 can run */
#define MR 6
#define NR 16
#endif
#else
#define MR 4
#define NR 16
#endif
#define VECTORS (NR / VEC_LANES)

/* ---- packing ---- */

static inline float element_load(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

/* Codes, k contiguous: their value times their scale, which is exact. */
static void pack_codes(const struct pd_gemm_operand *source, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc,
                       float *panels, uint64_t panel_stride, uint64_t width)
{
    for (uint64_t done = 0; done < count; done += width, panels += panel_stride) {
        const uint64_t valid = count - done < width ? count - done : width;
        const uint8_t *codes = (const uint8_t *)source->data + (first + done) * source->ld + k0;
        for (uint64_t k = 0; k < kc; k++)
            for (uint64_t w = 0; w < width; w++)
                panels[k * width + w] = w < valid ? source->values[codes[w * source->ld + k]] : 0.0f;
    }
}

/* Any width and layout; used for panels at the edge of the matrix and for k remainders. */
static void pack_slow(const struct pd_gemm_operand *source, uint64_t first, uint64_t valid, uint64_t k0, uint64_t kc,
                      float *panel, uint64_t width)
{
    uint64_t step_k = source->k_contiguous ? 1 : source->ld, step_w = source->k_contiguous ? source->ld : 1;
    for (uint64_t k = 0; k < kc; k++) {
        uint64_t index = (k0 + k) * step_k + first * step_w;
        for (uint64_t w = 0; w < width; w++)
            panel[k * width + w] = w < valid ? element_load(source->dtype, source->data, index + w * step_w) : 0.0f;
    }
}

#if PD_ISA_LEVEL > 0
V16_INLINE __m256 load8(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return _mm256_loadu_ps((const float *)data + index);
    __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + index));
    if (dtype == PD_BF16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    return _mm256_cvtph_ps(halves);
}

/* The first `count` lanes, 6 or 8: the rest belongs to the next k. */
V16_INLINE void store_lanes(float *p, __m256 v, unsigned count)
{
    if (count == 8) {
        _mm256_storeu_ps(p, v);
    } else {
        _mm_storeu_ps(p, _mm256_castps256_ps128(v));
        _mm_storel_pi((__m64 *)(p + 4), _mm256_extractf128_ps(v, 1));
    }
}

V16_INLINE void transpose8(__m256 r[8])
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Matrix strides defeat hardware prefetching; hints beyond the end of the matrix have no effect. */
#define AHEAD_K 32u   /* elements along a vector */
#define AHEAD_ROWS 8u /* rows to prefetch when walking down the source */

V16_INLINE void hint(enum pd_dtype dtype, const void *data, uint64_t index)
{
    __builtin_prefetch((const void *)((uintptr_t)data + index * (dtype == PD_F32 ? 4 : 2)));
}

/* A whole panel with vectors contiguous in k: transposes 8 x 8 blocks in registers. */
V16_INLINE void pack_turning(const struct pd_gemm_operand *source, enum pd_dtype dtype, uint64_t first, uint64_t k0,
                             uint64_t kc, float *panel, unsigned width)
{
    uint64_t ld = source->ld, k = 0;
    for (; k + 8 <= kc; k += 8) {
        for (unsigned w = 0; w < width; w += 8) {
            unsigned lanes = width - w < 8 ? width - w : 8;
            __m256 rows[8];
            for (unsigned i = 0; i < lanes; i++)
                hint(dtype, source->data, (first + w + i) * ld + k0 + k + AHEAD_K);
            for (unsigned i = 0; i < 8; i++)
                rows[i] = i < lanes ? load8(dtype, source->data, (first + w + i) * ld + k0 + k) : _mm256_setzero_ps();
            transpose8(rows);
            for (unsigned i = 0; i < 8; i++)
                store_lanes(panel + (k + i) * width + w, rows[i], lanes);
        }
    }
    if (k < kc) pack_slow(source, first, width, k0 + k, kc - k, panel + k * width, width);
}

/* Several whole panels with contiguous elements per k. k is the outer loop: source rows may be a power of two apart, and
 * walking down a column would always hit one cache set. */
V16_INLINE void pack_copying(const struct pd_gemm_operand *source, enum pd_dtype dtype, uint64_t first, uint64_t panel_count,
                             uint64_t k0, uint64_t kc, float *panels, uint64_t panel_stride, unsigned width)
{
    for (uint64_t k = 0; k < kc; k++) {
        uint64_t index = (k0 + k) * source->ld + first;
        for (uint64_t w = 0; w < panel_count * width; w += dtype == PD_F32 ? 16 : 32)
            hint(dtype, source->data, index + AHEAD_ROWS * source->ld + w);
        for (uint64_t p = 0; p < panel_count; p++) {
            for (unsigned w = 0; w < width; w += 8)
                store_lanes(panels + p * panel_stride + k * width + w, load8(dtype, source->data, index + p * width + w),
                            width - w < 8 ? width - w : 8);
        }
    }
}
#endif

V16_INLINE void pack_typed(enum pd_dtype dtype, const struct pd_gemm_operand *source, uint64_t first, uint64_t count,
                           uint64_t k0, uint64_t kc, float *panels, uint64_t panel_stride, unsigned width)
{
    uint64_t whole = 0;
#if PD_ISA_LEVEL > 0
    whole = count / width;
    if (source->k_contiguous) {
        for (uint64_t p = 0; p < whole; p++)
            pack_turning(source, dtype, first + p * width, k0, kc, panels + p * panel_stride, width);
    } else {
        /* Loads of 8 reach up to 2 elements beyond a panel of 6 or 14; the last one must stay inside the matrix row. */
        if (width % 8 && whole && first + whole * width + 2 > source->width) whole--;
        pack_copying(source, dtype, first, whole, k0, kc, panels, panel_stride, width);
    }
#else
    (void)dtype;
#endif
    for (uint64_t done = whole * width; done < count; done += width) {
        uint64_t valid = count - done < width ? count - done : width;
        pack_slow(source, first + done, valid, k0, kc, panels + done / width * panel_stride, width);
    }
}

V16_INLINE void pack(const struct pd_gemm_operand *source, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc,
                     float *panels, uint64_t panel_stride, unsigned width)
{
    if (source->values)
        pack_codes(source, first, count, k0, kc, panels, panel_stride, width);
    else
        PD_FOR_DTYPE(source->dtype, pack_typed, source, first, count, k0, kc, panels, panel_stride, width);
}

static void pack_a(const struct pd_gemm_operand *a, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc, float *panels,
                   uint64_t panel_stride)
{
    pack(a, first, count, k0, kc, panels, panel_stride, MR);
}

static void pack_b(const struct pd_gemm_operand *b, uint64_t first, uint64_t count, uint64_t k0, uint64_t kc, float *panels,
                   uint64_t panel_stride)
{
    pack(b, first, count, k0, kc, panels, panel_stride, NR);
}

/* ---- multiplying ---- */

/* tile (MR,NR) stays in registers over all kc. */
static inline __attribute__((always_inline)) void multiply_tile(uint64_t kc, const float *a, const float *b, float *tile,
                                                                uint64_t ld, bool load)
{
    vec sum[MR][VECTORS];
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECTORS; v++)
            sum[i][v] = load ? vec_load(tile + (uint64_t)i * ld + v * VEC_LANES) : vec_set1(0.0f);
#pragma GCC unroll 4
    for (uint64_t k = 0; k < kc; k++) {
        vec column[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            column[v] = vec_load(b + k * NR + v * VEC_LANES);
        for (int i = 0; i < MR; i++) {
            vec row = vec_set1(a[k * MR + i]);
            for (int v = 0; v < VECTORS; v++)
                sum[i][v] = vec_fma(row, column[v], sum[i][v]);
        }
    }
    for (int i = 0; i < MR; i++)
        for (int v = 0; v < VECTORS; v++)
            vec_store(tile + (uint64_t)i * ld + v * VEC_LANES, sum[i][v]);
}

static void multiply_edge(uint64_t rows, uint64_t columns, uint64_t kc, const float *a, const float *b, float *tile,
                          uint64_t ld, bool load)
{
    float whole[MR * NR];
    for (uint64_t i = 0; i < MR; i++)
        for (uint64_t j = 0; j < NR; j++)
            whole[i * NR + j] = load && i < rows && j < columns ? tile[i * ld + j] : 0.0f;
    multiply_tile(kc, a, b, whole, NR, true);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++)
            tile[i * ld + j] = whole[i * NR + j];
}

static void multiply(uint64_t mc, uint64_t nc, uint64_t kc, const float *a, uint64_t a_stride, const float *b,
                     uint64_t b_stride, float *tile, uint64_t tile_ld, bool load)
{
    for (uint64_t j = 0; j < nc; j += NR, b += b_stride) {
        const float *rows = a;
        for (uint64_t i = 0; i < mc; i += MR, rows += a_stride) {
            float *corner = tile + i * tile_ld + j;
            if (mc - i < MR || nc - j < NR)
                multiply_edge(mc - i < MR ? mc - i : MR, nc - j < NR ? nc - j : NR, kc, rows, b, corner, tile_ld, load);
            else if (load)
                multiply_tile(kc, rows, b, corner, tile_ld, true);
            else
                multiply_tile(kc, rows, b, corner, tile_ld, false);
        }
    }
}

/* ---- after the chain ---- */

V16_INLINE void finish_part(enum pd_dtype dtype, const struct pd_gemm_finish *f, const float *tile, uint64_t row,
                            uint64_t column, unsigned w)
{
    v16 sum = v16_get_part(PD_F32, tile, column, w);
    if (f->bias) sum = v16_add(sum, v16_get_any(f->bias_dtype, f->bias, column, w));
    if (f->residual) sum = v16_add(sum, v16_get_any(f->residual_dtype, f->residual, row * f->residual_ld + column, w));
    v16_put_part(dtype, f->c, row * f->c_ld + column, w, sum);
}

V16_INLINE void finish_rows(enum pd_dtype dtype, const struct pd_gemm_finish *f, uint64_t mc, uint64_t nc, const float *tile,
                            uint64_t tile_ld)
{
    for (uint64_t i = 0; i < mc; i++)
        V16_FOR(j, w, nc, finish_part(dtype, f, tile + i * tile_ld, i, j, w));
}

static void cpu_gemm_kernel_finish(const struct pd_gemm_finish *f, uint64_t mc, uint64_t nc, const float *tile,
                                   uint64_t tile_ld)
{
    PD_FOR_DTYPE(f->c_dtype, finish_rows, f, mc, nc, tile, tile_ld);
}

V16_INLINE void convert_run(enum pd_dtype dtype, const void *from, uint64_t index, uint64_t count, float *to)
{
    V16_FOR(i, w, count, v16_put_part(PD_F32, to, i, w, v16_get_part(dtype, from, index + i, w)));
}

static void convert(enum pd_dtype dtype, const void *from, uint64_t index, uint64_t count, float *to)
{
    PD_FOR_DTYPE(dtype, convert_run, from, index, count, to);
}

const struct pd_gemm_kernel PD_ISA_SYMBOL(pd_gemm_kernel) = {
    .mr = MR,
    .nr = NR,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .multiply = multiply,
    .finish = cpu_gemm_kernel_finish,
    .convert = convert,
};
