/* The 16-lane layer on AVX-512 F, BW, DQ and VL: one register. Included by simd.h only; contracts are in simd_portable.h. */
#pragma once

#include <immintrin.h>

typedef struct v16 {
    __m512 all;
} v16;
typedef struct d16 {
    __m512d lo, hi;
} d16;

#define V16_BINARY(name, intrinsic)            \
    V16_INLINE v16 name(v16 a, v16 b)          \
    {                                          \
        return (v16){intrinsic(a.all, b.all)}; \
    }

V16_INLINE v16 v16_set1(float x)
{
    return (v16){_mm512_set1_ps(x)};
}
V16_INLINE v16 v16_load(const float *p)
{
    return (v16){_mm512_loadu_ps(p)};
}
V16_INLINE void v16_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x.all);
}
V16_BINARY(v16_add, _mm512_add_ps)
V16_BINARY(v16_sub, _mm512_sub_ps)
V16_BINARY(v16_mul, _mm512_mul_ps)
V16_BINARY(v16_div, _mm512_div_ps)
V16_BINARY(v16_max, _mm512_max_ps)
V16_BINARY(v16_min, _mm512_min_ps)
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm512_fmadd_ps(a.all, b.all, c.all)};
}
V16_INLINE v16 v16_select_between(v16 low, v16 x, v16 high, v16 a, v16 b)
{
    __mmask16 inside = _mm512_cmp_ps_mask(low.all, x.all, _CMP_LE_OQ);
    inside = _mm512_mask_cmp_ps_mask(inside, x.all, high.all, _CMP_LE_OQ);
    return (v16){_mm512_mask_blend_ps(inside, b.all, a.all)};
}
V16_INLINE v16 v16_power_of_two(v16 magic)
{
    __m512i biased = _mm512_add_epi32(_mm512_castps_si512(magic.all), _mm512_set1_epi32(127));
    return (v16){_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
V16_INLINE v16 v16_split_exponent(v16 x, v16 *ret_exponent)
{
    const __m512i root_half = _mm512_set1_epi32(V16_ROOT_HALF_BITS);
    __m512i shifted = _mm512_sub_epi32(_mm512_castps_si512(x.all), root_half);
    ret_exponent->all = _mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 23));
    __m512i mantissa = _mm512_and_epi32(shifted, _mm512_set1_epi32(0x7fffff));
    return (v16){_mm512_castsi512_ps(_mm512_add_epi32(mantissa, root_half))};
}
V16_INLINE float v16_sum(v16 x)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.all), _mm512_extractf32x8_ps(x.all, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
V16_INLINE float v16_max_lane(v16 x)
{
    __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.all), _mm512_extractf32x8_ps(x.all, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (v16){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
V16_INLINE void v16_store_bf16(uint16_t *p, v16 x)
{
    __m512i bits = _mm512_castps_si512(x.all), top = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_epi32(top, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x.all, x.all, _CMP_UNORD_Q);
    __m512i quiet = _mm512_or_epi32(top, _mm512_set1_epi32(0x40));
    __m512i chosen = _mm512_mask_blend_epi32(nan, _mm512_srli_epi32(rounded, 16), quiet);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(chosen));
}
V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p))};
}
V16_INLINE void v16_store_f16(uint16_t *p, v16 x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x.all, _MM_FROUND_TO_NEAREST_INT));
}
V16_INLINE d16 d16_zero(void)
{
    return (d16){_mm512_setzero_pd(), _mm512_setzero_pd()};
}
V16_INLINE __m512d d8_add_square(__m512d sum, __m256 x)
{
    __m512d wide = _mm512_cvtps_pd(x);
    return _mm512_add_pd(sum, _mm512_mul_pd(wide, wide));
}
V16_INLINE d16 d16_add_square(d16 sum, v16 x)
{
    return (d16){d8_add_square(sum.lo, _mm512_castps512_ps256(x.all)),
                 d8_add_square(sum.hi, _mm512_extractf32x8_ps(x.all, 1))};
}
V16_INLINE double d16_sum(d16 x)
{
    __m512d eight = _mm512_add_pd(x.lo, x.hi);
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#undef V16_BINARY
