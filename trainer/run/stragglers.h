/* Detects ranks that are slower than others with the same work, and the cause.
 *
 *   time     what a rank spends in steps outside of exchanges, where it would wait for others (ckpt/base/heartbeat.h)
 *   compare  with ranks of the same pipeline stage and micro-batch count, over windows of the root's clock. A rank is slow
 *            in a window if its speed is below three quarters of their median, and the loss is 5% of the window or more
 *   named    after three consecutive slow windows, until one that is not slow
 *   GPU      the host does not see GPU time, so only reading data and waiting for storage are compared, not computing */
#pragma once

#include "ckpt/group/group.h"

enum pd_spent { PD_SPENT_COMPUTING, PD_SPENT_READING, PD_SPENT_STORAGE, PD_SPENT_KINDS };
extern const char *const pd_spent_names[PD_SPENT_KINDS]; /* "computing", "reading data", "waiting for storage" */

/* One rank's contribution at the end of a window. */
struct pd_rank_window {
    double seconds[PD_SPENT_KINDS];
    uint32_t stage, micro_batches; /* ranks with equal values are compared */
    char host[40];
};

#define PD_STRAGGLERS_SAID 8u

struct pd_straggler {
    uint32_t rank, windows; /* consecutive slow windows; 0: not slow */
    double speed;           /* fraction of the median */
    enum pd_spent at;       /* where it lost most time */
    double lost, seconds;   /* there, in the window: time above the median; total time */
};

/* Pure. `all` has (count) entries, kept between windows. */
void pd_stragglers_judge(const struct pd_rank_window *ranks, uint32_t count, double window_seconds,
                         struct pd_straggler *all);

struct pd_stragglers {
    double window_seconds; /* 0: disabled */
    uint32_t stage, micro_batches;
    bool is_gpu;
    uint64_t began_ns, spent_ns[PD_SPENT_KINDS]; /* at the start of the window */
    struct pd_straggler *all;                    /* (group->size) on rank 0; NULL on others */
    struct pd_rank_window *ranks;                /* (group->size) last gathered; likewise */
};

/* Call before the first step. stragglers: fields set by the caller are kept */
PD_MUST_USE pd_status pd_stragglers_init(struct pd_stragglers *stragglers, const struct pd_group *group,
                                         struct pd_error *err);
/* Call after a step, with the agreed root clock. Collective if that ends a window, which it then does on all ranks. Only
 * rank 0 compares, and logs which ranks became slow or recovered. */
PD_MUST_USE pd_status pd_stragglers_look(struct pd_stragglers *stragglers, struct pd_group *group, uint64_t now_ns,
                                         struct pd_error *err);
/* Returns the number of stragglers now named; 0 on ranks other than 0. ret_said (PD_STRAGGLERS_SAID): the first ones. */
uint32_t pd_stragglers_named(const struct pd_stragglers *stragglers, uint32_t ranks, struct pd_straggler *ret_said);
void pd_stragglers_deinit(struct pd_stragglers *stragglers);
