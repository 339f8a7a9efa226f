/* Which sample is the i-th, as pure functions: no loader state to save, nothing skipped or repeated.
 *
 * A keyed permutation of [0, n): a balanced Feistel network of 8 rounds (Luby and Rackoff 1988) on the next even number of
 * bits, repeated until the result is below n (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", method 2).
 * Expects at most 4 repetitions; stores nothing.
 *
 * A blend of sources by weight: a cycle of PD_BLEND_CYCLE samples has each source's share, rounded (at least one), spread as
 * evenly as possible. Sample i is slot i mod cycle. The slot also gives k for the k-th sample of a source, since every cycle
 * has the same number of each.
 *   threads  any */
#pragma once

#include "ckpt/base/status.h"

#define PD_BLEND_CYCLE 16384u
#define PD_BLEND_SOURCES_MAX 4096u

/* The image of i (< n, n > 0) under the permutation of (seed, stream, epoch). */
uint64_t pd_order_permute(uint64_t n, uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t i);

struct pd_blend {
    struct {
        uint32_t source;
        uint32_t before; /* slots of the same source earlier in the cycle */
    } slots[PD_BLEND_CYCLE];
    uint32_t share[PD_BLEND_SOURCES_MAX]; /* slots per cycle */
};

/* weights (count) positive and finite, count <= PD_BLEND_SOURCES_MAX */
void pd_blend_init(struct pd_blend *blend, const double *weights, uint32_t count);
/* Sample i is the `ret_k`-th of `ret_source`, counted from the start of the run. */
void pd_blend_locate(const struct pd_blend *blend, uint64_t i, uint32_t *ret_source, uint64_t *ret_k);
