/* Cross-entropy: of a vocabulary in chunks losses, gradients and the three calls of a share have the CPU's bits; of one chunk they
 * are right to float64's measure, and the same in any order of threads. */
#include "simt_fixture.h"

#include "tests/helpers/scale.h"
#include "tests/unit/math/reference.h"

struct scene {
    size_t rows, vocab, ld;
    enum pd_dtype dtype;
    uint32_t chunks;
    uint64_t chunk, first_column; /* of a cut vocabulary */
    bool overlay, loss_only;
    enum pd_dtype logits_dtype;
};

static int32_t *targets_of(const struct scene *s, size_t words, uint64_t *seed)
{
    int32_t *targets = malloc(s->rows * sizeof *targets);
    for (size_t r = 0; r < s->rows; r++)
        targets[r] = r % 5 == 3 ? -1 : (int32_t)(random_u64(seed) % words);
    return targets;
}

static struct pd_cross_entropy loss_of(const struct scene *s, struct buffer *logits, const int32_t *targets,
                                       struct buffer *losses, struct buffer *gradient)
{
    const size_t wide = pd_dtype_bytes(s->logits_dtype) / pd_dtype_bytes(s->dtype);
    return (struct pd_cross_entropy){.rows = s->rows,
                                     .vocab = s->vocab,
                                     .ld = s->ld,
                                     .chunks = s->chunks,
                                     .chunk = s->chunk,
                                     .first_column = s->first_column,
                                     .logits = logits->data,
                                     .logits_dtype = s->logits_dtype,
                                     .targets = targets,
                                     .losses = losses->data,
                                     .dlogits = s->loss_only ? NULL
                                                : s->overlay ? logits->data
                                                             : gradient->data,
                                     .ld_dlogits = s->overlay ? wide * s->ld : s->ld + 1,
                                     .dtype = s->dtype,
                                     .scale = 0.25f};
}

