/* The table of one instruction set. */
#include "trainer/math/cpu_ops.h"

const struct pd_math_ops PD_CPU(ops) = {
    .name = "cpu",
    .gemm = pd_cpu_gemm_slot,
    .rmsnorm_forward = PD_CPU(rmsnorm_forward),
    .rmsnorm_backward = PD_CPU(rmsnorm_backward),
    .layernorm_forward = PD_CPU(layernorm_forward),
    .layernorm_backward = PD_CPU(layernorm_backward),
    .rope = PD_CPU(rope),
    .attention_forward = PD_CPU(attention_forward),
    .attention_backward = PD_CPU(attention_backward),
    .attention_delta = PD_CPU(attention_delta),
    .attention_backward_queries = PD_CPU(attention_backward_queries),
    .attention_backward_keys = PD_CPU(attention_backward_keys),
    .swiglu_forward = PD_CPU(swiglu_forward),
    .swiglu_backward = PD_CPU(swiglu_backward),
    .gelu_forward = PD_CPU(gelu_forward),
    .gelu_backward = PD_CPU(gelu_backward),
    .embedding_forward = PD_CPU(embedding_forward),
    .embedding_backward = PD_CPU(embedding_backward),
    .cross_entropy = PD_CPU(cross_entropy),
    .column_sum = PD_CPU(column_sum),
    .add = PD_CPU(add),
    .cast = PD_CPU(cast),
    .row_squares = PD_CPU(row_squares),
    .free = pd_cpu_free_slot,
};
