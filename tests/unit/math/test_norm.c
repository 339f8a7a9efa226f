#include "fixture.h"
#include "reference.h"

/* Tasks of an operation may run in any order: while this is set, in the caller and from the last to the first. */
static bool is_backwards;

struct tasks {
    uint64_t count;
    void (*body)(void *context, uint64_t index);
    void *context;
};

__typeof__(pd_parallel) __real_pd_parallel, __wrap_pd_parallel;

static void run_backwards(void *context, uint64_t index)
{
    const struct tasks *tasks = context;
    (void)index;
    for (uint64_t i = tasks->count; i > 0; i--)
        tasks->body(tasks->context, i - 1);
}

void __wrap_pd_parallel(struct pd_thread_pool *pool, uint64_t count, void (*body)(void *context, uint64_t index),
                        void *context)
{
    struct tasks tasks = {count, body, context};
    if (is_backwards)
        __real_pd_parallel(NULL, 1, run_backwards, &tasks);
    else
        __real_pd_parallel(pool, count, body, context);
}

static const size_t sizes[][2] = {{1, 1}, {3, 15}, {5, 16}, {2, 17}, {7, 33}, {64, 100}, {33, 768}, {3, 4099}};

static void check(struct fixture *f, bool layer, enum pd_dtype dtype, size_t rows, size_t columns, bool residual,
                  uint64_t seed)
{
    struct array x = array_random(dtype, rows * columns, 2, &seed), weight = array_random(dtype, columns, 1, &seed);
    struct array bias = array_random(dtype, columns, 1, &seed), out = array_new(dtype, rows * columns);
    struct array mean = array_new(PD_F32, rows), rstd = array_new(PD_F32, rows);
    struct array dout = array_random(dtype, rows * columns, 1, &seed), dx = array_random(dtype, rows * columns, 1, &seed);
    struct array dweight = array_new(PD_F32, columns), dbias = array_new(PD_F32, columns);
    struct pd_norm n = {.rows = rows,
                        .columns = columns,
                        .dtype = dtype,
                        .epsilon = 1e-5f,
                        .x = x.data,
                        .weight = weight.data,
                        .bias = layer ? bias.data : NULL,
                        .mean = layer ? mean.data : NULL,
                        .rstd = rstd.data,
                        .out = out.data,
                        .dout = dout.data,
                        .dresidual = residual ? dx.data : NULL,
                        .dx = dx.data,
                        .dweight = dweight.data,
                        .dbias = layer ? dbias.data : NULL};
    double epsilon = (double)n.epsilon, *dresidual = malloc((rows * columns + 1) * sizeof(double));
    memcpy(dresidual, dx.exact, rows * columns * sizeof(double));
    MUST(pd_norm_forward(f->math, &n, &err));
    ref_norm_forward(rows, columns, epsilon, x.exact, weight.exact, layer ? bias.exact : NULL, mean.exact, rstd.exact,
                     out.exact);
    array_check(&out, 16, "out");
    array_check(&rstd, 16, "rstd");
    if (layer) array_check(&mean, 16, "mean");
    MUST(pd_norm_backward(f->math, &n, &err));
    ref_norm_backward(rows, columns, epsilon, x.exact, weight.exact, dout.exact, residual ? dresidual : NULL, dx.exact,
                      dweight.exact, layer ? dbias.exact : NULL);
    /* one or two columns of layer norm cancel to nothing: rounding of the terms is what is left */
    array_check(&dx, columns < 3 ? 1e6 : 64, "dx");
    array_check(&dweight, 16 + (double)rows, "dweight");
    if (layer) array_check(&dbias, 16 + (double)rows, "dbias");
    struct array *all[] = {&x, &weight, &bias, &out, &mean, &rstd, &dout, &dx, &dweight, &dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_free(all[i]);
    free(dresidual);
}

static void check_all(bool layer)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        if (layer && sizes[s][1] == 1) continue; /* the variance of one column is 0 */
        for (size_t d = 0; d < 3; d++) {
            check(&f, layer, all_dtypes[d], sizes[s][0], sizes[s][1], false, 100 + s);
            check(&f, layer, all_dtypes[d], sizes[s][0], sizes[s][1], true, 200 + s);
        }
    }
    fixture_free(&f);
}

