/* Embedding: looking up and adding gradients back have the CPU's bits: shares of a vocabulary, lists that are too long. */
#include "simt_fixture.h"

enum { CONTEXT = 12 };

struct scene {
    size_t rows, columns, vocab;
    int32_t first, words; /* tokens are below words */
    enum pd_dtype dtype;
    bool positions;
};

/* Adding gives the sum of what was there and of what is written where nothing is added; 0 added is no change. */
static void check_adding(struct fixture *f, const struct pd_embedding *from, const struct buffer *written)
{
    const size_t n = from->vocab * from->columns;
    uint64_t seed = n;
    struct buffer before = buffer_random(PD_F32, n, 0, 1, &seed), added[2];
    for (int i = 0; i < 2; i++) {
        struct pd_embedding e = *from;
        added[i] = buffer_new(PD_F32, n, 0);
        memcpy(added[i].data, before.data, n * sizeof(float));
        e.adds = true;
        e.dtoken_table = added[i].data;
        e.dposition_table = NULL;
        if (i == 0) MUST(pd_embedding_backward(f->math, &e, &err));
        if (i == 1) MUST(pd_cuda_embedding_backward(NULL, &e, &err));
    }
    for (size_t i = 0; i < n; i++)
        ((float *)before.data)[i] += ((const float *)written->data)[i];
    buffers_equal(&added[0], &before, "table that the CPU added to");
    buffers_equal(&added[1], &before, "table that was added to");
    buffer_free(&before), buffer_free(&added[0]), buffer_free(&added[1]);
}

static void check(struct fixture *f, const struct scene *s)
{
    uint64_t seed = s->rows + s->columns;
    struct buffer table = buffer_random(s->dtype, s->vocab * s->columns, 0, 1, &seed);
    struct buffer places = buffer_random(s->dtype, CONTEXT * s->columns, 0, 1, &seed);
    struct buffer dout = buffer_random(s->dtype, s->rows * s->columns, 0, 1, &seed), out[2], dtable[2], dplaces[2];
    int32_t *tokens = malloc(s->rows * sizeof *tokens), *positions = malloc(s->rows * sizeof *positions);
    for (size_t r = 0; r < s->rows; r++) {
        tokens[r] = (int32_t)(random_u64(&seed) % (uint64_t)s->words);
        if (r % 3 == 0) tokens[r] = tokens[r] % 2; /* some tokens are frequent */
        positions[r] = (int32_t)(r % CONTEXT);
    }
    for (int i = 0; i < 2; i++) {
        out[i] = buffer_new(s->dtype, s->rows * s->columns, 0), dtable[i] = buffer_new(PD_F32, s->vocab * s->columns, 0);
        dplaces[i] = buffer_new(PD_F32, CONTEXT * s->columns, 0);
        const struct pd_embedding e = {.rows = s->rows,
                                       .columns = s->columns,
                                       .vocab = s->vocab,
                                       .dtype = s->dtype,
                                       .first_token = s->first,
                                       .tokens = tokens,
                                       .positions = positions,
                                       .token_table = table.data,
                                       .position_table = s->positions ? places.data : NULL,
                                       .context = CONTEXT,
                                       .out = out[i].data,
                                       .dout = dout.data,
                                       .dtoken_table = dtable[i].data,
                                       .dposition_table = s->positions ? dplaces[i].data : NULL};
        if (i == 0) MUST(pd_embedding_forward(f->math, &e, &err));
        if (i == 0) MUST(pd_embedding_backward(f->math, &e, &err));
        if (i == 1) MUST(pd_cuda_embedding_forward(NULL, &e, &err));
        if (i == 1) MUST(pd_cuda_embedding_backward(NULL, &e, &err));
        if (i == 0) check_adding(f, &e, &dtable[0]);
    }
    buffers_equal(&out[1], &out[0], "out");
    buffers_equal(&dtable[1], &dtable[0], "gradient of the table");
    buffers_equal(&dplaces[1], &dplaces[0], "gradient of positions");
    struct buffer *all[] = {&table, &places, &dout, &out[0], &out[1], &dtable[0], &dtable[1], &dplaces[0], &dplaces[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
    free(tokens), free(positions);
}

Test(embedding, has_the_cpus_bits)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check(&f, &(struct scene){1, 1, 1, 0, 1, all_dtypes[d], true});
        check(&f, &(struct scene){70, 40, 7, 0, 7, all_dtypes[d], true});
        check(&f, &(struct scene){300, 17, 50, 0, 50, all_dtypes[d], false});
        check(&f, &(struct scene){300, 8, 50, 20, 90, all_dtypes[d], true});
        check(&f, &(struct scene){61, 264, 23, 0, 23, all_dtypes[d], false});
        check(&f, &(struct scene){520, 9, 1300, 0, 1300, all_dtypes[d], true});
    }
    fixture_free(&f);
}

Test(embedding, lists_that_are_too_long)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    check(&f, &(struct scene){5200, 2, 2, 0, 2, PD_F32, false});
    check(&f, &(struct scene){16500, 1, 2, 0, 2, PD_BF16, false});
    check(&f, &(struct scene){16500, 1, 2, 0, 2, PD_F16, false});
    fixture_free(&f);
}

Test(embedding, a_position_outside_is_found)
{
    float table = 1, place = 1, out;
    const int32_t token = 0, position = 1;
    struct pd_error err = {0};
    const struct pd_embedding e = {.rows = 1,
                                   .columns = 1,
                                   .vocab = 1,
                                   .tokens = &token,
                                   .positions = &position,
                                   .token_table = &table,
                                   .position_table = &place,
                                   .context = 1,
                                   .out = &out};
    cr_assert_eq(pd_cuda_embedding_forward(NULL, &e, &err), PD_BUG);
    cr_assert(strstr(err.message, "positions"), "%s", err.message);
}
