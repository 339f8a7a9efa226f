/* Reads and writes elements of any dtype in device memory as fp32, one or several at a time. */
#pragma once

#include "trainer/math/cuda/grid.h"

/* PD_CHECK for kernels: a bug of ours ends the kernel, and the stream with it, before it reads elsewhere. */
#ifdef PD_SIMT
#define PD_DEVICE_CHECK(condition)                                 \
    do {                                                           \
        if (!(condition)) simt_fail("does not hold: " #condition); \
    } while (0)
#else
#define PD_DEVICE_CHECK(condition)  \
    do {                            \
        if (!(condition)) __trap(); \
    } while (0)
#endif

#define PD_THREADS 256u /* per block of a kernel without shared memory */

template <enum pd_dtype D> PD_DEVICE float pd_get(const void *data, uint64_t index)
{
    if (D == PD_F32) return static_cast<const float *>(data)[index];
    const uint16_t half = static_cast<const uint16_t *>(data)[index];
    return D == PD_BF16 ? pd_f32_of_bf16(half) : pd_f32_of_f16(half);
}

template <enum pd_dtype D> PD_DEVICE void pd_put(void *data, uint64_t index, float x)
{
    if (D == PD_F32)
        static_cast<float *>(data)[index] = x;
    else
        static_cast<uint16_t *>(data)[index] = D == PD_BF16 ? pd_bf16_of_f32(x) : pd_f16_of_f32(x);
}

/* Rounds as if stored and loaded. */
template <enum pd_dtype D> PD_DEVICE float pd_round(float x)
{
    return D == PD_F32 ? x : D == PD_BF16 ? pd_f32_of_bf16(pd_bf16_of_f32(x)) : pd_f32_of_f16(pd_f16_of_f32(x));
}

template <enum pd_dtype D> PD_DEVICE void pd_unpack(uint32_t word, float *low, float *high)
{
    const uint16_t first = static_cast<uint16_t>(word), second = static_cast<uint16_t>(word >> 16);
    *low = D == PD_BF16 ? pd_f32_of_bf16(first) : pd_f32_of_f16(first);
    *high = D == PD_BF16 ? pd_f32_of_bf16(second) : pd_f32_of_f16(second);
}

template <enum pd_dtype D> PD_DEVICE uint32_t pd_pack(float low, float high)
{
    return D == PD_BF16 ? pd_pack_bf16(low, high) : pd_pack_f16(low, high);
}

/* N elements from index on, with the widest loads: N is 1, or 4 or 8 with index a multiple of N and the array 16-aligned. */
template <enum pd_dtype D, int N> PD_DEVICE void pd_get_n(const void *data, uint64_t index, float (&x)[N])
{
    static_assert(N == 1 || N == 4 || N == 8, "no such vector");
    if constexpr (N == 1) {
        x[0] = pd_get<D>(data, index);
    } else if constexpr (D == PD_F32) {
        const float4 *from = reinterpret_cast<const float4 *>(static_cast<const float *>(data) + index);
        for (int i = 0; i < N / 4; i++) {
            const float4 four = from[i];
            x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
        }
    } else if constexpr (N == 4) {
        const uint2 words = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(data) + index);
        pd_unpack<D>(words.x, &x[0], &x[1]);
        pd_unpack<D>(words.y, &x[2], &x[3]);
    } else {
        const uint4 words = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(data) + index);
        pd_unpack<D>(words.x, &x[0], &x[1]);
        pd_unpack<D>(words.y, &x[2], &x[3]);
        pd_unpack<D>(words.z, &x[4], &x[5]);
        pd_unpack<D>(words.w, &x[6], &x[7]);
    }
}

template <enum pd_dtype D, int N> PD_DEVICE void pd_put_n(void *data, uint64_t index, const float (&x)[N])
{
    if constexpr (N == 1) {
        pd_put<D>(data, index, x[0]);
    } else if constexpr (D == PD_F32) {
        float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(data) + index);
        for (int i = 0; i < N / 4; i++)
            to[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    } else if constexpr (N == 4) {
        uint2 *to = reinterpret_cast<uint2 *>(static_cast<uint16_t *>(data) + index);
        *to = make_uint2(pd_pack<D>(x[0], x[1]), pd_pack<D>(x[2], x[3]));
    } else {
        uint4 *to = reinterpret_cast<uint4 *>(static_cast<uint16_t *>(data) + index);
        *to = make_uint4(pd_pack<D>(x[0], x[1]), pd_pack<D>(x[2], x[3]), pd_pack<D>(x[4], x[5]), pd_pack<D>(x[6], x[7]));
    }
}

/* For uses too rare for a kernel per dtype. */
template <int N> PD_DEVICE void pd_get_any(enum pd_dtype dtype, const void *data, uint64_t index, float (&x)[N])
{
    if (dtype == PD_F32)
        pd_get_n<PD_F32, N>(data, index, x);
    else if (dtype == PD_BF16)
        pd_get_n<PD_BF16, N>(data, index, x);
    else
        pd_get_n<PD_F16, N>(data, index, x);
}

template <int N> PD_DEVICE void pd_put_any(enum pd_dtype dtype, void *data, uint64_t index, const float (&x)[N])
{
    if (dtype == PD_F32)
        pd_put_n<PD_F32, N>(data, index, x);
    else if (dtype == PD_BF16)
        pd_put_n<PD_BF16, N>(data, index, x);
    else
        pd_put_n<PD_F16, N>(data, index, x);
}

/* use(load(i)) for i = first, first + step, ... below end, in order, with U loads in flight: the compiler does not reorder
 * loads itself if it does not know the trip count. */
template <int U, typename Load, typename Use>
PD_DEVICE void pd_in_order(uint64_t first, uint64_t end, uint64_t step, Load load, Use use)
{
    uint64_t i = first;
    for (; i + (U - 1) * step < end; i += U * step) {
        decltype(load(i)) loaded[U];
#pragma unroll
        for (int j = 0; j < U; j++)
            loaded[j] = load(i + static_cast<uint64_t>(j) * step);
#pragma unroll
        for (int j = 0; j < U; j++)
            use(loaded[j]);
    }
    for (; i < end; i += step)
        use(load(i));
}

static inline bool pd_is_16_aligned(const void *data)
{
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

static inline unsigned pd_blocks(uint64_t count, uint64_t of)
{
    return static_cast<unsigned>((count + of - 1) / of);
}
