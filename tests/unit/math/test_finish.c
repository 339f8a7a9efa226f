/* finish against scalar sums in the order of its contract, and against the epilogue of the matrix product. */
#include "fixture.h"

#define PARTS_MAX 16u

struct finish_case {
    size_t rows, columns;
    uint32_t places;
    uint64_t present; /* bit i: part i is there */
    float scale;
    bool bias, residual;
    enum pd_dtype dtype, out;
};

static float get(enum pd_dtype dtype, const void *data, size_t i)
{
    return (float)value_get(dtype, data, i);
}

/* Node [first, first + width) of the tree; false: no term in it. */
static bool tree(float *const *parts, size_t at, uint32_t first, uint32_t width, float *ret_sum)
{
    if (width == 1) {
        if (parts[first]) *ret_sum = parts[first][at];
        return parts[first];
    }
    float left, right;
    bool has_left = tree(parts, at, first, width / 2, &left);
    bool has_right = tree(parts, at, first + width / 2, width / 2, &right);
    if (has_left || has_right) *ret_sum = has_left && has_right ? left + right : has_left ? left : right;
    return has_left || has_right;
}

static void check(struct fixture *f, const struct finish_case *c, uint64_t seed)
{
    const size_t ld = c->columns + seed % 7, ld_out = c->columns + 3, ld_residual = c->columns + 1;
    float *parts[PARTS_MAX] = {NULL};
    struct array backing[PARTS_MAX];
    for (uint32_t i = 0; i < c->places; i++) {
        backing[i] = array_random(PD_F32, c->rows * ld, 1, &seed);
        if (c->present >> i & 1) parts[i] = backing[i].data;
    }
    struct array bias = array_random(c->dtype, c->columns, 1, &seed), out = array_random(c->out, c->rows * ld_out, 1, &seed);
    struct array residual = array_random(c->dtype, c->rows * ld_residual, 1, &seed), want = array_new(c->out, 1);
    struct pd_finish finish = {.rows = c->rows,
                               .columns = c->columns,
                               .part_count = c->places,
                               .parts = (const float *const *)parts,
                               .ld_parts = ld == c->columns ? 0 : ld,
                               .scale = c->scale,
                               .bias = c->bias ? bias.data : NULL,
                               .bias_dtype = c->dtype,
                               .residual = {c->residual ? residual.data : NULL, c->dtype, ld_residual},
                               .out = {out.data, c->out, ld_out}};
    MUST(pd_finish(f->math, &finish, &err));
    const size_t bytes = pd_dtype_bytes(c->out);
    for (size_t r = 0; r < c->rows; r++) {
        for (size_t i = 0; i < ld_out; i++) {
            float sum = 0;
            value_put(c->out, want.data, 0, out.exact[r * ld_out + i]);
            if (i < c->columns) {
                tree(parts, r * ld + i, 0, c->places, &sum);
                if (c->scale != 1) sum *= c->scale;
                if (c->bias) sum += get(c->dtype, bias.data, i);
                if (c->residual) sum += get(c->dtype, residual.data, r * ld_residual + i);
                value_put(c->out, want.data, 0, (double)sum);
            }
            cr_assert_eq(memcmp((char *)out.data + (r * ld_out + i) * bytes, want.data, bytes), 0,
                         "(%zu,%zu) of %zu columns, %u places, parts %lx: %.9g, not %.9g", r, i, c->columns, c->places,
                         c->present, value_get(c->out, out.data, r * ld_out + i), value_get(c->out, want.data, 0));
        }
    }
    struct array *all[] = {&bias, &out, &residual, &want};
    for (size_t i = 0; i < 4; i++)
        array_free(all[i]);
    for (uint32_t i = 0; i < c->places; i++)
        array_free(&backing[i]);
}

