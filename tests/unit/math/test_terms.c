/* Terms against exact rational arithmetic: a float is a whole number times a power of two, and 128 bits hold what is needed of
 * a sum of them. Everywhere by all instruction sets this machine has, on one thread and on three. */
#include "fixture.h"

typedef __int128 wide;

enum { N = 70001, TERMS = 7, TOKENS = 24576 };

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x times 2^shift as a whole number, to nearest, to even: by shifts of the significand. */
static wide nearest_whole(float x, int shift)
{
    int exponent;
    wide m = (wide)ldexp(frexp((double)x, &exponent), 24);
    shift += exponent - 24;
    if (shift >= 0) return m * ((wide)1 << shift);
    if (shift < -60) return 0;
    const bool negative = m < 0;
    const wide size = negative ? -m : m, unit = (wide)1 << -shift, whole = size / unit, rest = size % unit;
    const wide up = whole + (2 * rest > unit || (2 * rest == unit && whole % 2));
    return negative ? -up : up;
}

/* A whole number times 2^-shift, rounded once to 24 bits. */
static float nearest_float(wide x, int shift)
{
    const bool negative = x < 0;
    wide size = negative ? -x : x;
    int dropped = 0;
    while (size >> dropped >= (wide)1 << 24)
        dropped++;
    const wide unit = (wide)1 << dropped, rest = size % unit;
    size /= unit;
    if (2 * rest > unit || (2 * rest == unit && size % 2)) size++;
    const double value = ldexp((double)(int64_t)size, dropped - shift);
    return (float)(negative ? -value : value);
}

/* Of all sizes that terms may have, and some that are exactly between two. */
static void fill(float *x, struct pd_quantum q, uint64_t *state)
{
    for (uint32_t i = 0; i < N; i++) {
        const uint64_t h = random_u64(state);
        const double significand = 1 + (double)(h & 0x7fffff) * 0x1p-23;
        const int exponent = (int)(h >> 40) % 80 - 21;
        x[i] = (float)(ldexp(significand, exponent > 58 ? 58 : exponent) * (double)q.quantum);
        if (i % 5 == 1) x[i] = (float)(((double)(int64_t)(h >> 44) + 0.5) * (double)q.quantum);
        if (h >> 63) x[i] = -x[i];
        if (i % 97 == 3) x[i] = float_of((uint32_t)(h & 0x807fffff)); /* too small for normal numbers */
    }
}

static void add_terms(struct pd_math *math, const float *x, int64_t *to, int64_t *check, bool adds, struct pd_quantum q,
                      uint32_t *flags)
{
    const uint32_t cut = 16401; /* runs that share a check, at odd places */
    const struct pd_term_run runs[] = {{x, to, cut, adds, !adds, q.scale, check, flags},
                                       {x + cut, to + cut, N - cut, adds, false, q.scale, check, flags}};
    const struct pd_terms t = {runs, 2, PD_TERM_F32, q.limit, 9, false};
    struct pd_error err;
    cr_assert_eq(pd_terms(math, &t, &err), PD_OK);
}

static void against_rationals(enum pd_isa isa, unsigned threads)
{
    struct fixture f = fixture_new(isa, threads);
    const struct pd_quantum q = pd_quantum_of(TOKENS, TERMS, 0);
    float *x = malloc(N * sizeof *x), *out = malloc(N * sizeof *out);
    wide *exact = calloc(N, sizeof *exact);
    int64_t *sums = malloc((N + 1) * sizeof *sums);
    uint64_t state = 5;
    uint32_t flags[2] = {0}, damaged = 0;
    struct pd_error err;
    for (int term = 0; term < TERMS; term++) {
        fill(x, q, &state);
        for (uint32_t i = 0; i < N; i++)
            exact[i] += nearest_whole(x[i], 38); /* 24576 tokens: a quantum of 2^(15 - 53) */
        add_terms(f.math, x, sums, &sums[N], term > 0, q, flags);
    }
    cr_assert(!flags[0] && !flags[1]);
    for (uint32_t i = 0; i < N; i++)
        cr_assert_eq((wide)sums[i], exact[i], "element %u is off by %lld", i, (long long)((wide)sums[i] - exact[i]));
    const struct pd_term_sums apart = {N, sums, out, q.quantum, &sums[N], &damaged, 3, false, NULL};
    cr_assert_eq(pd_term_sums(f.math, &apart, &err), PD_OK);
    cr_assert_eq(damaged, 0);
    for (uint32_t i = 0; i < N; i++) {
        const float want = nearest_float(exact[i], 38);
        cr_assert_eq(memcmp(&out[i], &want, 4), 0, "element %u is %a, not %a", i, (double)out[i], (double)want);
    }
    const struct pd_term_sums in_place = {N, sums, (float *)sums, q.quantum, NULL, NULL, 0, false, NULL};
    cr_assert_eq(pd_term_sums(f.math, &in_place, &err), PD_OK);
    cr_assert_eq(memcmp(sums, out, N * sizeof *out), 0, "in place there are other sums");
    free(x), free(out), free(exact), free(sums);
    fixture_free(&f);
}