Test(norm, rms_agrees_with_float64)
{
    check_all(false);
}

Test(norm, layer_agrees_with_float64)
{
    check_all(true);
}

/* A row of one large constant: two passes keep the variance exact where sum(x^2) - sum(x)^2 would lose it. */
Test(norm, layer_survives_a_large_mean)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t seed = 3;
    struct array x = array_random(PD_F32, 1000, 1, &seed), out = array_new(PD_F32, 1000);
    float weight[1000], bias[1000] = {0}, mean, rstd;
    double ones[1000], zeros[1000] = {0};
    for (int i = 0; i < 1000; i++) {
        weight[i] = 1;
        ones[i] = 1;
        ((float *)x.data)[i] += 4096;
        x.exact[i] = (double)((float *)x.data)[i];
    }
    struct pd_norm n = {.rows = 1,
                        .columns = 1000,
                        .dtype = PD_F32,
                        .epsilon = 1e-5f,
                        .x = x.data,
                        .weight = weight,
                        .bias = bias,
                        .mean = &mean,
                        .rstd = &rstd,
                        .out = out.data};
    MUST(pd_norm_forward(f.math, &n, &err));
    ref_norm_forward(1, 1000, (double)n.epsilon, x.exact, ones, zeros, NULL, NULL, out.exact);
    array_check(&out, 4096, "out");
    array_free(&x);
    array_free(&out);
    fixture_free(&f);
}

/* Heads of tokens that lie further apart, some of those that are kept, normed in place: the bits of the same rows one behind
 * the other. */
static void check_heads(struct fixture *f, enum pd_dtype dtype, uint32_t tokens, uint32_t heads, uint32_t columns)
{
    const size_t rows = (size_t)tokens * heads, ld = (heads + 3) * (size_t)columns + 5, kept_heads = heads + 2;
    const size_t bytes = pd_dtype_bytes(dtype), row_bytes = columns * bytes;
    uint64_t seed = rows + columns;
    struct array dense[2] = {array_random(dtype, rows * columns, 2, &seed), array_random(dtype, rows * columns, 1, &seed)};
    struct array weight = array_random(dtype, columns, 1, &seed), out = array_new(dtype, rows * columns);
    struct array wide[2] = {array_new(dtype, tokens * ld), array_new(dtype, tokens * ld)};
    struct array kept = array_new(dtype, tokens * kept_heads * columns), rstd = array_new(PD_F32, rows);
    struct array kept_rstd = array_new(PD_F32, tokens * kept_heads), dx = array_new(dtype, rows * columns);
    float *dweight[2] = {malloc(columns * sizeof(float)), malloc(columns * sizeof(float))};
#define WIDE_ROW(array, r) ((char *)(array).data + ((r) / heads * ld + (r) % heads * columns) * bytes)
#define KEPT_ROW(r) ((char *)kept.data + ((r) / heads * kept_heads + (r) % heads) * row_bytes)
    for (int which = 0; which < 2; which++)
        for (size_t r = 0; r < rows; r++)
            memcpy(WIDE_ROW(wide[which], r), (char *)dense[which].data + r * row_bytes, row_bytes);
    struct pd_norm n = {.rows = rows,
                        .columns = columns,
                        .dtype = dtype,
                        .epsilon = 1e-6f,
                        .x = dense[0].data,
                        .weight = weight.data,
                        .rstd = rstd.data,
                        .out = out.data,
                        .dout = dense[1].data,
                        .dx = dx.data,
                        .dweight = dweight[0]};
    struct pd_norm h = n;
    h.heads = heads, h.kept_heads = (uint32_t)kept_heads, h.ld = ld, h.rstd = kept_rstd.data;
    h.x = h.out = wide[0].data, h.kept = kept.data;
    MUST(pd_norm_forward(f->math, &n, &err));
    MUST(pd_norm_backward(f->math, &n, &err));
    MUST(pd_norm_forward(f->math, &h, &err));
    h.x = kept.data, h.dout = h.dx = wide[1].data, h.dweight = dweight[1];
    MUST(pd_norm_backward(f->math, &h, &err));
    for (size_t r = 0; r < rows; r++) {
        cr_assert_arr_eq(WIDE_ROW(wide[0], r), (char *)out.data + r * row_bytes, row_bytes, "out %zu", r);
        cr_assert_arr_eq(WIDE_ROW(wide[1], r), (char *)dx.data + r * row_bytes, row_bytes, "dx %zu", r);
        cr_assert_arr_eq(KEPT_ROW(r), (char *)dense[0].data + r * row_bytes, row_bytes, "kept %zu", r);
    }
    cr_assert_arr_eq(dweight[0], dweight[1], columns * sizeof(float));
#undef WIDE_ROW
#undef KEPT_ROW
    struct array *all[] = {&dense[0], &dense[1], &weight, &out, &wide[0], &wide[1], &kept, &rstd, &kept_rstd, &dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_free(all[i]);
    free(dweight[0]), free(dweight[1]);
}

Test(norm, heads_have_the_bits_of_rows)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check_heads(&f, all_dtypes[d], 1, 1, 6);
        check_heads(&f, all_dtypes[d], 7, 3, 16);
        check_heads(&f, all_dtypes[d], 33, 5, 128);
    }
    fixture_free(&f);
}

