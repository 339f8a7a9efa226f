/* A clock that only moves when told to. One thread. */
#pragma once

#include "ckpt/base/clock.h"

struct pd_clock_manual {
    struct pd_clock clock; /* pass &manual.clock */
    uint64_t monotonic_ns;
};

static inline void pd_clock_manual_advance(struct pd_clock_manual *manual, uint64_t ns)
{
    manual->monotonic_ns += ns;
}

static inline uint64_t manual_monotonic_ns(void *context)
{
    return ((struct pd_clock_manual *)context)->monotonic_ns;
}

static inline void pd_clock_manual_init(struct pd_clock_manual *manual, uint64_t monotonic_ns)
{
    *manual = (struct pd_clock_manual){{manual_monotonic_ns, manual}, monotonic_ns};
}
