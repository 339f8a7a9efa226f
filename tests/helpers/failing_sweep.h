/* Something is done again and again, and each time another call of it fails: it ends with an error that says something, or does without;
 * nothing leaks; and what it was to do can be done afterwards.
 *
 * PERDURE_TEST_SCALE=10 fails every place, once and from then on; a shorter run some of them, once or from then on, others at
 * the next commit (helpers/scale.h). */
#pragma once

#include "tests/helpers/failing.h"
#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAILING_SECONDS_MAX 60u /* a try takes some milliseconds */

struct failing_case {
    const char *name;
    bool some; /* places below scale 10, one for each call on the way to any; false: all */
    void *(*set_up)(const void *context);
    /* What fails; frees all that it allocates. Called a second time it has to work, whatever the first time came to. */
    pd_status (*act)(void *state, struct pd_error *err);
    pd_status (*check)(void *state, struct pd_error *err); /* what it was to do is done; NULL: it says itself */
    void (*tear_down)(void *state);
    struct pd_simulated_disk *(*disk)(void *state); /* whose operations fail, too; NULL: none */
    const void *context;
};

/* Ends a process in which a try does not end. It counts its own turns, so that what stops the process does not count. */
struct failing_watch {
    const char *name;
    _Atomic uint64_t tries;
    atomic_bool is_over;
    pthread_t thread;
};

static inline void *failing_watch_main(void *context)
{
    struct failing_watch *w = context;
    const unsigned turn_us = 50000;
    uint64_t seen = 0;
    for (unsigned turns = 0; !w->is_over; turns++) {
        usleep(turn_us);
        if (w->tries != seen) turns = 0;
        seen = w->tries;
        if (turns < FAILING_SECONDS_MAX * (1000000 / turn_us)) continue;
        char what[1024];
        failing_what(what);
        fprintf(stderr, "%s: somebody waits for ever; failed was %s\n", w->name, what);
        abort();
    }
    return NULL;
}

static inline void failing_watch_begin(struct failing_watch *watch, const char *name)
{
    *watch = (struct failing_watch){.name = name};
    cr_assert_eq(pthread_create(&watch->thread, NULL, failing_watch_main, watch), 0);
}

static inline void failing_watch_end(struct failing_watch *watch)
{
    watch->is_over = true;
    pthread_join(watch->thread, NULL);
}

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
    struct failing_watch watch;
    failing_watch_begin(&watch, c->name);
    failing_list(c);
    for (int persists = 0; persists < 2; persists++) {
        failing_rewind();
        if (some && !test_has_turn((uint64_t)persists, 2)) continue;
        for (;; tried++) {
            void *state = c->set_up(c->context);
            failing_arm(c, state, true);
            if (!failing_next(some, persists, test_share())) {
                failing_arm(c, state, false);
                c->tear_down(state);
                break;
            }
            fired += failing_once(c, state);
            watch.tries++;
        }
    }
    failing_watch_end(&watch);
    cr_log_info("%s: %u places, %lu tries, %lu failures", c->name, failing_places(), tried, fired);
    cr_assert(2 * fired > tried, "%s: %lu tries and only %lu failures", c->name, tried,
              fired); /* threads do not always come by */
}
