/* Saves that fail: how the attempts are spread over time, and when a run gives up. Time is a number here. */
#include "trainer/run/save.h"

#include <criterion/criterion.h>

#define S UINT64_C(1000000000)

enum { HOUR = 3600, START = 1000 };

/* Fails every attempt; seconds from the first failure until the run gives up. */
static uint64_t give_up_after(struct pd_save_failures *f, double give_up_seconds, uint64_t *ret_attempts)
{
    uint64_t now = START * S;
    for (*ret_attempts = 1;; ++*ret_attempts) {
        pd_save_failures_add(f, PD_NO_SPACE, *ret_attempts, now, give_up_seconds);
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
        pd_save_failures_add(&f, PD_NO_SPACE, 7 + i, now, HOUR);
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
        pd_save_failures_add(&f, PD_NO_SPACE, 3, START * S, HOUR);
    pd_save_failures_clear(&f);
    cr_assert_not(pd_save_failures_is_backing_off(&f, START * S));
    cr_assert_not(pd_save_failures_is_too_long(&f, 2 * HOUR * S, HOUR));
    pd_save_failures_add(&f, PD_NO_SPACE, 9, 5 * HOUR * S, HOUR);
    cr_assert_eq(f.first_step, 9);
    cr_assert_eq(f.retry_ns, (5 * HOUR + 1) * S);
    cr_assert_not(pd_save_failures_is_too_long(&f, 5 * HOUR * S, HOUR));
}

Test(save_failures, who_waits_to_leave_waits_for_short)
{
    struct pd_save_failures f = {0};
    for (int i = 0; i < 12; i++)
        pd_save_failures_add(&f, PD_NO_SPACE, 3, START * S, HOUR);
    pd_save_failures_leave(&f, (START + 100) * S, 3);
    cr_assert_not(pd_save_failures_is_backing_off(&f, (START + 100) * S), "the first attempt is made at once");
    for (uint64_t s = 100; s < 103; s++) {
        pd_save_failures_add(&f, PD_NO_SPACE, 4, (START + s) * S, HOUR);
        cr_assert_not(pd_save_failures_is_too_long(&f, (START + s) * S, HOUR));
        cr_assert_eq(f.retry_ns, (START + s + 1) * S);
    }
    cr_assert(pd_save_failures_is_too_long(&f, (START + 103) * S, HOUR));
    f = (struct pd_save_failures){0}; /* saves worked until then */
    pd_save_failures_leave(&f, START * S, 0);
    pd_save_failures_add(&f, PD_NO_SPACE, 4, (START + 1) * S, HOUR);
    cr_assert(pd_save_failures_is_too_long(&f, (START + 1) * S, HOUR));
}

/* Memory and threads do not come back for the waiting as room on a disk does. */
Test(save_failures, what_finds_no_memory_waits_a_minute)
{
    static const pd_status brief[] = {PD_NO_MEMORY, PD_UNSUPPORTED}, patient[] = {PD_NO_SPACE, PD_IO, PD_NOT_FOUND};
    for (unsigned i = 0; i < sizeof brief / sizeof *brief; i++) {
        struct pd_save_failures f = {0};
        pd_save_failures_add(&f, brief[i], 4, START * S, HOUR);
        cr_assert_eq(f.retry_ns, (START + 1) * S);
        cr_assert_eq(pd_save_failures_deadline(&f, HOUR), (START + 60) * S);
        cr_assert_eq(pd_save_failures_deadline(&f, 5), (START + 5) * S, "a shorter limit of the user's counts");
        cr_assert_not(pd_save_failures_is_too_long(&f, (START + 60) * S - 1, HOUR));
        cr_assert(pd_save_failures_is_too_long(&f, (START + 60) * S, HOUR));
    }
    for (unsigned i = 0; i < sizeof patient / sizeof *patient; i++) {
        struct pd_save_failures f = {0};
        pd_save_failures_add(&f, patient[i], 4, START * S, HOUR);
        cr_assert_eq(pd_save_failures_deadline(&f, HOUR), (START + HOUR) * S);
    }
}

Test(save_failures, after_the_last_step_nobody_waits_an_hour)
{
    static const uint64_t gaps[] = {1, 2, 4, 8, 15, 15, 15};
    struct pd_save_failures f = {0};
    uint64_t now = START * S, attempts = 0;
    for (unsigned i = 0; i < sizeof gaps / sizeof *gaps; i++, now = f.retry_ns) {
        pd_save_failures_over(&f, now); /* the first time counts */
        pd_save_failures_add(&f, PD_NO_SPACE, 9, now, HOUR);
        cr_assert_eq(f.retry_ns - now, gaps[i] * S);
    }
    for (; !pd_save_failures_is_too_long(&f, now, HOUR); now = f.retry_ns, attempts++)
        pd_save_failures_add(&f, PD_NO_SPACE, 9, now, HOUR);
    cr_assert_eq(now, (START + 600) * S);
    cr_assert_geq(attempts, 36);
    cr_assert_eq(pd_save_failures_deadline(&f, 30), (START + 30) * S, "a shorter limit of the user's counts");
    f = (struct pd_save_failures){0}; /* saves failed for long before */
    pd_save_failures_add(&f, PD_NO_SPACE, 3, START * S, HOUR);
    pd_save_failures_over(&f, (START + HOUR - 10) * S);
    cr_assert(pd_save_failures_is_too_long(&f, (START + HOUR) * S, HOUR));
}
