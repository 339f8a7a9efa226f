/* exp, log and the logistic function with the same bits and method as trainer/math/simd_math.h; and its order of sums along
 * a row: sixteen adjacent threads are the sixteen lanes. */
#pragma once

#include "trainer/math/cuda/grid.h"

#define PD_LANES 16u
#define PD_ROOT_HALF_BITS 0x3f3504f3u /* sqrt(1/2) */

PD_DEVICE float pd_exp(float x)
{
    const float shift = 0x1.8p23f;
    x = -88.03f > x ? -88.03f : x; /* this order lets NaN pass */
    x = 88.8f < x ? 88.8f : x;
    const float magic = __fmaf_rn(x, 0x1.715476p0f, shift);
    const float n = magic - shift;
    float r = __fmaf_rn(n, -0x1.62e400p-1f, x);
    r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
    float q = 0.0013926183587767333f;
    q = __fmaf_rn(q, r, 0.008363179052705606f);
    q = __fmaf_rn(q, r, 0.041666554617203866f);
    q = __fmaf_rn(q, r, 0.1666657698969896f);
    q = __fmaf_rn(q, r, 0.5f);
    const float p = __fmaf_rn(__fmaf_rn(q, r, 1.0f), r, 1.0f);
    return p * __uint_as_float((__float_as_uint(magic) + 127u) << 23);
}

PD_DEVICE float pd_log(float x)
{
    const int32_t shifted = static_cast<int32_t>(__float_as_uint(x) - PD_ROOT_HALF_BITS);
    const float k = static_cast<float>(shifted >> 23);
    const float m = __uint_as_float((static_cast<uint32_t>(shifted) & 0x7fffffu) + PD_ROOT_HALF_BITS);
    const float s = __fdiv_rn(m - 1.0f, m + 1.0f);
    const float z = s * s;
    float p = __fmaf_rn(z, 1.0f / 9.0f, 1.0f / 7.0f);
    p = __fmaf_rn(z, p, 1.0f / 5.0f);
    p = __fmaf_rn(z, p, 1.0f / 3.0f);
    const float s2 = s + s;
    const float low = __fmaf_rn(s2, z * p, k * 0x1.7f7d1cp-20f);
    return __fmaf_rn(k, 0x1.62e400p-1f, s2 + low) + (x - x);
}

PD_DEVICE float pd_sigmoid(float x)
{
    return __fdiv_rn(1.0f, 1.0f + pd_exp(0.0f - x));
}

/* Rotates a pair (RoPE); pass -sine for the inverse. */
PD_DEVICE void pd_rotate(float &a, float &b, float cosine, float sine)
{
    const float turned = __fmaf_rn(a, cosine, 0.0f - b * sine);
    b = __fmaf_rn(a, sine, b * cosine);
    a = turned;
}

/* Sums over sixteen adjacent threads as the tree 0+8, 1+9, ..., then +4, +2, +1; all get the sum. Every thread of the warp
 * must call. */
template <typename T> PD_DEVICE T pd_lanes_sum(T x)
{
    for (int half = 8; half >= 1; half /= 2)
        x += __shfl_xor_sync(PD_WARP_ALL, x, half);
    return x;
}
