#include "trainer/math/superaccumulator.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double sum_of(const double *terms, size_t count)
{
    struct pd_superaccumulator a;
    pd_superaccumulator_init(&a);
    pd_superaccumulator_add_many(&a, terms, count);
    return pd_superaccumulator_value(&a);
}

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

Test(superaccumulator, one_term_comes_back)
{
    uint64_t state = 11;
    for (int i = 0; i < 200000; i++) {
        double x = from_bits(next(&state));
        if (!isfinite(x) || x == 0) continue;
        cr_assert(same(sum_of(&x, 1), x), "%a", x);
    }
    double edges[] = {DBL_MAX, -DBL_MAX, DBL_MIN, from_bits(1), -from_bits(1), from_bits(0xfffffffffffff), 1.0, -1.5};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        cr_assert(same(sum_of(&edges[i], 1), edges[i]), "%a", edges[i]);
    double zeros[] = {0.0, -0.0};
    cr_assert(same(sum_of(zeros, 2), 0.0));
    cr_assert(same(sum_of(zeros, 0), 0.0));
}

/* The hardware rounds a sum of two doubles correctly, and so must we. */
Test(superaccumulator, two_terms_round_as_the_hardware)
{
    uint64_t state = 12;
    for (int i = 0; i < 300000; i++) {
        uint64_t exponent = next(&state) % 2046;
        uint64_t near = exponent + next(&state) % 110;
        if (near > 2046) near = 2046;
        double x = from_bits((next(&state) & 0x800fffffffffffffu) | exponent << 52);
        double y = from_bits((next(&state) & 0x800fffffffffffffu) | near << 52);
        double terms[2] = {x, y};
        double want = x + y;
        cr_assert(same(sum_of(terms, 2), want == 0 ? 0.0 : want), "%a + %a: %a, not %a", x, y, sum_of(terms, 2), want);
    }
}

Test(superaccumulator, ties_go_to_even_and_a_speck_breaks_them)
{
    double up[] = {1.0, 0x1p-53, 0x1p-1000}, tie[] = {1.0, 0x1p-53}, odd[] = {1.0 + 0x1p-52, 0x1p-53};
    double down[] = {1.0, 0x1p-53, -0x1p-1000}, carry[] = {2.0 - 0x1p-52, 0x1p-53};
    cr_assert(same(sum_of(up, 3), 1.0 + 0x1p-52));
    cr_assert(same(sum_of(tie, 2), 1.0));
    cr_assert(same(sum_of(odd, 2), 1.0 + 0x1p-51));
    cr_assert(same(sum_of(down, 3), 1.0));
    cr_assert(same(sum_of(carry, 2), 2.0));
}

Test(superaccumulator, cancellation_and_overflow_are_exact)
{
    double back[] = {DBL_MAX, DBL_MAX, DBL_MAX, 1.0, -DBL_MAX, -DBL_MAX, -DBL_MAX};
    cr_assert(same(sum_of(back, 7), 1.0));
    double over[] = {DBL_MAX, DBL_MAX}, under[] = {-DBL_MAX, -DBL_MAX};
    cr_assert(same(sum_of(over, 2), INFINITY));
    cr_assert(same(sum_of(under, 2), -INFINITY));
    double edge[] = {DBL_MAX, 0x1p970}; /* half a unit above the largest: rounds to infinity */
    cr_assert(same(sum_of(edge, 2), INFINITY));
    double below[] = {DBL_MAX, 0x1p970, -0x1p-1074};
    cr_assert(same(sum_of(below, 3), DBL_MAX));
}

Test(superaccumulator, infinities_and_nan)
{
    double plus[] = {1.0, INFINITY, -2.0}, minus[] = {1.0, -INFINITY}, both[] = {INFINITY, 1.0, -INFINITY},
           nan[] = {1.0, NAN};
    cr_assert(same(sum_of(plus, 3), INFINITY));
    cr_assert(same(sum_of(minus, 2), -INFINITY));
    cr_assert(isnan(sum_of(both, 3)));
    cr_assert(isnan(sum_of(nan, 2)));
}

/* As ranks do it: any split over accumulators, any order inside, limbs summed modulo 2^64 in any order. */
Test(superaccumulator, order_and_split_do_not_matter)
{
    enum { COUNT = 3000, RANKS = 37 };
    double terms[COUNT];
    for (uint64_t round = 1; round <= 60; round++) {
        uint64_t state = round * 7919;
        for (int i = 0; i < COUNT; i++) {
            uint64_t exponent = round % 2 ? next(&state) % 2046 : 900 + next(&state) % 200;
            terms[i] = from_bits((next(&state) & 0x800fffffffffffffu) | exponent << 52);
        }
        double want = sum_of(terms, COUNT);
        for (int i = COUNT - 1; i > 0; i--) {
            int j = (int)(next(&state) % (uint64_t)(i + 1));
            double swap = terms[i];
            terms[i] = terms[j];
            terms[j] = swap;
        }
        cr_assert(same(sum_of(terms, COUNT), want), "round %lu", round);
        struct pd_superaccumulator ranks[RANKS], reduced;
        for (int r = 0; r < RANKS; r++)
            pd_superaccumulator_init(&ranks[r]);
        for (int i = 0; i < COUNT; i++)
            pd_superaccumulator_add(&ranks[next(&state) % RANKS], terms[i]);
        pd_superaccumulator_init(&reduced);
        for (int r = RANKS - 1; r >= 0; r--) {
            pd_superaccumulator_normalise(&ranks[r]);
            for (unsigned i = 0; i < PD_SUPERACCUMULATOR_LIMBS; i++)
                reduced.limbs[i] += ranks[r].limbs[i];
            reduced.flags |= ranks[r].flags;
        }
        cr_assert(same(pd_superaccumulator_value(&reduced), want), "round %lu", round);
    }
}

Test(superaccumulator, a_million_ranks_fit)
{
    struct pd_superaccumulator one, sum;
    pd_superaccumulator_init(&one);
    pd_superaccumulator_init(&sum);
    for (int i = 0; i < 5; i++)
        pd_superaccumulator_add(&one, -from_bits(0x7fdfffffffffffff));
    pd_superaccumulator_add(&one, -3.25);
    pd_superaccumulator_normalise(&one);
    for (unsigned i = 0; i < PD_SUPERACCUMULATOR_LIMBS; i++)
        sum.limbs[i] = one.limbs[i] << 20;
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 1 << 20; j++)
            pd_superaccumulator_add(&sum, from_bits(0x7fdfffffffffffff));
    }
    cr_assert(same(pd_superaccumulator_value(&sum), -3.25 * 0x1p20));
}

/* Long runs of one sign fill limbs until they are normalised in between. */
Test(superaccumulator, many_terms)
{
    struct pd_superaccumulator a;
    pd_superaccumulator_init(&a);
    a.pending = (UINT64_C(1) << 30) - 1000;
    for (int i = 0; i < 100000; i++)
        pd_superaccumulator_add(&a, -(0x1p53 - 1) * 0x1p-20);
    cr_assert(same(pd_superaccumulator_value(&a), -(0x1p53 - 1) * 0x1p-20 * 100000));
    cr_assert_lt(a.pending, 100000);
}

Test(superaccumulator, flush_to_zero_changes_nothing)
{
    double subnormals[] = {from_bits(5), from_bits(7), from_bits(0xfffffffffffff)};
    double want = sum_of(subnormals, 3);
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    double got = sum_of(subnormals, 3);
    _mm_setcsr(before);
    cr_assert(same(got, want));
    cr_assert(same(want, from_bits(5 + 7 + 0xfffffffffffff)));
}
