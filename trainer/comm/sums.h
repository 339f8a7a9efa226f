/* Sums of 64-bit integers modulo 2^64, in pieces that stay in the cache.
 *   threads  pure functions */
#pragma once

#include <stdint.h>

/* target, a, b: (count), at any address; target may be a or b and does not overlap them otherwise. */
void pd_sum_add(void *target, const void *a, const void *b, uint64_t count);
