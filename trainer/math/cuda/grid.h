/* What kernel sources may use besides C++: CUDA under nvcc, or fibers on the host if PD_SIMT is defined (tests/simt).
 * README.md in this folder explains how to write a kernel for both.
 *
 *   PD_SHARED(float, tile, [16][33]);     shared memory of the block; PD_SHARED_DYNAMIC(bytes): the launch's, unsigned char
 *   PD_LAUNCH(err, kernel, grid, block, shared_bytes, stream, arguments...)   a pd_status; a kernel<a, b> in parentheses;
 *                                         an empty grid is fine and runs nothing
 *
 *   invariant  every operation rounds once, as its name says; no floating-point atomics */
#pragma once

#ifdef PD_SIMT
#include <simt.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <stddef.h>
#include <stdint.h>

#include "trainer/math/cuda/kernels.h"

/* Shared memory that a block can request on every device of compute capability 8.0 and later: 8.6, 8.9 and 12.0 have no more
 * (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"). */
#define PD_SHARED_EVERYWHERE 101376u
#define PD_WARP 32u
#define PD_WARP_ALL 0xffffffffu

#ifndef PD_SIMT

#define PD_DEVICE __device__ __forceinline__
#define PD_SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__
#define PD_SHARED_DYNAMIC(name) extern __shared__ __align__(128) unsigned char name[]

/* ---- 16-bit formats as bits; to nearest even, infinity if too large, subnormals kept ---- */

PD_DEVICE float pd_f32_of_bf16(uint16_t half)
{
    return __uint_as_float((uint32_t)half << 16);
}

PD_DEVICE uint16_t pd_bf16_of_f32(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

PD_DEVICE float pd_f32_of_f16(uint16_t half)
{
    return __half2float(__ushort_as_half(half));
}

PD_DEVICE uint16_t pd_f16_of_f32(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

/* 2^x by the special function unit: 2 ulp; bits differ between kinds of devices. */
PD_DEVICE float pd_exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- tensor cores and copies into shared memory ---- */

PD_DEVICE uint32_t pd_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Matrices of 8 x 8 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8 (16 bytes, 16-aligned), and gets
 * of matrix j, in r[j], elements (lane / 4, 2 (lane % 4)) and the one to its right (in the upper half); of the transposed
 * ones (2 (lane % 4), lane / 4) and the one below it. All lanes of the warp call. */
PD_DEVICE void pd_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(pd_shared_address(row))
                 : "memory");
}

PD_DEVICE void pd_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(pd_shared_address(row))
                 : "memory");
}

/* c (16,8) += a (16,16) b (16,8), fp32 sums of bf16 or fp16 products. With g = lane / 4, t = lane % 4, lower half first:
 *   a[0] (g, 2t..)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)    rows of A
 *   b[0] (2t.., g)  b[1] (2t+8.., g)                                          columns of B
 *   c[0], c[1] (g, 2t..)  c[2], c[3] (g+8, 2t..)
 * source  PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type" */
template <enum pd_dtype D> PD_DEVICE void pd_mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    static_assert(D == PD_BF16 || D == PD_F16, "no such step");
    if (D == PD_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Copies 16 bytes, both addresses 16-aligned, through the L2 cache only. If not valid, does not read `global` and writes
 * zeros. This thread sees the bytes after a wait for their group; others after a barrier as well. */
PD_DEVICE void pd_cp_async16(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(pd_shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

PD_DEVICE void pd_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of this thread's latest groups are in flight. */
template <int pending> PD_DEVICE void pd_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* ---- launch ---- */

#define PD_SHARED_WITHOUT_ASKING 49152u

template <typename... P, typename... A>
pd_status pd_cuda_launch(struct pd_error *err, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                         size_t shared_bytes, void *stream, A... arguments)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return PD_OK;
    cudaError_t code = cudaSuccess;
    if (shared_bytes > PD_SHARED_WITHOUT_ASKING)
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (code == cudaSuccess) kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(arguments...);
    /* From the launch; or left by cudaFuncSetAttribute, which the next kernel's launch would report. */
    const cudaError_t left = cudaGetLastError();
    if (code == cudaSuccess) code = left;
    if (code == cudaSuccess) return PD_OK;
    return pd_error_set(err, PD_DEVICE_LOST, PD_WHERE, 0, "kernel %s, grid %u x %u x %u of %u threads, %zu bytes shared: %s",
                        name, grid.x, grid.y, grid.z, block.x * block.y * block.z, shared_bytes, cudaGetErrorString(code));
}

#endif

#define PD_LAUNCH(err, kernel, grid, block, shared_bytes, stream, ...) \
    pd_cuda_launch(err, #kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

PD_DEVICE uint32_t pd_pack_bf16(float low, float high)
{
    return (uint32_t)pd_bf16_of_f32(low) | (uint32_t)pd_bf16_of_f32(high) << 16;
}

PD_DEVICE uint32_t pd_pack_f16(float low, float high)
{
    return (uint32_t)pd_f16_of_f32(low) | (uint32_t)pd_f16_of_f32(high) << 16;
}

/* Runs the statement with `D` as a constant equal to dtype. */
#define PD_WITH_DTYPE(dtype, D, ...)             \
    do {                                         \
        if ((dtype) == PD_F32) {                 \
            constexpr enum pd_dtype D = PD_F32;  \
            __VA_ARGS__;                         \
        } else if ((dtype) == PD_BF16) {         \
            constexpr enum pd_dtype D = PD_BF16; \
            __VA_ARGS__;                         \
        } else {                                 \
            constexpr enum pd_dtype D = PD_F16;  \
            __VA_ARGS__;                         \
        }                                        \
    } while (0)
