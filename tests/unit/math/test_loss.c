#include "fixture.h"
#include "reference.h"

static void check(struct fixture *f, size_t rows, size_t vocab, uint32_t chunks, enum pd_dtype dtype,
                  enum pd_dtype logits_dtype, bool overlay, double deviation, uint64_t seed)
{
    size_t ld = vocab + 5, per_logit = pd_dtype_bytes(logits_dtype) / pd_dtype_bytes(dtype),
           ld_d = overlay ? ld * per_logit : vocab + 2;
    struct array logits = array_random(logits_dtype, rows * ld, deviation, &seed), losses = array_new(PD_F32, rows);
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
                                    .logits_dtype = logits_dtype,
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
                for (int how = 0; how < 4; how++)
                    check(&f, 13, vocabs[v], chunks, all_dtypes[d], how < 2 ? PD_F32 : all_dtypes[d], how % 2, v % 2 ? 1 : 8,
                          v + 1);
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

/* ---- some columns at a time ---- */

/* Columns of each chunk part by part; then chunks and their maxima are joined as ranks would be. */
static void run_parts(struct fixture *f, const struct pd_cross_entropy *whole, uint64_t part, uint32_t chunks)
{
    const uint64_t rows = whole->rows, chunk = (whole->vocab + chunks - 1) / chunks;
    float *max = malloc((size_t)(chunks + 1) * rows * sizeof *max), *sum = malloc((size_t)(chunks + 1) * rows * sizeof *sum);
    float *target = calloc(rows, sizeof *target);
    const float *parts[16] = {NULL};
    struct pd_cross_entropy l = *whole;
    uint32_t count = 0;
    for (l.chunks = 1, l.target_logit = target; count * chunk < whole->vocab; parts[count] = l.sum, count++)
        for (uint64_t begin = count * chunk, end = begin; begin < whole->vocab && begin < (count + 1) * chunk; begin = end) {
            end = begin + part < (count + 1) * chunk ? begin + part : (count + 1) * chunk;
            end = end < whole->vocab ? end : whole->vocab;
            l.logits = (float *)whole->logits + begin, l.first_column = begin, l.vocab = end - begin;
            l.max = max + count * rows, l.sum = sum + count * rows, l.goes_on = begin > count * chunk;
            MUST(pd_logits_part(f->math, &l, &err));
        }
    l.max = max + chunks * rows, l.sum = sum + chunks * rows;
    const struct pd_logits_join join = {.rows = rows, .ld = rows, .ranks = count, .all_max = max, .max = l.max};
    MUST(pd_logits_join(f->math, &join, &err));
    for (uint32_t i = 0; i < count; i++)
        MUST(pd_logits_rescale(f->math, rows, max + i * rows, l.max, sum + i * rows, &err));
    const struct pd_finish tree = {
        .rows = 1, .columns = rows, .part_count = chunks, .parts = parts, .scale = 1, .out = {l.sum, PD_F32, rows}};
    MUST(pd_finish(f->math, &tree, &err));
    for (uint64_t begin = 0; begin < whole->vocab; begin += part) {
        l.logits = (float *)whole->logits + begin, l.first_column = begin;
        l.vocab = whole->vocab - begin < part ? whole->vocab - begin : part;
        l.dlogits = (char *)whole->dlogits + begin * pd_dtype_bytes(l.dtype);
        MUST(pd_cross_entropy(f->math, &l, &err));
    }
    free(max), free(sum), free(target);
}

static void check_parts(struct fixture *f, size_t vocab, uint64_t part, uint32_t chunks, double deviation)
{
    enum { ROWS = 13 };
    uint64_t seed = vocab + part;
    struct array logits = array_random(PD_F32, ROWS * vocab, deviation, &seed), losses = array_new(PD_F32, ROWS);
    struct array dlogits = array_new(PD_F32, ROWS * vocab), whole_dlogits = array_new(PD_F32, ROWS * vocab);
    int32_t targets[ROWS];
    float whole_losses[ROWS];
    for (size_t r = 0; r < ROWS; r++)
        targets[r] = random_u64(&seed) % 5 == 0 ? -100 : (int32_t)(random_u64(&seed) % vocab);
    struct pd_cross_entropy l = {.rows = ROWS,
                                 .vocab = vocab,
                                 .ld = vocab,
                                 .chunks = 1,
                                 .logits = logits.data,
                                 .targets = targets,
                                 .losses = losses.data,
                                 .dlogits = dlogits.data,
                                 .ld_dlogits = vocab,
                                 .dtype = PD_F32,
                                 .scale = 0.125f};
    run_parts(f, &l, part, chunks);
    ref_cross_entropy(ROWS, vocab, logits.exact, targets, 0.125, losses.exact, dlogits.exact);
    array_check(&losses, 8, "loss");
    array_check(&dlogits, part == 1 ? 64 : 16, "dlogits"); /* each join rounds */
    l.losses = whole_losses, l.dlogits = whole_dlogits.data;
    MUST(pd_cross_entropy(f->math, &l, &err));
    if (part >= vocab && chunks == 1) { /* one part: the bits of one call */
        cr_assert_arr_eq(losses.data, whole_losses, sizeof whole_losses);
        cr_assert_arr_eq(dlogits.data, whole_dlogits.data, ROWS * vocab * sizeof(float));
    }
    array_free(&logits), array_free(&losses), array_free(&dlogits), array_free(&whole_dlogits);
}

Test(loss, parts_of_the_columns)
{
    static const size_t vocabs[] = {1, 15, 33, 257, 5003};
    static const uint64_t parts[] = {1, 16, 100, 8192};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
            for (uint32_t chunks = 1; chunks <= 16; chunks *= 4)
                check_parts(&f, vocabs[v], parts[p], chunks, v % 2 ? 1 : 8);
    fixture_free(&f);
}

/* A part in which nothing counts, before and behind one that does. */
Test(loss, parts_at_the_ends_of_the_range)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    float logits[2][48], losses[2], gradient[2][48];
    int32_t targets[2] = {20, 20};
    for (int i = 0; i < 48; i++)
        logits[0][i] = logits[1][i] = -INFINITY;
    logits[0][20] = -1e30f;
    logits[1][20] = 3e38f;
    logits[1][40] = -3e38f;
    struct pd_cross_entropy l = {.rows = 2,
                                 .vocab = 48,
                                 .ld = 48,
                                 .logits = &logits[0][0],
                                 .targets = targets,
                                 .losses = losses,
                                 .dlogits = gradient,
                                 .ld_dlogits = 48,
                                 .scale = 1};
    run_parts(&f, &l, 16, 1);
    cr_assert(losses[0] == 0 && losses[1] == 0, "%g %g", (double)losses[0], (double)losses[1]);
    logits[0][33] = NAN;
    logits[1][2] = INFINITY;
    run_parts(&f, &l, 16, 1);
    cr_assert(!isfinite(losses[0]) && !isfinite(losses[1]), "%g %g", (double)losses[0], (double)losses[1]);
    fixture_free(&f);
}
