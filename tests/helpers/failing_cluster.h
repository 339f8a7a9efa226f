/* A cluster on a simulated disk for each try of failing_sweep.h: a copy of a base, which is made once for all tries of a case. */
#pragma once

#include "tests/helpers/failing_sweep.h"
#include "tests/helpers/store_cluster.h"

#include <stdlib.h>

struct failing_cluster {
    struct cluster cluster;
    const void *context;                /* of the case */
    pd_status ended[CLUSTER_RANKS_MAX]; /* of each rank, for who wants to know */
};

static inline void *failing_cluster_new(const void *context, struct cluster (*make_base)(const void *context))
{
    static struct cluster base;
    static const void *made_for;
    struct pd_error err = {0};
    if (made_for != context) base = make_base(made_for = context);
    struct failing_cluster *r = calloc(1, sizeof *r);
    *r = (struct failing_cluster){.cluster = base, .context = context};
    cr_assert_eq(pd_simulated_disk_clone(base.disk, &r->cluster.disk, &err), PD_OK);
    return r;
}

/* Before a run in which each rank notes what it ends with. */
static inline void failing_cluster_begin(struct failing_cluster *r)
{
    for (uint32_t i = 0; i < r->cluster.ranks; i++)
        r->ended[i] = PD_STATUS_COUNT;
}

/* `st`: of the run. All ranks want to end with it, where all had begun and could still speak to each other. */
static inline pd_status failing_cluster_judge(const struct failing_cluster *r, pd_status st, struct pd_error *err)
{
    for (uint32_t i = 0; i < r->cluster.ranks; i++)
        if (r->ended[i] == PD_STATUS_COUNT || failing_breaks_group()) return st;
    for (uint32_t i = 0; i < r->cluster.ranks; i++)
        if (r->ended[i] != st)
            return pd_error_context(err, pd_error_change(err, PD_BUG), "rank %u ends with %s", i,
                                    pd_status_name(r->ended[i]));
    return st;
}

static inline void failing_cluster_free(void *state)
{
    struct failing_cluster *r = state;
    cluster_free(&r->cluster);
    free(r);
}

static inline struct pd_simulated_disk *failing_cluster_disk(void *state)
{
    return ((struct failing_cluster *)state)->cluster.disk;
}