/* Rotated heads, the last of which have a weight of their own: the bits of the norm of each run and RoPE, one after the other. */
static void check_turned(struct fixture *f, enum pd_dtype dtype, uint32_t tokens, uint32_t first, uint32_t others,
                         uint32_t columns)
{
    const uint32_t heads = first + others;
    const size_t ld = heads * (size_t)columns + 3, bytes = pd_dtype_bytes(dtype), rows = (size_t)tokens * heads;
    uint64_t seed = tokens + columns;
    struct array x[2] = {array_random(dtype, tokens * ld, 2, &seed), array_new(dtype, tokens * ld)};
    struct array dx[2] = {array_random(dtype, tokens * ld, 1, &seed), array_new(dtype, tokens * ld)};
    struct array weight[2] = {array_random(dtype, columns, 1, &seed), array_random(dtype, columns, 1, &seed)};
    struct array kept[2] = {array_new(dtype, rows * columns), array_new(dtype, rows * columns)};
    struct array rstd[2] = {array_new(PD_F32, rows), array_new(PD_F32, rows)};
    struct array dweight[2] = {array_new(PD_F32, columns), array_new(PD_F32, columns)};
    struct array angles = array_random(PD_F32, (size_t)tokens * columns, 1, &seed);
    int32_t *positions = malloc(tokens * sizeof *positions);
    for (uint32_t i = 0; i < tokens; i++)
        positions[i] = (int32_t)(i * 3 % tokens);
    memcpy(x[1].data, x[0].data, tokens * ld * bytes);
    memcpy(dx[1].data, dx[0].data, tokens * ld * bytes);
    for (int apart = 0; apart < 2; apart++) {
        struct pd_norm n = {.rows = rows,
                            .columns = columns,
                            .heads = heads,
                            .kept_heads = heads,
                            .ld = ld,
                            .dtype = dtype,
                            .epsilon = 1e-6f,
                            .kept = kept[apart].data,
                            .positions = apart ? NULL : positions,
                            .cos_sin = angles.data,
                            .other_weight = apart ? NULL : weight[1].data,
                            .other_first = first,
                            .x = x[apart].data,
                            .weight = weight[0].data,
                            .rstd = rstd[apart].data,
                            .out = x[apart].data};
        struct pd_rope rope = {tokens, heads, columns, dtype, x[apart].data, ld, positions, angles.data, false, NULL, 0, 0};
        if (apart) n.heads = first, n.rows = (uint64_t)tokens * first;
        MUST(pd_norm_forward(f->math, &n, &err));
        if (apart) {
            n.heads = others, n.rows = (uint64_t)tokens * others, n.weight = weight[1].data;
            n.x = n.out = (char *)x[1].data + first * columns * bytes;
            n.kept = (char *)kept[1].data + first * columns * bytes, n.rstd = (float *)rstd[1].data + first;
            MUST(pd_norm_forward(f->math, &n, &err));
            MUST(pd_rope(f->math, &rope, &err));
            rope.x = dx[1].data, rope.heads = first, rope.inverse = true;
            MUST(pd_rope(f->math, &rope, &err));
        }
        n.heads = first, n.rows = (uint64_t)tokens * first, n.weight = weight[0].data, n.other_weight = NULL;
        n.x = kept[apart].data, n.kept = NULL, n.rstd = rstd[apart].data, n.dweight = dweight[apart].data;
        n.dout = n.dx = dx[apart].data;
        MUST(pd_norm_backward(f->math, &n, &err));
    }
    cr_assert_arr_eq(x[0].data, x[1].data, tokens * ld * bytes, "out");
    cr_assert_arr_eq(kept[0].data, kept[1].data, rows * columns * bytes, "kept");
    cr_assert_arr_eq(rstd[0].data, rstd[1].data, rows * sizeof(float), "rstd");
    cr_assert_arr_eq(dx[0].data, dx[1].data, tokens * ld * bytes, "dx");
    cr_assert_arr_eq(dweight[0].data, dweight[1].data, columns * sizeof(float), "dweight");
    for (int i = 0; i < 2; i++)
        array_free(&x[i]), array_free(&dx[i]), array_free(&weight[i]), array_free(&kept[i]), array_free(&rstd[i]),
            array_free(&dweight[i]);
    array_free(&angles);
    free(positions);
}

