/* Rounding at random: between neighbours alone, right on average, and by nothing but the key and where an element is. */
#include "ckpt/base/random_bits.h"
#include "fixture.h"

enum { ROWS = 23, COLUMNS = 1700 };

static void round_all(struct pd_math *math, uint64_t key, const float *x, uint64_t n, uint16_t *out)
{
    const struct pd_round r = {.n = n, .x = x, .out = out, .key = key, .columns = n, .stride = n};
    struct pd_error err;
    cr_assert_eq(pd_round(math, &r, &err), PD_OK);
}

Test(round, goes_to_one_of_two_neighbours_and_is_right_on_average)
{
    enum { KEYS = 4000, N = 64 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t state = 11;
    float x[N];
    double sums[N] = {0};
    uint16_t out[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)ldexp(random_normal(&state), i % 40 - 20);
    x[0] = 1.0f + 0x1p-16f; /* far from the middle */
    x[1] = -(1.0f + 0x1.fcp-8f);
    for (uint64_t k = 0; k < KEYS; k++) {
        round_all(f.math, pd_random_key(5, k), x, N, out);
        for (int i = 0; i < N; i++) {
            const double got = (double)pd_f32_from_bf16(out[i]), step = ldexp(1, ilogb(x[i]) - 7);
            cr_assert_lt(fabs(got - (double)x[i]), step, "%a became %a", (double)x[i], got);
            sums[i] += (got - (double)x[i]) / step;
        }
    }
    /* The deviation of one rounding is half a step at most: of the mean, 0.5 / sqrt(KEYS). */
    for (int i = 0; i < N; i++)
        cr_assert_lt(fabs(sums[i] / KEYS), 5 * 0.5 / sqrt(KEYS), "%a is %g steps off on average", (double)x[i],
                     sums[i] / KEYS);
    fixture_free(&f);
}

/* Neighbours in memory, or in a row apart, do not round together. */
Test(round, elements_do_not_know_each_other)
{
    enum { N = 1 << 16 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    static float x[N];
    static uint16_t out[N];
    static const int apart[] = {1, 2, 64, 256, 4096};
    for (int i = 0; i < N; i++)
        x[i] = 1.0f + 0x1p-8f; /* the middle */
    round_all(f.math, 99, x, N, out);
    int up = 0;
    for (int i = 0; i < N; i++)
        up += out[i] & 1;
    cr_assert_lt(abs(up - N / 2), 5 * 128, "%d of %d go up", up, N);
    for (size_t a = 0; a < sizeof apart / sizeof *apart; a++) {
        int same = 0, count = N - apart[a];
        for (int i = 0; i < count; i++)
            same += (out[i] ^ out[i + apart[a]]) & 1;
        cr_assert_lt(abs(same - count / 2), 5 * 128, "%d of %d differ from those %d further", same, count, apart[a]);
    }
    fixture_free(&f);
}

Test(round, what_needs_no_rounding_is_kept)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    static const float kept[] = {0, -0.0f, 1, -1.5f, 0x1p-126f, 0x1.fep127f, INFINITY, -INFINITY};
    enum { N = sizeof kept / sizeof *kept };
    uint16_t out[N + 1];
    float x[N + 1];
    memcpy(x, kept, sizeof kept);
    x[N] = NAN;
    for (uint64_t key = 0; key < 50; key++) {
        round_all(f.math, pd_random_key(key, 1), x, N + 1, out);
        for (int i = 0; i < N; i++)
            cr_assert_eq(out[i], pd_bf16_from_f32(kept[i]), "%a", (double)kept[i]);
        cr_assert(isnan(pd_f32_from_bf16(out[N])));
    }
    fixture_free(&f);
}

/* A box of the tensor, cut anywhere, has what the tensor has there. */
static void check_boxes(struct fixture *f, const float *x, const uint16_t *want)
{
    static const uint64_t boxes[][4] = {{0, 0, ROWS, COLUMNS}, {3, 0, 9, COLUMNS}, {1, 700, 20, 333}, {22, 1699, 1, 1}};
    for (size_t b = 0; b < sizeof boxes / sizeof *boxes; b++) {
        const uint64_t *box = boxes[b], columns = box[3], n = box[2] * columns, cut = n / 3;
        float *dense = malloc(n * sizeof *dense);
        uint16_t *got = malloc(n * sizeof *got);
        struct pd_error err;
        for (uint64_t i = 0; i < n; i++)
            dense[i] = x[(box[0] + i / columns) * COLUMNS + box[1] + i % columns];
        for (int half = 0; half < 2; half++) {
            const uint64_t from = half ? cut : 0;
            const struct pd_round r = {.n = half ? n - cut : cut,
                                       .x = dense + from,
                                       .out = got + from,
                                       .key = 77,
                                       .first = from,
                                       .columns = columns,
                                       .origin = box[0] * COLUMNS + box[1],
                                       .stride = COLUMNS};
            cr_assert_eq(pd_round(f->math, &r, &err), PD_OK);
        }
        for (uint64_t i = 0; i < n; i++)
            cr_assert_eq(got[i], want[(box[0] + i / columns) * COLUMNS + box[1] + i % columns], "%s, box %zu, element %lu",
                         pd_isa_name(f->math->isa), b, i);
        free(dense);
        free(got);
    }
}

Test(round, bits_of_boxes_on_every_instruction_set)
{
    static const enum pd_isa isas[] = {PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512};
    static float x[ROWS * COLUMNS];
    static uint16_t want[ROWS * COLUMNS];
    uint64_t state = 2;
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        x[i] = (float)random_normal(&state);
        want[i] = pd_bf16_at_random(x[i], pd_random_bits(77, i));
    }
    for (size_t i = 0; i < 3; i++) {
        if (!pd_isa_available(isas[i])) continue;
        struct fixture f = fixture_new(isas[i], 1 + (unsigned)i);
        check_boxes(&f, x, want);
        fixture_free(&f);
    }
}
