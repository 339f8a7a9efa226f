#include "fixture.h"
#include "reference.h"

static void check(struct fixture *f, size_t rows, size_t vocab, uint32_t chunks, enum pd_dtype dtype, bool overlay,
                  double deviation, uint64_t seed)
{
    size_t ld = vocab + 5, per_logit = sizeof(float) / pd_dtype_bytes(dtype), ld_d = overlay ? ld * per_logit : vocab + 2;
    struct array logits = array_random(PD_F32, rows * ld, deviation, &seed), losses = array_new(PD_F32, rows);
    struct array dlogits = array_new(dtype, rows * vocab);
    double *exact = malloc(rows * vocab * sizeof *exact);
    int32_t *targets = malloc(rows * sizeof *targets);
    for (size_t r = 0; r < rows; r++) {
        targets[r] = random_u64(&seed) % 5 == 0 ? -100 : (int32_t)(random_u64(&seed) % vocab);
        memcpy(exact + r * vocab, logits.exact + r * ld, vocab * sizeof *exact);
    }
    void *separate = calloc(rows * ld_d, sizeof(float)), *written = overlay ? logits.data : separate;
    struct pd_cross_entropy loss = {.rows = rows,
                                    .vocab = vocab,
                                    .ld = ld,
                                    .chunks = chunks,
                                    .logits = logits.data,
                                    .targets = targets,
                                    .losses = losses.data,
                                    .dlogits = written,
                                    .ld_dlogits = ld_d,
                                    .dtype = dtype,
                                    .scale = 0.125f};
    ref_cross_entropy(rows, vocab, exact, targets, 0.125, losses.exact, dlogits.exact);
    struct pd_cross_entropy only = loss;
    only.dlogits = NULL;
    MUST(pd_cross_entropy(f->math, &only, &err));
    array_check(&losses, 4, "loss only");
    memset(losses.data, 0, rows * sizeof(float));
    MUST(pd_cross_entropy(f->math, &loss, &err));
    array_check(&losses, 4, "loss");
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < vocab; i++)
            value_put(dtype, dlogits.data, r * vocab + i, value_get(dtype, written, r * ld_d + i));
    array_check(&dlogits, 16, "dlogits");
    struct array *all[] = {&logits, &losses, &dlogits};
    for (size_t i = 0; i < 3; i++)
        array_free(all[i]);
    free(exact);
    free(targets);
    free(separate);
}

Test(loss, agrees_with_float64)
{
    static const size_t vocabs[] = {1, 2, 15, 16, 17, 33, 100, 257, 5003};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (uint32_t chunks = 1; chunks <= 16; chunks *= 4)
            for (size_t d = 0; d < 3; d++)
                for (int overlay = 0; overlay < 2; overlay++)
                    check(&f, 13, vocabs[v], chunks, all_dtypes[d], overlay, v % 2 ? 1 : 8, v + 1);
    fixture_free(&f);
}

Test(loss, a_logit_that_is_not_finite_shows)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    float logits[3][40] = {{0}}, losses[3];
    int32_t targets[3] = {1, 1, 1};
    logits[0][20] = NAN;
    logits[1][39] = INFINITY;
    for (int i = 0; i < 40; i++)
        logits[2][i] = -INFINITY;
    struct pd_cross_entropy loss = {.rows = 3,
                                    .vocab = 40,
                                    .ld = 40,
                                    .chunks = 1,
                                    .logits = &logits[0][0],
                                    .targets = targets,
                                    .losses = losses,
                                    .scale = 1};
    MUST(pd_cross_entropy(f.math, &loss, &err));
    for (int r = 0; r < 3; r++)
        cr_assert(!isfinite(losses[r]), "row %d: %g", r, (double)losses[r]);
    fixture_free(&f);
}

/* Bits of the sum follow the chunks: the tree of their sums, not one long sum. */
Test(loss, sums_by_chunk_form_a_tree)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    enum { VOCAB = 1000 };
    uint64_t seed = 9;
    float losses[5];
    unsigned different = 0;
    for (int trial = 0; trial < 200; trial++) {
        struct array logits = array_random(PD_F32, VOCAB, 1, &seed);
        int32_t target = 7;
        for (uint32_t i = 0; i < 5; i++) {
            struct pd_cross_entropy loss = {.rows = 1,
                                            .vocab = VOCAB,
                                            .ld = VOCAB,
                                            .chunks = 1u << i,
                                            .logits = logits.data,
                                            .targets = &target,
                                            .losses = &losses[i],
                                            .scale = 1};
            MUST(pd_cross_entropy(f.math, &loss, &err));
            cr_assert_float_eq(losses[i], losses[0], 2e-6);
        }
        different += losses[1] != losses[0];
        array_free(&logits);
    }
    cr_assert_gt(different, 0, "virtual_tp is part of the numerics");
    fixture_free(&f);
}
