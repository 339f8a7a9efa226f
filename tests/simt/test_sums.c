/* Sums of columns are right to float64's measure and the same in every order of threads and blocks; squares of rows and
 * exact sums have the CPU's bits. */
#include "simt_fixture.h"
#include "trainer/math/superaccumulator.h"

static void check_columns(enum pd_dtype dtype, size_t rows, size_t n, size_t ld)
{
    uint64_t seed = rows + n;
    struct buffer x = buffer_random(dtype, rows * ld, 0, 1, &seed), out[SOME_ORDERS];
    double *want = calloc(n + 1, sizeof *want);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            want[i] += value_get(dtype, x.data, r * ld + i);
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        out[o] = buffer_new(PD_F32, n, 0);
        simt_set_order(some_orders[o]);
        MUST(pd_cuda_column_sum(NULL, rows, n, ld, dtype, x.data, out[o].data, &err));
    }
    buffer_near(&out[0], want, 1e-5, "column sums");
    for (size_t o = 1; o < SOME_ORDERS; o++)
        buffers_equal(&out[o], &out[0], "column sums in another order");
    for (size_t o = 0; o < SOME_ORDERS; o++)
        buffer_free(&out[o]);
    buffer_free(&x), free(want);
}

Test(sums, of_columns)
{
    for (size_t d = 0; d < 3; d++) {
        check_columns(all_dtypes[d], 1, 1, 1);
        check_columns(all_dtypes[d], 63, 17, 20);
        check_columns(all_dtypes[d], 64, 16, 16);
        check_columns(all_dtypes[d], 300, 45, 45);
    }
    struct buffer out = buffer_new(PD_F32, 3, 0);
    const double zeros[3] = {0};
    MUST(pd_cuda_column_sum(NULL, 0, 3, 3, PD_F32, NULL, out.data, &err));
    buffer_near(&out, zeros, 0, "no rows");
    buffer_free(&out);
}

static void check_squares(struct fixture *f, size_t rows, size_t columns)
{
    uint64_t seed = rows + columns;
    struct buffer x = buffer_random(PD_F32, rows * columns, 0, 1, &seed);
    double *want = malloc(rows * sizeof *want), *got = malloc(rows * sizeof *got);
    MUST(pd_row_squares(f->math, rows, columns, x.data, want, &err));
    MUST(pd_cuda_row_squares(NULL, rows, columns, x.data, got, &err));
    cr_assert_arr_eq(got, want, rows * sizeof *want, "%zu x %zu", rows, columns);
    buffer_free(&x), free(want), free(got);
}

Test(sums, squares_of_rows)
{
    static const size_t sizes[][2] = {{1, 1}, {700, 1}, {3, 2}, {17, 15}, {33, 16}, {5, 1000}, {16, 129}};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t s = 0; s < 7; s++)
        check_squares(&f, sizes[s][0], sizes[s][1]);
    fixture_free(&f);
}

static double bits_value(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Terms of every size, both signs; the CPU adds them one after the other. */
static void check_exact(size_t n, bool specials)
{
    uint64_t seed = n + 1;
    double *terms = malloc((n + 1) * sizeof *terms);
    struct pd_superaccumulator want, got;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = random_u64(&seed);
        if ((bits >> 52 & 0x7ff) == 0x7ff) bits ^= UINT64_C(1) << 61;
        terms[i] = i % 3 ? (double)(int64_t)bits * 0x1p-60 : bits_value(bits);
    }
    if (specials) terms[0] = INFINITY, terms[n - 1] = bits_value(UINT64_C(0x8000000000000001));
    pd_superaccumulator_init(&want);
    pd_superaccumulator_add_many(&want, terms, n);
    const double sum = pd_superaccumulator_value(&want);
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        memset(&got, 0, sizeof got);
        simt_set_order(some_orders[o]);
        MUST(pd_cuda_superaccumulate(NULL, n / 2, terms, &got, &err));
        MUST(pd_cuda_superaccumulate(NULL, n - n / 2, terms + n / 2, &got, &err));
        cr_assert_eq(got.pending, n);
        cr_assert_eq(got.flags, want.flags);
        double value = pd_superaccumulator_value(&got);
        cr_assert(memcmp(&value, &sum, sizeof sum) == 0, "%zu terms: %.17g, not %.17g", n, value, sum);
    }
    free(terms);
}

/* Losses: the same sum as of doubles. */
Test(sums, exact_of_floats)
{
    for (size_t n = 1; n < 5000; n = 3 * n + 1) {
        uint64_t seed = n;
        struct buffer x = buffer_random(PD_F32, n, 0, 100, &seed);
        struct pd_superaccumulator want, got = {0};
        pd_superaccumulator_init(&want);
        for (size_t i = 0; i < n; i++)
            pd_superaccumulator_add(&want, ((const float *)x.data)[i]);
        simt_set_order(some_orders[n % SOME_ORDERS]);
        MUST(pd_cuda_superaccumulate_floats(NULL, n, x.data, &got, &err));
        simt_set_order(0);
        const double a = pd_superaccumulator_value(&got), b = pd_superaccumulator_value(&want);
        cr_assert(got.pending == n && memcmp(&a, &b, sizeof a) == 0, "%zu terms: %.17g, not %.17g", n, a, b);
        buffer_free(&x);
    }
}

Test(sums, exact)
{
    check_exact(1, false);
    check_exact(2, false);
    check_exact(255, false);
    check_exact(3000, false);
    check_exact(100, true);
}
