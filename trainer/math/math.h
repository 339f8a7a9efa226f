/* The operations of a training step, behind one constant table, so that CPU and CUDA stand side by side.
 *
 * Words: R rows = tokens of a micro-batch (sequences * T); C hidden size; V vocabulary; H query heads, K key-value heads, D
 * head size. "act" is the activation dtype (PD_F32, PD_BF16, PD_F16): what may be saved, sent or recomputed is rounded to
 * it, once, to nearest even, before anyone reads it. Arithmetic inside an operation is fp32.
 *
 * Bits (numerics invariant). Every GEMM element is one chain of fused multiply-adds in ascending k, fp32, from 0 (or from
 * the old C when accumulating); bias and residual are added after it; one rounding at the end. Sums over the last dimension
 * use 16 virtual lanes (lane l adds elements l, l+16, ... in order; the lanes are then added as a binary tree: 0+8, 1+9,
 * ..., then +4, +2, +1). Sums over rows add in ascending row order. Results depend on operands and sizes alone: not on
 * threads, M, N, leading dimensions or instruction set. Numerics fast lets a vendor library do the GEMM.
 *
 *   ownership  all pointers are borrowed; they are device memory of the table's device, but pd_finish.parts and
 *              pd_embedding.piece_rows: arrays of the host
 *   order      operations happen in the order of calls. A GPU's have only been queued when a call returns, and what it read
 *              must stay until pd_math_sync
 *   errors     pd_status of the device; wrong sizes are PD_CHECK failures (our bug)
 *   threads    one caller per pd_math
 */
#ifndef PD_TRAINER_MATH_MATH_H
#define PD_TRAINER_MATH_MATH_H

#include "ckpt/base/arena.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/thread_pool.h"
#include "offload/cpu_adam.h"
#include "trainer/math/operations.h"
#include "trainer/math/superaccumulator.h"

enum pd_numerics_mode { PD_NUMERICS_INVARIANT, PD_NUMERICS_FAST };

struct pd_math;