static void check(struct fixture *f, const struct scene *s)
{
    uint64_t seed = s->vocab + s->chunks;
    struct buffer logits[2] = {buffer_random(s->logits_dtype, s->rows * s->ld, 0, 4, &seed)};
    struct buffer losses[2], gradient[2];
    int32_t *targets = targets_of(s, s->vocab, &seed);
    logits[1] = buffer_copy(&logits[0]);
    for (int i = 0; i < 2; i++) {
        losses[i] = buffer_new(PD_F32, s->rows, 0), gradient[i] = buffer_new(s->dtype, s->rows * (s->ld + 1), 0);
        const struct pd_cross_entropy l = loss_of(s, &logits[i], targets, &losses[i], &gradient[i]);
        if (i == 0) MUST(pd_cross_entropy(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_cross_entropy(NULL, &l, &err));
    }
    buffers_equal(&losses[1], &losses[0], "losses");
    buffers_equal(&gradient[1], &gradient[0], "gradient");
    if (s->overlay) { /* what lies behind a gradient is half overwritten logits: only gradients are promised */
        const size_t bytes = pd_dtype_bytes(s->dtype), row = s->ld * pd_dtype_bytes(s->logits_dtype);
        for (size_t r = 0; r < s->rows; r++)
            cr_assert_arr_eq((char *)logits[1].data + r * row, (char *)logits[0].data + r * row, s->vocab * bytes);
    } else {
        buffers_equal(&logits[1], &logits[0], "logits");
    }
    for (int i = 0; i < 2; i++)
        buffer_free(&logits[i]), buffer_free(&losses[i]), buffer_free(&gradient[i]);
    free(targets);
}

Test(loss, whole_vocabulary_in_chunks)
{
    static const struct {
        size_t vocab, ld;
        uint32_t chunks;
    } sizes[] = {{2, 2, 2}, {17, 20, 2}, {256, 256, 2}, {2048, 2048, 2}, {2500, 2503, 4}, {5000, 5000, 16}, {9, 9, 8}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        simt_set_order(some_orders[o]);
        for (size_t d = 0; d < 3; d++)
            for (size_t z = 0; z < 7; z++)
                for (int how = 0; how < 6; how++)
                    if (test_has_turn(o + d + z + (size_t)how, 2))
                        check(&f, &(struct scene){.rows = 6,
                                                  .vocab = sizes[z].vocab,
                                                  .ld = sizes[z].ld,
                                                  .dtype = all_dtypes[d],
                                                  .chunks = sizes[z].chunks,
                                                  .logits_dtype = how < 3 ? PD_F32 : all_dtypes[d],
                                                  .overlay = how % 3 == 1,
                                                  .loss_only = how % 3 == 2});
    }
    fixture_free(&f);
}

/* The kernel's losses and gradient, under some order of threads. */
static void run_one_chunk(const struct scene *s, size_t order, const struct buffer *from, const int32_t *targets,
                          struct buffer *ret_losses, struct buffer *ret_gradient)
{
    struct buffer logits = buffer_copy(from);
    *ret_losses = buffer_new(PD_F32, s->rows, 0);
    *ret_gradient = buffer_new(s->dtype, s->rows * s->vocab, 0);
    struct pd_cross_entropy l = loss_of(s, &logits, targets, ret_losses, ret_gradient);
    if (!s->overlay) l.ld_dlogits = s->vocab;
    simt_set_order(order);
    MUST(pd_cuda_cross_entropy(NULL, &l, &err));
    for (size_t r = 0; r < s->rows && s->overlay; r++)
        for (size_t i = 0; i < s->vocab; i++)
            value_put(s->dtype, ret_gradient->data, r * s->vocab + i, value_get(s->dtype, l.dlogits, r * l.ld_dlogits + i));
    buffer_free(&logits);
}

static void check_one_chunk(const struct scene *s)
{
    static const double tolerance[] = {[PD_F32] = 1e-6, [PD_BF16] = 4e-3, [PD_F16] = 6e-4};
    uint64_t seed = s->vocab;
    struct buffer logits = buffer_random(s->logits_dtype, s->rows * s->ld, 0, 4, &seed), losses[SOME_ORDERS],
                  gradient[SOME_ORDERS];
    int32_t *targets = targets_of(s, s->vocab, &seed);
    double *exact = malloc(s->rows * s->vocab * sizeof *exact), *exact_gradient = malloc(s->rows * s->vocab * sizeof *exact);
    double exact_losses[16];
    for (size_t r = 0; r < s->rows; r++)
        for (size_t i = 0; i < s->vocab; i++)
            exact[r * s->vocab + i] = value_get(s->logits_dtype, logits.data, r * s->ld + i);
    ref_cross_entropy(s->rows, s->vocab, exact, targets, 0.25, exact_losses, exact_gradient);
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        run_one_chunk(s, some_orders[o], &logits, targets, &losses[o], &gradient[o]);
        buffer_near(&losses[o], exact_losses, 1e-6, "losses");
        buffer_near(&gradient[o], exact_gradient, tolerance[s->dtype], "gradient");
        buffers_equal(&losses[o], &losses[0], "losses in another order");
        buffers_equal(&gradient[o], &gradient[0], "gradient in another order");
    }
    for (size_t o = 0; o < SOME_ORDERS; o++)
        buffer_free(&losses[o]), buffer_free(&gradient[o]);
    buffer_free(&logits), free(targets), free(exact), free(exact_gradient);
}

/* The largest are longer than shared memory, with rows that are 16-aligned and that are not. */
Test(loss, a_vocabulary_in_one_chunk)
{
    static const size_t sizes[] = {1, 17, 256, 2048, 8192, 8193, 17000, 25000, 50008};
    for (size_t d = 0; d < 3; d++)
        for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
            for (int how = 0; how < 4; how++)
                if (test_has_turn(d + z + (size_t)how, 2))
                    check_one_chunk(&(struct scene){.rows = sizes[z] > 10000 ? 2 : 6,
                                                    .vocab = sizes[z],
                                                    .ld = sizes[z] + (z % 2),
                                                    .dtype = all_dtypes[d],
                                                    .logits_dtype = how < 2 ? PD_F32 : all_dtypes[d],
                                                    .chunks = 1,
                                                    .overlay = how % 2});
}

