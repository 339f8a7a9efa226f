/* Something is done again and again, and each time another call of it fails: it ends with an error that says something, or does without;
 * nothing leaks; and what it was to do can be done afterwards.
 *
 * PERDURE_TEST_SCALE=10 fails every place, once and from then on; a shorter run some of them. */
#pragma once

#include "tests/helpers/failing.h"
#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <string.h>

struct failing_case {
    const char *name;
    bool some; /* places at scale 1, one for each call on the way to any; false: all */
    void *(*set_up)(const void *context);
    /* What fails; frees all that it allocates. Called a second time it has to work, whatever the first time came to. */
    pd_status (*act)(void *state, struct pd_error *err);
    pd_status (*check)(void *state, struct pd_error *err); /* what it was to do is done; NULL: it says itself */
    void (*tear_down)(void *state);
    struct pd_simulated_disk *(*disk)(void *state); /* whose operations fail, too; NULL: none */
    const void *context;
};

static inline void failing_arm(const struct failing_case *c, void *state, bool is_armed)
{
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .picks = failing_on_disk};
    if (c->disk) pd_simulated_disk_set_fault(c->disk(state), is_armed ? &fault : NULL);
}

static inline pd_status failing_act(const struct failing_case *c, void *state, struct pd_error *err)
{
    failing_from_here();
    const pd_status st = c->act(state, err);
    failing_stop();
    failing_arm(c, state, false);
    return st;
}

/* What the library of HDF5 says of itself when one of its calls fails is that it is our bug. */
static inline void failing_judge(const struct failing_case *c, pd_status st, const struct pd_error *err)
{
    char what[1024], where[1024];
    const uint64_t leaks = failing_leaks(where);
    failing_what(what);
    cr_assert(!st || (err->message[0] && err->status == st), "%s: %s without a word; failed was %s", c->name,
              pd_status_name(st), what);
    cr_assert(!leaks, "%s: %lu leaks, of %s\n failed was %s", c->name, leaks, where, what);
    cr_assert(st != PD_CORRUPT && (st != PD_BUG || strncmp(what, "H5", 2) == 0), "%s: %s\n failed was %s", c->name,
              err->message, what);
}

static inline bool failing_once(const struct failing_case *c, void *state)
{
    struct pd_error err = {0};
    char what[1024];
    failing_judge(c, failing_act(c, state, &err), &err);
    const bool has_fired = failing_has_fired();
    failing_what(what);
    err = (struct pd_error){0};
    pd_status st = c->act(state, &err);
    cr_assert_eq(st, PD_OK, "%s: %s the next time: %s\n failed was %s", c->name, pd_status_name(st), err.message, what);
    if (c->check) st = c->check(state, &err);
    cr_assert_eq(st, PD_OK, "%s: %s afterwards: %s\n failed was %s", c->name, pd_status_name(st), err.message, what);
    c->tear_down(state);
    return has_fired;
}

/* What is made once for a process is made in the first run. */
static inline void failing_list(const struct failing_case *c)
{
    for (int run = 0; run < 2; run++) {
        struct pd_error err = {0};
        void *state = c->set_up(c->context);
        failing_arm(c, state, true);
        failing_record();
        cr_assert_eq(failing_act(c, state, &err), PD_OK, "%s: %s", c->name, err.message);
        if (run) failing_judge(c, PD_OK, &err);
        c->tear_down(state);
    }
}

static inline void failing_sweep(const struct failing_case *c)
{
    const bool some = c->some && test_scale() < 10;
    uint64_t tried = 0, fired = 0;
    failing_list(c);
    for (int persists = 0; persists < 2; persists++) {
        failing_rewind();
        for (;; tried++) {
            void *state = c->set_up(c->context);
            failing_arm(c, state, true);
            if (!failing_next(some, persists)) {
                failing_arm(c, state, false);
                c->tear_down(state);
                break;
            }
            fired += failing_once(c, state);
        }
    }
    cr_log_info("%s: %u places, %lu tries, %lu failures", c->name, failing_places(), tried, fired);
    cr_assert(2 * fired > tried, "%s: %lu tries and only %lu failures", c->name, tried,
              fired); /* threads do not always come by */
}