struct pd_math_ops {
    const char *name;
    pd_status (*gemm)(struct pd_math *, const struct pd_gemm *, struct pd_error *);
    pd_status (*rmsnorm_forward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
    pd_status (*rmsnorm_backward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
    pd_status (*layernorm_forward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
    pd_status (*layernorm_backward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
    pd_status (*rope)(struct pd_math *, const struct pd_rope *, struct pd_error *);
    pd_status (*attention_forward)(struct pd_math *, const struct pd_attention *, struct pd_error *);
    pd_status (*attention_backward)(struct pd_math *, const struct pd_attention *, struct pd_error *);
    /* of parts; see struct pd_attention */
    pd_status (*attention_delta)(struct pd_math *, const struct pd_attention *, struct pd_error *);
    pd_status (*attention_backward_queries)(struct pd_math *, const struct pd_attention *, struct pd_error *);
    pd_status (*attention_backward_keys)(struct pd_math *, const struct pd_attention *, struct pd_error *);
    pd_status (*finish)(struct pd_math *, const struct pd_finish *, struct pd_error *);
    /* gate_up (R, 2F): gate then up; out (R,F) = silu(gate) * up. Backward writes dgate_up (R, 2F), which may be gate_up. */
    pd_status (*swiglu_forward)(struct pd_math *, uint64_t rows, uint64_t columns, enum pd_dtype, const void *gate_up,
                                void *out, struct pd_error *);
    pd_status (*swiglu_backward)(struct pd_math *, uint64_t rows, uint64_t columns, enum pd_dtype, const void *gate_up,
                                 const void *dout, void *dgate_up, struct pd_error *);
    /* tanh form (Hendrycks and Gimpel 2016). dx may be x or dout. */
    pd_status (*gelu_forward)(struct pd_math *, uint64_t count, enum pd_dtype, const void *x, void *out, struct pd_error *);
    pd_status (*gelu_backward)(struct pd_math *, uint64_t count, enum pd_dtype, const void *x, const void *dout, void *dx,
                               struct pd_error *);
    pd_status (*embedding_forward)(struct pd_math *, const struct pd_embedding *, struct pd_error *);
    pd_status (*embedding_backward)(struct pd_math *, const struct pd_embedding *, struct pd_error *);
    pd_status (*logits_max)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
    pd_status (*logits_sum)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
    pd_status (*logits_join)(struct pd_math *, const struct pd_logits_join *, struct pd_error *);
    pd_status (*cross_entropy)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
    /* out (n) fp32 = sum over rows of x (rows, n), rows ld apart, ascending: the gradient of a bias */
    pd_status (*column_sum)(struct pd_math *, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype, const void *x,
                            float *out, struct pd_error *);
    /* sum (n) fp32 = piece, or sum + piece: gradients of one micro-batch after the other */
    pd_status (*add)(struct pd_math *, uint64_t n, float *sum, enum pd_dtype, const void *piece, bool first,
                     struct pd_error *);
    pd_status (*cast)(struct pd_math *, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                      const void *src, struct pd_error *);
    pd_status (*quantize)(struct pd_math *, const struct pd_quantize *, struct pd_error *);
    pd_status (*round)(struct pd_math *, const struct pd_round *, struct pd_error *);
    /* sums (rows) fp64 = sum over columns of x^2, in fp64, 16 lanes; x (rows, columns) fp32 dense */
    pd_status (*row_squares)(struct pd_math *, uint64_t rows, uint64_t columns, const float *x, double *sums,
                             struct pd_error *);
    /* *sum += terms (n), exactly: as integers, so in any order (superaccumulator.h). A GPU does not normalise. */
    pd_status (*superaccumulate)(struct pd_math *, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                                 struct pd_error *);
    /* AdamW over one range; step and range themselves are host memory */
    pd_status (*adam)(struct pd_math *, const struct pd_adam_step *, const struct pd_adam_range *, struct pd_error *);
    /* dst = src, in the order of operations: memory of the device or of the host on either side. Overlap is not allowed. */
    pd_status (*copy)(struct pd_math *, void *dst, const void *src, uint64_t bytes, struct pd_error *);
    /* Returns when everything before it has happened; copies to the host may be read then, copies from it written. */
    pd_status (*sync)(struct pd_math *, struct pd_error *);
    /* Sets the mark behind everything that was called so far; reach returns when all of that has happened, without waiting
     * for what was called later. */
    pd_status (*mark)(struct pd_math *, struct pd_math_mark *, struct pd_error *);
    pd_status (*reach)(struct pd_math *, const struct pd_math_mark *, struct pd_error *);
    /* A run of operations that comes again with the same operands. replay queues what was kept under the key, or begins to
     * keep what follows; keep ends that, with is_whole false after a failure. In between nobody waits. *ret_again: what
     * followed was recorded and cannot be queued, since there is no memory for it; the caller does it once more. A CPU keeps
     * nothing. */
    pd_status (*replay)(struct pd_math *, const struct pd_math_key *, bool *ret_done, struct pd_error *);
    pd_status (*keep)(struct pd_math *, bool is_whole, bool *ret_again, struct pd_error *);
    void (*free)(struct pd_math *);
};

struct pd_math {
    const struct pd_math_ops *ops;
    enum pd_numerics_mode mode;
    enum pd_isa isa;             /* resolved */
    struct pd_thread_pool *pool; /* borrowed */
};

/* CPU backend. `pool` is borrowed. Workspaces come from `arena` (PD_MEMORY_BUFFERS), the same bytes for any isa; the dry
 * arena only counts and then *ret_math is NULL. isa AUTO: the best this machine has, or what
 * PERDURE_ISA=portable|avx2|avx512 says. errors  PD_UNSUPPORTED: the asked-for isa is not on this machine, or fast without
 * oneDNN in the build */
PD_MUST_USE pd_status pd_math_cpu_new(struct pd_thread_pool *pool, unsigned thread_count, enum pd_numerics_mode mode,
                                      enum pd_isa isa, struct pd_arena *arena, struct pd_math **ret_math,
                                      struct pd_error *err);
void pd_math_free(struct pd_math *math);

/* One checked wrapper a slot. */
PD_MUST_USE pd_status pd_gemm(struct pd_math *math, const struct pd_gemm *gemm, struct pd_error *err);
PD_MUST_USE pd_status pd_rmsnorm_forward(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_rmsnorm_backward(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_layernorm_forward(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_layernorm_backward(struct pd_math *math, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_rope(struct pd_math *math, const struct pd_rope *rope, struct pd_error *err);
PD_MUST_USE pd_status pd_attention_forward(struct pd_math *math, const struct pd_attention *attention, struct pd_error *err);
PD_MUST_USE pd_status pd_attention_backward(struct pd_math *math, const struct pd_attention *attention,
                                            struct pd_error *err);
PD_MUST_USE pd_status pd_attention_delta(struct pd_math *math, const struct pd_attention *attention, struct pd_error *err);
PD_MUST_USE pd_status pd_attention_backward_queries(struct pd_math *math, const struct pd_attention *attention,
                                                    struct pd_error *err);
PD_MUST_USE pd_status pd_attention_backward_keys(struct pd_math *math, const struct pd_attention *attention,
                                                 struct pd_error *err);
PD_MUST_USE pd_status pd_finish(struct pd_math *math, const struct pd_finish *finish, struct pd_error *err);
PD_MUST_USE pd_status pd_swiglu_forward(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                        const void *gate_up, void *out, struct pd_error *err);
PD_MUST_USE pd_status pd_swiglu_backward(struct pd_math *math, uint64_t rows, uint64_t columns, enum pd_dtype dtype,
                                         const void *gate_up, const void *dout, void *dgate_up, struct pd_error *err);
PD_MUST_USE pd_status pd_gelu_forward(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x, void *out,
                                      struct pd_error *err);
PD_MUST_USE pd_status pd_gelu_backward(struct pd_math *math, uint64_t count, enum pd_dtype dtype, const void *x,
                                       const void *dout, void *dx, struct pd_error *err);
PD_MUST_USE pd_status pd_embedding_forward(struct pd_math *math, const struct pd_embedding *embedding, struct pd_error *err);
PD_MUST_USE pd_status pd_embedding_backward(struct pd_math *math, const struct pd_embedding *embedding,
                                            struct pd_error *err);
PD_MUST_USE pd_status pd_logits_max(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_logits_sum(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_logits_join(struct pd_math *math, const struct pd_logits_join *join, struct pd_error *err);
PD_MUST_USE pd_status pd_cross_entropy(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_column_sum(struct pd_math *math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype,
                                    const void *x, float *out, struct pd_error *err);
PD_MUST_USE pd_status pd_add(struct pd_math *math, uint64_t n, float *sum, enum pd_dtype dtype, const void *piece,
                             bool first, struct pd_error *err);
PD_MUST_USE pd_status pd_cast(struct pd_math *math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                              const void *src, struct pd_error *err);
PD_MUST_USE pd_status pd_quantize(struct pd_math *math, const struct pd_quantize *quantize, struct pd_error *err);
PD_MUST_USE pd_status pd_round(struct pd_math *math, const struct pd_round *round, struct pd_error *err);
PD_MUST_USE pd_status pd_row_squares(struct pd_math *math, uint64_t rows, uint64_t columns, const float *x, double *sums,
                                     struct pd_error *err);
PD_MUST_USE pd_status pd_superaccumulate(struct pd_math *math, uint64_t n, const double *terms,
                                         struct pd_superaccumulator *sum, struct pd_error *err);
PD_MUST_USE pd_status pd_adam(struct pd_math *math, const struct pd_adam_step *step, const struct pd_adam_range *range,
                              struct pd_error *err);
PD_MUST_USE pd_status pd_math_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_math_sync(struct pd_math *math, struct pd_error *err);
PD_MUST_USE pd_status pd_math_mark(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err);
PD_MUST_USE pd_status pd_math_reach(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err);
PD_MUST_USE pd_status pd_math_replay(struct pd_math *math, const struct pd_math_key *key, bool *ret_done,
                                     struct pd_error *err);
PD_MUST_USE pd_status pd_math_keep(struct pd_math *math, bool is_whole, bool *ret_again, struct pd_error *err);

#endif
