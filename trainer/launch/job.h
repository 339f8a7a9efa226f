/* One start of all ranks: spawn, watch, pass signals on, and judge the end (judge.h).
 *
 *   invariants  1. when pd_launch_job_run returns, no worker of this host is left
 *               2. a request to leave reaches every worker of this host that has begun or will begin, once; workers of
 *                  other hosts through the starter, once all ranks have joined (before that a signal would end it)
 *               3. a worker is signalled through its pidfd, so a reused number is never hit
 *   threads     one; SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2, SIGINT and SIGHUP must be blocked and come through `signals` */
#pragma once

#include "trainer/launch/judge.h"

/* What the user asked for so far; lives as long as the launch. */
struct pd_launch_requests {
    int signals; /* signalfd */
    bool wants_leave, wants_abort;
    uint32_t saves, interrupts;
    /* Ranks save and leave for a start with more of them; `has_grown`, called at every tick, says when. NULL: never. */
    bool wants_regroup;
    bool (*has_grown)(void *context);
    void (*has_lost)(void *context); /* the first rank of a start is gone without a word; NULL: nobody asks */
    /* Hosts are gone without a sign; called at every tick. NULL: nobody looks. */
    bool (*has_silent)(void *context, char *ret_names, size_t bytes);
    void *context;
};

/* Reads signals that arrived, waiting for one up to `timeout_ms`, and logs what they ask. */
void pd_launch_requests_poll(struct pd_launch_requests *requests, int timeout_ms);

/*   ret_said  what the ranks have said; the caller's to free, also after an error
 *   errors    of the launcher itself only; how the ranks ended is the verdict's */
PD_MUST_USE pd_status pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                                        struct pd_rank_table *ret_said, struct pd_launch_verdict *ret_verdict,
                                        struct pd_error *err);
