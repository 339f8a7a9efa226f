/* Norms: what is made of a row has the CPU's bits; gradients of weights are right to float64's measure, and the same in
 * every order of threads. */
#include "simt_fixture.h"
#include "tests/unit/math/reference.h"

struct scene {
    size_t rows, columns, shift;
    enum pd_dtype dtype;
    bool layer;
    int residual; /* 0: none, 1: given, 2: dx itself */
};

static pd_status forward(struct fixture *f, const struct pd_norm *n, bool cpu, struct pd_error *err)
{
    return cpu ? pd_norm_forward(f->math, n, err) : pd_cuda_norm_forward(NULL, n, err);
}

static pd_status backward(struct fixture *f, const struct pd_norm *n, bool cpu, struct pd_error *err)
{
    if (cpu) return pd_norm_backward(f->math, n, err);
    const uint64_t bytes = pd_cuda_norm_workspace_bytes(n);
    struct buffer buffer = buffer_new(PD_F32, bytes / sizeof(float), 0);
    const pd_status st = pd_cuda_norm_backward(NULL, n, (struct pd_cuda_workspace){buffer.data, bytes, NULL}, err);
    buffer_free(&buffer);
    return st;
}

static double *exact_of(const struct buffer *r)
{
    double *x = malloc((r->count + 1) * sizeof *x);
    for (size_t i = 0; i < r->count; i++)
        x[i] = value_get(r->dtype, r->data, i);
    return x;
}

static void check_weights(const struct scene *s, const struct buffer *x, const struct buffer *weight,
                          const struct buffer *dout, const struct buffer *dweight, const struct buffer *dbias)
{
    double *in[3] = {exact_of(x), exact_of(weight), exact_of(dout)};
    double *dx = malloc(s->rows * s->columns * sizeof *dx);
    double *want[2] = {malloc(s->columns * sizeof(double)), malloc(s->columns * sizeof(double))};
    ref_norm_backward(s->rows, s->columns, 1e-5, in[0], in[1], in[2], NULL, dx, want[0], s->layer ? want[1] : NULL);
    buffer_near(dweight, want[0], 1e-5, "dweight");
    if (s->layer) buffer_near(dbias, want[1], 1e-5, "dbias");
    free(in[0]), free(in[1]), free(in[2]), free(dx), free(want[0]), free(want[1]);
}

