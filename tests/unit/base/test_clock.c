#include "ckpt/base/clock.h"
#include "tests/helpers/manual_clock.h"

#include <criterion/criterion.h>

Test(clock, the_systems_moves_and_sleeps)
{
    uint64_t start = pd_clock_monotonic_ns(NULL);
    pd_clock_sleep_ns(NULL, 3000000);
    cr_assert_geq(pd_clock_monotonic_ns(NULL) - start, 3000000);
    cr_assert_geq(pd_clock_seconds_since(NULL, start), 0.003);
    cr_assert_gt(pd_clock_wall_ns(pd_clock_system()), 1700000000ull * 1000000000ull);
}

Test(clock, a_manual_one_moves_only_when_told)
{
    struct pd_clock_manual manual;
    pd_clock_manual_init(&manual, 100, 5000);
    cr_assert_eq(pd_clock_monotonic_ns(&manual.clock), 100);
    pd_clock_manual_advance(&manual, 50);
    pd_clock_sleep_ns(&manual.clock, 7);
    cr_assert_eq(pd_clock_monotonic_ns(&manual.clock), 157);
    cr_assert_eq(pd_clock_wall_ns(&manual.clock), 5057);
}
