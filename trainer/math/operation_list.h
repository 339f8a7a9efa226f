/* Lists the operations of a training step: X(name, (operands), their names). The slots of a table, their wrappers, and the
 * declarations of the backends are generated from these lists. For letters and arithmetic see trainer/math/math.h. */
#pragma once

/* clang-format off */
#define PD_MATH_OPERANDS(...) __VA_ARGS__ /* removes the parentheses */

/* A CPU has one of each per instruction set. GPU launchers of these also take a workspace. */
#define PD_MATH_WORKSPACE(X) \
    X(norm_backward, (const struct pd_norm *norm), norm) \
    X(attention_forward, (const struct pd_attention *attention), attention) \
    X(attention_backward, (const struct pd_attention *attention), attention) \
    X(attention_backward_queries, (const struct pd_attention *attention), attention) /* of parts; see struct pd_attention */ \
    X(attention_backward_keys, (const struct pd_attention *attention), attention)

/* A CPU has one of each per instruction set; a GPU has a launcher (cuda/kernels.h). */
#define PD_MATH_KERNELS(X) \
    X(norm_forward, (const struct pd_norm *norm), norm) /* RMS norm, or layer norm with a mean; for heads RoPE too */ \
    X(rope, (const struct pd_rope *rope), rope) \
    X(attention_delta, (const struct pd_attention *attention), attention) /* of parts; see struct pd_attention */ \
    X(finish, (const struct pd_finish *finish), finish) \
    /* gate_up (R, 2F): gate, up; out (R,F) = silu(gate) * up. Backward writes dgate_up (R, 2F), which may be gate_up. */ \
    X(swiglu_forward, (uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up, void *out), \
      rows, columns, dtype, gate_up, out) \
    X(swiglu_backward, (uint64_t rows, uint64_t columns, enum pd_dtype dtype, const void *gate_up, const void *dout, \
      void *dgate_up), rows, columns, dtype, gate_up, dout, dgate_up) \
    /* tanh form (Hendrycks and Gimpel 2016). dx may be x or dout. */ \
    X(gelu_forward, (uint64_t count, enum pd_dtype dtype, const void *x, void *out), count, dtype, x, out) \
    X(gelu_backward, (uint64_t count, enum pd_dtype dtype, const void *x, const void *dout, void *dx), \
      count, dtype, x, dout, dx) \
    X(embedding_forward, (const struct pd_embedding *embedding), embedding) \
    X(embedding_backward, (const struct pd_embedding *embedding), embedding) \
    X(logits_max, (const struct pd_cross_entropy *loss), loss) \
    X(logits_sum, (const struct pd_cross_entropy *loss), loss) \
    X(logits_join, (const struct pd_logits_join *join), join) \
    X(logits_part, (const struct pd_cross_entropy *loss), loss) \
    /* converts sum (rows) of exponentials relative to part_max (rows) to max (rows) */ \
    X(logits_rescale, (uint64_t rows, const float *part_max, const float *max, float *sum), rows, part_max, max, sum) \
    X(cross_entropy, (const struct pd_cross_entropy *loss), loss) \
    /* out (n) fp32 = sum over rows of x (rows, n), rows ld apart, ascending: gradient of a bias */ \
    X(column_sum, (uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype, const void *x, float *out), \
      rows, n, ld, dtype, x, out) \
    /* sum (n) += more, fp32: adds gradients of micro-batches */ \
    X(add, (uint64_t n, float *sum, const float *more), n, sum, more) \
    X(cast, (uint64_t n, enum pd_dtype dst_dtype, void *dst, enum pd_dtype src_dtype, const void *src), \
      n, dst_dtype, dst, src_dtype, src) \
    /* dst = src, rows of `bytes` that start ld_dst and ld_src bytes apart. No overlap. */ \
    X(copy_rows, (uint64_t rows, uint64_t bytes, void *dst, uint64_t ld_dst, const void *src, uint64_t ld_src), \
      rows, bytes, dst, ld_dst, src, ld_src) \
    X(copy_pieces, (const struct pd_copies *copies), copies) /* one launch for all */ \
    X(quantize, (const struct pd_quantize *quantize), quantize) \
    X(terms, (const struct pd_terms *terms), terms) /* gradients to integers, or integers added: terms.h */ \
    X(term_sums, (const struct pd_term_sums *sums), sums) /* and sums of terms to fp32 */ \
    /* sums (rows) fp64 = sum over columns of x^2, in fp64, 16 lanes; x (rows, columns) fp32 dense */ \
    X(row_squares, (uint64_t rows, uint64_t columns, const float *x, double *sums), rows, columns, x, sums) \
    X(route_forward, (const struct pd_route *route), route) \
    X(route_backward, (const struct pd_route *route), route) \
    X(slot_order, (const struct pd_slot_order *order), order) \
    /* tokens (pieces, E) = how many slots of each piece an expert has, from `first` of a slot_order */ \
    X(slot_counts, (uint32_t experts, uint32_t ranks, uint32_t pieces, const int32_t *first, int32_t *tokens), \
      experts, ranks, pieces, first, tokens) \
    X(router_losses, (const struct pd_router_losses *losses), losses) \
    /* out[e] = scale * (tokens[e] * experts - slots) / power of two not below experts: exact unless scale is not */ \
    X(slot_surplus, (uint32_t experts, double slots, float scale, const int32_t *tokens, float *out), \
      experts, slots, scale, tokens, out) \
    /* *range = largest minus smallest of n > 0 values */ \
    X(value_range, (uint64_t n, const float *values, float *range), n, values, range) \
    /* dst row i = src row from[i], rows of `bytes` */ \
    X(gather_rows, (uint64_t rows, uint64_t bytes, const int32_t *from, const void *src, void *dst), \
      rows, bytes, from, src, dst) \
    X(combine, (const struct pd_combine *combine), combine) \
    X(weighted_swiglu_forward, (const struct pd_weighted_swiglu *swiglu), swiglu) \
    X(weighted_swiglu_backward, (const struct pd_weighted_swiglu *swiglu), swiglu)

/* A CPU has one for all instruction sets; a GPU has a launcher. */
#define PD_MATH_PLAIN(X) \
    /* *sum += terms (n), exactly: as integers, so in any order (superaccumulator.h). A GPU does not normalise. */ \
    X(superaccumulate, (uint64_t n, const double *terms, struct pd_superaccumulator *sum), n, terms, sum) \
    /* The same for fp32 terms */ \
    X(superaccumulate_floats, (uint64_t n, const float *terms, struct pd_superaccumulator *sum), n, terms, sum) \
    /* AdamW over one range; the structs step and range are in host memory */ \
    X(adam, (const struct pd_adam_step *step, const struct pd_update_range *range), step, range) \
    /* dst = src, ordered with the operations: each side in device or host memory. No overlap. */ \
    X(copy, (void *dst, const void *src, uint64_t bytes), dst, src, bytes)

/* A CPU has one for all instruction sets; a GPU needs no launcher. */
#define PD_MATH_OTHERS(X) \
    X(gemm, (const struct pd_gemm *gemm), gemm) \
    /* Sets the mark behind everything that was called so far; reach returns when all of that has happened, without waiting \
     * for what was called later. */ \
    X(mark, (struct pd_math_mark *mark), mark) \
    X(reach, (const struct pd_math_mark *mark), mark)
/* clang-format on */

#define PD_MATH_ALL(X) PD_MATH_WORKSPACE(X) PD_MATH_KERNELS(X) PD_MATH_PLAIN(X) PD_MATH_OTHERS(X)
