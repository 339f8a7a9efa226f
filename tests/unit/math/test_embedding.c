#include "fixture.h"
#include "reference.h"

static void check(struct fixture *f, size_t rows, size_t columns, size_t vocab, enum pd_dtype dtype, bool positions_too)
{
    enum { CONTEXT = 12 };
    uint64_t seed = rows * 131 + columns;
    struct array table = array_random(dtype, vocab * columns, 1, &seed),
                 places = array_random(dtype, CONTEXT * columns, 1, &seed);
    struct array out = array_new(dtype, rows * columns), dout = array_random(dtype, rows * columns, 1, &seed);
    struct array dtable = array_random(PD_F32, vocab * columns, 1, &seed),
                 dplaces = array_random(PD_F32, CONTEXT * columns, 1, &seed);
    int32_t *tokens = malloc(rows * sizeof *tokens), *positions = malloc(rows * sizeof *positions);
    for (size_t r = 0; r < rows; r++) {
        tokens[r] = (int32_t)(random_u64(&seed) % vocab);
        positions[r] = (int32_t)(r % CONTEXT);
    }
    struct pd_embedding e = {.rows = rows,
                             .columns = columns,
                             .vocab = vocab,
                             .dtype = dtype,
                             .tokens = tokens,
                             .positions = positions_too ? positions : NULL,
                             .token_table = table.data,
                             .position_table = positions_too ? places.data : NULL,
                             .context = CONTEXT,
                             .out = out.data,
                             .dout = dout.data,
                             .dtoken_table = dtable.data,
                             .dposition_table = positions_too ? dplaces.data : NULL};
    MUST(pd_embedding_forward(f->math, &e, &err));
    ref_embedding_forward(rows, columns, tokens, positions, table.exact, positions_too ? places.exact : NULL, out.exact);
    array_check(&out, 1, "out");
    MUST(pd_embedding_backward(f->math, &e, &err));
    ref_embedding_backward(rows, columns, vocab, tokens, dout.exact, dtable.exact);
    array_check(&dtable, 1 + (double)rows, "dtable");
    ref_embedding_backward(rows, columns, CONTEXT, positions, dout.exact, dplaces.exact);
    if (positions_too) array_check(&dplaces, 1 + (double)rows, "dplaces");
    struct array *all[] = {&table, &places, &out, &dout, &dtable, &dplaces};
    for (size_t i = 0; i < 6; i++)
        array_free(all[i]);
    free(tokens);
    free(positions);
}

Test(embedding, agrees_with_float64)
{
    static const size_t sizes[][3] = {{1, 1, 1}, {5, 15, 3}, {40, 16, 7}, {33, 17, 50}, {100, 33, 2}, {64, 300, 257}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < 6; s++)
        for (size_t d = 0; d < 3; d++)
            for (int positions = 0; positions < 2; positions++)
                check(&f, sizes[s][0], sizes[s][1], sizes[s][2], all_dtypes[d], positions);
    fixture_free(&f);
}

Test(embedding, a_gradient_may_be_left_out)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    int32_t zeros[2] = {0, 0};
    float dout[2] = {1, 2}, dposition = 9;
    struct pd_embedding e = {.rows = 2,
                             .columns = 1,
                             .vocab = 1,
                             .dtype = PD_F32,
                             .tokens = zeros,
                             .positions = zeros,
                             .context = 1,
                             .dout = dout,
                             .dposition_table = &dposition};
    MUST(pd_embedding_backward(f.math, &e, &err));
    cr_assert_eq(dposition, 3.0f);
    fixture_free(&f);
}

/* ---- ranges ---- */

enum { ROWS = 61, VOCAB = 23, COLUMNS = 81 };

/* Rows of the table that a rank of a cut vocabulary holds: what it writes is what the whole table has there. */
Test(embedding, a_range_of_tokens_is_a_range_of_the_table)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    uint64_t seed = 8;
    int32_t tokens[ROWS];
    struct array dout = array_random(PD_F32, ROWS * COLUMNS, 1, &seed);
    struct array table = array_random(PD_F32, VOCAB * COLUMNS, 1, &seed), whole = array_new(PD_F32, ROWS * COLUMNS);
    struct array parts = array_random(PD_F32, ROWS * COLUMNS, 1, &seed), mark = array_new(PD_F32, ROWS * COLUMNS);
    float *gradient = malloc(VOCAB * COLUMNS * sizeof *gradient), *some = malloc(VOCAB * COLUMNS * sizeof *some);
    memcpy(mark.data, parts.data, ROWS * COLUMNS * sizeof(float));
    for (int r = 0; r < ROWS; r++)
        tokens[r] = (int32_t)(random_u64(&seed) % (r % 3 ? VOCAB : 2));
    struct pd_embedding e = {.rows = ROWS,
                             .columns = COLUMNS,
                             .vocab = VOCAB,
                             .dtype = PD_F32,
                             .tokens = tokens,
                             .token_table = table.data,
                             .out = whole.data,
                             .dout = dout.data,
                             .dtoken_table = gradient};
    MUST(pd_embedding_forward(f.math, &e, &err));
    MUST(pd_embedding_backward(f.math, &e, &err));
    e.out = parts.data;
    for (int32_t begin = 0; begin < VOCAB; begin += 10) {
        e.first_token = begin;
        e.vocab = begin + 10 < VOCAB ? 10 : (uint64_t)(VOCAB - begin);
        e.token_table = (float *)table.data + begin * COLUMNS;
        e.dtoken_table = some;
        if (begin != 10) MUST(pd_embedding_forward(f.math, &e, &err));
        MUST(pd_embedding_backward(f.math, &e, &err));
        cr_assert_arr_eq(some, gradient + begin * COLUMNS, e.vocab * COLUMNS * sizeof *some, "from %d", begin);
    }
    for (int r = 0; r < ROWS; r++) {
        bool skipped = tokens[r] >= 10 && tokens[r] < 20;
        const float *want = (const float *)(skipped ? mark.data : whole.data) + r * COLUMNS;
        cr_assert_arr_eq((float *)parts.data + r * COLUMNS, want, COLUMNS * sizeof *want, "row %d", r);
    }
    e.vocab = 0;
    e.dtoken_table = NULL;
    MUST(pd_embedding_backward(f.math, &e, &err));
    struct array *all[] = {&dout, &table, &whole, &parts, &mark};
    for (size_t i = 0; i < 5; i++)
        array_free(all[i]);
    free(gradient);
    free(some);
    fixture_free(&f);
}