static float loss_of_row(float *row, size_t vocab, int32_t target)
{
    float loss = -1;
    struct pd_error err = {0};
    const struct pd_cross_entropy l = {
        .rows = 1, .vocab = vocab, .ld = vocab, .chunks = 1, .logits = row, .targets = &target, .losses = &loss, .scale = 1};
    cr_assert_eq(pd_cuda_cross_entropy(NULL, &l, &err), PD_OK);
    return loss;
}

/* A maximum that runs along with the sum meets what a maximum beforehand never sees. */
Test(loss, rows_at_the_ends_of_the_range)
{
    enum { VOCAB = 4500 };
    static float row[VOCAB];
    for (size_t i = 0; i < VOCAB; i++)
        row[i] = -INFINITY;
    row[4400] = -1e30f;
    cr_assert_eq(loss_of_row(row, VOCAB, 4400), 0);
    row[3] = 3e38f;
    cr_assert_eq(loss_of_row(row, VOCAB, 3), 0);
    row[3] = NAN;
    cr_assert(isnan(loss_of_row(row, VOCAB, 4400)));
    row[3] = INFINITY;
    cr_assert(isnan(loss_of_row(row, VOCAB, 4400)));
    for (size_t i = 0; i < VOCAB; i++)
        row[i] = i == 70 ? 3e38f : -3e38f;
    cr_assert_eq(loss_of_row(row, VOCAB, 70), 0);
}

/* A rank's columns: each call beside the CPU's, with what ranks would exchange in between made up. */
static void check_cut(struct fixture *f, const struct scene *s)
{
    uint64_t seed = s->vocab + s->first_column;
    struct buffer logits = buffer_random(s->logits_dtype, s->rows * s->ld, 0, 4, &seed);
    int32_t *targets = targets_of(s, s->first_column + 2 * s->vocab + 3, &seed);
    struct buffer losses[2], gradient[2], max[2], sum[2], target[2];
    for (int i = 0; i < 2; i++) {
        losses[i] = buffer_new(PD_F32, s->rows, 0), gradient[i] = buffer_new(s->dtype, s->rows * (s->ld + 1), 0);
        max[i] = buffer_new(PD_F32, s->rows, 0), sum[i] = buffer_new(PD_F32, s->rows, 0);
        target[i] = buffer_new(PD_F32, s->rows, 0);
        for (size_t r = 0; r < s->rows; r++)
            ((float *)target[i].data)[r] = 0.5f;
        struct pd_cross_entropy l = loss_of(s, &logits, targets, &losses[i], &gradient[i]);
        l.max = max[i].data, l.sum = sum[i].data, l.target_logit = target[i].data;
        if (i == 0) MUST(pd_logits_max(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_logits_max(NULL, &l, &err));
        for (size_t r = 0; r < s->rows; r++)
            if (!isfinite(l.max[r])) l.max[r] = 3;
        if (i == 0) MUST(pd_logits_sum(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_logits_sum(NULL, &l, &err));
        for (size_t r = 0; r < s->rows; r++)
            l.sum[r] += 1.5f;
        if (i == 0) MUST(pd_cross_entropy(f->math, &l, &err));
        if (i == 1) MUST(pd_cuda_cross_entropy(NULL, &l, &err));
    }
    buffers_equal(&max[1], &max[0], "max");
    buffers_equal(&sum[1], &sum[0], "sum");
    buffers_equal(&target[1], &target[0], "target's logit");
    buffers_equal(&losses[1], &losses[0], "losses");
    buffers_equal(&gradient[1], &gradient[0], "gradient");
    for (int i = 0; i < 2; i++)
        buffer_free(&losses[i]), buffer_free(&gradient[i]), buffer_free(&max[i]), buffer_free(&sum[i]),
            buffer_free(&target[i]);
    buffer_free(&logits), free(targets);
}

Test(loss, cut_vocabulary)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 6; d++) {
        const enum pd_dtype dtype = all_dtypes[d % 3], logits_dtype = d < 3 ? PD_F32 : dtype;
        check_cut(&f, &(struct scene){9, 600, 601, dtype, 4, 150, 0, false, false, logits_dtype});
        check_cut(&f, &(struct scene){9, 500, 500, dtype, 4, 150, 600, false, false, logits_dtype});
        check_cut(&f, &(struct scene){9, 2100, 2104, dtype, 1, 2100, 4200, false, false, logits_dtype});
        check_cut(&f, &(struct scene){9, 0, 1, dtype, 2, 150, 1200, false, false, logits_dtype});
    }
    fixture_free(&f);
}

