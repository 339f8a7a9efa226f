/* cos and sin of position * frequency, in fp64 by our own polynomials, rounded to fp32 once.
 *
 *   frequency i = theta^(-2i/D)                                                   Su et al. 2021
 *   linear: positions are divided by the factor                                   Chen et al. 2023
 *   Llama 3.1: wavelengths beyond original/low are stretched by the factor, those under original/high stay, between
 *   them the two are blended linearly in original/wavelength                      Grattafiori et al. 2024
 *
 * Other implementations compute frequencies and angles in fp32; at position 100,000 their angles are off by up to 0.004. */
#include "trainer/model/model.h"

#include "trainer/model/polynomial.h"

#define TWO_PI 0x1.921fb54442d18p+2

/* 2^x for -1000 < x < 1000 */
static double exp2_of(double x)
{
    double whole = pd_bits_double(pd_double_bits(x + 0x1.8p52)) - 0x1.8p52; /* nearest integer */
    double y = (x - whole) * PD_POLYNOMIAL_LN2;                             /* |y| <= 0.347 */
    double sum = 1.0;
    for (int n = 16; n >= 1; n--)
        sum = 1.0 + y / n * sum;
    return sum * pd_bits_double((uint64_t)((int64_t)whole + 1023) << 52);
}

static double log_of(double x)
{
    return x >= 1.0 ? pd_polynomial_log(x, 0.0) : -pd_polynomial_log(1.0 / x, 0.0);
}

static double scaled(const struct pd_model_config *config, double frequency)
{
    if (config->rope_scaling == PD_ROPE_SCALING_NONE) return frequency;
    if (config->rope_scaling == PD_ROPE_SCALING_LINEAR) return frequency / config->rope_factor;
    double low = config->rope_low_frequency_factor, high = config->rope_high_frequency_factor;
    double turns = config->rope_original_context * (frequency / TWO_PI); /* original context in wavelengths */
    if (turns < low) return frequency / config->rope_factor;
    if (turns > high) return frequency;
    double blend = (turns - low) / (high - low);
    return (1.0 - blend) * frequency / config->rope_factor + blend * frequency;
}

static void rotate(double angle, float *ret_cos_sin)
{
    /* pi/2 in two parts; the first has 33 bits, so its product with fewer than 2^20 quarters is exact. */
    const double part1 = 0x1.921fb544p+0, part2 = 0x1.0b4611a626331p-34;
    uint64_t quarters = (uint64_t)(angle * (4.0 / TWO_PI) + 0.5);
    double n = (double)quarters, c, s;
    pd_polynomial_cos_sin((angle - n * part1) - n * part2, quarters, &c, &s);
    ret_cos_sin[0] = (float)c;
    ret_cos_sin[1] = (float)s;
}

void pd_model_rope_table(const struct pd_model_config *config, uint32_t positions, float *ret)
{
    uint32_t rotated = config->rotated ? config->rotated : config->head_size, half = rotated / 2;
    double log2_theta = log_of(config->rope_theta) / PD_POLYNOMIAL_LN2;
    for (uint32_t i = 0; i < half; i++) {
        double frequency = scaled(config, exp2_of(-2.0 * i / rotated * log2_theta));
        for (uint32_t p = 0; p < positions; p++)
            rotate(p * frequency, ret + ((uint64_t)p * half + i) * 2);
    }
}
