/* Conversions between fp32 and the two 16-bit formats, exact or rounded once to nearest even.
 *
 * Plain C, so that every instruction set gives the same bits. NaN stays NaN (quiet, sign kept); overflow gives infinity.
 * fp16 subnormals convert exactly, even in flush-to-zero mode, because only integers are used.
 */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t pd_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float pd_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float pd_f32_from_bf16(uint16_t half)
{
    return pd_f32_of_bits((uint32_t)half << 16);
}

static inline uint16_t pd_bf16_from_f32(float value)
{
    uint32_t bits = pd_f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static inline float pd_f32_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 0x3ffu;
    if (exponent == 31) return pd_f32_of_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent) return pd_f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    if (!fraction) return pd_f32_of_bits(sign);
    unsigned shift = (unsigned)__builtin_clz(fraction) - 21; /* brings the leading one to bit 10 */
    return pd_f32_of_bits(sign | (113 - shift) << 23 | ((fraction << shift) & 0x3ffu) << 13);
}

static inline uint16_t pd_f16_from_f32(float value)
{
    uint32_t bits = pd_f32_bits(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude >= 0x38800000u) {                                  /* 2^-14: normal */
        uint32_t rebased = magnitude - (112u << 23);
        return (uint16_t)(sign | (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
    }
    if (magnitude <= 0x33000000u) return (uint16_t)sign; /* 2^-25 and below: half of the smallest, ties to even */
    unsigned shift = 126 - (magnitude >> 23);            /* 14 .. 24 */
    uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return (uint16_t)(sign | (kept + (rest > tie || (rest == tie && (kept & 1u)))));
}