/* Some columns at a time, beside float64, under some order of threads; one part has the losses of one call. */
static void check_parts(size_t vocab, size_t part, enum pd_dtype dtype, enum pd_dtype logits_dtype)
{
    enum { ROWS = 6 };
    const struct scene s = {
        .rows = ROWS, .vocab = vocab, .ld = vocab, .dtype = dtype, .chunks = 1, .logits_dtype = logits_dtype};
    uint64_t seed = vocab + part;
    struct buffer logits = buffer_random(logits_dtype, ROWS * vocab, 0, 4, &seed), losses[SOME_ORDERS],
                  gradient[SOME_ORDERS];
    int32_t *targets = targets_of(&s, vocab, &seed);
    float max[ROWS], sum[ROWS], target[ROWS];
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        losses[o] = buffer_new(PD_F32, ROWS, 0), gradient[o] = buffer_new(dtype, ROWS * (vocab + 1), 0);
        struct pd_cross_entropy l = loss_of(&s, &logits, targets, &losses[o], &gradient[o]);
        struct pd_error err;
        simt_set_order(some_orders[o]);
        l.max = max, l.sum = sum, l.target_logit = target;
        for (int gradients = 0; gradients < 2; gradients++)
            for (size_t begin = 0; begin < vocab; begin += part) {
                l.first_column = begin, l.vocab = vocab - begin < part ? vocab - begin : part, l.goes_on = begin > 0;
                l.logits = (char *)logits.data + begin * pd_dtype_bytes(logits_dtype);
                l.dlogits = (char *)gradient[o].data + begin * pd_dtype_bytes(dtype);
                cr_assert_eq(gradients ? pd_cuda_cross_entropy(NULL, &l, &err) : pd_cuda_logits_part(NULL, &l, &err), PD_OK);
            }
        buffers_equal(&losses[o], &losses[0], "losses in another order");
        buffers_equal(&gradient[o], &gradient[0], "gradient in another order");
    }
    struct buffer one[2] = {buffer_new(PD_F32, ROWS, 0), buffer_new(dtype, ROWS * (vocab + 1), 0)};
    const struct pd_cross_entropy whole = loss_of(&s, &logits, targets, &one[0], &one[1]);
    MUST(pd_cuda_cross_entropy(NULL, &whole, &err));
    if (part >= vocab) buffers_equal(&losses[0], &one[0], "losses");
    for (size_t r = 0; r < ROWS; r++)
        cr_assert_float_eq(((float *)losses[0].data)[r], ((float *)one[0].data)[r], 4e-6);
    for (size_t i = 0; i < ROWS * vocab; i++) {
        const size_t at = i / vocab * (vocab + 1) + i % vocab;
        const double is = value_get(dtype, gradient[0].data, at), should = value_get(dtype, one[1].data, at);
        cr_assert(fabs(is - should) <= (dtype == PD_F32 ? 4e-6 : 1e-2) * fabs(should) + 1e-9, "%g %g", is, should);
    }
    for (size_t o = 0; o < SOME_ORDERS; o++)
        buffer_free(&losses[o]), buffer_free(&gradient[o]);
    buffer_free(&logits), buffer_free(&one[0]), buffer_free(&one[1]), free(targets);
}

