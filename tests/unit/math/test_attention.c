#include "fixture.h"
#include "reference.h"

struct shape {
    uint32_t sequences, length, heads, kv_heads, head_size;
    bool documents;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, false},    {2, 15, 2, 1, 2, false},  {1, 16, 3, 3, 16, false},  {2, 33, 4, 2, 17, true},
    {1, 64, 2, 2, 64, false},  {1, 65, 6, 2, 24, true},  {3, 127, 5, 1, 8, false},  {1, 130, 7, 1, 6, true},
    {1, 200, 2, 2, 80, false}, {1, 260, 4, 4, 64, true}, {1, 70, 1, 1, 256, false}, {1, 300, 12, 3, 32, true},
};

/* Documents of random lengths: where each query's own begins. */
static int32_t *documents_new(const struct shape *s, uint64_t *seed)
{
    int32_t *first = calloc((size_t)s->sequences * s->length, sizeof *first);
    for (uint32_t row = 0; row < s->sequences * s->length; row++) {
        uint32_t t = row % s->length;
        first[row] = t == 0 ? 0 : random_u64(seed) % 40 == 0 ? (int32_t)t : first[row - 1];
    }
    return first;
}

/* Part of a (R, columns) array out of rows that lie ld apart, and back. */
static void gather(enum pd_dtype dtype, const void *from, size_t ld, size_t rows, size_t columns, struct array *to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < columns; i++)
            value_put(dtype, to->data, r * columns + i, value_get(dtype, from, r * ld + i));
}

static void *at(void *data, enum pd_dtype dtype, size_t index)
{
    return (char *)data + index * pd_dtype_bytes(dtype);
}

static void check(struct fixture *f, const struct shape *s, enum pd_dtype dtype, double deviation, uint64_t seed)
{
    size_t rows = (size_t)s->sequences * s->length, width = (size_t)s->heads * s->head_size;
    size_t kv_width = (size_t)s->kv_heads * s->head_size, ld = width + 2 * kv_width + 3, state = rows * s->heads;
    struct array q = array_random(dtype, rows * width, deviation, &seed),
                 k = array_random(dtype, rows * kv_width, deviation, &seed);
    struct array v = array_random(dtype, rows * kv_width, 1, &seed), out = array_new(dtype, rows * width);
    struct array dout = array_random(dtype, rows * width, 1, &seed), lse = array_new(PD_F32, state);
    struct array dq = array_new(dtype, rows * width), dk = array_new(dtype, rows * kv_width),
                 dv = array_new(dtype, rows * kv_width);
    struct array packed = array_new(dtype, rows * ld), dpacked = array_new(dtype, rows * ld);
    float *delta = calloc(state, sizeof *delta);
    int32_t *first = s->documents ? documents_new(s, &seed) : NULL;
    for (size_t r = 0; r < rows; r++) {
        memcpy(at(packed.data, dtype, r * ld), at(q.data, dtype, r * width), width * pd_dtype_bytes(dtype));
        memcpy(at(packed.data, dtype, r * ld + width), at(k.data, dtype, r * kv_width), kv_width * pd_dtype_bytes(dtype));
        memcpy(at(packed.data, dtype, r * ld + width + kv_width), at(v.data, dtype, r * kv_width),
               kv_width * pd_dtype_bytes(dtype));
    }
    struct pd_attention a = {.sequences = s->sequences,
                             .length = s->length,
                             .heads = s->heads,
                             .kv_heads = s->kv_heads,
                             .head_size = s->head_size,
                             .dtype = dtype,
                             .scale = 1.0f / sqrtf((float)s->head_size),
                             .q = packed.data,
                             .k = at(packed.data, dtype, width),
                             .v = at(packed.data, dtype, width + kv_width),
                             .ld_qkv = ld,
                             .first = first,
                             .out = out.data,
                             .lse = lse.data,
                             .dout = dout.data,
                             .delta = delta,
                             .dq = dpacked.data,
                             .dk = at(dpacked.data, dtype, width),
                             .dv = at(dpacked.data, dtype, width + kv_width)};
    struct ref_attention ref = {s->sequences,    s->length, s->heads, s->kv_heads, s->head_size,
                                (double)a.scale, q.exact,   k.exact,  v.exact,     first};
    char what[96];
    snprintf(what, sizeof what, "S%u T%u H%u/%u D%u%s", s->sequences, s->length, s->heads, s->kv_heads, s->head_size,
             first ? " documents" : "");
    MUST(pd_attention_forward(f->math, &a, &err));
    ref_attention_forward(&ref, out.exact, lse.exact);
    array_check(&lse, 256 * deviation * deviation, what);
    array_check(&out, 256 * deviation * deviation, what);
    MUST(pd_attention_backward(f->math, &a, &err));
    ref_attention_backward(&ref, dout.exact, dq.exact, dk.exact, dv.exact);
    gather(dtype, a.dq, ld, rows, width, &dq);
    gather(dtype, a.dk, ld, rows, kv_width, &dk);
    gather(dtype, a.dv, ld, rows, kv_width, &dv);
    /* delta is taken from `out` as it was rounded: its error reaches dq and dk */
    double slack = 256 * deviation * deviation + (dtype == PD_F32 ? 0 : 4 * rounding_of(dtype) / 0x1p-24);
    array_check(&dq, slack, what);
    array_check(&dk, slack, what);
    array_check(&dv, 256 * deviation * deviation, what);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 3; i++)
            cr_assert_eq(value_get(dtype, dpacked.data, r * ld + width + 2 * kv_width + i), 0, "%s: wrote beside its rows",
                         what);
    struct array *all[] = {&q, &k, &v, &out, &dout, &lse, &dq, &dk, &dv, &packed, &dpacked};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_free(all[i]);
    free(delta);
    free(first);
}

Test(attention, agrees_with_float64)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t d = 0; d < 3; d++)
            check(&f, &shapes[i], all_dtypes[d], 1, 31 * i + 1);
    fixture_free(&f);
}

/* Scores in the hundreds: one key takes nearly all weight, the others underflow. */
Test(attention, agrees_where_scores_are_large)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    static const struct shape large = {1, 150, 2, 1, 64, true};
    check(&f, &large, PD_F32, 6, 77);
    fixture_free(&f);
}
