/* The GPU behind the table of math.h: our own kernels, and cuBLASLt for products.
 *
 * Every operation is put on one stream and returns; what it wrote may be read on that stream, or after it was waited for.
 * All operands are device memory, but pd_finish.parts and the structs themselves, which are the host's and read before the
 * call returns.
 *
 *   bits      the same run after run. Equal to the CPU's where trainer/math/cuda/README.md says so; products are not
 *   errors    PD_UNSUPPORTED: a build without CUDA, or a size that no kernel is made for; PD_DEVICE_LOST. A kernel that
 *             fails while it runs shows where the stream is waited for
 *   threads   one caller a table */
#pragma once

#include "offload/device_spans.h"
#include "trainer/math/math.h"

struct pd_math_cuda_options {
    void *stream; /* cudaStream_t, borrowed; the device it belongs to is the calling thread's current one */
    enum pd_numerics_mode mode;
    bool any_shape; /* virtual_tp or virtual_sp above 1: layouts cut the sides of products (cuda/gemm.h) */
    const struct pd_attention
        *attention; /* sizes of the largest; pointers are not looked at. NULL: no attention is asked for */
    /* Borrowed; where the time of operations is noted, on `lane`, the same stream. NULL: not. */
    struct pd_device_spans *spans;
    struct pd_stream *lane;
};

/* The kernels that a GPU of this capability (90 for 9.0) gets from this build, for people: "attention wgmma (sm_90a), GEMM
 * cuBLASLt". attention NULL: of heads of 128 in bf16. "none" in a build without CUDA. */
void pd_math_cuda_kernels(uint32_t capability, const struct pd_attention *attention, char *ret_text, size_t bytes);
/* Shapes of GEMMs so far that our plain kernel multiplied, many times slower, since cuBLASLt had no algorithm for them. */
uint32_t pd_math_cuda_plain_shapes(const struct pd_math *math);

/* Workspaces come from `arena` (PD_MEMORY_BUFFERS), which gives out device memory; on a dry arena *ret_math is NULL. */
PD_MUST_USE pd_status pd_math_cuda_new(const struct pd_math_cuda_options *options, struct pd_arena *arena,
                                       struct pd_math **ret_math, struct pd_error *err);