Test(loss, parts_of_the_columns)
{
    static const size_t sizes[][2] = {{1, 8192}, {300, 8192}, {300, 7}, {5000, 2048}, {5000, 8192}, {4100, 4096}};
    for (size_t d = 0; d < 6; d++)
        for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
            check_parts(sizes[z][0], sizes[z][1], all_dtypes[d % 3], d < 3 ? PD_F32 : all_dtypes[d % 3]);
}

Test(loss, sums_are_brought_to_a_larger_maximum)
{
    enum { ROWS = 300 };
    uint64_t seed = 3;
    struct buffer part = buffer_random(PD_F32, ROWS, 0, 4, &seed), max = buffer_random(PD_F32, ROWS, 0, 4, &seed), sum[2];
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    sum[0] = buffer_random(PD_F32, ROWS, 0, 9, &seed);
    for (size_t r = 0; r < ROWS; r++)
        ((float *)max.data)[r] = ((float *)part.data)[r] + (r % 3 ? fabsf(((float *)max.data)[r]) : 0);
    sum[1] = buffer_copy(&sum[0]);
    MUST(pd_logits_rescale(f.math, ROWS, part.data, max.data, sum[0].data, &err));
    MUST(pd_cuda_logits_rescale(NULL, ROWS, part.data, max.data, sum[1].data, &err));
    buffers_equal(&sum[1], &sum[0], "sums");
    buffer_free(&part), buffer_free(&max), buffer_free(&sum[0]), buffer_free(&sum[1]), fixture_free(&f);
}

Test(loss, ranks_of_a_cut_vocabulary_are_joined)
{
    enum { ROWS = 300, LD = 304, RANKS = 3, COLUMNS = 50 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    uint64_t seed = 9;
    struct buffer all_max = buffer_random(PD_F32, (size_t)RANKS * LD, 0, 4, &seed);
    struct buffer all_targets = buffer_random(PD_F32, (size_t)RANKS * LD, 0, 4, &seed), max[2], target[2];
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS; i++)
        targets[i] = i % 7 == 0 ? -1 : i * 11 % (RANKS * COLUMNS - 4);
    ((float *)all_max.data)[5] = -INFINITY;
    ((float *)all_max.data)[2 * LD + 6] = INFINITY;
    for (int i = 0; i < 2; i++) {
        max[i] = buffer_new(PD_F32, ROWS, 0), target[i] = buffer_new(PD_F32, ROWS, 0);
        struct pd_logits_join j = {
            .rows = ROWS, .ld = LD, .ranks = RANKS, .all_max = all_max.data, .max = max[i].data, .rank_columns = COLUMNS};
        MUST(i == 0 ? pd_logits_join(f.math, &j, &err) : pd_cuda_logits_join(NULL, &j, &err));
        j.max = NULL, j.all_targets = all_targets.data, j.target_logit = target[i].data, j.targets = targets;
        MUST(i == 0 ? pd_logits_join(f.math, &j, &err) : pd_cuda_logits_join(NULL, &j, &err));
    }
    buffers_equal(&max[1], &max[0], "max");
    buffers_equal(&target[1], &target[0], "target's logit");
    cr_assert_eq(((float *)max[0].data)[6], INFINITY);
    cr_assert_eq(((float *)target[0].data)[9], ((float *)all_targets.data)[99 / COLUMNS * LD + 9]);
    for (int i = 0; i < 2; i++)
        buffer_free(&max[i]), buffer_free(&target[i]);
    buffer_free(&all_max), buffer_free(&all_targets), fixture_free(&f);
}

Test(loss, a_target_outside_is_found)
{
    float logits[4] = {1, 2, 3, 4}, loss;
    const int32_t target = 4;
    struct pd_error err = {0};
    const struct pd_cross_entropy l = {
        .rows = 1, .vocab = 4, .ld = 4, .chunks = 1, .logits = logits, .targets = &target, .losses = &loss, .scale = 1};
    cr_assert_eq(pd_cuda_cross_entropy(NULL, &l, &err), PD_BUG);
    cr_assert(strstr(err.message, "target_column"), "%s", err.message);
}
