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
    struct room room = room_new(PD_F32, bytes / sizeof(float), 0);
    const pd_status st = pd_cuda_norm_backward(NULL, n, (struct pd_cuda_workspace){room.data, bytes, NULL}, err);
    room_free(&room);
    return st;
}

static double *exact_of(const struct room *r)
{
    double *x = malloc((r->count + 1) * sizeof *x);
    for (size_t i = 0; i < r->count; i++)
        x[i] = value_get(r->dtype, r->data, i);
    return x;
}

static void check_weights(const struct scene *s, const struct room *x, const struct room *weight, const struct room *dout,
                          const struct room *dweight, const struct room *dbias)
{
    double *in[3] = {exact_of(x), exact_of(weight), exact_of(dout)};
    double *dx = malloc(s->rows * s->columns * sizeof *dx);
    double *want[2] = {malloc(s->columns * sizeof(double)), malloc(s->columns * sizeof(double))};
    ref_norm_backward(s->rows, s->columns, 1e-5, in[0], in[1], in[2], NULL, dx, want[0], s->layer ? want[1] : NULL);
    room_near(dweight, want[0], 1e-5, "dweight");
    if (s->layer) room_near(dbias, want[1], 1e-5, "dbias");
    free(in[0]), free(in[1]), free(in[2]), free(dx), free(want[0]), free(want[1]);
}

static void check(struct fixture *f, const struct scene *s)
{
    const size_t n = s->rows * s->columns;
    uint64_t seed = n + s->shift + s->dtype;
    struct room x = room_random(s->dtype, n, s->shift, 2, &seed), dout = room_random(s->dtype, n, s->shift, 1, &seed);
    struct room weight = room_random(s->dtype, s->columns, s->shift, 1, &seed);
    struct room bias = room_random(s->dtype, s->columns, s->shift, 1, &seed);
    struct room residual = room_random(s->dtype, n, s->shift, 1, &seed);
    struct room out[2], mean[2], rstd[2], dx[2], dweight[3], dbias[3];
    for (size_t i = 0; i < 3; i++)
        dweight[i] = room_new(PD_F32, s->columns, 0), dbias[i] = room_new(PD_F32, s->columns, 0);
    for (size_t i = 0; i < 2; i++) {
        out[i] = room_new(s->dtype, n, s->shift), mean[i] = room_new(PD_F32, s->rows, 0);
        rstd[i] = room_new(PD_F32, s->rows, 0), dx[i] = room_copy(&residual);
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
        rooms_equal(&out[1], &out[0], "out");
        simt_set_order(some_orders[1 + n % 2]);
        MUST(backward(f, &norm, false, &err));
        simt_set_order(0);
    }
    rooms_equal(&mean[1], &mean[0], "mean");
    rooms_equal(&rstd[1], &rstd[0], "rstd");
    rooms_equal(&dx[1], &dx[0], "dx");
    rooms_equal(&dweight[2], &dweight[1], "dweight in another order of threads");
    rooms_equal(&dbias[2], &dbias[1], "dbias in another order of threads");
    check_weights(s, &x, &weight, &dout, &dweight[1], &dbias[1]);
    struct room *all[] = {&x,          &dout,       &weight,   &bias,     &residual, &out[0], &out[1],
                          &mean[0],    &mean[1],    &rstd[0],  &rstd[1],  &dx[0],    &dx[1],  &dweight[0],
                          &dweight[1], &dweight[2], &dbias[0], &dbias[1], &dbias[2]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        room_free(all[i]);
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
    struct room x[2], dx[2], kept[2], rstd[2], dweight[3], weight = room_random(dtype, columns, 0, 1, &seed);
    struct room dense = room_new(dtype, rows * columns, 0), ddense = room_new(dtype, rows * columns, 0);
    struct room flat = room_new(PD_F32, rows, 0), out = room_new(dtype, rows * columns, 0);
    x[0] = room_random(dtype, tokens * ld, 0, 2, &seed), x[1] = room_copy(&x[0]);
    dx[0] = room_random(dtype, tokens * ld, 0, 1, &seed), dx[1] = room_copy(&dx[0]);
    const size_t bytes = pd_dtype_bytes(dtype), row = columns * bytes;
    for (size_t r = 0; r < rows; r++) {
        const size_t at = (r / heads * ld + r % heads * columns) * bytes;
        memcpy((char *)dense.data + r * row, (char *)x[0].data + at, row);
        memcpy((char *)ddense.data + r * row, (char *)dx[0].data + at, row);
    }
    struct pd_norm n = {.rows = rows, .columns = columns, .dtype = dtype, .epsilon = 1e-6f, .weight = weight.data};
    for (int i = 0; i < 3; i++)
        dweight[i] = room_new(PD_F32, columns, 0);
    for (int i = 0; i < 2; i++) {
        kept[i] = room_new(dtype, tokens * kept_heads * columns, 0), rstd[i] = room_new(PD_F32, tokens * kept_heads, 0);
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
    rooms_equal(&x[1], &x[0], "out of heads");
    rooms_equal(&kept[1], &kept[0], "kept");
    rooms_equal(&rstd[1], &rstd[0], "rstd of heads");
    rooms_equal(&dx[1], &dx[0], "dx of heads");
    rooms_equal(&dweight[2], &dweight[1], "dweight of heads");
    struct room *all[] = {&x[0],       &x[1],       &dx[0],      &dx[1],  &kept[0], &kept[1], &rstd[0], &rstd[1],
                          &dweight[0], &dweight[1], &dweight[2], &weight, &dense,   &ddense,  &flat,    &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        room_free(all[i]);
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
