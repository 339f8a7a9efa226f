/* Saves that fail: how the attempts are spread over time, and when a run gives up. Time is a number here. */
#include "trainer/run/save_failures.h"

#include <criterion/criterion.h>

#define S UINT64_C(1000000000)

enum { HOUR = 3600, START = 1000 };

/* Fails every attempt; seconds from the first failure until the run gives up. */
static uint64_t give_up_after(struct pd_save_failures *f, double give_up_seconds, uint64_t *ret_attempts)
{
    uint64_t now = START * S;
    for (*ret_attempts = 1;; ++*ret_attempts) {
        pd_save_failures_add(f, *ret_attempts, now, give_up_seconds);
        if (pd_save_failures_is_too_long(f, now, give_up_seconds)) return now / S - START;
        cr_assert_gt(f->retry_ns, now, "no time passes before attempt %llu", (unsigned long long)*ret_attempts + 1);
        cr_assert(pd_save_failures_is_backing_off(f, f->retry_ns - 1));
        now = f->retry_ns;
        cr_assert_not(pd_save_failures_is_backing_off(f, now));
    }
}

Test(save_failures, attempts_are_seconds_apart_then_minutes)
{
    static const uint64_t gaps[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300};
    struct pd_save_failures f = {0};
    uint64_t now = START * S;
    for (unsigned i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        pd_save_failures_add(&f, 7 + i, now, HOUR);
        cr_assert_eq(f.retry_ns - now, gaps[i] * S, "after failure %u: %llu ns", i + 1,
                     (unsigned long long)(f.retry_ns - now));
        now = f.retry_ns;
    }
    cr_assert_eq(f.first_step, 7);
    cr_assert_eq(f.since_ns, START * S);
}

Test(save_failures, the_last_attempt_is_at_the_limit)
{
    uint64_t attempts;
    cr_assert_eq(give_up_after(&(struct pd_save_failures){0}, HOUR, &attempts), HOUR);
    cr_assert_leq(attempts, 21);
    cr_assert_eq(give_up_after(&(struct pd_save_failures){0}, 10, &attempts), 10);
    cr_assert_eq(attempts, 5); /* after 0, 1, 3, 7 and 10 s */
    cr_assert_eq(give_up_after(&(struct pd_save_failures){0}, 0, &attempts), 0);
    cr_assert_eq(attempts, 1);
}

Test(save_failures, a_save_that_works_begins_anew)
{
    struct pd_save_failures f = {0};
    for (int i = 0; i < 8; i++)
        pd_save_failures_add(&f, 3, START * S, HOUR);
    pd_save_failures_clear(&f);
    cr_assert_not(pd_save_failures_is_backing_off(&f, START * S));
    cr_assert_not(pd_save_failures_is_too_long(&f, 2 * HOUR * S, HOUR));
    pd_save_failures_add(&f, 9, 5 * HOUR * S, HOUR);
    cr_assert_eq(f.first_step, 9);
    cr_assert_eq(f.retry_ns, (5 * HOUR + 1) * S);
    cr_assert_not(pd_save_failures_is_too_long(&f, 5 * HOUR * S, HOUR));
}

Test(save_failures, who_waits_to_leave_waits_for_short)
{
    struct pd_save_failures f = {0};
    for (int i = 0; i < 12; i++)
        pd_save_failures_add(&f, 3, START * S, HOUR);
    pd_save_failures_leave(&f, (START + 100) * S, 3);
    cr_assert_not(pd_save_failures_is_backing_off(&f, (START + 100) * S), "the first attempt is made at once");
    for (uint64_t s = 100; s < 103; s++) {
        pd_save_failures_add(&f, 4, (START + s) * S, HOUR);
        cr_assert_not(pd_save_failures_is_too_long(&f, (START + s) * S, HOUR));
        cr_assert_eq(f.retry_ns, (START + s + 1) * S);
    }
    cr_assert(pd_save_failures_is_too_long(&f, (START + 103) * S, HOUR));
    f = (struct pd_save_failures){0}; /* saves worked until then */
    pd_save_failures_leave(&f, START * S, 0);
    pd_save_failures_add(&f, 4, (START + 1) * S, HOUR);
    cr_assert(pd_save_failures_is_too_long(&f, (START + 1) * S, HOUR));
}
