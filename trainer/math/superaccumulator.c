#include "trainer/math/superaccumulator.h"

#include <stdbool.h>
#include <string.h>

#define LIMBS PD_SUPERACCUMULATOR_LIMBS
#define FLAG_PLUS_INFINITY 1u
#define FLAG_MINUS_INFINITY 2u
#define FLAG_NAN 4u

#define EXPONENT_ALL_ONES 0x7ffu
#define FRACTION_BITS 52
#define FRACTION_MASK ((UINT64_C(1) << FRACTION_BITS) - 1)

void pd_superaccumulator_init(struct pd_superaccumulator *accumulator)
{
    memset(accumulator, 0, sizeof *accumulator);
}

static uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A significand of 53 bits at bit `position` touches three limbs. */
void pd_superaccumulator_add(struct pd_superaccumulator *a, double term)
{
    uint64_t bits = double_bits(term), significand = bits & FRACTION_MASK;
    unsigned exponent = (unsigned)(bits >> FRACTION_BITS) & EXPONENT_ALL_ONES;
    bool negative = bits >> 63;
    if (exponent == EXPONENT_ALL_ONES) {
        if (significand)
            a->flags |= FLAG_NAN;
        else
            a->flags |= negative ? FLAG_MINUS_INFINITY : FLAG_PLUS_INFINITY;
        return;
    }
    unsigned position = exponent ? exponent - 1 : 0;
    if (exponent) significand |= UINT64_C(1) << FRACTION_BITS;
    unsigned limb = position / 32, shift = position % 32;
    uint64_t low = (significand & 0xffffffffu) << shift, high = (significand >> 32) << shift;
    uint64_t part[3] = {low & 0xffffffffu, (low >> 32) + (high & 0xffffffffu), high >> 32};
    for (unsigned i = 0; i < 3; i++)
        a->limbs[limb + i] += negative ? 0 - part[i] : part[i];
    if (++a->pending >= PD_SUPERACCUMULATOR_PENDING_MAX) pd_superaccumulator_normalise(a);
}

void pd_superaccumulator_add_many(struct pd_superaccumulator *a, const double *terms, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        pd_superaccumulator_add(a, terms[i]);
}

/* Carries are signed; `sign` makes the logical shift an arithmetic one. */
void pd_superaccumulator_normalise(struct pd_superaccumulator *a)
{
    uint64_t carry = 0; /* signed, in two's complement */
    for (unsigned i = 0; i + 1 < LIMBS; i++) {
        uint64_t limb = a->limbs[i] + carry, sign = 0 - (limb >> 63);
        carry = (limb >> 32) | (sign << 32);
        a->limbs[i] = limb & 0xffffffffu;
    }
    a->limbs[LIMBS - 1] += carry;
    a->pending = 0;
}

/* Makes a normalised accumulator hold its own magnitude; returns whether it was negative. */
static bool take_magnitude(struct pd_superaccumulator *a)
{
    if (!(a->limbs[LIMBS - 1] >> 63)) return false;
    for (unsigned i = 0; i < LIMBS; i++)
        a->limbs[i] = 0 - a->limbs[i];
    pd_superaccumulator_normalise(a);
    return true;
}

/* Index of the highest bit that is set, -1 for zero; of a normalised magnitude. */
static int highest_bit(const struct pd_superaccumulator *a)
{
    for (int i = (int)LIMBS - 1; i >= 0; i--) {
        if (a->limbs[i]) return 32 * i + 63 - __builtin_clzll(a->limbs[i]);
    }
    return -1;
}

static bool bit_at(const struct pd_superaccumulator *a, int bit)
{
    int limb = bit / 32;
    if (limb >= (int)LIMBS) limb = (int)LIMBS - 1; /* the last limb may hold more than 32 bits */
    return (a->limbs[limb] >> (bit - 32 * limb)) & 1u;
}

static bool any_bit_below(const struct pd_superaccumulator *a, int bit)
{
    for (int i = 0; i < bit; i++) {
        if (bit_at(a, i)) return true;
    }
    return false;
}

/* 53 bits from the highest on, rounded to nearest even, as the bits of a double. */
static uint64_t rounded_bits(const struct pd_superaccumulator *a, int high)
{
    int low = high > FRACTION_BITS ? high - FRACTION_BITS : 0;
    uint64_t significand = 0;
    for (int bit = high; bit >= low; bit--)
        significand = 2 * significand + bit_at(a, bit);
    uint64_t bits =
        high >= FRACTION_BITS ? ((uint64_t)(low + 1) << FRACTION_BITS) | (significand & FRACTION_MASK) : significand;
    if (low > 0 && bit_at(a, low - 1) && ((significand & 1u) || any_bit_below(a, low - 1)))
        bits++; /* may carry into the exponent */
    return bits;
}

double pd_superaccumulator_value(const struct pd_superaccumulator *accumulator)
{
    const uint64_t infinity = (uint64_t)EXPONENT_ALL_ONES << FRACTION_BITS, sign_bit = UINT64_C(1) << 63;
    uint64_t flags = accumulator->flags;
    if ((flags & FLAG_NAN) || (flags & 3u) == 3u) return bits_double(infinity | (UINT64_C(1) << 51));
    if (flags & FLAG_PLUS_INFINITY) return bits_double(infinity);
    if (flags & FLAG_MINUS_INFINITY) return bits_double(infinity | sign_bit);
    struct pd_superaccumulator a = *accumulator;
    pd_superaccumulator_normalise(&a);
    bool negative = take_magnitude(&a);
    int high = highest_bit(&a);
    if (high < 0) return 0.0;
    uint64_t bits = high > 2097 ? infinity : rounded_bits(&a, high);
    return bits_double(bits | (negative ? sign_bit : 0));
}
