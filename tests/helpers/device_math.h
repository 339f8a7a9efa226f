/* The CPU's table over memory that the host cannot touch (device_memory.h): each operation opens what is its rank's, and
 * nothing else does. So whoever passes here hands addresses on and never looks behind them. */
#ifndef PD_TESTS_DEVICE_MATH_H
#define PD_TESTS_DEVICE_MATH_H

#include "tests/helpers/device_memory.h"
#include "trainer/math/math.h"

struct device_math {
    struct pd_math base; /* first */
    struct pd_math *near;
    struct device_memory *far;
};

static inline struct device_math *device_math_of(struct pd_math *math)
{
    return (struct device_math *)math;
}

#define FAR_RUN(far_begin, far_end, call)                \
    do {                                                 \
        struct device_math *self = device_math_of(math); \
        struct pd_math *const near = self->near;         \
        far_begin(self->far);                            \
        const pd_status far_st = near->ops->call;        \
        far_end(self->far);                              \
        return far_st;                                   \
    } while (0)

#define FAR_SLOT(name, operands)                                                                         \
    static inline pd_status far_##name(struct pd_math *math, const operands *what, struct pd_error *err) \
    {                                                                                                    \
        FAR_RUN(far_hide_host, far_show_host, name(near, what, err));                                    \
    }

FAR_SLOT(gemm, struct pd_gemm)
FAR_SLOT(rmsnorm_forward, struct pd_norm)
FAR_SLOT(rmsnorm_backward, struct pd_norm)
FAR_SLOT(layernorm_forward, struct pd_norm)
FAR_SLOT(layernorm_backward, struct pd_norm)
FAR_SLOT(rope, struct pd_rope)
FAR_SLOT(attention_forward, struct pd_attention)
FAR_SLOT(attention_backward, struct pd_attention)
FAR_SLOT(attention_delta, struct pd_attention)
FAR_SLOT(attention_backward_queries, struct pd_attention)
FAR_SLOT(attention_backward_keys, struct pd_attention)
FAR_SLOT(finish, struct pd_finish)
FAR_SLOT(embedding_forward, struct pd_embedding)
FAR_SLOT(embedding_backward, struct pd_embedding)
FAR_SLOT(logits_max, struct pd_cross_entropy)
FAR_SLOT(logits_sum, struct pd_cross_entropy)
FAR_SLOT(logits_join, struct pd_logits_join)
FAR_SLOT(cross_entropy, struct pd_cross_entropy)
FAR_SLOT(quantize, struct pd_quantize)

#define FAR_CALL(name, parameters, ...)                                      \
    static inline pd_status far_##name parameters                            \
    {                                                                        \
        FAR_RUN(far_hide_host, far_show_host, name(near, __VA_ARGS__, err)); \
    }

FAR_CALL(swiglu_forward,
         (struct pd_math * math, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up, void *out,
          struct pd_error *err),
         rows, columns, dtype, gate_up, out)
FAR_CALL(swiglu_backward,
         (struct pd_math * math, uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up, const void *dout,
          void *dgate_up, struct pd_error *err),
         rows, columns, dtype, gate_up, dout, dgate_up)
FAR_CALL(gelu_forward,
         (struct pd_math * math, uint64_t count, enum pd_dtype dtype, const void *x, void *out, struct pd_error *err), count,
         dtype, x, out)
FAR_CALL(gelu_backward,
         (struct pd_math * math, uint64_t count, enum pd_dtype dtype, const void *x, const void *dout, void *dx,
          struct pd_error *err),
         count, dtype, x, dout, dx)
FAR_CALL(column_sum,
         (struct pd_math * math, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype, const void *x, float *out,
          struct pd_error *err),
         rows, n, ld, dtype, x, out)
FAR_CALL(add,
         (struct pd_math * math, uint64_t n, float *sum, enum pd_dtype dtype, const void *piece, bool first,
          struct pd_error *err),
         n, sum, dtype, piece, first)
FAR_CALL(cast,
         (struct pd_math * math, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype, const void *src,
          struct pd_error *err),
         n, dst_dtype, dst, src_dtype, src)
