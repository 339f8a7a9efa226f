/* Sixteen fp32 lanes on whatever the machine has: one AVX-512 register, two of AVX2, or an array. Kernels are written once
 * over this layer and compiled once for each instruction set; PD_ISA_NAME says which (portable, avx2, avx512).
 *
 *   invariant  an operation gives the same bits in all three, but for the payloads of NaN; a fused multiply-add happens
 *              where v16_fma is written and nowhere else */
#pragma once

#include "ckpt/base/cpu.h"
#include "ckpt/base/half.h"
#include "ckpt/base/status.h"
#include "ckpt/tensor/tensor.h"

/* Registers want everything inlined; arrays in plain C gain nothing from it and take a compiler minutes. */
#if PD_ISA_LEVEL == 0
#define V16_INLINE static inline __attribute__((unused))
#else
#define V16_INLINE static inline __attribute__((always_inline, unused))
#endif
#define V16_ROOT_HALF_BITS 0x3f3504f3 /* sqrt(1/2) */

#if PD_ISA_LEVEL == 2
#include "trainer/math/simd_avx512.h"
#elif PD_ISA_LEVEL == 1
#include "trainer/math/simd_avx2.h"
#else
#include "trainer/math/simd_portable.h"
#endif

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

/* The first `count` (1 to 16) lanes; the others are 0 and not touched in memory. count 16 as a constant costs nothing. */
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

/* Where the dtype is not worth a loop of its own. */
V16_INLINE v16 v16_get_any(enum pd_dtype dtype, const void *data, uint64_t index, unsigned count)
{
    if (dtype == PD_F32) return v16_get_part(PD_F32, data, index, count);
    if (dtype == PD_BF16) return v16_get_part(PD_BF16, data, index, count);
    return v16_get_part(PD_F16, data, index, count);
}

/* for (each group of up to 16 elements of [0, n)) statement, with `i` the first element and `w` the width; the full groups
 * see w as the constant 16, so that a body of always_inline functions compiles to straight vector code. */
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
