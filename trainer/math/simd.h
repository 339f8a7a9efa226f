/* Sixteen fp32 lanes: one AVX-512 register, two of AVX2, or plain C. Kernels are written once over this layer and compiled
 * once per instruction set, named by PD_ISA_NAME (portable, avx2, avx512).
 *
 *   invariant  every operation gives the same bits in all three, except NaN payloads; only v16_fma is a fused multiply-add
 */
#pragma once

#include "ckpt/base/cpu.h"
#include "ckpt/base/half.h"
#include "ckpt/base/status.h"
#include "ckpt/tensor/tensor.h"

/* Vector code needs everything inlined. Plain C gains nothing from it, and compiling would take minutes. */
#if PD_ISA_LEVEL == 0
#define V16_INLINE static inline __attribute__((unused))
#else
#define V16_INLINE static inline __attribute__((always_inline, unused))
#endif
#define V16_ROOT_HALF_BITS 0x3f3504f3 /* sqrt(1/2) */

#include "trainer/math/simd_vec.h"

/* Sixteen lanes: one vec, or two. V16(a, b) builds them from expressions for the first and the second. */
typedef struct v16 {
    vec lo;
#if VEC_LANES == 8
    vec hi;
#endif
} v16;
#if VEC_LANES == 8
#define V16(first, second) ((v16){first, second})
#define V16_DO(first, second) (first, second)
#else
#define V16(first, second) ((v16){first})
#define V16_DO(first, second) (first)
#endif
#define V16_BINARY(name, expression)                                \
    V16_INLINE v16 name(v16 x, v16 y)                               \
    {                                                               \
        return V16(expression(x.lo, y.lo), expression(x.hi, y.hi)); \
    }
#define V16_ADD(a, b) ((a) + (b))
#define V16_SUB(a, b) ((a) - (b))
#define V16_MUL(a, b) ((a) * (b))
#define V16_DIV(a, b) ((a) / (b))

