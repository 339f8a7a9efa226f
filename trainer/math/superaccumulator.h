/* A sum of doubles without rounding: a 2176-bit integer that covers every finite double (Kulisch and Miranker 1986).
 *
 * Additions are exact, so the result does not depend on order, on the number of accumulators, or on ranks. Limbs are base
 * 2^32 digits in 64-bit words, two's complement. Once normalised, up to 2^31 accumulators may be added limb by limb modulo
 * 2^64: an all-reduce with PD_REDUCE_SUM_U64 over `limbs` and with PD_REDUCE_OR_U64 over `flags` gives the accumulator of
 * all terms. The flags hold infinities and NaN.
 *
 *   pd_superaccumulator_normalise(&a);           on every rank
 *   reduce(a.limbs, PD_SUPERACCUMULATOR_LIMBS, PD_REDUCE_SUM_U64);   reduce(&a.flags, 1, PD_REDUCE_OR_U64);
 *   double sum = pd_superaccumulator_value(&a);
 *
 *   threads  none; plain data; all zero bytes are an empty sum */
#pragma once

#include <stdint.h>

#define PD_SUPERACCUMULATOR_LIMBS 68u /* bit 0 is 2^-1074; 2^1024 is bit 2098; the rest is headroom and sign */

struct pd_superaccumulator {
    uint64_t limbs[PD_SUPERACCUMULATOR_LIMBS];
    uint64_t flags;   /* 1: +infinity, 2: -infinity, 4: NaN was added */
    uint64_t pending; /* additions since last normalised: at most PD_SUPERACCUMULATOR_PENDING_MAX */
};
#define PD_SUPERACCUMULATOR_PENDING_MAX (UINT64_C(1) << 30) /* keeps limbs below 2^62 in magnitude */

void pd_superaccumulator_init(struct pd_superaccumulator *accumulator);
/* Works on the bits, subnormals included, so rounding mode and flush-to-zero do not matter. */
void pd_superaccumulator_add(struct pd_superaccumulator *accumulator, double term);
void pd_superaccumulator_add_many(struct pd_superaccumulator *accumulator, const double *terms, uint64_t count);
/* Brings every limb but the last into [0, 2^32); the last carries the sign. */
void pd_superaccumulator_normalise(struct pd_superaccumulator *accumulator);
/* The exact sum, rounded once to nearest even; infinity if too large; NaN after a NaN or both infinities; +0 for zero.
 * Accepts limbs as an all-reduce leaves them. */
double pd_superaccumulator_value(const struct pd_superaccumulator *accumulator);
