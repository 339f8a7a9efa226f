/* The operations of a training step, behind one constant table, so that CPU and CUDA stand side by side.
 *
 * Words: R rows = tokens of a leaf (sequences * T); C hidden size; V vocabulary; H query heads, K key-value heads, D head
 * size. "act" is the activation dtype (PD_F32, PD_BF16, PD_F16): what may be saved, sent or recomputed is rounded to it,
 * once, to nearest even, before anyone reads it. Arithmetic inside an operation is fp32.
 *
 * Bits (numerics invariant). Every GEMM element is one chain of fused multiply-adds in ascending k, fp32, from 0 (or from
 * the old C when accumulating); bias and residual are added after it; one rounding at the end. Sums over the last dimension
 * use 16 virtual lanes (lane l adds elements l, l+16, ... in order; the lanes are then added as a binary tree: 0+8, 1+9,
 * ..., then +4, +2, +1). Sums over rows add in ascending row order. Results depend on operands and sizes alone: not on
 * threads, M, N, leading dimensions or instruction set. Numerics fast lets a vendor library do the GEMM.
 *
 *   ownership  all pointers are borrowed; they are device memory of the table's device
 *   errors     pd_status of the device; wrong sizes are PD_CHECK failures (our bug)
 *   threads    one caller per pd_math
 */
#ifndef PD_TRAINER_MATH_MATH_H
#define PD_TRAINER_MATH_MATH_H

#include "ckpt/base/arena.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/tensor.h"

enum pd_numerics_mode { PD_NUMERICS_INVARIANT, PD_NUMERICS_FAST };

struct pd_matrix {
    void *data; /* row-major */
    enum pd_dtype dtype;
    uint64_t ld; /* elements from row to row */
};

/* C (m,n) = op(A) (m,k) * op(B) (k,n) [+ old C] [+ bias (n)] [+ residual (m,n)] */
struct pd_gemm {
    uint64_t m, n, k;
    struct pd_matrix a, b, c; /* A is (m,k), or (k,m) when trans_a; B is (k,n), or (n,k) when trans_b */
    bool trans_a, trans_b;
    bool accumulate;  /* the chain starts from C, which is fp32 */
    const void *bias; /* (n) of bias_dtype, or NULL */
    enum pd_dtype bias_dtype;
    struct pd_matrix residual; /* data NULL: none */
};

struct pd_norm {
    uint64_t rows, columns;
    enum pd_dtype dtype; /* act: x, out, dout, dx, residual; weight and bias too */
    float epsilon;
    const void *x;      /* (R,C) */
    const void *weight; /* (C) */
    const void *bias;   /* (C), layer norm; NULL for RMS norm */
    float *mean;        /* (R), layer norm; NULL for RMS norm */
    float *rstd;        /* (R) */
    void *out;          /* (R,C) forward */
    /* backward */
    const void *dout;       /* (R,C) */
    const void *dresidual;  /* (R,C) added to dx before its rounding, or NULL; may be dx itself */
    void *dx;               /* (R,C) */
    float *dweight, *dbias; /* (C) overwritten; dbias NULL for RMS norm */
};

/* Rotates pairs (x[i], x[i + D/2]) of each head in place (Su et al. 2021, the Hugging Face arrangement). */
struct pd_rope {
    uint64_t rows;
    uint32_t heads, head_size;
    enum pd_dtype dtype;
    void *x; /* (R, heads*D), ld between rows */
    uint64_t ld;
    const int32_t *positions; /* (R) */
    const float *cos_sin;     /* (positions, D/2, 2) */
    bool inverse;             /* backward: rotates the other way */
};

/* Causal grouped-query attention; never holds T x T (Dao et al. 2022). Query t sees keys first[t] .. t of its sequence. */
struct pd_attention {
    uint32_t sequences, length; /* R = sequences * length */
    uint32_t heads, kv_heads, head_size;
    enum pd_dtype dtype;
    float scale;           /* 1/sqrt(D) */
    const void *q, *k, *v; /* (R, H*D), (R, K*D), (R, K*D), rows ld_qkv apart */
    uint64_t ld_qkv;
    const int32_t *first; /* (R) first visible key position in the sequence, ascending; NULL: 0 */
    void *out;            /* (R, H*D) dense */
    float *lse;           /* (sequences, H, T) log of the sum of exponentials of scaled scores */
    /* backward */
    const void *dout;   /* (R, H*D) */
    float *delta;       /* (sequences, H, T) scratch */
    void *dq, *dk, *dv; /* as q, k, v; rows ld_qkv apart */
};

/* Loss and its gradient for rows of logits. */
struct pd_cross_entropy {
    uint64_t rows, vocab, ld; /* logits (rows, vocab), ld apart */
    uint32_t chunks;          /* virtual_tp: the sum over the vocabulary is a tree over chunks of ceil(vocab/chunks) */
    float *logits;            /* fp32 */
    const int32_t *targets;   /* (rows); negative: not counted, loss 0, gradient 0 */
    float *losses;            /* (rows) -log p[target] */
    void *dlogits; /* (rows, vocab) of act, rows ld_dlogits apart: p - onehot, times scale; may overlay logits row by
                      row; NULL: loss only */
    uint64_t ld_dlogits;
    enum pd_dtype dtype;
    float scale;
};

struct pd_embedding {
    uint64_t rows, columns, vocab;
    enum pd_dtype dtype;
    const int32_t *tokens, *positions; /* (R) */
    const void *token_table;           /* (V,C) */
    const void *position_table;        /* (context, C) or NULL */
    uint64_t context;
    void *out;              /* (R,C) forward */
    const void *dout;       /* (R,C) backward */
    float *dtoken_table;    /* (V,C) overwritten: zero, then rows added in ascending order; NULL: skip */
    float *dposition_table; /* (context,C) overwritten; NULL: none */
};

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
    pd_status (*cross_entropy)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
    /* out (n) fp32 = sum over rows of x (rows, n), rows ld apart, ascending: the gradient of a bias */
    pd_status (*column_sum)(struct pd_math *, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype, const void *x,
                            float *out, struct pd_error *);
    /* sum (n) fp32 = piece, or sum + piece: gradients of one leaf after the other */
    pd_status (*add)(struct pd_math *, uint64_t n, float *sum, enum pd_dtype, const void *piece, bool first,
                     struct pd_error *);
    pd_status (*cast)(struct pd_math *, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                      const void *src, struct pd_error *);
    /* sums (rows) fp64 = sum over columns of x^2, in fp64, 16 lanes; x (rows, columns) fp32 dense */
    pd_status (*row_squares)(struct pd_math *, uint64_t rows, uint64_t columns, const float *x, double *sums,
                             struct pd_error *);
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
PD_MUST_USE pd_status pd_cross_entropy(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err);
PD_MUST_USE pd_status pd_column_sum(struct pd_math *math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype,
                                    const void *x, float *out, struct pd_error *err);
PD_MUST_USE pd_status pd_add(struct pd_math *math, uint64_t n, float *sum, enum pd_dtype dtype, const void *piece,
                             bool first, struct pd_error *err);
PD_MUST_USE pd_status pd_cast(struct pd_math *math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                              const void *src, struct pd_error *err);
PD_MUST_USE pd_status pd_row_squares(struct pd_math *math, uint64_t rows, uint64_t columns, const float *x, double *sums,
                                     struct pd_error *err);

#endif
