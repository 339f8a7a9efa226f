/* Operations on elements: kernels have the bits of the CPU backend, whatever the size, the alignment and the dtype. */
#include "simt_fixture.h"

#include "offload/cpu_adam.h"

static const size_t counts[] = {1, 7, 8, 31, 2048, 2061, 5000};
enum { COUNTS = 7 };

/* Large, small, infinite, subnormal. */
static void put_extremes(struct buffer *r)
{
    static const double values[] = {0.0, -0.0, 1e30, -1e30, 88.5, -88.5, 1e-39, -1e-39, 6e-8, INFINITY, -INFINITY, 65520};
    for (size_t i = 0; i < sizeof values / sizeof *values && 3 * i < r->count; i++)
        value_put(r->dtype, r->data, 3 * i, values[i]);
}

static void check_gelu(struct fixture *f, enum pd_dtype dtype, size_t n, size_t shift)
{
    uint64_t seed = n + shift + 1;
    struct buffer x = buffer_random(dtype, n, shift, 3, &seed), dout = buffer_random(dtype, n, shift, 1, &seed);
    struct buffer want = buffer_new(dtype, n, shift), got = buffer_new(dtype, n, shift);
    if (n > 2000) put_extremes(&x);
    MUST(pd_gelu_forward(f->math, n, dtype, x.data, want.data, &err));
    MUST(pd_cuda_gelu_forward(NULL, n, dtype, x.data, got.data, &err));
    for (size_t i = 0; i < n; i++) /* payloads of NaN are nobody's promise */
        if (isnan(value_get(dtype, want.data, i))) cr_assert(isnan(value_get(dtype, got.data, i)));
    for (size_t i = 0; i < n; i++)
        if (isnan(value_get(dtype, want.data, i))) value_put(dtype, want.data, i, 0), value_put(dtype, got.data, i, 0);
    buffers_equal(&got, &want, "gelu");
    struct buffer y = buffer_random(dtype, n, shift, 3, &seed);
    MUST(pd_gelu_backward(f->math, n, dtype, y.data, dout.data, want.data, &err));
    MUST(pd_cuda_gelu_backward(NULL, n, dtype, y.data, dout.data, dout.data, &err)); /* in place */
    buffers_equal(&dout, &want, "gelu's gradient");
    struct buffer *all[] = {&x, &y, &dout, &want, &got};
    for (size_t i = 0; i < 5; i++)
        buffer_free(all[i]);
}

Test(pointwise, gelu)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++)
        for (size_t c = 0; c < COUNTS; c++)
            for (size_t shift = 0; shift < 2; shift++)
                check_gelu(&f, all_dtypes[d], counts[c], shift);
    fixture_free(&f);
}

static void check_swiglu(struct fixture *f, enum pd_dtype dtype, size_t rows, size_t columns, size_t shift)
{
    uint64_t seed = rows * columns + shift;
    struct buffer x = buffer_random(dtype, 2 * rows * columns, shift, 2, &seed);
    struct buffer dout = buffer_random(dtype, rows * columns, shift, 1, &seed),
                  dx = buffer_new(dtype, 2 * rows * columns, shift);
    struct buffer want = buffer_new(dtype, rows * columns, shift), got = buffer_new(dtype, rows * columns, shift);
    MUST(pd_swiglu_forward(f->math, rows, columns, dtype, x.data, want.data, &err));
    MUST(pd_cuda_swiglu_forward(NULL, rows, columns, dtype, x.data, got.data, &err));
    buffers_equal(&got, &want, "swiglu");
    MUST(pd_swiglu_backward(f->math, rows, columns, dtype, x.data, dout.data, dx.data, &err));
    MUST(pd_cuda_swiglu_backward(NULL, rows, columns, dtype, x.data, dout.data, x.data, &err)); /* in place */
    buffers_equal(&x, &dx, "swiglu's gradient");
    struct buffer *all[] = {&x, &dout, &dx, &want, &got};
    for (size_t i = 0; i < 5; i++)
        buffer_free(all[i]);
}

Test(pointwise, swiglu)
{
    static const size_t sizes[][2] = {{1, 1}, {3, 8}, {5, 33}, {4, 264}, {2, 2056}, {1, 2600}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++)
        for (size_t s = 0; s < 6; s++)
            for (size_t shift = 0; shift < 2; shift++)
                check_swiglu(&f, all_dtypes[d], sizes[s][0], sizes[s][1], shift);
    fixture_free(&f);
}

