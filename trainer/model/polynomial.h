/* log, sine and cosine in fp64 from additions, multiplications, divisions and integer operations only. Their bits are the
 * same with every compiler, C library and instruction set (the build turns contraction off: -ffp-contract=off).
 *
 * Errors are a few units in the last place of fp64; every caller rounds to fp32. No branches, so loops vectorise. */
#pragma once

#include <stdint.h>
#include <string.h>

#define PD_POLYNOMIAL_LN2 0x1.62e42fefa39efp-1
#define PD_POLYNOMIAL_INLINE static inline __attribute__((always_inline))

PD_POLYNOMIAL_INLINE uint64_t pd_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

PD_POLYNOMIAL_INLINE double pd_bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Converts an integer 0 <= n < 2^52 to double without the conversion instruction, which AVX2 lacks. */
PD_POLYNOMIAL_INLINE double pd_double_from_u52(uint64_t n)
{
    return pd_bits_double(n | UINT64_C(0x4330000000000000)) - 0x1p52;
}

/* Natural logarithm of a normal x >= 1.
 * x = m 2^k with m in [sqrt(1/2), sqrt(2)), and with s = (m-1)/(m+1): ln m = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172. */
PD_POLYNOMIAL_INLINE double pd_polynomial_log(double x, double ln2_exponents_less)
{
    const uint64_t half_root = UINT64_C(0x3fe6a09e667f3bcd); /* sqrt(1/2) */
    const uint64_t mantissa = UINT64_C(0x000fffffffffffff);
    uint64_t shifted = pd_double_bits(x) - half_root;
    double k = pd_double_from_u52(shifted >> 52) - ln2_exponents_less;
    double m = pd_bits_double((shifted & mantissa) + half_root);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double p = 1.0 / 23.0;
    p = p * z + 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    double s2 = s + s;
    return k * PD_POLYNOMIAL_LN2 + (s2 + s2 * (z * p));
}

/* Taylor series for |x| <= pi/4. */
PD_POLYNOMIAL_INLINE double pd_polynomial_sin(double x)
{
    double z = x * x;
    double p = -1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return x + x * (z * p);
}

PD_POLYNOMIAL_INLINE double pd_polynomial_cos(double x)
{
    double z = x * x;
    double p = 1.0 / 20922789888000.0;
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    p = p * z - 0.5;
    return 1.0 + z * p;
}

/* cos and sin of x plus `quarters` quarter turns (any count modulo 4), for |x| <= pi/4. */
PD_POLYNOMIAL_INLINE void pd_polynomial_cos_sin(double x, uint64_t quarters, double *ret_cos, double *ret_sin)
{
    uint64_t c = pd_double_bits(pd_polynomial_cos(x)), s = pd_double_bits(pd_polynomial_sin(x));
    uint64_t swap = (c ^ s) & (0 - (quarters & 1));
    uint64_t cos_sign = ((quarters + 1) & 2) << 62, sin_sign = (quarters & 2) << 62;
    *ret_cos = pd_bits_double((c ^ swap) ^ cos_sign);
    *ret_sin = pd_bits_double((s ^ swap) ^ sin_sign);
}