Test(terms, sums_are_those_of_exact_arithmetic)
{
    for (int isa = PD_ISA_PORTABLE; isa < PD_ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 3 && pd_isa_available((enum pd_isa)isa); threads += 2)
            against_rationals((enum pd_isa)isa, threads);
}

Test(terms, the_quantum_is_that_of_the_tokens)
{
    cr_assert_eq(pd_quantum_of(1, 1, 0).quantum, 0x1p-53f);
    cr_assert_eq(pd_quantum_of(1024, 1, 0).quantum, 0x1p-43f);
    cr_assert_eq(pd_quantum_of(1025, 1, 0).quantum, 0x1p-42f);
    cr_assert_eq(pd_quantum_of(1025, 1, 0).scale, 0x1p42);
    cr_assert_eq(pd_quantum_of(1, 1, 0).limit, 0x1p63);
    cr_assert_eq(pd_quantum_of(1, 5, 0).limit, 0x1p60);
    cr_assert_eq(pd_quantum_of(1, 5, 2).limit, 0x1p60);
    cr_assert_eq(pd_quantum_of(1025, 1, 2).quantum, 0x1p-10f);
    cr_assert_eq(pd_quantum_of(1025, 1, 2).scale, 0x1p10);
}

/* Each becomes a flag, and nothing of it goes into the sum. */
Test(terms, out_of_range_is_flagged)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    const struct pd_quantum q = pd_quantum_of(TOKENS, 4, 0);
    const float largest = (float)(q.limit / (double)q.scale), below = nextafterf(largest, 0);
    const float bad[] = {largest, -largest, 0x1p127f, INFINITY, -INFINITY, NAN}, good[] = {below, -below, 0, -0.0f};
    struct pd_error err;
    for (uint32_t i = 0; i < 10; i++) {
        float x[100] = {0};
        int64_t to[100], check;
        uint32_t flags[2] = {1, 1}, flags_alone[2] = {1, 1};
        x[77] = i < 6 ? bad[i] : good[i - 6];
        const struct pd_term_run run = {x, to, 100, false, true, q.scale, &check, flags};
        const struct pd_terms t = {&run, 1, PD_TERM_F32, q.limit, 5, false};
        cr_assert_eq(pd_terms(f.math, &t, &err), PD_OK);
        cr_assert(flags[0] == (i < 3 ? 5 : 1) && flags[1] == (i >= 3 && i < 6 ? 5 : 1), "%g", (double)x[77]);
        cr_assert_eq(to[77], i < 6 ? 0 : (int64_t)((double)x[77] * (double)q.scale), "%g became %lld", (double)x[77],
                     (long long)to[77]);
        cr_assert_eq(check, to[77]);
        int64_t counted = 11;
        const struct pd_term_run alone = {.from = x, .n = 100, .scale = q.scale, .check = &counted, .flags = flags_alone};
        const struct pd_terms kept_nowhere = {&alone, 1, PD_TERM_F32, q.limit, 5, false};
        cr_assert_eq(pd_terms(f.math, &kept_nowhere, &err), PD_OK);
        cr_assert(counted == 11 + check && !memcmp(flags_alone, flags, sizeof flags),
                  "terms that are kept nowhere are others");
    }
    fixture_free(&f);
}