static void check_rope(struct fixture *f, enum pd_dtype dtype, uint32_t heads, uint32_t head_size, uint32_t rotated,
                       uint64_t ld, bool inverse)
{
    enum { ROWS = 5, POSITIONS = 9 };
    uint64_t seed = heads + head_size + ld;
    struct buffer want = buffer_random(dtype, ROWS * ld, 0, 1, &seed), got = buffer_copy(&want);
    struct buffer table = buffer_random(PD_F32, POSITIONS * head_size, 0, 1, &seed);
    int32_t positions[ROWS] = {3, 0, 8, 1, 1};
    struct pd_rope r = {.rows = ROWS,
                        .heads = heads,
                        .head_size = head_size,
                        .dtype = dtype,
                        .x = want.data,
                        .ld = ld,
                        .positions = positions,
                        .cos_sin = table.data,
                        .inverse = inverse,
                        .rotated = rotated};
    MUST(pd_rope(f->math, &r, &err));
    r.x = got.data;
    MUST(pd_cuda_rope(NULL, &r, &err));
    buffers_equal(&got, &want, "rope");
    buffer_free(&want), buffer_free(&got), buffer_free(&table);
}

Test(pointwise, rope)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        for (int inverse = 0; inverse < 2; inverse++) {
            check_rope(&f, all_dtypes[d], 1, 2, 0, 2, inverse);
            check_rope(&f, all_dtypes[d], 3, 16, 0, 64, inverse);
            check_rope(&f, all_dtypes[d], 5, 64, 0, 321, inverse);
            check_rope(&f, all_dtypes[d], 8, 128, 0, 1040, inverse);
            check_rope(&f, all_dtypes[d], 2, 24, 0, 48, inverse);
            check_rope(&f, all_dtypes[d], 3, 64, 32, 192, inverse);
            check_rope(&f, all_dtypes[d], 3, 20, 16, 64, inverse);
            check_rope(&f, all_dtypes[d], 2, 8, 4, 19, inverse);
        }
    }
    fixture_free(&f);
}

/* From elsewhere, on the CPU and here: what a copy in front of it would leave, and nothing between rows. */
static void check_rope_from(struct fixture *f, enum pd_dtype dtype, uint64_t head_size, uint64_t ld_from, uint64_t ld)
{
    enum { ROWS = 5, HEADS = 3, POSITIONS = 9 };
    uint64_t seed = head_size + ld_from + ld;
    const uint64_t row = HEADS * head_size * pd_dtype_bytes(dtype), from_row = ld_from * pd_dtype_bytes(dtype),
                   to_row = ld * pd_dtype_bytes(dtype);
    struct buffer from = buffer_random(dtype, ROWS * ld_from, 0, 1, &seed);
    struct buffer want = buffer_random(dtype, ROWS * ld, 0, 1, &seed), cpu = buffer_copy(&want), got = buffer_copy(&want);
    struct buffer table = buffer_random(PD_F32, POSITIONS * head_size, 0, 1, &seed);
    int32_t positions[ROWS] = {3, 0, 8, 1, 1};
    struct pd_rope r = {.rows = ROWS,
                        .heads = HEADS,
                        .head_size = (uint32_t)head_size,
                        .dtype = dtype,
                        .x = want.data,
                        .ld = ld,
                        .positions = positions,
                        .cos_sin = table.data};
    MUST(pd_copy_rows(f->math, ROWS, row, want.data, to_row, from.data, from_row, &err));
    MUST(pd_rope(f->math, &r, &err));
    r.from = from.data, r.ld_from = ld_from;
    r.x = cpu.data;
    MUST(pd_rope(f->math, &r, &err));
    r.x = got.data;
    MUST(pd_cuda_rope(NULL, &r, &err));
    buffers_equal(&cpu, &want, "rope from elsewhere, CPU");
    buffers_equal(&got, &want, "rope from elsewhere");
    struct buffer *all[] = {&want, &cpu, &got, &table, &from};
    for (size_t i = 0; i < 5; i++)
        buffer_free(all[i]);
}

Test(pointwise, rope_from_elsewhere)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check_rope_from(&f, all_dtypes[d], 64, 192, 320);
        check_rope_from(&f, all_dtypes[d], 64, 200, 192);
        check_rope_from(&f, all_dtypes[d], 64, 201, 192);
        check_rope_from(&f, all_dtypes[d], 64, 192, 193);
        check_rope_from(&f, all_dtypes[d], 6, 18, 40);
    }
    fixture_free(&f);
}

static void check_add(struct fixture *f, size_t n, size_t shift)
{
    uint64_t seed = n;
    struct buffer more = buffer_random(PD_F32, n, shift, 1, &seed), want = buffer_random(PD_F32, n, shift, 1, &seed);
    struct buffer got = buffer_copy(&want);
    MUST(pd_add(f->math, n, want.data, more.data, &err));
    MUST(pd_cuda_add(NULL, n, got.data, more.data, &err));
    buffers_equal(&got, &want, "add");
    buffer_free(&more), buffer_free(&want), buffer_free(&got);
}

