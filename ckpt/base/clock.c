#include "ckpt/base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#define NS_PER_S 1000000000ull

static uint64_t read_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t pd_clock_monotonic_ns(const struct pd_clock *clock)
{
    return clock ? clock->monotonic_ns(clock->context) : read_ns(CLOCK_MONOTONIC);
}

uint64_t pd_clock_wall_ns(void)
{
    return read_ns(CLOCK_REALTIME);
}

void pd_clock_sleep_ns(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        continue;
}

double pd_clock_seconds_since(uint64_t start_ns)
{
    return (double)(pd_clock_monotonic_ns(NULL) - start_ns) * 1e-9;
}

bool pd_clock_pace(uint64_t start_ns, uint64_t bytes, uint64_t bytes_per_second, const _Atomic bool *stop)
{
    const uint64_t nap_ns = 20000000;
    for (;;) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed)) return false;
        if (!bytes_per_second) return true;
        const double left = (double)bytes / (double)bytes_per_second - pd_clock_seconds_since(start_ns);
        if (left <= 0) return true;
        pd_clock_sleep_ns(left * 1e9 < (double)nap_ns ? (uint64_t)(left * 1e9) + 1 : nap_ns);
    }
}
