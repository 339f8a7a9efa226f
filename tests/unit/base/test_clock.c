#include "ckpt/base/clock.h"
#include "tests/helpers/manual_clock.h"

#include <criterion/criterion.h>

Test(clock, the_systems_moves_and_sleeps)
{
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_clock_sleep_ns(3000000);
    cr_assert_geq(pd_clock_monotonic_ns(NULL) - start, 3000000);
    cr_assert_geq(pd_clock_seconds_since(start), 0.003);
    cr_assert_gt(pd_clock_wall_ns(), 1700000000ull * 1000000000ull);
}

Test(clock, a_manual_one_moves_only_when_told)
{
    struct pd_clock_manual manual;
    pd_clock_manual_init(&manual, 100);
    cr_assert_eq(pd_clock_monotonic_ns(&manual.clock), 100);
    pd_clock_manual_advance(&manual, 50);
    cr_assert_eq(pd_clock_monotonic_ns(&manual.clock), 150);
}

Test(clock, a_pace_is_kept_unless_somebody_stops_it)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    _Atomic bool stops = true, goes_on = false;
    cr_assert(!pd_clock_pace(start_ns, 1, 1000, &stops));
    cr_assert(pd_clock_pace(start_ns, UINT64_MAX, 0, &goes_on)); /* no pace */
    cr_assert(pd_clock_pace(start_ns, 30, 1000, &goes_on));
    cr_assert_geq(pd_clock_monotonic_ns(NULL) - start_ns, UINT64_C(30000000));
    cr_assert(pd_clock_pace(start_ns, 30, 1000, NULL));
}