/* Zeros and integers; sums that pass 2^63 on their way and come back. */
Test(terms, of_other_sources)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    struct pd_error err;
    float quarters[200];
    int64_t sum[201], more[201], far[1] = {INT64_MAX};
    const int64_t one = 1, back = -2;
    for (int i = 0; i < 200; i++)
        quarters[i] = (float)(i - 60) * 0.25f, more[i] = 1000 - i, sum[i] = -1;
    sum[200] = 77;
    const struct pd_term_run of_quarters = {quarters, sum, 200, false, true, 4, &sum[200], NULL},
                             of_more = {more, sum, 200, true, false, 0, &sum[200], NULL};
    const struct pd_terms terms[] = {{&of_quarters, 1, PD_TERM_F32, 0x1p60, 0, false},
                                     {&of_more, 1, PD_TERM_INTEGER, 0, 0, false}};
    cr_assert_eq(pd_terms(f.math, &terms[0], &err), PD_OK);
    cr_assert_eq(pd_terms(f.math, &terms[1], &err), PD_OK);
    int64_t check = 0;
    for (int i = 0; i < 200; check += sum[i], i++)
        cr_assert_eq(sum[i], i - 60 + 1000 - i);
    cr_assert_eq(sum[200], check);
    const struct pd_term_run nothing = {NULL, sum, 200, false, true, 0, &sum[200], NULL};
    const struct pd_terms zeros = {&nothing, 1, PD_TERM_F32, 0x1p60, 0, false};
    cr_assert_eq(pd_terms(f.math, &zeros, &err), PD_OK);
    for (int i = 0; i <= 200; i++)
        cr_assert_eq(sum[i], 0);
    const struct pd_term_run up = {&one, far, 1, true, false, 0, NULL, NULL},
                             down = {&back, far, 1, true, false, 0, NULL, NULL};
    const struct pd_terms around[] = {{&up, 1, PD_TERM_INTEGER, 0, 0, false}, {&down, 1, PD_TERM_INTEGER, 0, 0, false}};
    cr_assert_eq(pd_terms(f.math, &around[0], &err), PD_OK);
    cr_assert_eq(far[0], INT64_MIN);
    cr_assert_eq(pd_terms(f.math, &around[1], &err), PD_OK);
    cr_assert_eq(far[0], INT64_MAX - 1);
    fixture_free(&f);
}

/* 32 bits: sums of a few terms of all sizes, at odd places, and the largest of them. */
static void narrow_against_rationals(enum pd_isa isa, unsigned threads)
{
    struct fixture f = fixture_new(isa, threads);
    const int size = -3, grain = 31 - 8 - 15 - size; /* 24576 tokens: 2^15 */
    const struct pd_quantum q = pd_quantum32_of(TOKENS, TERMS, size, 0);
    float *x = malloc(N * sizeof *x), largest = 0, want_largest = 0;
    wide *exact = calloc(N, sizeof *exact);
    int32_t *sums = malloc((N + 1) * sizeof *sums);
    uint64_t state = 9;
    uint32_t flags[2] = {0}, damaged = 0;
    struct pd_error err;
    cr_assert_eq(q.quantum, (float)ldexp(1, -grain));
    for (uint32_t term = 0; term < TERMS; term++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint64_t h = random_u64(&state);
            x[i] = (float)(ldexp(1 + (double)(h & 0x7fffff) * 0x1p-23, (int)(h >> 40) % 40 - 13) * (double)q.quantum);
            if (h >> 63) x[i] = -x[i];
            exact[i] += nearest_whole(x[i], grain);
        }
        const bool adds = term > 0;
        const struct pd_term_run runs[] = {{x, sums, 16401, adds, !adds, q.scale, &sums[N], flags},
                                           {x + 16401, sums + 16401, N - 16401, adds, false, q.scale, &sums[N], flags}};
        const struct pd_terms t = {runs, 2, PD_TERM_F32, q.limit, 9, true};
        cr_assert_eq(pd_terms(f.math, &t, &err), PD_OK);
    }
    cr_assert(!flags[0] && !flags[1]);
    for (uint32_t i = 0; i < N; i++)
        cr_assert_eq((wide)sums[i], exact[i], "element %u", i);
    const struct pd_term_sums first = {999, sums, (float *)sums, q.quantum, &sums[N], NULL, 3, true, &largest},
                              rest = {N - 999, sums + 999, (float *)sums + 999, q.quantum, &sums[N], &damaged, 3,
                                      true,    &largest};
    cr_assert_eq(pd_term_sums(f.math, &first, &err), PD_OK);
    cr_assert_eq(pd_term_sums(f.math, &rest, &err), PD_OK);
    cr_assert_eq(damaged, 0);
    for (uint32_t i = 0; i < N; i++) {
        const float want = nearest_float(exact[i], grain);
        cr_assert_eq(memcmp(&sums[i], &want, 4), 0, "element %u is not %a", i, (double)want);
        want_largest = fmaxf(want_largest, fabsf(want));
    }
    cr_assert_eq(largest, want_largest);
    free(x), free(exact), free(sums);
    fixture_free(&f);
}

