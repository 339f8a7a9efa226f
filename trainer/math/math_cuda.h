/* GPU backend of math.h: our own kernels, and cuBLASLt for matrix products.
 *
 * Every operation is queued on one stream. Read its output on that stream, or after waiting for the stream. All operands are
 * device memory, except pd_finish.parts and the structs themselves: those are host memory, read before the call returns.
 *
 *   bits      the same in every run. Equal to the CPU's where trainer/math/cuda/README.md says so; not for products
 *   errors    PD_UNSUPPORTED: a build without CUDA, or a size without a kernel; PD_DEVICE_LOST. A kernel that fails while
 *             running is reported when the stream is waited for
 *   threads   one caller per table */
#pragma once

#include "offload/device_spans.h"
#include "trainer/math/math.h"

struct pd_math_cuda_options {
    void *stream; /* cudaStream_t, borrowed; its device is the calling thread's current one */
    enum pd_numerics_mode mode;
    bool any_shape;           /* virtual_tp or virtual_sp above 1: layouts change the shapes of products (cuda/gemm.h) */
    uint32_t multiprocessors; /* for products, the same under every layout; 0: all */
    const struct pd_attention *attention; /* largest sizes; its pointers are not used. NULL: no attention */
    /* Records the time of operations on `lane`, the same stream. Borrowed. NULL: not recorded. */
    struct pd_device_spans *spans;
    struct pd_stream *lane;
};

/* Describes the kernels of this build for a GPU of this capability (90 for 9.0): "attention wgmma (sm_90a), GEMM cuBLASLt".
 * attention NULL: heads of 128 in bf16. "none" in a build without CUDA. */
void pd_math_cuda_kernels(uint32_t capability, const struct pd_attention *attention, char *ret_text, size_t bytes);
/* Number of GEMM shapes so far without a cuBLASLt algorithm; our plain kernel, many times slower, computes them. */
uint32_t pd_math_cuda_plain_shapes(const struct pd_math *math);

/* Loads every kernel of the program onto the calling thread's device. CUDA otherwise loads one at its first launch and may
 * wait there for kernels that run: with one of NCCL's, whose peers wait for this rank, for ever. Call before the first
 * collective. Algorithms of cuBLASLt are loaded by the first product of their shape: rehearse them.
 *   errors   PD_NO_MEMORY, PD_DEVICE_LOST */
PD_MUST_USE pd_status pd_math_cuda_load(struct pd_error *err);
/* Until it is switched off, products load their algorithms, and all other operations do nothing. Products write to C; those
 * whose rows data decides are made with each number of rows that has an algorithm of its own, up to m or k. A shape that
 * was not rehearsed is logged when its first product is made. */
void pd_math_cuda_rehearse(struct pd_math *math, bool on);
uint32_t pd_math_cuda_kernel_count(void); /* how many those are; 0: a build without CUDA */

/* Workspaces come from `arena` (PD_MEMORY_BUFFERS), which must provide device memory; on a dry arena *ret_math is NULL. */
PD_MUST_USE pd_status pd_math_cuda_new(const struct pd_math_cuda_options *options, struct pd_arena *arena,
                                       struct pd_math **ret_math, struct pd_error *err);
