/* Codes of fp8 and products of them on the host: the bits of the CPU backend for random shapes, strides and types, whatever
 * the order of threads. PERDURE_TEST_SEED replays a failure. */
#include "tests/simt/simt_fixture.h"

static uint64_t below(uint64_t *state, uint64_t bound)
{
    return random_u64(state) % bound;
}

static uint8_t *poisoned(uint64_t bytes)
{
    uint8_t *p = malloc(bytes + GUARD);
    memset(p, 0xfb, bytes + GUARD);
    return p;
}

/* Of the transposed rows lie `ld_across` apart. */
struct codes {
    uint8_t *plain, *across;
    float scale[PD_FP8_SCALE_FLOATS];
};

static struct pd_quantize random_matrix(uint64_t *state, struct buffer *ret_x)
{
    struct pd_quantize q = {.rows = 1 + below(state, 150), .columns = 1 + below(state, 150)};
    const uint64_t step = below(state, 2) ? 4 : 1;
    q.columns = (q.columns + step - 1) / step * step;
    const uint64_t ld = q.columns + below(state, 3) * step;
    q.format = below(state, 2) ? PD_FP8_E4M3 : PD_FP8_E5M2;
    q.ld_codes = q.columns + below(state, 3) * step;
    q.transposed_rows = below(state, 2) ? q.rows : (q.rows + 15) / 16 * 16;
    q.ld_transposed = q.transposed_rows + below(state, 3);
    *ret_x = buffer_random((enum pd_dtype)below(state, 3), q.rows * ld, below(state, 2), 0.3, state);
    q.x = (struct pd_matrix){ret_x->data, ret_x->dtype, ld};
    if (below(state, 8) == 0) value_put(ret_x->dtype, ret_x->data, below(state, q.rows) * ld, INFINITY);
    return q;
}

static struct codes codes_for(struct pd_quantize *q, bool plain, bool across)
{
    struct codes c = {.plain = poisoned(q->rows * q->ld_codes), .across = poisoned(q->columns * q->ld_transposed)};
    memset(c.scale, 0x7e, sizeof c.scale); /* of whoever had it before */
    q->codes = plain ? c.plain : NULL;
    q->transposed = across ? c.across : NULL;
    return c;
}

static void codes_free(struct codes *c)
{
    free(c->plain);
    free(c->across);
}

static void random_codes(struct pd_math *cpu, uint64_t *state)
{
    struct buffer x;
    struct pd_error err;
    struct pd_quantize ours = random_matrix(state, &x), theirs = ours;
    const uint64_t which = 1 + below(state, 3);
    struct codes got = codes_for(&ours, which & 1, which & 2), want = codes_for(&theirs, which & 1, which & 2);
    ours.scale = got.scale;
    theirs.scale = want.scale;
    cr_assert_eq(pd_cuda_quantize(NULL, &ours, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_quantize(cpu, &theirs, &err), PD_OK);
    cr_assert_eq(memcmp(got.scale, want.scale, sizeof(float)), 0, "scale %a, not %a", (double)got.scale[0],
                 (double)want.scale[0]);
    cr_assert_arr_eq(got.plain, want.plain, ours.rows * ours.ld_codes + GUARD, "(%lu, %lu) of %s, format %d", ours.rows,
                     ours.columns, pd_dtype_name(x.dtype), ours.format);
    cr_assert_arr_eq(got.across, want.across, ours.columns * ours.ld_transposed + GUARD,
                     "transposed (%lu, %lu) of %s, format %d", ours.rows, ours.columns, pd_dtype_name(x.dtype), ours.format);
    codes_free(&got), codes_free(&want);
    buffer_free(&x);
}

Test(simt_fp8, codes_of_the_cpu)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    const char *seed = getenv("PERDURE_TEST_SEED");
    uint64_t state = seed ? strtoull(seed, NULL, 0) : 4;
    for (uint64_t i = 0; i < 60; i++) {
        simt_set_order(i % 4);
        random_codes(f.math, &state);
    }
    fixture_free(&f);
}

static void random_product(struct pd_math *cpu, uint64_t *state)
{
    struct pd_gemm g = {.m = 1 + below(state, 130), .n = 1 + below(state, 130), .k = 1 + below(state, 60), .trans_b = true};
    const uint64_t lda = g.k + below(state, 5), ldb = g.k + below(state, 5);
    uint8_t *a = malloc(g.m * lda), *b = malloc(g.n * ldb);
    const float scales[2] = {0x1p-3f, 0x1p5f};
    struct pd_error err;
    for (uint64_t i = 0; i < g.m * lda; i++)
        a[i] = (uint8_t)(below(state, 2) * 128 + below(state, 0x7b));
    for (uint64_t i = 0; i < g.n * ldb; i++)
        b[i] = (uint8_t)(below(state, 2) * 128 + below(state, 0x7e));
    g.a = (struct pd_matrix){a, PD_F32, lda};
    g.b = (struct pd_matrix){b, PD_F32, ldb};
    g.a_format = below(state, 2) ? PD_FP8_E5M2 : PD_FP8_E4M3;
    g.b_format = PD_FP8_E4M3;
    g.a_scale = &scales[0];
    g.b_scale = &scales[1];
    g.accumulate = below(state, 2);
    struct buffer c = buffer_random(PD_F32, g.m * g.n, 0, 1e4, state), want = buffer_copy(&c);
    g.c = (struct pd_matrix){c.data, PD_F32, g.n};
    cr_assert_eq(pd_cuda_gemm_plain(NULL, &g, &err), PD_OK, "%s", err.message);
    g.c.data = want.data;
    cr_assert_eq(pd_gemm(cpu, &g, &err), PD_OK);
    buffers_equal(&c, &want, "product of codes");
    buffer_free(&c), buffer_free(&want);
    free(a), free(b);
}

Test(simt_fp8, products_of_the_cpu)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t state = 9;
    for (uint64_t i = 0; i < 20; i++) {
        simt_set_order(i % 4);
        random_product(f.math, &state);
    }
    fixture_free(&f);
}
