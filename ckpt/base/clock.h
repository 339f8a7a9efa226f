/* Time. Decisions use the monotonic clock, which tests may replace; wall time is for people only.
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_clock {
    uint64_t (*monotonic_ns)(void *context);
    void *context;
};

uint64_t pd_clock_monotonic_ns(const struct pd_clock *clock); /* NULL: the system clock */
uint64_t pd_clock_wall_ns(void);                              /* since 1970-01-01 UTC */
void pd_clock_sleep_ns(uint64_t ns);
/* Limits a transfer: sleeps until `bytes_per_second` (0: no limit) allows `bytes` since start_ns, in naps of 20 ms so
 * that *stop is noticed soon (NULL: never set). Returns false if *stop is set. */
bool pd_clock_pace(uint64_t start_ns, uint64_t bytes, uint64_t bytes_per_second, const _Atomic bool *stop);
double pd_clock_seconds_since(uint64_t start_ns); /* start from pd_clock_monotonic_ns */
