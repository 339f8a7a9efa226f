/* fp16 through the table: rounding to nearest even with subnormals kept, overflow to infinity, on every instruction set and
 * whatever the flush-to-zero state of the thread. */
#include "fixture.h"

/* The value of a finite half, from its definition. */
static double value_of(uint32_t half)
{
    double fraction = half & 0x3ff, sign = half & 0x8000 ? -1 : 1;
    int exponent = (int)(half >> 10 & 31);
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static void for_each_isa(void (*run)(struct fixture *))
{
    static const enum pd_isa isas[] = {PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512};
    for (size_t i = 0; i < 3; i++) {
        if (!pd_isa_available(isas[i])) continue;
        struct fixture f = fixture_new(isas[i], 2);
        run(&f);
        fixture_free(&f);
    }
}

enum { FINITE = 0x7c00, VALUES = FINITE * 2 };

/* Every half, and between it and the next one: the middle goes to the even one, its neighbours to the nearer one. */
static void round_all(struct fixture *f)
{
    float *x = malloc(4 * VALUES * sizeof *x);
    uint16_t *got = malloc(4 * VALUES * sizeof *got), *want = malloc(4 * VALUES * sizeof *want);
    for (uint32_t i = 0; i < VALUES; i++) {
        const uint32_t magnitude = i % FINITE, half = magnitude | (i < FINITE ? 0 : 0x8000);
        const uint32_t next = half + 1; /* of the largest: infinity, as if one step further */
        const double step = magnitude < FINITE - 1 ? fabs(value_of(next) - value_of(half)) : 32;
        const float middle = (float)(value_of(half) + copysign(step / 2, half & 0x8000 ? -1 : 1));
        const float inputs[4] = {(float)value_of(half), nextafterf(middle, 0), middle, nextafterf(middle, 2 * middle)};
        const uint32_t outputs[4] = {half, half, half & 1 ? next : half, next};
        for (int k = 0; k < 4; k++) {
            x[4 * i + (uint32_t)k] = inputs[k];
            want[4 * i + (uint32_t)k] = (uint16_t)outputs[k];
        }
    }
    MUST(pd_cast(f->math, 4 * VALUES, PD_F16, got, PD_F32, x, &err));
    for (uint32_t i = 0; i < 4 * VALUES; i++)
        cr_assert_eq(got[i], want[i], "%s: %a became %04x, not %04x", pd_isa_name(f->math->isa), (double)x[i], got[i],
                     want[i]);
    for (uint32_t i = 0; i < VALUES; i++)
        want[i] = got[4 * i];
    MUST(pd_cast(f->math, VALUES, PD_F32, x, PD_F16, want, &err));
    for (uint32_t i = 0; i < VALUES; i++)
        cr_assert_eq(x[i], (float)value_of(want[i]), "%s: half %04x", pd_isa_name(f->math->isa), want[i]);
    free(x);
    free(got);
    free(want);
}

Test(fp16, rounds_to_nearest_even_and_keeps_subnormals)
{
    for_each_isa(round_all);
}

static void check_half(const struct fixture *f, const char *what, uint16_t got, uint16_t want)
{
    cr_assert_eq(got, want, "%s, %s: %04x, not %04x", what, pd_isa_name(f->math->isa), got, want);
}

/* 2^15 * 2 is infinity; 2^-12 * 2^-12 is the smallest subnormal, 2^-12 * 2^-13 half of it and so zero. */
static void edges(struct fixture *f)
{
    uint16_t a[3] = {0x7800, 0x0c00, 0x0c00}, b[3] = {0x4000, 0x0c00, 0x0800}, out[3];
    const float parts_of[3] = {65520, 0x1p-24f, 0x1p-25f};
    const float *const parts[1] = {parts_of};
    const uint16_t want[3] = {0x7c00, 1, 0};
    for (int i = 0; i < 3; i++) {
        struct pd_gemm g = {
            .m = 1, .n = 1, .k = 1, .a = {&a[i], PD_F16, 1}, .b = {&b[i], PD_F16, 1}, .c = {&out[i], PD_F16, 1}};
        MUST(pd_gemm(f->math, &g, &err));
        check_half(f, "gemm", out[i], want[i]);
    }
    struct pd_finish finish = {
        .rows = 1, .columns = 3, .part_count = 1, .parts = parts, .scale = 1, .out = {out, PD_F16, 3}};
    MUST(pd_finish(f->math, &finish, &err));
    for (int i = 0; i < 3; i++)
        check_half(f, "finish", out[i], want[i]);
    /* silu(64) = 64 and silu(-1) is ordinary, so the products end at the edges */
    uint16_t gate_up[6] = {0x5400, 0x5400, 0x5400, 0x7bff, 1, 0x8001};
    MUST(pd_swiglu_forward(f->math, 1, 3, PD_F16, gate_up, out, &err));
    check_half(f, "swiglu", out[0], 0x7c00);
    check_half(f, "swiglu", out[1], 64);
    check_half(f, "swiglu", out[2], 0x8040);
}

Test(fp16, overflows_to_infinity_and_underflows_by_steps)
{
    for_each_isa(edges);
}

/* A loss scale of 2^16 on a gradient of ordinary size: infinity where it does not fit, seen by whoever sums squares. */
static void overflow_shows(struct fixture *f)
{
    float logits[40] = {0}, loss;
    uint16_t gradient[40];
    int32_t target = 3;
    struct pd_cross_entropy l = {.rows = 1,
                                 .vocab = 40,
                                 .ld = 40,
                                 .chunks = 1,
                                 .logits = logits,
                                 .targets = &target,
                                 .losses = &loss,
                                 .dlogits = gradient,
                                 .ld_dlogits = 40,
                                 .dtype = PD_F16,
                                 .scale = 131072};
    MUST(pd_cross_entropy(f->math, &l, &err));
    check_half(f, "onehot", gradient[3], 0xfc00);
    cr_assert_lt(gradient[0], 0x7c00, "3,276.8 fits");
    float wide[40];
    double sum;
    MUST(pd_cast(f->math, 40, PD_F32, wide, PD_F16, gradient, &err));
    MUST(pd_row_squares(f->math, 1, 40, wide, &sum, &err));
    cr_assert(isinf(sum));
}

Test(fp16, a_scaled_gradient_that_does_not_fit_shows)
{
    for_each_isa(overflow_shows);
}
