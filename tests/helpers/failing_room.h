/* A room on a simulated disk for each try of failing_sweep.h: a copy of a base, which is made once for all tries of a case. */
#pragma once

#include "tests/helpers/failing_sweep.h"
#include "tests/helpers/store_room.h"

#include <stdlib.h>

struct failing_room {
    struct room room;
    const void *context;             /* of the case */
    pd_status ended[ROOM_RANKS_MAX]; /* of each rank, for who wants to know */
};

static inline void *failing_room_new(const void *context, struct room (*make_base)(const void *context))
{
    static struct room base;
    static const void *made_for;
    struct pd_error err = {0};
    if (made_for != context) base = make_base(made_for = context);
    struct failing_room *r = calloc(1, sizeof *r);
    *r = (struct failing_room){.room = base, .context = context};
    cr_assert_eq(pd_simulated_disk_clone(base.disk, &r->room.disk, &err), PD_OK);
    return r;
}

static inline void failing_room_free(void *state)
{
    struct failing_room *r = state;
    room_free(&r->room);
    free(r);
}

static inline struct pd_simulated_disk *failing_room_disk(void *state)
{
    return ((struct failing_room *)state)->room.disk;
}
