/* exp, log and the logistic function over their whole range, in units in the last place of the fp32 result. The kernels of
 * other instruction sets give the same bits (test_bits.c), so the portable ones speak for all. */
#define PD_ISA_LEVEL 0
#define PD_ISA_NAME portable
#include "ckpt/base/thread_pool.h"
#include "fixture.h"
#include "trainer/math/simd_math.h"

static double ulp_error(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static float call(void (*function)(float *), float x)
{
    float lanes[16];
    v16_store(lanes, v16_set1(x));
    function(lanes);
    return lanes[3];
}

static void exp_16(float *lanes)
{
    v16_store(lanes, v16_exp(v16_load(lanes)));
}
static void log_16(float *lanes)
{
    v16_store(lanes, v16_log(v16_load(lanes)));
}
static void sigmoid_16(float *lanes)
{
    v16_store(lanes, v16_sigmoid(v16_load(lanes)));
}

TestSuite(functions, .init = pd_numerics_thread_init);

Test(functions, exp_within_one_ulp)
{
    double worst = 0;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4093) {
        float x = pd_f32_of_bits((uint32_t)bits);
        if (!(fabsf(x) < 200)) continue;
        float got = call(exp_16, x);
        double want = exp((double)x);
        if (x < -87.33654f)
            cr_assert_eq(got, 0.0f, "exp(%a) = %a", (double)x, (double)got);
        else if (x > 88.3763f)
            cr_assert(got == INFINITY, "exp(%a) = %a", (double)x, (double)got);
        else
            worst = fmax(worst, ulp_error(got, want));
    }
    cr_assert_leq(worst, 1.0, "%g ulp", worst);
    cr_assert_eq(call(exp_16, 0.0f), 1.0f);
    cr_assert_eq(call(exp_16, -INFINITY), 0.0f);
    cr_assert_eq(call(exp_16, -3e38f), 0.0f);
    cr_assert_eq(call(exp_16, INFINITY), INFINITY);
    cr_assert(isnan(call(exp_16, NAN)));
}

Test(functions, log_within_two_ulp)
{
    double worst = 0;
    for (uint32_t bits = 0x00800000; bits < 0x7f800000; bits += 2039) {
        float x = pd_f32_of_bits(bits);
        if (x != 1.0f) worst = fmax(worst, ulp_error(call(log_16, x), log((double)x)));
    }
    for (int i = -3000; i <= 3000; i++) { /* around 1, where the result is small */
        float x = 1.0f + (float)i * 0x1p-23f;
        if (i) worst = fmax(worst, ulp_error(call(log_16, x), log((double)x)));
    }
    cr_assert_leq(worst, 2.0, "%g ulp", worst);
    cr_assert_eq(call(log_16, 1.0f), 0.0f);
    cr_assert(isnan(call(log_16, NAN)) && isnan(call(log_16, INFINITY)));
}

Test(functions, sigmoid_within_two_ulp)
{
    double worst = 0;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 8191) {
        float x = pd_f32_of_bits((uint32_t)bits);
        if (!(x > -87.0f && x < 200)) continue;
        worst = fmax(worst, ulp_error(call(sigmoid_16, x), 1 / (1 + exp(-(double)x))));
    }
    cr_assert_leq(worst, 2.5, "%g ulp", worst);
    cr_assert_eq(call(sigmoid_16, -INFINITY), 0.0f);
    cr_assert_eq(call(sigmoid_16, INFINITY), 1.0f);
    cr_assert(isnan(call(sigmoid_16, NAN)));
}
