/* Delay before the next try after `failures` failures in a row: 1 s, 2 s, 4 s, ... and at most 5 minutes. */
#pragma once

#include <stdint.h>

#define PD_BACKOFF_NS_MAX (300 * UINT64_C(1000000000))

/* Returns 0 if there was no failure. */
static inline uint64_t pd_backoff_ns(uint32_t failures)
{
    if (!failures) return 0;
    const uint64_t ns = UINT64_C(1000000000) << (failures - 1 < 16 ? failures - 1 : 16);
    return ns < PD_BACKOFF_NS_MAX ? ns : PD_BACKOFF_NS_MAX;
}