Test(norm, rotated_heads_have_the_bits_of_both)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check_turned(&f, all_dtypes[d], 1, 1, 1, 2);
        check_turned(&f, all_dtypes[d], 7, 3, 2, 22);
        /* several tasks, of which some begin inside a token: no task takes over angles that another has left */
        check_turned(&f, all_dtypes[d], 300, 3, 2, 64);
        is_backwards = true;
        check_turned(&f, all_dtypes[d], 300, 3, 2, 64);
        is_backwards = false;
        check_turned(&f, all_dtypes[d], 33, 5, 2, 128);
        check_turned(&f, all_dtypes[d], 9, 1, 4, 256);
    }
    fixture_free(&f);
}

/* Half of a head is rotated as a head of half the size is; the other half stays. */
Test(rope, of_a_part_of_a_head)
{
    enum { TOKENS = 5, HEADS = 3, SIZE = 24, PART = 12 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    float whole[TOKENS * HEADS * SIZE], before[TOKENS * HEADS * SIZE], part[TOKENS * HEADS * PART], angles[TOKENS * PART];
    int32_t positions[TOKENS];
    uint64_t seed = 3;
    for (int i = 0; i < TOKENS * PART; i++)
        angles[i] = (float)random_normal(&seed);
    for (int i = 0; i < TOKENS * HEADS * SIZE; i++) {
        before[i] = whole[i] = (float)random_normal(&seed);
        if (i % SIZE < PART) part[i / SIZE * PART + i % SIZE] = whole[i];
    }
    for (int i = 0; i < TOKENS; i++)
        positions[i] = TOKENS - 1 - i;
    const struct pd_rope small = {.rows = TOKENS,
                                  .heads = HEADS,
                                  .head_size = PART,
                                  .x = part,
                                  .ld = HEADS * PART,
                                  .positions = positions,
                                  .cos_sin = angles},
                         large = {.rows = TOKENS,
                                  .heads = HEADS,
                                  .head_size = SIZE,
                                  .x = whole,
                                  .ld = HEADS * SIZE,
                                  .positions = positions,
                                  .cos_sin = angles,
                                  .rotated = PART};
    MUST(pd_rope(f.math, &small, &err));
    MUST(pd_rope(f.math, &large, &err));
    for (int i = 0; i < TOKENS * HEADS * SIZE; i++)
        cr_assert_eq(whole[i], i % SIZE < PART ? part[i / SIZE * PART + i % SIZE] : before[i], "%d", i);
    fixture_free(&f);
}