static void check(struct fixture *f, const struct scene *s)
{
    const size_t n = s->rows * s->columns;
    uint64_t seed = n + s->shift + s->dtype;
    struct buffer x = buffer_random(s->dtype, n, s->shift, 2, &seed), dout = buffer_random(s->dtype, n, s->shift, 1, &seed);
    struct buffer weight = buffer_random(s->dtype, s->columns, s->shift, 1, &seed);
    struct buffer bias = buffer_random(s->dtype, s->columns, s->shift, 1, &seed);
    struct buffer residual = buffer_random(s->dtype, n, s->shift, 1, &seed);
    struct buffer out[2], mean[2], rstd[2], dx[2], dweight[3], dbias[3];
    for (size_t i = 0; i < 3; i++)
        dweight[i] = buffer_new(PD_F32, s->columns, 0), dbias[i] = buffer_new(PD_F32, s->columns, 0);
    for (size_t i = 0; i < 2; i++) {
        out[i] = buffer_new(s->dtype, n, s->shift), mean[i] = buffer_new(PD_F32, s->rows, 0);
        rstd[i] = buffer_new(PD_F32, s->rows, 0), dx[i] = buffer_copy(&residual);
        struct pd_norm norm = {.rows = s->rows,
                               .columns = s->columns,
                               .dtype = s->dtype,
                               .epsilon = 1e-5f,
                               .x = x.data,
                               .weight = weight.data,
                               .bias = s->layer ? bias.data : NULL,
                               .mean = s->layer ? mean[i].data : NULL,
                               .rstd = rstd[i].data,
                               .out = out[i].data,
                               .dout = dout.data,
                               .dresidual = s->residual == 2 ? dx[i].data
                                            : s->residual    ? residual.data
                                                             : NULL,
                               .dx = dx[i].data,
                               .dweight = dweight[i].data,
                               .dbias = s->layer ? dbias[i].data : NULL};
        MUST(forward(f, &norm, i == 0, &err));
        MUST(backward(f, &norm, i == 0, &err));
        if (i == 0) continue;
        norm.dx = out[1].data, norm.dweight = dweight[2].data, norm.dbias = s->layer ? dbias[2].data : NULL;
        buffers_equal(&out[1], &out[0], "out");
        simt_set_order(some_orders[1 + n % 2]);
        MUST(backward(f, &norm, false, &err));
        simt_set_order(0);
    }
    buffers_equal(&mean[1], &mean[0], "mean");
    buffers_equal(&rstd[1], &rstd[0], "rstd");
    buffers_equal(&dx[1], &dx[0], "dx");
    buffers_equal(&dweight[2], &dweight[1], "dweight in another order of threads");
    buffers_equal(&dbias[2], &dbias[1], "dbias in another order of threads");
    check_weights(s, &x, &weight, &dout, &dweight[1], &dbias[1]);
    struct buffer *all[] = {&x,          &dout,       &weight,   &bias,     &residual, &out[0], &out[1],
                            &mean[0],    &mean[1],    &rstd[0],  &rstd[1],  &dx[0],    &dx[1],  &dweight[0],
                            &dweight[1], &dweight[2], &dbias[0], &dbias[1], &dbias[2]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
}

static void check_all(bool layer)
{
    /* Several bands; several rounds of a band's rows; rows too long for shared memory in fp32. */
    static const size_t sizes[][2] = {{1, 1},   {3, 5},     {8, 16},   {17, 33},   {9, 136},
                                      {70, 64}, {200, 264}, {5, 1000}, {21, 3004}, {3, 8600}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++)
        for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
            for (int residual = z < 7 ? 0 : 2; residual < 3; residual++)
                check(&f, &(struct scene){sizes[z][0], sizes[z][1], residual == 1, all_dtypes[d], layer, residual});
    fixture_free(&f);
}

Test(norm, rms)
{
    check_all(false);
}

Test(norm, layer)
{
    check_all(true);
}

/* Heads, normed in place: out, dx, kept and rstd have the CPU's bits, and dweight those of rows one behind the other. */
static void check_heads(struct fixture *f, enum pd_dtype dtype, uint32_t tokens, uint32_t heads, uint32_t columns,
                        size_t gap)
{
    const size_t ld = (heads + 1) * columns + gap, kept_heads = heads + 1, rows = (size_t)tokens * heads;
    uint64_t seed = tokens + gap;
    struct buffer x[2], dx[2], kept[2], rstd[2], dweight[3], weight = buffer_random(dtype, columns, 0, 1, &seed);
    struct buffer dense = buffer_new(dtype, rows * columns, 0), ddense = buffer_new(dtype, rows * columns, 0);
    struct buffer flat = buffer_new(PD_F32, rows, 0), out = buffer_new(dtype, rows * columns, 0);
    x[0] = buffer_random(dtype, tokens * ld, 0, 2, &seed), x[1] = buffer_copy(&x[0]);
    dx[0] = buffer_random(dtype, tokens * ld, 0, 1, &seed), dx[1] = buffer_copy(&dx[0]);
    const size_t bytes = pd_dtype_bytes(dtype), row = columns * bytes;
    for (size_t r = 0; r < rows; r++) {
        const size_t at = (r / heads * ld + r % heads * columns) * bytes;
        memcpy((char *)dense.data + r * row, (char *)x[0].data + at, row);
        memcpy((char *)ddense.data + r * row, (char *)dx[0].data + at, row);
    }
    struct pd_norm n = {.rows = rows, .columns = columns, .dtype = dtype, .epsilon = 1e-6f, .weight = weight.data};
    for (int i = 0; i < 3; i++)
        dweight[i] = buffer_new(PD_F32, columns, 0);
    for (int i = 0; i < 2; i++) {
        kept[i] = buffer_new(dtype, tokens * kept_heads * columns, 0), rstd[i] = buffer_new(PD_F32, tokens * kept_heads, 0);
        struct pd_norm h = n;
        h.heads = heads, h.kept_heads = (uint32_t)kept_heads, h.ld = ld, h.kept = kept[i].data, h.rstd = rstd[i].data;
        h.x = h.out = x[i].data, h.dweight = dweight[i].data;
        MUST((i ? pd_cuda_norm_forward(NULL, &h, &err) : pd_norm_forward(f->math, &h, &err)));
        h.x = kept[i].data, h.dout = h.dx = dx[i].data;
        MUST(backward(f, &h, i == 0, &err));
    }
    n.x = dense.data, n.out = out.data, n.rstd = flat.data, n.dout = n.dx = ddense.data, n.dweight = dweight[2].data;
    MUST(pd_cuda_norm_forward(NULL, &n, &err));
    MUST(backward(f, &n, false, &err));
    buffers_equal(&x[1], &x[0], "out of heads");
    buffers_equal(&kept[1], &kept[0], "kept");
    buffers_equal(&rstd[1], &rstd[0], "rstd of heads");
    buffers_equal(&dx[1], &dx[0], "dx of heads");
    buffers_equal(&dweight[2], &dweight[1], "dweight of heads");
    struct buffer *all[] = {&x[0],       &x[1],       &dx[0],      &dx[1],  &kept[0], &kept[1], &rstd[0], &rstd[1],
                            &dweight[0], &dweight[1], &dweight[2], &weight, &dense,   &ddense,  &flat,    &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_free(all[i]);
}

Test(norm, heads)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check_heads(&f, all_dtypes[d], 1, 1, 6, 0);
        check_heads(&f, all_dtypes[d], 9, 3, 64, 0);
        check_heads(&f, all_dtypes[d], 30, 5, 16, 1);
    }
    fixture_free(&f);
}