static void check_cast(struct fixture *f, enum pd_dtype to, enum pd_dtype from, size_t n, size_t shift)
{
    uint64_t seed = n;
    struct buffer src = buffer_random(from, n, shift, 100, &seed), want = buffer_new(to, n, shift),
                  got = buffer_new(to, n, shift);
    put_extremes(&src);
    MUST(pd_cast(f->math, n, to, want.data, from, src.data, &err));
    MUST(pd_cuda_cast(NULL, n, to, got.data, from, src.data, &err));
    buffers_equal(&got, &want, "cast");
    buffer_free(&src), buffer_free(&want), buffer_free(&got);
}

Test(pointwise, additions_and_casts)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        for (size_t c = 0; c < COUNTS; c++) {
            for (size_t shift = 0; shift < 2; shift++) {
                if (d == 0) check_add(&f, counts[c], shift);
                for (size_t s = 0; s < 3; s++)
                    check_cast(&f, all_dtypes[d], all_dtypes[s], counts[c], shift);
            }
        }
    }
    fixture_free(&f);
}

/* Every half to fp32 and back, and what lies between neighbours. */
Test(pointwise, every_half)
{
    enum { ALL = 65536 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (enum pd_dtype dtype = PD_BF16; dtype <= PD_F16; dtype++) {
        struct buffer halves = buffer_new(dtype, ALL, 0), want = buffer_new(PD_F32, ALL, 0),
                      got = buffer_new(PD_F32, ALL, 0);
        struct buffer back = buffer_new(dtype, ALL, 0), back_want = buffer_new(dtype, ALL, 0);
        size_t count = 0;
        for (uint32_t bits = 0; bits < ALL; bits++) {
            uint16_t half = (uint16_t)bits;
            memcpy((uint16_t *)halves.data + count, &half, sizeof half);
            if (!isnan(value_get(dtype, halves.data, count))) count++;
        }
        MUST(pd_cast(f.math, count, PD_F32, want.data, dtype, halves.data, &err));
        MUST(pd_cuda_cast(NULL, count, PD_F32, got.data, dtype, halves.data, &err));
        buffers_equal(&got, &want, "from halves");
        for (int nudge = -1; nudge <= 1; nudge++) {
            float *between = want.data;
            for (size_t i = 0; i + 1 < count; i++) {
                float a = (float)value_get(dtype, halves.data, i), b = (float)value_get(dtype, halves.data, i + 1);
                between[i] = pd_f32_of_bits(pd_f32_bits((a + b) / 2) + (uint32_t)nudge);
                if (isnan(between[i])) between[i] = 0;
            }
            MUST(pd_cast(f.math, count - 1, dtype, back_want.data, PD_F32, between, &err));
            MUST(pd_cuda_cast(NULL, count - 1, dtype, back.data, PD_F32, between, &err));
            buffers_equal(&back, &back_want, "to halves");
        }
        struct buffer *all[] = {&halves, &want, &got, &back, &back_want};
        for (size_t i = 0; i < 5; i++)
            buffer_free(all[i]);
    }
    fixture_free(&f);
}

static void make_positive(struct buffer *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (r->dtype == PD_F32)
            ((float *)r->data)[i] = fabsf(((float *)r->data)[i]);
        else
            ((uint16_t *)r->data)[i] &= 0x7fff;
}

static bool by_sign; /* of check_adam */

static void check_adam(struct fixture *f, size_t n, size_t shift, bool decay, int copy, enum pd_dtype moments)
{
    uint64_t seed = n + shift;
    const struct pd_update_config config = {.rate = 3e-4,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .epsilon = 1e-8,
                                            .weight_decay = 0.1,
                                            .step = 3,
                                            .scale = 1.0 / 4096,
                                            .seed = n};
    const struct pd_adam_step step = pd_adam_step_make(&config);
    struct buffer want[5] = {buffer_random(PD_F32, n, shift, 1, &seed), buffer_random(moments, n, shift, 1e-2, &seed),
                             buffer_random(moments, n, shift, 1e-4, &seed), buffer_random(PD_F32, n, shift, 100, &seed),
                             buffer_new(copy < 0 ? PD_F32 : (enum pd_dtype)copy, n, shift)};
    struct buffer got[5];
    make_positive(&want[2], n);
    put_extremes(&want[3]);
    for (size_t i = 0; i < n; i++)
        if (isinf(((float *)want[3].data)[i])) ((float *)want[3].data)[i] = 0;
    for (size_t i = 0; i < 5; i++)
        got[i] = buffer_copy(&want[i]);
    for (int which = 0; which < 2; which++) {
        struct buffer *r = which ? got : want;
        const struct pd_update_range range = {.n = n,
                                              .decay = decay,
                                              .by_sign = by_sign,
                                              .sign_step = 1e-3f,
                                              .param = r[0].data,
                                              .exp_avg = r[1].data,
                                              .exp_avg_sq = r[2].data,
                                              .grad = r[3].data,
                                              .copy = copy < 0 ? NULL : r[4].data,
                                              .copy_dtype = r[4].dtype,
                                              .moments = moments,
                                              .place = {.tensor = 3, .first = 5, .origin = 77, .columns = 7, .stride = 11}};
        if (which == 0) pd_cpu_adam(f->pool, f->math->isa, &step, &range);
        if (which == 1) MUST(pd_cuda_adam(NULL, &step, &range, &err));
    }
    static const char *const names[] = {"param", "exp_avg", "exp_avg_sq", "grad", "copy"};
    for (size_t i = 0; i < 5; i++) {
        buffers_equal(&got[i], &want[i], names[i]);
        buffer_free(&got[i]), buffer_free(&want[i]);
    }
}

Test(pointwise, moves_by_sign)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    by_sign = true;
    for (int copy = -1; copy < 3; copy++)
        check_adam(&f, 77, copy == 1, true, copy, PD_F32);
    fixture_free(&f);
}

