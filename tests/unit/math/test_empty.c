/* Shares of nothing: a rank whose heads, columns or words are none calls like any other, with NULL for what it has not. */
#include "fixture.h"

/* A product over no k is 0, or the old C, plus what follows the chain. */
Test(empty, a_product_over_no_k_is_its_epilogue)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    enum { M = 40, N = 50 };
    for (size_t d = 0; d < 3; d++) {
        uint64_t seed = 4;
        enum pd_dtype dtype = all_dtypes[d];
        struct array c = array_random(dtype, M * N, 1, &seed), residual = array_random(dtype, M * N, 1, &seed);
        struct array bias = array_random(dtype, N, 1, &seed), zero = array_new(dtype, M * N);
        struct pd_gemm g = {
            .m = M, .n = N, .a = {NULL, dtype, 0}, .b = {NULL, dtype, 0}, .trans_b = d == 1, .c = {c.data, dtype, N}};
        MUST(pd_gemm(f.math, &g, &err));
        cr_assert_arr_eq(c.data, zero.data, M * N * pd_dtype_bytes(dtype), "%s", pd_dtype_name(dtype));
        g.bias = bias.data;
        g.bias_dtype = dtype;
        g.residual = (struct pd_matrix){residual.data, dtype, N};
        MUST(pd_gemm(f.math, &g, &err));
        for (size_t i = 0; i < M * N; i++) {
            value_put(dtype, zero.data, i, (double)((float)bias.exact[i % N] + (float)residual.exact[i]));
        }
        cr_assert_arr_eq(c.data, zero.data, M * N * pd_dtype_bytes(dtype), "%s with bias", pd_dtype_name(dtype));
        struct array *all[] = {&c, &residual, &bias, &zero};
        for (size_t i = 0; i < 4; i++)
            array_free(all[i]);
    }
    float old[2] = {3, -4};
    struct pd_gemm g = {.m = 1, .n = 2, .accumulate = true, .c = {old, PD_F32, 2}};
    MUST(pd_gemm(f.math, &g, &err));
    cr_assert(old[0] == 3 && old[1] == -4);
    fixture_free(&f);
}

Test(empty, nothing_is_read_or_written)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    struct pd_gemm no_rows = {.n = 5, .k = 7}, no_columns = {.m = 5, .k = 7};
    MUST(pd_gemm(f.math, &no_rows, &err));
    MUST(pd_gemm(f.math, &no_columns, &err));
    struct pd_rope rope = {.rows = 9, .head_size = 64};
    MUST(pd_rope(f.math, &rope, &err));
    MUST(pd_swiglu_forward(f.math, 9, 0, PD_BF16, NULL, NULL, &err));
    MUST(pd_swiglu_backward(f.math, 9, 0, PD_BF16, NULL, NULL, NULL, &err));
    MUST(pd_gelu_forward(f.math, 0, PD_BF16, NULL, NULL, &err));
    MUST(pd_gelu_backward(f.math, 0, PD_BF16, NULL, NULL, NULL, &err));
    MUST(pd_column_sum(f.math, 9, 0, 0, PD_BF16, NULL, NULL, &err));
    MUST(pd_add(f.math, 0, NULL, NULL, &err));
    MUST(pd_cast(f.math, 0, PD_BF16, NULL, PD_F32, NULL, &err));
    MUST(pd_row_squares(f.math, 0, 5, NULL, NULL, &err));
    MUST(pd_copy_rows(f.math, 0, 5, NULL, 0, NULL, 0, &err));
    MUST(pd_copy_rows(f.math, 5, 0, NULL, 0, NULL, 0, &err));
    MUST(pd_copy_pieces(f.math, &(struct pd_copies){.count = 0}, &err));
    MUST(pd_copy_pieces(f.math, &(struct pd_copies){.count = 3}, &err));
    fixture_free(&f);
}

/* No word of the vocabulary is here: the loss is known all the same once others have said what they have. */
Test(empty, no_columns_of_the_vocabulary)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    int32_t targets[2] = {4, -1}, tokens[2] = {1, 2};
    float losses[2], max[2], sum[2], target[2] = {0.5f, 0}, dout[2] = {1, 1};
    struct pd_cross_entropy l = {.rows = 2,
                                 .first_column = 7,
                                 .chunk = 1,
                                 .chunks = 2,
                                 .targets = targets,
                                 .losses = losses,
                                 .dlogits = losses,
                                 .max = max,
                                 .sum = sum,
                                 .target_logit = target};
    MUST(pd_logits_max(f.math, &l, &err));
    cr_assert(isinf(max[0]) && max[0] < 0);
    max[0] = 2;
    MUST(pd_logits_sum(f.math, &l, &err));
    cr_assert_eq(sum[0], 0);
    sum[0] = 1;
    MUST(pd_cross_entropy(f.math, &l, &err));
    cr_assert_eq(losses[0], 1.5f);
    cr_assert_eq(losses[1], 0.0f);
    struct pd_embedding e = {.rows = 2, .columns = 1, .tokens = tokens, .dout = dout};
    MUST(pd_embedding_forward(f.math, &e, &err));
    MUST(pd_embedding_backward(f.math, &e, &err));
    fixture_free(&f);
}
