/* Rounding at random: between neighbours alone, right on average, and by nothing but the key and where an element is. */
#include "ckpt/base/random_bits.h"

#include "ckpt/base/half.h"

#include <criterion/criterion.h>
#include <math.h>

static void round_all(uint64_t key, const float *x, uint64_t n, uint16_t *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = pd_bf16_at_random(x[i], pd_random_bits(key, i));
}

Test(random_bits, goes_to_one_of_two_neighbours_and_is_right_on_average)
{
    enum { KEYS = 4000, N = 64 };
    float x[N];
    double sums[N] = {0};
    uint16_t out[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)ldexp((double)pd_random_bits(11, (uint64_t)i) - 0x1p31, i % 40 - 50);
    x[0] = 1.0f + 0x1p-16f; /* far from the middle */
    x[1] = -(1.0f + 0x1.fcp-8f);
    for (uint64_t k = 0; k < KEYS; k++) {
        round_all(pd_random_key(5, k), x, N, out);
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
}

/* Neighbours in memory, or in a row apart, do not round together. */
Test(random_bits, elements_do_not_know_each_other)
{
    enum { N = 1 << 16 };
    static float x[N];
    static uint16_t out[N];
    static const int apart[] = {1, 2, 64, 256, 4096};
    for (int i = 0; i < N; i++)
        x[i] = 1.0f + 0x1p-8f; /* the middle */
    round_all(99, x, N, out);
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
}

Test(random_bits, what_needs_no_rounding_is_kept)
{
    static const float kept[] = {0, -0.0f, 1, -1.5f, 0x1p-126f, 0x1.fep127f, INFINITY, -INFINITY};
    enum { N = sizeof kept / sizeof *kept };
    uint16_t out[N + 1];
    float x[N + 1];
    memcpy(x, kept, sizeof kept);
    x[N] = NAN;
    for (uint64_t key = 0; key < 50; key++) {
        round_all(pd_random_key(key, 1), x, N + 1, out);
        for (int i = 0; i < N; i++)
            cr_assert_eq(out[i], pd_bf16_from_f32(kept[i]), "%a", (double)kept[i]);
        cr_assert(isnan(pd_f32_from_bf16(out[N])));
    }
}