/* Two runs of heads whose norms have a weight each, as of q and k, rotated behind the norms. */
struct turned {
    enum pd_dtype dtype;
    uint32_t tokens, first, others, columns, rotated;
    size_t ld, kept_heads;
    const void *weight, *other_weight;
    const int32_t *positions;
    const float *cos_sin;
};

struct turned_buffers {
    struct buffer x, dx, kept, rstd, dweight;
};

static struct pd_norm turned_norm(const struct turned *t, const struct turned_buffers *r)
{
    const uint32_t heads = t->first + t->others;
    return (struct pd_norm){.rows = (uint64_t)t->tokens * heads,
                            .columns = t->columns,
                            .heads = heads,
                            .kept_heads = (uint32_t)t->kept_heads,
                            .ld = t->ld,
                            .dtype = t->dtype,
                            .epsilon = 1e-6f,
                            .x = r->x.data,
                            .kept = r->kept.data,
                            .weight = t->weight,
                            .rstd = r->rstd.data,
                            .out = r->x.data};
}

static struct pd_norm turned_gradient(const struct turned *t, const struct turned_buffers *r)
{
    struct pd_norm n = turned_norm(t, r);
    n.rows = (uint64_t)t->tokens * t->first;
    n.heads = t->first;
    n.x = r->kept.data, n.kept = NULL;
    n.dout = n.dx = r->dx.data;
    n.dweight = r->dweight.data;
    return n;
}

/* All heads at once forward; backward of the first run, whose dweight is its own. */
static void run_turned(struct fixture *f, const struct turned *t, const struct turned_buffers *r, bool cpu)
{
    struct pd_norm n = turned_norm(t, r);
    n.positions = t->positions, n.cos_sin = t->cos_sin, n.rotated = t->rotated;
    n.other_weight = t->other_weight, n.other_first = t->first;
    MUST(forward(f, &n, cpu, &err));
    n = turned_gradient(t, r);
    n.positions = t->positions, n.cos_sin = t->cos_sin, n.rotated = t->rotated;
    MUST(backward(f, &n, cpu, &err));
}

/* One operation after the other: the norm of each run, then the rotation of both; the rotation back, then the norm. */
static void run_apart(struct fixture *f, const struct turned *t, const struct turned_buffers *r)
{
    const size_t bytes = pd_dtype_bytes(t->dtype);
    struct pd_norm n = turned_norm(t, r);
    struct pd_rope rope = {.rows = t->tokens,
                           .heads = t->first + t->others,
                           .head_size = t->columns,
                           .dtype = t->dtype,
                           .x = r->x.data,
                           .ld = t->ld,
                           .positions = t->positions,
                           .cos_sin = t->cos_sin,
                           .rotated = t->rotated};
    n.rows = (uint64_t)t->tokens * t->first, n.heads = t->first;
    MUST(forward(f, &n, false, &err));
    n.rows = (uint64_t)t->tokens * t->others, n.heads = t->others;
    n.x = n.out = (char *)r->x.data + t->first * t->columns * bytes;
    n.kept = (char *)r->kept.data + t->first * t->columns * bytes;
    n.rstd = (float *)r->rstd.data + t->first, n.weight = t->other_weight;
    MUST(forward(f, &n, false, &err));
    MUST(pd_cuda_rope(NULL, &rope, &err));
    rope.x = r->dx.data, rope.heads = t->first, rope.inverse = true;
    MUST(pd_cuda_rope(NULL, &rope, &err));
    n = turned_gradient(t, r);
    MUST(backward(f, &n, false, &err));
}