Test(finish, is_the_tree_then_scale_bias_residual)
{
    static const size_t widths[] = {1, 15, 16, 17, 63, 64, 65, 200};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    uint64_t state = 5;
    for (unsigned trial = 0; trial < 600; trial++) {
        const uint32_t places = 1u << random_u64(&state) % 5;
        const enum pd_dtype dtype = all_dtypes[random_u64(&state) % 3];
        struct finish_case c = {.rows = 1 + random_u64(&state) % 9,
                                .columns = widths[random_u64(&state) % 8],
                                .places = places,
                                .present = trial % 3 ? random_u64(&state) : UINT64_MAX,
                                .scale = trial % 2 ? 1.0f : 0.3f,
                                .bias = random_u64(&state) % 2,
                                .residual = random_u64(&state) % 2,
                                .dtype = dtype,
                                .out = trial % 4 ? dtype : PD_F32};
        check(&f, &c, trial + 1);
    }
    fixture_free(&f);
}

/* One part is a product whose epilogue came later. */
Test(finish, of_one_part_is_the_products_own_epilogue)
{
    enum { M = 23, N = 77, K = 130 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        uint64_t seed = d + 3;
        enum pd_dtype dtype = all_dtypes[d];
        struct array a = array_random(dtype, M * K, 1, &seed), b = array_random(dtype, N * K, 1, &seed);
        struct array bias = array_random(dtype, N, 1, &seed), residual = array_random(dtype, M * N, 1, &seed);
        struct array whole = array_new(dtype, M * N), later = array_new(dtype, M * N), sums = array_new(PD_F32, M * N);
        struct pd_gemm g = {.m = M,
                            .n = N,
                            .k = K,
                            .trans_b = true,
                            .a = {a.data, dtype, K},
                            .b = {b.data, dtype, K},
                            .c = {whole.data, dtype, N},
                            .bias = bias.data,
                            .bias_dtype = dtype,
                            .residual = {residual.data, dtype, N}};
        MUST(pd_gemm(f.math, &g, &err));
        g.bias = NULL;
        g.residual.data = NULL;
        g.c = (struct pd_matrix){sums.data, PD_F32, N};
        MUST(pd_gemm(f.math, &g, &err));
        for (uint32_t places = 1; places <= 4; places *= 2) {
            const float *parts[4] = {NULL};
            parts[places - 1] = sums.data;
            struct pd_finish finish = {.rows = M,
                                       .columns = N,
                                       .part_count = places,
                                       .parts = parts,
                                       .scale = 1,
                                       .bias = bias.data,
                                       .bias_dtype = dtype,
                                       .residual = {residual.data, dtype, N},
                                       .out = {later.data, dtype, N}};
            MUST(pd_finish(f.math, &finish, &err));
            cr_assert_arr_eq(later.data, whole.data, M * N * pd_dtype_bytes(dtype), "%s", pd_dtype_name(dtype));
        }
        struct array *all[] = {&a, &b, &bias, &residual, &whole, &later, &sums};
        for (size_t i = 0; i < 7; i++)
            array_free(all[i]);
    }
    fixture_free(&f);
}

Test(finish, may_overlay_a_part_and_may_have_none)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    float a[70], b[70], bias[70];
    for (int i = 0; i < 70; i++) {
        a[i] = (float)i;
        b[i] = 0.5f;
        bias[i] = 2;
    }
    const float *parts[2] = {a, b};
    struct pd_finish finish = {
        .rows = 1, .columns = 70, .part_count = 2, .parts = parts, .scale = 1, .out = {b, PD_F32, 70}};
    MUST(pd_finish(f.math, &finish, &err));
    for (int i = 0; i < 70; i++)
        cr_assert_eq(b[i], (float)i + 0.5f);
    parts[0] = parts[1] = NULL;
    finish.bias = bias;
    finish.bias_dtype = PD_F32;
    MUST(pd_finish(f.math, &finish, &err));
    for (int i = 0; i < 70; i++)
        cr_assert_eq(b[i], 2.0f);
    finish.rows = 0;
    finish.out.data = NULL;
    MUST(pd_finish(f.math, &finish, &err));
    fixture_free(&f);
}