Test(terms, narrow_sums_are_those_of_exact_arithmetic)
{
    for (int isa = PD_ISA_PORTABLE; isa < PD_ISA_COUNT; isa++)
        for (unsigned threads = 1; threads <= 3 && pd_isa_available((enum pd_isa)isa); threads += 2)
            narrow_against_rationals((enum pd_isa)isa, threads);
}

/* Twelve orders of magnitude in one tensor: of those within a millionth of the largest every one keeps three digits, those a
 * grain or more below it are zero, and one beyond the room is flagged. */
Test(terms, narrow_terms_keep_what_is_near_the_largest)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    const struct pd_quantum q = pd_quantum32_of(1, 8, 0, 0); /* the largest is expected to be 1 */
    struct pd_error err;
    float x[13];
    int32_t term[13];
    uint32_t flags[2] = {0};
    for (int i = 0; i < 13; i++)
        x[i] = (float)(0.987654 * pow(10, -i));
    const struct pd_term_run run = {x, term, 13, false, false, q.scale, NULL, flags};
    const struct pd_terms t = {&run, 1, PD_TERM_F32, q.limit, 2, true};
    cr_assert_eq(pd_terms(f.math, &t, &err), PD_OK);
    for (int i = 0; i < 13; i++) {
        const double kept = (double)term[i] * (double)q.quantum, off = fabs(kept / (double)x[i] - 1);
        cr_assert(off <= 0x1.04p-24 * pow(10, i) || off == 1, "10^-%d is off by %g", i, off);
        cr_assert_eq(term[i] == 0, i > 7, "10^-%d became %d", i, term[i]);
    }
    cr_assert_eq(flags[0], 0);
    x[3] = 33; /* 2^8 shared by 8 terms */
    cr_assert_eq(pd_terms(f.math, &t, &err), PD_OK);
    cr_assert(flags[0] == 2 && term[3] == 0);
    const struct pd_quantum coarser = pd_quantum32_of(1, 8, 0, 1);
    cr_assert(coarser.quantum == 256 * q.quantum && coarser.limit == q.limit);
    fixture_free(&f);
}

Test(terms, sizes_rise_at_once_and_fall_by_one)
{
    cr_assert_eq(pd_gradient_size_next(-8, 3.0f, 1), 2); /* 3 is below 2^2 */
    cr_assert_eq(pd_gradient_size_next(-8, 3.0f, 1024), -8);
    cr_assert_eq(pd_gradient_size_next(5, 3.0f, 1), 4);
    cr_assert_eq(pd_gradient_size_next(5, 0.0f, 1), 4);
    cr_assert_eq(pd_gradient_size_next(PD_GRADIENT_SIZE_MIN, 0.0f, 1), PD_GRADIENT_SIZE_MIN);
    cr_assert_eq(pd_gradient_size_next(0, 0x1p100f, 1), PD_GRADIENT_SIZE_MAX);
}

/* Any bit of a sum, and any of its check. */
Test(terms, damage_is_noticed)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    const struct pd_quantum q = pd_quantum_of(TOKENS, TERMS, 0);
    struct pd_error err;
    float x[300], out[300];
    uint64_t state = 3;
    for (int i = 0; i < 300; i++)
        x[i] = (float)random_normal(&state);
    for (int bit = 0; bit < 64; bit++)
        for (int place = 0; place <= 301; place += 43) {
            int64_t sums[301];
            uint32_t damaged = 0;
            const struct pd_term_run run = {x, sums, 300, false, true, q.scale, &sums[300], NULL};
            const struct pd_terms t = {&run, 1, PD_TERM_F32, q.limit, 1, false};
            const struct pd_term_sums s = {300, sums, out, q.quantum, &sums[300], &damaged, 21, false, NULL};
            cr_assert_eq(pd_terms(f.math, &t, &err), PD_OK);
            if (place <= 300) sums[place] ^= (int64_t)(UINT64_C(1) << bit);
            cr_assert_eq(pd_term_sums(f.math, &s, &err), PD_OK);
            cr_assert_eq(damaged, place <= 300 ? 21 : 0, "bit %d of element %d", bit, place);
        }
    fixture_free(&f);
}
