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

static uint64_t system_monotonic_ns(void *context)
{
    (void)context;
    return read_ns(CLOCK_MONOTONIC);
}

static uint64_t system_wall_ns(void *context)
{
    (void)context;
    return read_ns(CLOCK_REALTIME);
}

static void system_sleep_ns(void *context, uint64_t ns)
{
    (void)context;
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        continue;
}

const struct pd_clock *pd_clock_system(void)
{
    static const struct pd_clock system_clock = {system_monotonic_ns, system_wall_ns, system_sleep_ns, NULL};
    return &system_clock;
}

static const struct pd_clock *or_system(const struct pd_clock *clock)
{
    return clock ? clock : pd_clock_system();
}

uint64_t pd_clock_monotonic_ns(const struct pd_clock *clock)
{
    clock = or_system(clock);
    return clock->monotonic_ns(clock->context);
}

uint64_t pd_clock_wall_ns(const struct pd_clock *clock)
{
    clock = or_system(clock);
    return clock->wall_ns(clock->context);
}

void pd_clock_sleep_ns(const struct pd_clock *clock, uint64_t ns)
{
    clock = or_system(clock);
    clock->sleep_ns(clock->context, ns);
}

double pd_clock_seconds_since(const struct pd_clock *clock, uint64_t start_ns)
{
    return (double)(pd_clock_monotonic_ns(clock) - start_ns) * 1e-9;
}

bool pd_clock_pace(uint64_t start_ns, uint64_t bytes, uint64_t bytes_per_second, const _Atomic bool *stop)
{
    const uint64_t nap_ns = 20000000;
    for (;;) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed)) return false;
        if (!bytes_per_second) return true;
        const double left = (double)bytes / (double)bytes_per_second - pd_clock_seconds_since(NULL, start_ns);
        if (left <= 0) return true;
        pd_clock_sleep_ns(NULL, left * 1e9 < (double)nap_ns ? (uint64_t)(left * 1e9) + 1 : nap_ns);
    }
}