V16_BINARY(v16_add, V16_ADD)
V16_BINARY(v16_sub, V16_SUB)
V16_BINARY(v16_mul, V16_MUL)
V16_BINARY(v16_div, V16_DIV)
/* Returns the second operand if either is NaN. */
V16_BINARY(v16_max, vec_max)
V16_BINARY(v16_min, vec_min)
V16_INLINE v16 v16_set1(float x)
{
    return V16(vec_set1(x), vec_set1(x));
}
#define V16_MEMORY(type, load, store)                           \
    V16_INLINE v16 v16_##load(const type *p)                    \
    {                                                           \
        return V16(vec_##load(p), vec_##load(p + 8));           \
    }                                                           \
    V16_INLINE void v16_##store(type *p, v16 x)                 \
    {                                                           \
        V16_DO(vec_##store(p, x.lo), vec_##store(p + 8, x.hi)); \
    }
V16_MEMORY(float, load, store)
V16_MEMORY(uint16_t, load_bf16, store_bf16)
V16_MEMORY(uint16_t, load_f16, store_f16)
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return V16(vec_fma(a.lo, b.lo, c.lo), vec_fma(a.hi, b.hi, c.hi));
}
/* a where low <= x <= high, else b. */
V16_INLINE v16 v16_select_between(v16 low, v16 x, v16 high, v16 a, v16 b)
{
    return V16(vec_select((low.lo <= x.lo) & (x.lo <= high.lo), a.lo, b.lo),
               vec_select((low.hi <= x.hi) & (x.hi <= high.hi), a.hi, b.hi));
}
/* 2^n, where `magic` is 1.5*2^23 + n and -127 <= n <= 128; 0 at -127, infinity at 128. */
V16_INLINE v16 v16_power_of_two(v16 magic)
{
    return V16(vec_power_of_two(magic.lo), vec_power_of_two(magic.hi));
}
/* x = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)), for normal x > 0. */
V16_INLINE v16 v16_split_exponent(v16 x, v16 *ret_exponent)
{
    return V16(vec_split_exponent(x.lo, &ret_exponent->lo), vec_split_exponent(x.hi, &ret_exponent->hi));
}
/* The sum of the lanes: 0+8, 1+9, ..., then +4, +2, +1; and the maximum. */
#if PD_ISA_LEVEL > 0
#if VEC_LANES == 8
#define V16_UPPER(x) x.hi
#define V16_LOWER(x) x.lo
#else
#define V16_UPPER(x) _mm512_extractf32x8_ps(x.lo, 1)
#define V16_LOWER(x) _mm512_castps512_ps256(x.lo)
#endif
#define V16_REDUCTION(name, operation)                                                                            \
    V16_INLINE float name(v16 x)                                                                                  \
    {                                                                                                             \
        const __m256 eight = _mm256_##operation##_ps(V16_LOWER(x), V16_UPPER(x));                                 \
        const __m128 four = _mm_##operation##_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)); \
        const __m128 two = _mm_##operation##_ps(four, _mm_movehl_ps(four, four));                                 \
        return _mm_cvtss_f32(_mm_##operation##_ss(two, _mm_shuffle_ps(two, two, 1)));                             \
    }
#else
#define V16_OF_add(a, b) ((a) + (b))
#define V16_OF_max(a, b) ((a) > (b) ? (a) : (b))
#define V16_REDUCTION(name, operation)                                 \
    V16_INLINE float name(v16 x)                                       \
    {                                                                  \
        for (int half = 8; half >= 1; half /= 2)                       \
            for (int l = 0; l < half; l++)                             \
                x.lo[l] = V16_OF_##operation(x.lo[l], x.lo[l + half]); \
        return x.lo[0];                                                \
    }
#endif
V16_REDUCTION(v16_sum, add)
V16_REDUCTION(v16_max_lane, max)

#define PD_CPU(name) PD_ISA_SYMBOL(pd_cpu_##name) /* pd_cpu_<name>_avx2 */

/* Calls an always_inline function once for each dtype, so that the dtype is a constant inside. */
#define PD_FOR_DTYPE(dtype, function, ...)  \
    do {                                    \
        if ((dtype) == PD_F32)              \
            function(PD_F32, __VA_ARGS__);  \
        else if ((dtype) == PD_BF16)        \
            function(PD_BF16, __VA_ARGS__); \
        else                                \
            function(PD_F16, __VA_ARGS__);  \
    } while (0)

/* The body of a task for pd_parallel: function(dtype, job, index). */
#define PD_DTYPE_BODY(name, type, member, function)      \
    static void name(void *context, uint64_t index)      \
    {                                                    \
        const type *job = context;                       \
        PD_FOR_DTYPE(job->member, function, job, index); \
    }

V16_INLINE v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

/* Elements index .. index + 16 of an array of dtype. */
V16_INLINE v16 v16_get(enum pd_dtype dtype, const void *data, uint64_t index)
{
    if (dtype == PD_F32) return v16_load((const float *)data + index);
    if (dtype == PD_BF16) return v16_load_bf16((const uint16_t *)data + index);
    return v16_load_f16((const uint16_t *)data + index);
}

V16_INLINE void v16_put(enum pd_dtype dtype, void *data, uint64_t index, v16 x)
{
    if (dtype == PD_F32)
        v16_store((float *)data + index, x);
    else if (dtype == PD_BF16)
        v16_store_bf16((uint16_t *)data + index, x);
    else
        v16_store_f16((uint16_t *)data + index, x);
}

/* The first `count` (1 to 16) lanes; others are 0 and not accessed in memory. A constant count of 16 costs nothing. */
V16_INLINE v16 v16_get_part(enum pd_dtype dtype, const void *data, uint64_t index, unsigned count)
{
    if (count == 16) return v16_get(dtype, data, index);
    if (dtype == PD_F32) {
        float lanes[16] = {0};
        memcpy(lanes, (const float *)data + index, count * sizeof *lanes);
        return v16_load(lanes);
    }
    uint16_t lanes[16] = {0};
    memcpy(lanes, (const uint16_t *)data + index, count * sizeof *lanes);
    return v16_get(dtype, lanes, 0);
}

V16_INLINE void v16_put_part(enum pd_dtype dtype, void *data, uint64_t index, unsigned count, v16 x)
{
    if (count == 16) {
        v16_put(dtype, data, index, x);
    } else if (dtype == PD_F32) {
        float lanes[16];
        v16_store(lanes, x);
        memcpy((float *)data + index, lanes, count * sizeof *lanes);
    } else {
        uint16_t lanes[16];
        v16_put(dtype, lanes, 0, x);
        memcpy((uint16_t *)data + index, lanes, count * sizeof *lanes);
    }
}

/* For uses too rare for a loop per dtype. */
V16_INLINE v16 v16_get_any(enum pd_dtype dtype, const void *data, uint64_t index, unsigned count)
{
    if (dtype == PD_F32) return v16_get_part(PD_F32, data, index, count);
    if (dtype == PD_BF16) return v16_get_part(PD_BF16, data, index, count);
    return v16_get_part(PD_F16, data, index, count);
}

/* for (each group of up to 16 elements of [0, n)) statement, with `i` the first element and `w` the width. Full groups get
 * the constant 16 as w, so that always_inline bodies compile to straight vector code. */
#define V16_FOR(i, w, n, statement)               \
    do {                                          \
        uint64_t i = 0;                           \
        for (; i + 16 <= (n); i += 16) {          \
            const unsigned w = 16;                \
            statement;                            \
        }                                         \
        if (i < (n)) {                            \
            const unsigned w = (unsigned)((n)-i); \
            statement;                            \
        }                                         \
    } while (0)