static void check_turned(struct fixture *f, struct turned t, size_t shift, uint64_t order)
{
    enum { POSITIONS = 50 };
    uint64_t seed = t.tokens + t.columns + shift;
    const size_t rows = (size_t)t.tokens * t.kept_heads;
    struct buffer weight = buffer_random(t.dtype, t.columns, shift, 1, &seed);
    struct buffer other = buffer_random(t.dtype, t.columns, shift, 1, &seed);
    struct buffer angles = buffer_random(PD_F32, POSITIONS * t.columns, 0, 1, &seed);
    struct buffer x = buffer_random(t.dtype, t.tokens * t.ld, shift, 2, &seed);
    struct buffer dx = buffer_random(t.dtype, t.tokens * t.ld, shift, 1, &seed);
    int32_t *positions = malloc(t.tokens * sizeof *positions);
    struct turned_buffers r[3];
    for (uint32_t i = 0; i < t.tokens; i++)
        positions[i] = (int32_t)(i * 7 % POSITIONS);
    t.weight = weight.data, t.other_weight = other.data, t.positions = positions, t.cos_sin = angles.data;
    for (int i = 0; i < 3; i++) {
        r[i] = (struct turned_buffers){buffer_copy(&x), buffer_copy(&dx), buffer_new(t.dtype, rows * t.columns, shift),
                                       buffer_new(PD_F32, rows, 0), buffer_new(PD_F32, t.columns, 0)};
    }
    run_turned(f, &t, &r[0], true);
    simt_set_order(order);
    run_turned(f, &t, &r[1], false);
    simt_set_order(0);
    run_apart(f, &t, &r[2]);
    for (int i = 0; i < 3; i += 2) {
        const char *beside = i ? "beside one after the other" : "beside the CPU";
        buffers_equal(&r[1].x, &r[i].x, beside);
        buffers_equal(&r[1].kept, &r[i].kept, beside);
        buffers_equal(&r[1].rstd, &r[i].rstd, beside);
        buffers_equal(&r[1].dx, &r[i].dx, beside);
    }
    buffers_equal(&r[1].dweight, &r[2].dweight, "dweight beside one after the other");
    for (int i = 0; i < 3; i++)
        buffer_free(&r[i].x), buffer_free(&r[i].dx), buffer_free(&r[i].kept), buffer_free(&r[i].rstd),
            buffer_free(&r[i].dweight);
    buffer_free(&weight), buffer_free(&other), buffer_free(&angles), buffer_free(&x), buffer_free(&dx);
    free(positions);
}

Test(norm, heads_that_are_rotated)
{
    static const struct turned cases[] = {
        {.tokens = 1, .first = 1, .others = 1, .columns = 2, .ld = 4, .kept_heads = 2},
        {.tokens = 9, .first = 3, .others = 2, .columns = 6, .ld = 37, .kept_heads = 7},
        {.tokens = 33, .first = 2, .others = 1, .columns = 64, .ld = 256, .kept_heads = 3},
        {.tokens = 40, .first = 4, .others = 2, .columns = 128, .ld = 1024, .kept_heads = 6},
        {.tokens = 5, .first = 1, .others = 3, .columns = 256, .ld = 1024, .kept_heads = 4},
        {.tokens = 33, .first = 2, .others = 1, .columns = 64, .rotated = 32, .ld = 256, .kept_heads = 3},
        {.tokens = 9, .first = 3, .others = 2, .columns = 6, .rotated = 2, .ld = 37, .kept_heads = 7},
    };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (size_t shift = 0; shift < 2; shift++) {
                struct turned t = cases[i];
                t.dtype = all_dtypes[d];
                check_turned(&f, t, shift, some_orders[(i + shift) % SOME_ORDERS]);
            }
    fixture_free(&f);
}
