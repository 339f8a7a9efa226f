/* Ranks that are slower than others with the same work, and at what.
 *
 *   time     what a rank spends in steps but not in exchanges, where it waits for others (ckpt/base/heartbeat.h)
 *   compare  with ranks of the same stage of the pipeline and as many micro-batches, over windows of the root's clock. A rank is
 *            slow in a window when its speed is below three quarters of their median, and that is 5% of the window or more
 *   named    after three slow windows in a row, until one that is not
 *   GPU      its time is not the host's: reading data and waiting for storage are compared, computing is not */
#pragma once

#include "ckpt/group/group.h"

enum pd_spent { PD_SPENT_COMPUTING, PD_SPENT_READING, PD_SPENT_STORAGE, PD_SPENT_KINDS };
extern const char *const pd_spent_names[PD_SPENT_KINDS]; /* "computing", "reading data", "waiting for storage" */

/* What a rank gives at the end of a window. */
struct pd_rank_window {
    double seconds[PD_SPENT_KINDS];
    uint32_t stage, micro_batches; /* of the rank; those with equal ones are compared */
    char host[40];
};

#define PD_STRAGGLERS_SAID 8u

struct pd_straggler {
    uint32_t rank, windows; /* in a row; 0: not slow */
    double speed;           /* share of the median */
    enum pd_spent at;       /* where most of what it lost went */
    double lost, seconds;   /* there, in the window: more than the median; all */
};

/* Pure: `all` has (count) entries, kept from window to window. */
void pd_stragglers_judge(const struct pd_rank_window *ranks, uint32_t count, double window_seconds,
                         struct pd_straggler *all);

struct pd_stragglers {
    double window_seconds; /* 0: nobody compares */
    uint32_t stage, micro_batches;
    bool is_gpu;
    uint64_t began_ns, spent_ns[PD_SPENT_KINDS]; /* at the window's begin */
    struct pd_straggler *all;                    /* (group->size) of rank 0; NULL on others */
    struct pd_rank_window *ranks;                /* (group->size) as gathered last; likewise */
};

/* Before the first step.   stragglers: what the caller set stays */
PD_MUST_USE pd_status pd_stragglers_init(struct pd_stragglers *stragglers, const struct pd_group *group,
                                         struct pd_error *err);
/* After a step, with the root's clock as all ranks have agreed upon it. Collective at the end of a window, which then is the
 * end of it on all ranks. Rank 0 alone compares, and logs who became slow, and who is no more. */
PD_MUST_USE pd_status pd_stragglers_look(struct pd_stragglers *stragglers, struct pd_group *group, uint64_t now_ns,
                                         struct pd_error *err);
/* Counts the stragglers that are named now, on rank 0; other ranks get 0.   ret_said (PD_STRAGGLERS_SAID): the first. */
uint32_t pd_stragglers_named(const struct pd_stragglers *stragglers, uint32_t ranks, struct pd_straggler *ret_said);
void pd_stragglers_deinit(struct pd_stragglers *stragglers);
