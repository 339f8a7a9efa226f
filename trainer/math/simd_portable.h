/* The 16-lane layer in plain C. Every operation rounds as its AVX2 and AVX-512 twins do. Included by simd.h only. */
#pragma once

#include <math.h>

typedef struct v16 {
    float lane[16];
} v16;
typedef struct d16 {
    double lane[16];
} d16;

#define V16_EACH(expression)           \
    v16 result;                        \
    for (int l = 0; l < 16; l++)       \
        result.lane[l] = (expression); \
    return result
#define V16_BINARY(name, expression)  \
    V16_INLINE v16 name(v16 a, v16 b) \
    {                                 \
        V16_EACH(expression);         \
    }

V16_INLINE v16 v16_set1(float x)
{
    V16_EACH(x);
}
V16_INLINE v16 v16_load(const float *p)
{
    V16_EACH(p[l]);
}
V16_INLINE void v16_store(float *p, v16 x)
{
    for (int l = 0; l < 16; l++)
        p[l] = x.lane[l];
}
V16_BINARY(v16_add, a.lane[l] + b.lane[l])
V16_BINARY(v16_sub, a.lane[l] - b.lane[l])
V16_BINARY(v16_mul, a.lane[l] * b.lane[l])
V16_BINARY(v16_div, a.lane[l] / b.lane[l])
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(a.lane[l], b.lane[l], c.lane[l]));
}
/* The second operand where either is NaN. */
V16_BINARY(v16_max, a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l])
V16_BINARY(v16_min, a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l])
/* a where low <= x <= high, else b. */
V16_INLINE v16 v16_select_between(v16 low, v16 x, v16 high, v16 a, v16 b)
{
    V16_EACH(low.lane[l] <= x.lane[l] && x.lane[l] <= high.lane[l] ? a.lane[l] : b.lane[l]);
}
/* 2^n, where `magic` is 1.5*2^23 + n and -127 <= n <= 128; 0 at -127, infinity at 128. */
V16_INLINE v16 v16_power_of_two(v16 magic)
{
    V16_EACH(pd_f32_of_bits((pd_f32_bits(magic.lane[l]) + 127u) << 23));
}
/* x = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)), for normal x > 0. */
V16_INLINE v16 v16_split_exponent(v16 x, v16 *ret_exponent)
{
    v16 mantissa;
    for (int l = 0; l < 16; l++) {
        int32_t shifted = (int32_t)(pd_f32_bits(x.lane[l]) - V16_ROOT_HALF_BITS);
        ret_exponent->lane[l] = (float)(shifted >> 23);
        mantissa.lane[l] = pd_f32_of_bits(((uint32_t)shifted & 0x7fffffu) + V16_ROOT_HALF_BITS);
    }
    return mantissa;
}
/* 0+8, 1+9, ..., then +4, +2, +1. */
V16_INLINE float v16_sum(v16 x)
{
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            x.lane[l] += x.lane[l + half];
    return x.lane[0];
}
V16_INLINE float v16_max_lane(v16 x)
{
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            x.lane[l] = x.lane[l] > x.lane[l + half] ? x.lane[l] : x.lane[l + half];
    return x.lane[0];
}
V16_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    V16_EACH(pd_f32_of_bits((uint32_t)p[l] << 16));
}
V16_INLINE void v16_store_bf16(uint16_t *p, v16 x)
{
    for (int l = 0; l < 16; l++)
        p[l] = pd_bf16_from_f32(x.lane[l]);
}
V16_INLINE v16 v16_load_f16(const uint16_t *p)
{
    V16_EACH(pd_f32_from_f16(p[l]));
}
V16_INLINE void v16_store_f16(uint16_t *p, v16 x)
{
    for (int l = 0; l < 16; l++)
        p[l] = pd_f16_from_f32(x.lane[l]);
}
V16_INLINE d16 d16_zero(void)
{
    return (d16){{0}};
}
/* sum + x*x; the square of an fp32 number is exact in fp64. */
V16_INLINE d16 d16_add_square(d16 sum, v16 x)
{
    for (int l = 0; l < 16; l++)
        sum.lane[l] += (double)x.lane[l] * (double)x.lane[l];
    return sum;
}
V16_INLINE double d16_sum(d16 x)
{
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            x.lane[l] += x.lane[l + half];
    return x.lane[0];
}

#undef V16_BINARY
#undef V16_EACH