Test(pointwise, adamw)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t c = 0; c < COUNTS; c++)
        for (size_t shift = 0; shift < 2; shift++)
            for (int copy = -1; copy < 3; copy++)
                for (int narrow = 0; narrow < 2; narrow++)
                    check_adam(&f, counts[c], shift, copy % 2 == 0, copy, narrow ? PD_BF16 : PD_F32);
    fixture_free(&f);
}

/* Pieces at every alignment and of every length, some of many blocks; nothing beside them changes. */
Test(pointwise, pieces_of_copies)
{
    enum { BYTES = 400000 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    static char from[BYTES], want[2 * BYTES], ours[2 * BYTES], got[2 * BYTES];
    struct pd_copies copies[2] = {{0}};
    uint64_t seed = 5, at = 0, to = 0;
    for (int i = 0; i < BYTES; i++)
        from[i] = (char)random_u64(&seed);
    for (uint32_t i = 0; i < PD_COPIES_MAX; i++) {
        const uint64_t unit = UINT64_C(1) << i % 5, bytes = i == 7    ? 0
                                                            : i == 20 ? 300000
                                                                      : unit * (1 + random_u64(&seed) % 90);
        at = (at + unit - 1) / unit * unit, to = (to + 3 + unit - 1) / unit * unit;
        memcpy(want + to, from + at, bytes);
        copies[0].pieces[copies[0].count++] = (struct pd_copy){ours + to, from + at, bytes};
        copies[1].pieces[copies[1].count++] = (struct pd_copy){got + to, from + at, bytes};
        at += bytes, to += bytes;
    }
    cr_assert(at <= BYTES && to <= 2 * BYTES);
    MUST(pd_copy_pieces(f.math, &copies[0], &err));
    for (int order = 0; order < SOME_ORDERS; order++) {
        simt_set_order(some_orders[order]);
        memset(got, 0, sizeof got);
        MUST(pd_cuda_copy_pieces(NULL, &copies[1], &err));
        cr_assert_eq(memcmp(got, want, sizeof got), 0);
    }
    cr_assert_eq(memcmp(ours, want, sizeof ours), 0, "of the CPU");
    fixture_free(&f);
}

Test(pointwise, rows_of_copies)
{
    enum { ROWS = 40, WIDTH = 13, FROM = 29, TO = 16 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    uint64_t seed = 3;
    struct buffer from = buffer_random(PD_BF16, ROWS * FROM, 0, 1, &seed),
                  want = buffer_random(PD_BF16, ROWS * TO, 0, 1, &seed);
    struct buffer got = buffer_new(PD_BF16, ROWS * TO, 0);
    MUST(pd_cuda_copy(NULL, got.data, want.data, ROWS * TO * 2, &err));
    MUST(pd_copy_rows(f.math, ROWS, WIDTH * 2, want.data, TO * 2, from.data, FROM * 2, &err));
    MUST(pd_cuda_copy_rows(NULL, ROWS, WIDTH * 2, got.data, TO * 2, from.data, FROM * 2, &err));
    buffers_equal(&got, &want, "rows");
    struct buffer *all[] = {&from, &want, &got};
    for (size_t i = 0; i < 3; i++)
        buffer_free(all[i]);
    fixture_free(&f);
}
