/* One vector register of floats, `vec`, and its operations on each instruction set: AVX-512 F, BW, DQ and VL; AVX2, FMA and
 * F16C; or sixteen lanes in plain C. Only simd.h includes this, and builds sixteen lanes from it. */
#pragma once

#if PD_ISA_LEVEL > 0
#include <immintrin.h>
#else
#include <math.h>
#endif

#if PD_ISA_LEVEL == 2
#define VEC_LANES 16
typedef __m512 vec;
#define vec_set1(x) _mm512_set1_ps(x)
#define vec_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vec_max(a, b) _mm512_max_ps(a, b)
#define vec_min(a, b) _mm512_min_ps(a, b)
#define vec_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define vec_store_f16(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
#elif PD_ISA_LEVEL == 1
#define VEC_LANES 8
typedef __m256 vec;
#define vec_set1(x) _mm256_set1_ps(x)
#define vec_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vec_max(a, b) _mm256_max_ps(a, b)
#define vec_min(a, b) _mm256_min_ps(a, b)
#define vec_load_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vec_store_f16(p, x) _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
#else
#define VEC_LANES 16
typedef float vec __attribute__((vector_size(64)));
#define VEC_EACH(expression)                \
    do {                                    \
        vec result;                         \
        for (int l = 0; l < VEC_LANES; l++) \
            result[l] = (expression);       \
        return result;                      \
    } while (0)
V16_INLINE vec vec_set1(float x)
{
    VEC_EACH(x);
}
V16_INLINE vec vec_fma(vec a, vec b, vec c)
{
    VEC_EACH(fmaf(a[l], b[l], c[l]));
}
/* Returns the second operand if either is NaN. */
V16_INLINE vec vec_max(vec a, vec b)
{
    VEC_EACH(a[l] > b[l] ? a[l] : b[l]);
}
V16_INLINE vec vec_min(vec a, vec b)
{
    VEC_EACH(a[l] < b[l] ? a[l] : b[l]);
}
V16_INLINE vec vec_load_f16(const uint16_t *p)
{
    VEC_EACH(pd_f32_from_f16(p[l]));
}
V16_INLINE void vec_store_f16(uint16_t *p, vec x)
{
    for (int l = 0; l < VEC_LANES; l++)
        p[l] = pd_f16_from_f32(x[l]);
}
#undef VEC_EACH
#endif

/* ---- the same for all ---- */

typedef int32_t vec_bits __attribute__((vector_size(4 * VEC_LANES)));
typedef uint32_t vec_words __attribute__((vector_size(4 * VEC_LANES)));
typedef uint16_t vec_halves __attribute__((vector_size(2 * VEC_LANES)));
typedef float vec_anywhere __attribute__((vector_size(4 * VEC_LANES), aligned(4), may_alias));
typedef uint16_t vec_halves_anywhere __attribute__((vector_size(2 * VEC_LANES), aligned(2), may_alias));

V16_INLINE vec vec_load(const float *p)
{
    return *(const vec_anywhere *)p;
}
V16_INLINE void vec_store(float *p, vec x)
{
    *(vec_anywhere *)p = x;
}
V16_INLINE vec vec_select(vec_bits mask, vec a, vec b)
{
    return (vec)((mask & (vec_bits)a) | (~mask & (vec_bits)b));
}
V16_INLINE vec vec_power_of_two(vec magic)
{
    return (vec)(((vec_bits)magic + 127) << 23);
}
V16_INLINE vec vec_split_exponent(vec x, vec *ret_exponent)
{
    const vec_bits shifted = (vec_bits)x - V16_ROOT_HALF_BITS;
    *ret_exponent = __builtin_convertvector(shifted >> 23, vec);
    return (vec)((shifted & 0x7fffff) + V16_ROOT_HALF_BITS);
}
V16_INLINE vec vec_load_bf16(const uint16_t *p)
{
    return (vec)(__builtin_convertvector(*(const vec_halves_anywhere *)p, vec_words) << 16);
}
V16_INLINE void vec_store_bf16(uint16_t *p, vec x)
{
    const vec_words bits = (vec_words)x, top = bits >> 16, rounded = (bits + ((top & 1) + 0x7fff)) >> 16,
                    nan = (vec_words)(x != x);
    *(vec_halves_anywhere *)p = __builtin_convertvector((nan & (top | 0x40)) | (~nan & rounded), vec_halves);
}
