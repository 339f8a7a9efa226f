/* A clock that only moves when told to or slept on. One thread. */
#pragma once

#include "ckpt/base/clock.h"

struct pd_clock_manual {
    struct pd_clock clock; /* pass &manual.clock */
    uint64_t monotonic_ns, wall_ns;
};

static inline void pd_clock_manual_advance(struct pd_clock_manual *manual, uint64_t ns)
{
    manual->monotonic_ns += ns;
    manual->wall_ns += ns;
}

static inline uint64_t manual_monotonic_ns(void *context)
{
    return ((struct pd_clock_manual *)context)->monotonic_ns;
}

static inline uint64_t manual_wall_ns(void *context)
{
    return ((struct pd_clock_manual *)context)->wall_ns;
}

static inline void manual_sleep_ns(void *context, uint64_t ns)
{
    pd_clock_manual_advance(context, ns);
}

static inline void pd_clock_manual_init(struct pd_clock_manual *manual, uint64_t monotonic_ns, uint64_t wall_ns)
{
    manual->clock = (struct pd_clock){manual_monotonic_ns, manual_wall_ns, manual_sleep_ns, manual};
    manual->monotonic_ns = monotonic_ns;
    manual->wall_ns = wall_ns;
}
