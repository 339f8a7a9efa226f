/* exp, log and the logistic function, fp32, 16 lanes, with equal bits on every instruction set.
 * tests/unit/math/test_functions.c tests the errors against fp64 over the whole range. */
#pragma once

#include "trainer/math/simd.h"

/* e^x within 1 ulp. 0 below -87.34 (the result would be denormal), infinity above 88.37, NaN for NaN.
 * x = n ln 2 + r, |r| <= ln(2)/2; e^r = 1 + r + r^2 q(r), q of degree 4 through Chebyshev points (relative error 2^-26.5).
 */
V16_INLINE v16 v16_exp(v16 x)
{
    const v16 shift = v16_set1(0x1.8p23f);
    x = v16_min(v16_set1(88.8f), v16_max(v16_set1(-88.03f), x)); /* this order lets NaN pass */
    v16 magic = v16_fma(x, v16_set1(0x1.715476p0f), shift);
    v16 n = v16_sub(magic, shift);
    v16 r = v16_fma(n, v16_set1(-0x1.62e400p-1f), x); /* ln 2 in two parts: the first product is exact */
    r = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), r);
    v16 q = v16_set1(0.0013926183587767333f);
    q = v16_fma(q, r, v16_set1(0.008363179052705606f));
    q = v16_fma(q, r, v16_set1(0.041666554617203866f));
    q = v16_fma(q, r, v16_set1(0.1666657698969896f));
    q = v16_fma(q, r, v16_set1(0.5f));
    v16 one = v16_set1(1.0f);
    v16 p = v16_fma(v16_fma(q, r, one), r, one);
    return v16_mul(p, v16_power_of_two(magic));
}

/* ln x within 2 ulp, for normal x > 0; NaN for NaN and infinity.
 * x = m 2^k, m in [sqrt(1/2), sqrt(2)); with s = (m-1)/(m+1): ln m = 2 s (1 + s^2/3 + s^4/5 + ...). */
V16_INLINE v16 v16_log(v16 x)
{
    v16 k, m = v16_split_exponent(x, &k);
    v16 f = v16_sub(m, v16_set1(1.0f));
    v16 s = v16_div(f, v16_add(m, v16_set1(1.0f)));
    v16 z = v16_mul(s, s);
    v16 p = v16_fma(z, v16_set1(1.0f / 9.0f), v16_set1(1.0f / 7.0f));
    p = v16_fma(z, p, v16_set1(1.0f / 5.0f));
    p = v16_fma(z, p, v16_set1(1.0f / 3.0f));
    v16 s2 = v16_add(s, s);
    v16 low = v16_fma(s2, v16_mul(z, p), v16_mul(k, v16_set1(0x1.7f7d1cp-20f)));
    v16 finite = v16_fma(k, v16_set1(0x1.62e400p-1f), v16_add(s2, low));
    return v16_add(finite, v16_sub(x, x));
}

/* 1/(1 + e^-x) within 2 ulp. */
V16_INLINE v16 v16_sigmoid(v16 x)
{
    v16 one = v16_set1(1.0f);
    return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_zero(), x))));
}
