/* The 16-lane layer on AVX2, FMA and F16C: two registers. Included by simd.h only; contracts are in simd_portable.h. */
#pragma once

#include <immintrin.h>

typedef struct v16 {
    __m256 lo, hi;
} v16;
typedef struct d16 {
    __m256d a, b, c, d; /* lanes 0-3, 4-7, 8-11, 12-15 */
} d16;

#define V16_BINARY(name, intrinsic)                                 \
    V16_INLINE v16 name(v16 a, v16 b)                               \
    {                                                               \
        return (v16){intrinsic(a.lo, b.lo), intrinsic(a.hi, b.hi)}; \
    }

V16_INLINE v16 v16_set1(float x)
{
    __m256 all = _mm256_set1_ps(x);
    return (v16){all, all};
}
V16_INLINE v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
V16_INLINE void v16_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
V16_BINARY(v16_add, _mm256_add_ps)
V16_BINARY(v16_sub, _mm256_sub_ps)
V16_BINARY(v16_mul, _mm256_mul_ps)
V16_BINARY(v16_div, _mm256_div_ps)
V16_BINARY(v16_max, _mm256_max_ps)
V16_BINARY(v16_min, _mm256_min_ps)
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
V16_INLINE __m256 v8_select_between(__m256 low, __m256 x, __m256 high, __m256 a, __m256 b)
{
    __m256 inside = _mm256_and_ps(_mm256_cmp_ps(low, x, _CMP_LE_OQ), _mm256_cmp_ps(x, high, _CMP_LE_OQ));
    return _mm256_blendv_ps(b, a, inside);
}
V16_INLINE v16 v16_select_between(v16 low, v16 x, v16 high, v16 a, v16 b)
{
    return (v16){v8_select_between(low.lo, x.lo, high.lo, a.lo, b.lo), v8_select_between(low.hi, x.hi, high.hi, a.hi, b.hi)};
}
V16_INLINE __m256 v8_power_of_two(__m256 magic)
{
    __m256i biased = _mm256_add_epi32(_mm256_castps_si256(magic), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
V16_INLINE v16 v16_power_of_two(v16 magic)
{
    return (v16){v8_power_of_two(magic.lo), v8_power_of_two(magic.hi)};
}
V16_INLINE __m256 v8_split_exponent(__m256 x, __m256 *ret_exponent)
{
    const __m256i root_half = _mm256_set1_epi32(V16_ROOT_HALF_BITS);
    __m256i shifted = _mm256_sub_epi32(_mm256_castps_si256(x), root_half);
    *ret_exponent = _mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 23));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_and_si256(shifted, _mm256_set1_epi32(0x7fffff)), root_half));
}
V16_INLINE v16 v16_split_exponent(v16 x, v16 *ret_exponent)
{
    return (v16){v8_split_exponent(x.lo, &ret_exponent->lo), v8_split_exponent(x.hi, &ret_exponent->hi)};
}
V16_INLINE float v16_sum(v16 x)
{
    __m256 eight = _mm256_add_ps(x.lo, x.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
V16_INLINE float v16_max_lane(v16 x)
{
    __m256 eight = _mm256_max_ps(x.lo, x.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
V16_INLINE __m256 v8_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return (v16){v8_load_bf16(p), v8_load_bf16(p + 8)};
}
V16_INLINE __m256i v8_round_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}
V16_INLINE void v16_store_bf16(uint16_t *p, v16 x)
{
    __m256i packed = _mm256_packus_epi32(v8_round_bf16(x.lo), v8_round_bf16(x.hi));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(packed, 0xD8));
}
V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
}
V16_INLINE void v16_store_f16(uint16_t *p, v16 x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
V16_INLINE d16 d16_zero(void)
{
    __m256d zero = _mm256_setzero_pd();
    return (d16){zero, zero, zero, zero};
}
V16_INLINE __m256d d4_add_square(__m256d sum, __m128 x)
{
    __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_add_pd(sum, _mm256_mul_pd(wide, wide));
}
V16_INLINE d16 d16_add_square(d16 sum, v16 x)
{
    return (d16){d4_add_square(sum.a, _mm256_castps256_ps128(x.lo)), d4_add_square(sum.b, _mm256_extractf128_ps(x.lo, 1)),
                 d4_add_square(sum.c, _mm256_castps256_ps128(x.hi)), d4_add_square(sum.d, _mm256_extractf128_ps(x.hi, 1))};
}
V16_INLINE double d16_sum(d16 x)
{
    __m256d four = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

#undef V16_BINARY