FAR_CALL(row_squares,
         (struct pd_math * math, uint64_t rows, uint64_t columns, const float *x, double *sums, struct pd_error *err), rows,
         columns, x, sums)
FAR_CALL(superaccumulate,
         (struct pd_math * math, uint64_t n, const double *terms, struct pd_superaccumulator *sum, struct pd_error *err), n,
         terms, sum)
FAR_CALL(adam,
         (struct pd_math * math, const struct pd_adam_step *step, const struct pd_adam_range *range, struct pd_error *err),
         step, range)

static inline pd_status far_copy(struct pd_math *math, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    FAR_RUN(far_open, far_close, copy(near, dst, src, bytes, err));
}

static inline pd_status far_sync(struct pd_math *math, struct pd_error *err)
{
    (void)math, (void)err;
    return PD_OK;
}

static inline pd_status far_mark(struct pd_math *math, struct pd_math_mark *mark, struct pd_error *err)
{
    (void)math, (void)mark, (void)err;
    return PD_OK;
}

static inline pd_status far_reach(struct pd_math *math, const struct pd_math_mark *mark, struct pd_error *err)
{
    (void)math, (void)mark, (void)err;
    return PD_OK;
}

static inline void far_free(struct pd_math *math)
{
    (void)math;
}

#define FAR_ENTRY(name) .name = far_##name
static const struct pd_math_ops far_ops = {.name = "far",
                                           FAR_ENTRY(gemm),
                                           FAR_ENTRY(rmsnorm_forward),
                                           FAR_ENTRY(rmsnorm_backward),
                                           FAR_ENTRY(layernorm_forward),
                                           FAR_ENTRY(layernorm_backward),
                                           FAR_ENTRY(rope),
                                           FAR_ENTRY(attention_forward),
                                           FAR_ENTRY(attention_backward),
                                           FAR_ENTRY(attention_delta),
                                           FAR_ENTRY(attention_backward_queries),
                                           FAR_ENTRY(attention_backward_keys),
                                           FAR_ENTRY(finish),
                                           FAR_ENTRY(swiglu_forward),
                                           FAR_ENTRY(swiglu_backward),
                                           FAR_ENTRY(gelu_forward),
                                           FAR_ENTRY(gelu_backward),
                                           FAR_ENTRY(embedding_forward),
                                           FAR_ENTRY(embedding_backward),
                                           FAR_ENTRY(logits_max),
                                           FAR_ENTRY(logits_sum),
                                           FAR_ENTRY(logits_join),
                                           FAR_ENTRY(cross_entropy),
                                           FAR_ENTRY(quantize),
                                           FAR_ENTRY(column_sum),
                                           FAR_ENTRY(add),
                                           FAR_ENTRY(cast),
                                           FAR_ENTRY(row_squares),
                                           FAR_ENTRY(superaccumulate),
                                           FAR_ENTRY(adam),
                                           FAR_ENTRY(copy),
                                           FAR_ENTRY(sync),
                                           FAR_ENTRY(mark),
                                           FAR_ENTRY(reach),
                                           FAR_ENTRY(free)};

/* near is borrowed, and so is far. */
static inline struct pd_math *device_math_init(struct device_math *math, struct pd_math *near, struct device_memory *far)
{
    *math = (struct device_math){*near, near, far};
    math->base.ops = &far_ops;
    return &math->base;
}

/* The CPU's table with one thread, workspaces in an arena of its own, freed after it. */
static inline pd_status far_near_new(struct pd_arena **ret_arena, struct pd_math **ret_math, struct pd_error *err)
{
    struct pd_memory_plan plan;
    struct pd_arena *dry;
    struct pd_math *none;
    PD_TRY(pd_arena_new_dry(&dry, err));
    PD_TRY(pd_math_cpu_new(NULL, 1, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, dry, &none, err));
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    PD_TRY(pd_arena_new(&plan, ret_arena, err));
    return pd_math_cpu_new(NULL, 1, PD_NUMERICS_INVARIANT, PD_ISA_AUTO, *ret_arena, ret_math, err);
}

#endif
