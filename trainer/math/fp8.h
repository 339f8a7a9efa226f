/* 8-bit floating point, computed with integers except for one exact addition, so that C, every instruction set and a GPU
 * give the same bits (Micikevicius et al. 2022, "FP8 formats for deep learning").
 *
 *             exponent  mantissa  largest  smallest  infinity  NaN
 *   E4M3      4         3         448      2^-9      none      0x7f, 0xff
 *   E5M2      5         2         57344    2^-16     0x7c      0x7d to 0x7f
 *
 * Finite numbers round to nearest even and saturate at the largest. Infinity and NaN stay; infinity becomes NaN in a format
 * without it.
 *
 * A scale is a power of two. So scaling does not round, a code times its scale is a bf16 number, products of codes can be
 * scaled afterwards without error, and the grid stays when the largest element changes a little. An exact 448 / largest
 * would gain at most one binade at the small end. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "trainer/math/operations.h"

#if defined(__CUDACC__)
#define PD_FP8_INLINE static __device__ __forceinline__
#else
#define PD_FP8_INLINE static inline __attribute__((unused))
#endif

PD_FP8_INLINE uint32_t pd_fp8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

PD_FP8_INLINE float pd_fp8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The code nearest to x. */
PD_FP8_INLINE uint8_t pd_fp8_of_f32(enum pd_fp8 format, float x)
{
    const int is_e4m3 = format == PD_FP8_E4M3;
    const uint32_t bits = pd_fp8_bits(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    const uint32_t shift = is_e4m3 ? 20 : 21, most = is_e4m3 ? 0x7e : 0x7b;
    const uint32_t normal_from = is_e4m3 ? 0x3c800000u : 0x38800000u;     /* 2^-6, 2^-14 */
    const uint32_t one_of_smallest = is_e4m3 ? 0x46800000u : 0x43000000u; /* its last place is 2^-9, 2^-16 */
    const uint32_t rebias = (is_e4m3 ? 120u << 3 : 112u << 2);
    uint32_t code = ((size + (1u << (shift - 1)) - 1 + (size >> shift & 1)) >> shift) - rebias;
    if (code > most) code = most;
    if (size < normal_from) code = pd_fp8_bits(pd_fp8_float(size) + pd_fp8_float(one_of_smallest)) - one_of_smallest;
    if (size >= 0x7f800000u) code = !is_e4m3 && size == 0x7f800000u ? 0x7c : 0x7f;
    return (uint8_t)(sign | code);
}

PD_FP8_INLINE float pd_f32_of_fp8(enum pd_fp8 format, uint8_t code)
{
    const int is_e4m3 = format == PD_FP8_E4M3;
    const uint32_t size = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t shift = is_e4m3 ? 20 : 21, least_normal = is_e4m3 ? 8 : 4;
    const float smallest = pd_fp8_float(is_e4m3 ? 0x3b000000u : 0x37800000u); /* 2^-9, 2^-16 */
    uint32_t bits = (size << shift) + (is_e4m3 ? 120u << 23 : 112u << 23);
    if (size < least_normal) bits = pd_fp8_bits((float)size * smallest);
    if (is_e4m3 ? size == 0x7f : size > 0x7c) bits = 0x7fc00000u;
    if (!is_e4m3 && size == 0x7c) bits = 0x7f800000u;
    return pd_fp8_float(sign | bits);
}

/* The factor of codes, from the bits of the largest absolute value. At least 2^-63, so that the product of two scales is a
 * normal number; 1 if nothing, or nothing finite, is to be scaled. */
PD_FP8_INLINE float pd_fp8_scale_of(enum pd_fp8 format, uint32_t largest)
{
    const int most = format == PD_FP8_E4M3 ? 8 : 15; /* 448 = 1.75 * 2^8, 57344 = 1.75 * 2^15 */
    int exponent = (int)(largest >> 23) - 127 - most + ((largest & 0x7fffffu) > 0x600000u);
    if (exponent < -63) exponent = -63;
    if (largest == 0 || largest >= 0x7f800000u) exponent = 0;
    return pd_fp8_float((uint32_t)(exponent + 127) << 23);
}

/* 1 / scale, exactly. */
PD_FP8_INLINE float pd_fp8_inverse(float scale)
{
    return pd_fp8_float((254u << 23) - pd_fp8_bits(scale));
}
