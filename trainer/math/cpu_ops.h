/* The slots of one instruction set, for the files that are compiled once for each. */
#ifndef PD_TRAINER_MATH_CPU_OPS_H
#define PD_TRAINER_MATH_CPU_OPS_H

#include "trainer/math/math_cpu.h"
#include "trainer/math/simd.h"

pd_status PD_CPU(rmsnorm_forward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
pd_status PD_CPU(rmsnorm_backward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
pd_status PD_CPU(layernorm_forward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
pd_status PD_CPU(layernorm_backward)(struct pd_math *, const struct pd_norm *, struct pd_error *);
pd_status PD_CPU(rope)(struct pd_math *, const struct pd_rope *, struct pd_error *);
pd_status PD_CPU(attention_forward)(struct pd_math *, const struct pd_attention *, struct pd_error *);
pd_status PD_CPU(attention_backward)(struct pd_math *, const struct pd_attention *, struct pd_error *);
pd_status PD_CPU(attention_delta)(struct pd_math *, const struct pd_attention *, struct pd_error *);
pd_status PD_CPU(attention_backward_queries)(struct pd_math *, const struct pd_attention *, struct pd_error *);
pd_status PD_CPU(attention_backward_keys)(struct pd_math *, const struct pd_attention *, struct pd_error *);
pd_status PD_CPU(finish)(struct pd_math *, const struct pd_finish *, struct pd_error *);
pd_status PD_CPU(swiglu_forward)(struct pd_math *, uint64_t rows, uint64_t columns, enum pd_dtype, const void *gate_up,
                                 void *out, struct pd_error *);
pd_status PD_CPU(swiglu_backward)(struct pd_math *, uint64_t rows, uint64_t columns, enum pd_dtype, const void *gate_up,
                                  const void *dout, void *dgate_up, struct pd_error *);
pd_status PD_CPU(gelu_forward)(struct pd_math *, uint64_t count, enum pd_dtype, const void *x, void *out, struct pd_error *);
pd_status PD_CPU(gelu_backward)(struct pd_math *, uint64_t count, enum pd_dtype, const void *x, const void *dout, void *dx,
                                struct pd_error *);
pd_status PD_CPU(embedding_forward)(struct pd_math *, const struct pd_embedding *, struct pd_error *);
pd_status PD_CPU(embedding_backward)(struct pd_math *, const struct pd_embedding *, struct pd_error *);
pd_status PD_CPU(logits_max)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
pd_status PD_CPU(logits_sum)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
pd_status PD_CPU(logits_join)(struct pd_math *, const struct pd_logits_join *, struct pd_error *);
pd_status PD_CPU(cross_entropy)(struct pd_math *, const struct pd_cross_entropy *, struct pd_error *);
pd_status PD_CPU(column_sum)(struct pd_math *, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype, const void *x,
                             float *out, struct pd_error *);
pd_status PD_CPU(add)(struct pd_math *, uint64_t n, float *sum, enum pd_dtype, const void *piece, bool first,
                      struct pd_error *);
pd_status PD_CPU(cast)(struct pd_math *, uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype,
                       const void *src, struct pd_error *);
pd_status PD_CPU(quantize)(struct pd_math *, const struct pd_quantize *, struct pd_error *);
pd_status PD_CPU(round)(struct pd_math *, const struct pd_round *, struct pd_error *);
pd_status PD_CPU(row_squares)(struct pd_math *, uint64_t rows, uint64_t columns, const float *x, double *sums,
                              struct pd_error *);

#endif
