#include "ckpt/tiers/schedule.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define SECOND UINT64_C(1000000000)

/* Four places: the other hosts, and three later tiers. */
#define COUNT 4u

enum { OPEN = 1, DUE = 2, BUSY = 4, BACKING_OFF = 8, PENDING = 16 };

static void plan(const unsigned flags[COUNT], uint32_t from, struct tier_plan *ret_plan)
{
    struct tier_target targets[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        targets[i] = (struct tier_target){.is_open = flags[i] & OPEN,
                                          .is_due = flags[i] & DUE,
                                          .is_busy = flags[i] & BUSY,
                                          .is_backing_off = flags[i] & BACKING_OFF,
                                          .is_pending = flags[i] & PENDING,
                                          .pending_step = 20,
                                          .keep_every = i == 3   ? 10
                                                        : i == 2 ? 7
                                                                 : 0};
    tier_plan_copies(targets, COUNT, from, ret_plan);
}

/* "c1 c2 m3 p0": copies to 1 and 2, a milestone to 3, pending for the other hosts. */
static void expect(const unsigned flags[COUNT], uint32_t from, const char *expected)
{
    struct tier_plan p;
    char text[64] = "";
    size_t used = 0;
    plan(flags, from, &p);
    for (uint32_t i = 0; i < p.copy_count; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%c%u ", p.copies[i].milestone ? 'm' : 'c', p.copies[i].to);
    for (uint32_t i = 0; i < p.pending_count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "p%u ", p.pending[i]);
    cr_expect_str_eq(text, expected, "from tier %u: \"%s\", expected \"%s\"", from, text, expected);
}

Test(schedule, who_copies_what)
{
    expect((unsigned[]){OPEN | DUE, OPEN | DUE, OPEN, OPEN | DUE}, 0, "c0 c1 c3 ");
    expect((unsigned[]){OPEN | DUE, OPEN | DUE, OPEN | DUE, OPEN | DUE}, 1, "c2 c3 "); /* replicas are of the first tier */
    expect((unsigned[]){OPEN | DUE, OPEN | DUE, OPEN | DUE, OPEN | DUE}, 3, "");
    expect((unsigned[]){DUE, DUE, DUE, OPEN | DUE}, 0, "c3 "); /* left out, or no other host */
    expect((unsigned[]){OPEN | DUE | BUSY, OPEN | DUE | BUSY, OPEN | BUSY, OPEN | DUE}, 0, "c3 p0 p1 ");
    expect((unsigned[]){OPEN | DUE | BACKING_OFF, OPEN | DUE | BACKING_OFF | BUSY, OPEN | PENDING | BACKING_OFF, 0}, 0, "");
    expect((unsigned[]){0, OPEN | PENDING, OPEN | PENDING | BUSY, OPEN | PENDING | DUE}, 0, "c1 c3 ");
}

Test(schedule, a_milestone_that_waited_is_copied_itself)
{
    struct tier_plan p;
    expect((unsigned[]){0, OPEN | PENDING, OPEN | PENDING, OPEN | PENDING}, 0, "c1 c2 m3 ");
    expect((unsigned[]){0, OPEN | PENDING, OPEN | PENDING, OPEN | PENDING}, 1, "c2 c3 "); /* the first tier keeps them */
    plan((unsigned[]){0, 0, 0, OPEN | PENDING}, 0, &p);
    cr_assert_eq(p.copies[0].milestone, 20);
}

Test(schedule, a_later_tier_is_asked_when_those_before_it_fail)
{
    uint32_t order[PD_TIERS_MAX];
    struct tier_candidate tiers[3] = {{.is_due = true}, {.is_due = false}, {.is_due = true}};
    cr_assert_eq(tier_order(tiers, 3, order), 3);
    cr_assert(order[0] == 0 && order[1] == 2 && order[2] == 1, "due ones first: %u %u %u", order[0], order[1], order[2]);
    tiers[0].has_failed = true;
    tier_order(tiers, 3, order);
    cr_assert_eq(order[0], 0, "it is tried again");
    tiers[0].is_backing_off = true;
    tier_order(tiers, 3, order);
    cr_assert(order[0] == 2 && order[1] == 1 && order[2] == 0, "at last: %u %u %u", order[0], order[1], order[2]);
    tiers[2].is_left_out = true;
    cr_assert_eq(tier_order(tiers, 3, order), 2);
}

Test(schedule, failures_back_off_until_a_success)
{
    struct tier_schedule s = {0};
    tier_schedule_fail(&s, 100);
    cr_assert_eq(s.retry_ns, 100, "at the next save");
    tier_schedule_fail(&s, 200);
    cr_assert_eq(s.retry_ns, 200 + SECOND);
    tier_schedule_fail(&s, 300);
    cr_assert_eq(s.retry_ns, 300 + 2 * SECOND);
    tier_schedule_succeed(&s, 1, 7, "step-7");
    cr_assert(!s.failures && !s.retry_ns && s.newest_step == 7);
}

Test(schedule, a_pending_step_gives_way_to_a_newer_one)
{
    struct tier_schedule s = {0};
    uint64_t gives_way = 99;
    tier_schedule_set_pending(&s, 3, &gives_way);
    cr_assert_eq(gives_way, 0);
    tier_schedule_set_pending(&s, 3, &gives_way);
    cr_assert_eq(gives_way, 0, "it is the same");
    tier_schedule_set_pending(&s, 4, &gives_way);
    cr_assert_eq(gives_way, 3);
}
