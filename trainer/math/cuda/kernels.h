/* Launchers of the CUDA kernels, called by the table of operations. The same sources run on the host, see grid.h.
 *
 * Operands are those of trainer/math/operations.h, with the meaning given in trainer/math/math.h; a wrapper of math.c has
 * checked them. Launchers only queue work on the stream and return.
 *
 *   ownership  operands are device memory, borrowed until the stream has passed the call; the structs themselves and the
 *              array pd_finish.parts are host memory, read before the call returns
 *   stream     a cudaStream_t; NULL is the default stream. Ignored by kernels on the host
 *   errors     PD_UNSUPPORTED: no kernel for this size; PD_DEVICE_LOST: the launch failed
 *   bits       the same in every run and for every grid; where README.md says so, equal to the CPU's */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "trainer/math/operation_list.h"
#include "trainer/math/operations.h"
#include "trainer/math/superaccumulator.h"

struct pd_adam_step;    /* offload/cpu_adam.h */
struct pd_update_range; /* its arrays in device memory */

/* Device memory that a launcher may use until the stream has passed it. */
struct pd_cuda_workspace {
    void *data; /* 256-aligned; NULL when bytes is 0 */
    uint64_t bytes;
    /* Attention: items begun. 0 before a call; the call's last block resets it. All calls are on one stream. NULL if not
     * counted (kernels of mma.sync, plain ones). */
    uint32_t *begun;
};
#define PD_CUDA_BEGUN_BYTES 256u /* apart from other writers */

/* pd_cuda_norm_forward(stream, norm, err) etc. In superaccumulate, `sum` is device memory, zero bytes for an empty sum. To
 * read it, copy it to the host and call pd_superaccumulator_normalise, after at most 2^30 terms. */
#define PD_CUDA_LAUNCHER(name, operands, ...) \
    PD_MUST_USE pd_status pd_cuda_##name(void *stream, PD_MATH_OPERANDS operands, struct pd_error *err);
PD_MATH_KERNELS(PD_CUDA_LAUNCHER)
PD_MATH_PLAIN(PD_CUDA_LAUNCHER)
#undef PD_CUDA_LAUNCHER
PD_MUST_USE pd_status pd_cuda_gemm_plain(void *stream, const struct pd_gemm *gemm, struct pd_error *err);

/* Bytes that norm_backward needs for these sizes, at most PD_CUDA_NORM_WORKSPACE_MAX; pointers are ignored. */
#define PD_CUDA_NORM_WORKSPACE_MAX (UINT64_C(32) << 20)
uint64_t pd_cuda_norm_workspace_bytes(const struct pd_norm *norm);
PD_MUST_USE pd_status pd_cuda_norm_backward(void *stream, const struct pd_norm *norm, struct pd_cuda_workspace workspace,
                                            struct pd_error *err);

/* Bytes that attention_backward and attention_backward_keys need for these sizes; pointers are ignored. The others need only
 * the counter. */
uint64_t pd_cuda_attention_workspace_bytes(const struct pd_attention *attention);
/* Call once, before the workspace is first used. */
PD_MUST_USE pd_status pd_cuda_attention_counter(void *stream, struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_forward(void *stream, const struct pd_attention *attention,
                                                struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward(void *stream, const struct pd_attention *attention,
                                                 struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward_queries(void *stream, const struct pd_attention *attention,
                                                         struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward_keys(void *stream, const struct pd_attention *attention,
                                                      struct pd_cuda_workspace workspace, struct pd_error *err);

/* All kernels of this program, onto the calling thread's device; math_cuda.h says why. */
PD_MUST_USE pd_status pd_cuda_kernels_load(struct pd_error *err);
uint32_t pd_cuda_kernel_count(void);

#ifdef __cplusplus
}
#endif
