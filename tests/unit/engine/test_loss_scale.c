/* The loss scale halves on a skip, doubles after a run of good steps, and stays a power of two within its bounds. */
#include "trainer/engine/advance.h"

#include <criterion/criterion.h>

static void advance(struct pd_run_state *state, bool skipped)
{
    struct pd_error err;
    cr_assert_eq(pd_loss_scale_advance(state, skipped, 3, &err), PD_OK, "%s", err.message);
}

Test(loss_scale, halves_and_doubles)
{
    struct pd_run_state s = {.loss_scale = 65536};
    advance(&s, true);
    cr_assert_eq(s.loss_scale, 32768);
    cr_assert_eq(s.skipped_steps, 1);
    advance(&s, false);
    advance(&s, false);
    cr_assert_eq(s.loss_scale, 32768);
    cr_assert_eq(s.loss_scale_good_steps, 2);
    advance(&s, true); /* a skip breaks the run of good steps */
    cr_assert_eq(s.loss_scale, 16384);
    cr_assert_eq(s.loss_scale_good_steps, 0);
    for (int i = 0; i < 3; i++)
        advance(&s, false);
    cr_assert_eq(s.loss_scale, 32768);
    cr_assert_eq(s.loss_scale_good_steps, 0);
    cr_assert_eq(s.skipped_steps, 2);
}

Test(loss_scale, stays_within_bounds)
{
    struct pd_run_state s = {.loss_scale = 1};
    struct pd_error err;
    for (int i = 0; i < 200; i++)
        advance(&s, false);
    cr_assert_eq(s.loss_scale, 0x1p24);
    for (int i = 0; i < 48; i++)
        advance(&s, true);
    cr_assert_eq(s.loss_scale, 0x1p-24);
    cr_assert_eq(pd_loss_scale_advance(&s, true, 3, &err), PD_DIVERGED);
}
