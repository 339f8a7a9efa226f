/* Launchers of the CUDA kernels: what a table of operations calls. The same sources run on the host, see grid.h.
 *
 * Operands are those of trainer/math/operations.h and mean what they mean in trainer/math/math.h; a wrapper of math.c has
 * checked them. Launchers only put work on the stream and return.
 *
 *   ownership  operands are device memory, borrowed until the stream has passed the call; the structs themselves and the
 *              array pd_finish.parts are host memory and read before the call returns
 *   stream     a cudaStream_t; NULL is the default stream. Of kernels on the host it is ignored
 *   errors     PD_UNSUPPORTED: a size no kernel is made for; PD_DEVICE_LOST: the launch failed
 *   bits       the same run after run, and whatever the grid; where README.md says so, those of the CPU backend */
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
    /* Attention's: how many items have been begun. 0 before a call, and the call's last block leaves it so; calls are on one
     * stream. NULL where nobody counts (kernels of mma.sync, plain ones). */
    uint32_t *begun;
};
#define PD_CUDA_BEGUN_BYTES 256u /* apart from what others write */

/* pd_cuda_norm_forward(stream, norm, err) and so on. Of superaccumulate, `sum` is device memory whose zero bytes are an empty
 * sum; it is read where it was copied to the host, by pd_superaccumulator_normalise, after at most 2^30 terms. */
#define PD_CUDA_LAUNCHER(name, operands, ...) \
    PD_MUST_USE pd_status pd_cuda_##name(void *stream, PD_MATH_OPERANDS operands, struct pd_error *err);
PD_MATH_KERNELS(PD_CUDA_LAUNCHER)
PD_MATH_PLAIN(PD_CUDA_LAUNCHER)
#undef PD_CUDA_LAUNCHER
PD_MUST_USE pd_status pd_cuda_gemm_plain(void *stream, const struct pd_gemm *gemm, struct pd_error *err);

/* Bytes that norm_backward of these sizes needs, at most PD_CUDA_NORM_WORKSPACE_MAX; pointers are not looked at. */
#define PD_CUDA_NORM_WORKSPACE_MAX (UINT64_C(32) << 20)
uint64_t pd_cuda_norm_workspace_bytes(const struct pd_norm *norm);
PD_MUST_USE pd_status pd_cuda_norm_backward(void *stream, const struct pd_norm *norm, struct pd_cuda_workspace workspace,
                                            struct pd_error *err);

/* Bytes that attention_backward and attention_backward_keys of these sizes need; pointers are not looked at. The others need
 * the counter alone. */
uint64_t pd_cuda_attention_workspace_bytes(const struct pd_attention *attention);
/* Once, before the workspace is first used. */
PD_MUST_USE pd_status pd_cuda_attention_counter(void *stream, struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_forward(void *stream, const struct pd_attention *attention,
                                                struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward(void *stream, const struct pd_attention *attention,
                                                 struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward_queries(void *stream, const struct pd_attention *attention,
                                                         struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward_keys(void *stream, const struct pd_attention *attention,
                                                      struct pd_cuda_workspace workspace, struct pd_error *err);

#ifdef __cplusplus
}
#endif
