/* Launchers of the CUDA kernels: what a table of operations calls. The same sources run on the host, see grid.h.
 *
 * Operands are those of trainer/math/operations.h and mean what they mean in trainer/math/math.h; a wrapper of math.c has
 * checked them. Launchers only put work on the stream and return.
 *
 *   ownership  operands are device memory, borrowed until the stream has passed the call; the structs themselves, and the
 *              array pd_finish.parts, are host memory and read before the call returns
 *   stream     a cudaStream_t; NULL is the default stream. Of kernels on the host it is ignored
 *   errors     PD_UNSUPPORTED: a size no kernel is made for; PD_DEVICE_LOST: the launch failed
 *   bits       the same run after run, and whatever the grid; where README.md says so, those of the CPU backend */
#ifndef PD_TRAINER_MATH_CUDA_KERNELS_H
#define PD_TRAINER_MATH_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "trainer/math/operations.h"
#include "trainer/math/superaccumulator.h"

struct pd_adam_step;  /* offload/cpu_adam.h */
struct pd_adam_range; /* its arrays in device memory */

/* Device memory that a launcher may use until the stream has passed it. */
struct pd_cuda_workspace {
    void *data; /* 256-aligned; NULL when bytes is 0 */
    uint64_t bytes;
};

PD_MUST_USE pd_status pd_cuda_gemm_plain(void *stream, const struct pd_gemm *gemm, struct pd_error *err);

PD_MUST_USE pd_status pd_cuda_rmsnorm_forward(void *stream, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_rmsnorm_backward(void *stream, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_layernorm_forward(void *stream, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_layernorm_backward(void *stream, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_rope(void *stream, const struct pd_rope *rope, struct pd_error *err);

/* Bytes that attention_backward and attention_backward_keys of these sizes need; pointers are not looked at. */
uint64_t pd_cuda_attention_workspace_bytes(const struct pd_attention *attention);
PD_MUST_USE pd_status pd_cuda_attention_forward(void *stream, const struct pd_attention *attention, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward(void *stream, const struct pd_attention *attention,
                                                 struct pd_cuda_workspace workspace, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_delta(void *stream, const struct pd_attention *attention, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward_queries(void *stream, const struct pd_attention *attention,
                                                         struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_attention_backward_keys(void *stream, const struct pd_attention *attention,
                                                      struct pd_cuda_workspace workspace, struct pd_error *err);

PD_MUST_USE pd_status pd_cuda_finish(void *stream, const struct pd_finish *finish, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_swiglu_forward(void *stream, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                             const void *gate_up, void *out, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_swiglu_backward(void *stream, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                              const void *gate_up, const void *dout, void *dgate_up, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_gelu_forward(void *stream, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                                           struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_gelu_backward(void *stream, uint64_t count, enum pd_dtype dtype, const void *x,
                                            const void *dout, void *dx, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_embedding_forward(void *stream, const struct pd_embedding *embedding, struct pd_error *err);
/* pd_embedding.piece_rows is host memory. */
PD_MUST_USE pd_status pd_cuda_embedding_backward(void *stream, const struct pd_embedding *embedding, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_logits_max(void *stream, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_logits_sum(void *stream, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_logits_join(void *stream, const struct pd_logits_join *join, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_cross_entropy(void *stream, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_column_sum(void *stream, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype,
                                         const void *x, float *out, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_add(void *stream, uint64_t n, float *sum, enum pd_dtype dtype, const void *piece, bool first,
                                  struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_cast(void *stream, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                                   const void *src, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_quantize(void *stream, const struct pd_quantize *quantize, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_round(void *stream, const struct pd_round *round, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_row_squares(void *stream, uint64_t rows, uint64_t columns, const float *x, double *sums,
                                          struct pd_error *err);

/* *sum += terms (n), exactly. `sum` is device memory whose zero bytes are an empty sum; it is read where it was copied to
 * the host, by pd_superaccumulator_normalise. At most 2^30 terms between normalisations. */
PD_MUST_USE pd_status pd_cuda_superaccumulate(void *stream, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                                              struct pd_error *err);

/* The update of offload/cpu_adam.h; `step` and `range` are host memory. */
PD_MUST_USE pd_status pd_cuda_adam(void *stream, const struct pd_adam_step *step, const struct pd_adam_range *range,
                                   struct pd_error *err);

#ifdef __cplusplus
}
#endif

#endif
