/* CUDA's words for host C++: a kernel source that includes trainer/math/cuda/grid.h with PD_SIMT defined runs here, blocks
 * one after the other, the threads of a block as fibers. It finds
 *
 *   - a barrier, a warp operation that not all of its threads reach (error naming kernel, block and thread)
 *   - shared memory read before it was written (NaN patterns), or beyond its end (AddressSanitizer, it is from the heap)
 *   - cp.async data read before the wait (copied when waited for, NaN patterns until then)
 *   - order that a kernel relies on without a barrier: PERDURE_SIMT_ORDER or simt_set_order permute threads and blocks
 *   - on a stream of machine.h, operands in memory of the host that no GPU reaches
 *   - vectors that are not aligned (UndefinedBehaviorSanitizer), ldmatrix rows and cp.async addresses that are not
 *
 * Flush-to-zero is set, as in kernels. Floating-point atomics do not compile.
 *
 *   streams  NULL: kernels have run when their launch returns; else machine.h says when
 *   threads  any; one kernel at a time in a process */
#pragma once

#include <math.h>
#include <memory>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <vector>

#include "ckpt/base/half.h"
extern "C" {
#include "ckpt/tensor/tensor.h"
}
#include "tests/simt/cuda_runtime_api.h"
#include <simt_order.h>

/* ---- words ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define PD_DEVICE static inline __attribute__((unused))

#define PD_SHARED(type, name, ...)      \
    typedef type name##_is __VA_ARGS__; \
    static char name##_key;             \
    name##_is &name = *static_cast<name##_is *>(simt_shared(&name##_key, sizeof(name##_is)))
#define PD_SHARED_DYNAMIC(name) unsigned char *const name = simt_shared_dynamic()

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(16) double2
{
    double x, y;
};
#define SIMT_INLINE static inline __attribute__((unused))
SIMT_INLINE float2 make_float2(float x, float y)
{
    return {x, y};
}
SIMT_INLINE float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
SIMT_INLINE uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
SIMT_INLINE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* ---- where a thread is ---- */

struct simt_place {
    dim3 thread, block, block_size, grid_size;
};
extern const simt_place *simt_self; /* of the running fiber */
#define threadIdx (simt_self->thread)
#define blockIdx (simt_self->block)
#define blockDim (simt_self->block_size)
#define gridDim (simt_self->grid_size)
#define warpSize 32

void *simt_shared(const void *key, size_t bytes);
unsigned char *simt_shared_dynamic(void);
size_t simt_shared_dynamic_bytes(void);
void simt_syncthreads(void);
/* The running kernel broke a rule: the launch ends with this error. Does not return. */
void simt_fail(const char *what) __attribute__((noreturn));

#define __syncthreads() simt_syncthreads()
SIMT_INLINE void __threadfence(void)
{
}

#include <simt_warp.h>

/* ---- arithmetic ---- */

SIMT_INLINE float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
SIMT_INLINE float __fadd_rn(float a, float b)
{
    return a + b;
}
SIMT_INLINE float __fsub_rn(float a, float b)
{
    return a - b;
}
SIMT_INLINE float __fmul_rn(float a, float b)
{
    return a * b;
}
SIMT_INLINE float __fdiv_rn(float a, float b)
{
    return a / b;
}
SIMT_INLINE float __fsqrt_rn(float a)
{
    return __builtin_sqrtf(a);
}
SIMT_INLINE double __dadd_rn(double a, double b)
{
    return a + b;
}
SIMT_INLINE double __dmul_rn(double a, double b)
{
    return a * b;
}
SIMT_INLINE long long __double2ll_rn(double x)
{
    return __builtin_llrint(x);
}
SIMT_INLINE float __ll2float_rn(long long x)
{
    return static_cast<float>(x);
}
SIMT_INLINE float __int2float_rn(int x)
{
    return static_cast<float>(x);
}
SIMT_INLINE unsigned __float_as_uint(float x)
{
    return pd_f32_bits(x);
}
SIMT_INLINE float __uint_as_float(unsigned bits)
{
    return pd_f32_of_bits(bits);
}
SIMT_INLINE int __float_as_int(float x)
{
    return static_cast<int>(pd_f32_bits(x));
}
SIMT_INLINE float __int_as_float(int bits)
{
    return pd_f32_of_bits(static_cast<uint32_t>(bits));
}
SIMT_INLINE long long __double_as_longlong(double x)
{
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
SIMT_INLINE int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
SIMT_INLINE int __clz(int x)
{
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
SIMT_INLINE int __ffs(int x)
{
    return __builtin_ffs(x);
}
template <typename T> T __ldg(const T *p)
{
    return *p;
}
SIMT_INLINE int min(int a, int b)
{
    return a < b ? a : b;
}
SIMT_INLINE int max(int a, int b)
{
    return a > b ? a : b;
}
SIMT_INLINE unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
SIMT_INLINE unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}
PD_DEVICE float pd_f32_of_bf16(uint16_t half)
{
    return pd_f32_from_bf16(half);
}
PD_DEVICE uint16_t pd_bf16_of_f32(float x)
{
    return pd_bf16_from_f32(x);
}
PD_DEVICE float pd_f32_of_f16(uint16_t half)
{
    return pd_f32_from_f16(half);
}
PD_DEVICE uint16_t pd_f16_of_f32(float x)
{
    return pd_f16_from_f32(x);
}
PD_DEVICE float pd_exp2_fast(float x)
{
    return exp2f(x);
}

/* ---- launch ---- */

struct simt_grid {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void (*body)(void *);        /* of one thread */
    std::vector<uint64_t> words; /* of its arguments, of which some are addresses */
};
/* At once without a stream; on a stream of machine.h, `context` lives until then. */
pd_status simt_launch(const simt_grid *grid, std::shared_ptr<void> context, void *stream, struct pd_error *err);

/* A padding's bytes are whatever was there before, an address perhaps; a compiler that cannot clear them finds nothing. */
template <typename T> void simt_note_words(T argument, std::vector<uint64_t> &words)
{
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
    for (size_t at = 0; at + sizeof(uint64_t) <= sizeof argument; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, reinterpret_cast<const char *>(&argument) + at, sizeof word);
        if (word) words.push_back(word);
    }
#else
    (void)argument, (void)words;
#endif
}

template <typename... P, typename... A>
pd_status pd_cuda_launch(struct pd_error *err, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                         size_t shared_bytes, void *stream, A... arguments)
{
    auto body = [=] { kernel(arguments...); };
    simt_grid whole = {name, grid, block, shared_bytes, [](void *context) { (*static_cast<decltype(body) *>(context))(); },
                       {}};
    if (stream) (simt_note_words<P>(arguments, whole.words), ...);
    return simt_launch(&whole, std::make_shared<decltype(body)>(body), stream, err);
}
