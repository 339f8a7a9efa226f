#include "trainer/run/stragglers.h"

#include <criterion/criterion.h>

enum { RANKS = 4 };

static struct pd_straggler all[RANKS], said[PD_STRAGGLERS_SAID];
static struct pd_rank_window ranks[RANKS];

/* Windows of ten seconds. */
static uint32_t named_after(uint32_t windows)
{
    const struct pd_stragglers s = {.all = all};
    for (uint32_t i = 0; i < windows; i++)
        pd_stragglers_judge(ranks, RANKS, 10, all);
    return pd_stragglers_named(&s, RANKS, said);
}

static void set_all(double computing, double reading, double storage)
{
    for (uint32_t r = 0; r < RANKS; r++)
        ranks[r] = (struct pd_rank_window){.seconds = {computing, reading, storage}, .micro_batches = 2};
}

Test(stragglers, one_is_named_after_three_windows_with_what_it_is_slow_at)
{
    for (int kind = 0; kind < PD_SPENT_KINDS; kind++) {
        set_all(4, 1, 1);
        for (uint32_t r = 0; r < RANKS; r++)
            all[r] = (struct pd_straggler){.windows = 0};
        ranks[2].seconds[kind] += 3;
        cr_expect_eq(named_after(2), 0);
        cr_assert_eq(named_after(1), 1);
        cr_expect_eq(said[0].rank, 2);
        cr_expect_eq((int)said[0].at, kind);
        cr_expect_float_eq(said[0].speed, 6.0 / 9, 1e-9);
        cr_expect_float_eq(said[0].lost, 3, 1e-9);
    }
}

Test(stragglers, a_window_that_is_not_slow_ends_it)
{
    set_all(4, 1, 1);
    ranks[1].seconds[0] = 9;
    cr_assert_eq(named_after(3), 1);
    ranks[1].seconds[0] = 5.9; /* 6 / 7.9 is above three quarters */
    cr_expect_eq(named_after(1), 0);
    ranks[1].seconds[0] = 9;
    cr_expect_eq(named_after(2), 0, "three in a row, not three");
}

Test(stragglers, all_that_are_equally_slow_are_none)
{
    set_all(9.5, 0.2, 0.2);
    cr_expect_eq(named_after(10), 0);
}

Test(stragglers, of_two_one_is_slow_that_takes_more_than_twice_as_long)
{
    set_all(3, 0, 0);
    for (uint32_t r = 2; r < RANKS; r++)
        ranks[r].stage = r; /* nobody to compare with */
    ranks[2].seconds[0] = 9;
    ranks[1].seconds[0] = 5.9;
    cr_expect_eq(named_after(3), 0);
    ranks[1].seconds[0] = 6.2;
    cr_expect_eq(named_after(3), 1);
    cr_expect_eq(said[0].rank, 1);
}

Test(stragglers, more_work_and_a_share_of_nothing_are_no_slowness)
{
    set_all(2, 0, 0);
    ranks[3].micro_batches = 4;
    ranks[3].seconds[0] = 4;
    cr_expect_eq(named_after(3), 0, "twice the micro-batches");
    set_all(0.2, 0, 0);
    ranks[3].seconds[0] = 0.6;
    cr_expect_eq(named_after(3), 0, "4%% of the window");
}
