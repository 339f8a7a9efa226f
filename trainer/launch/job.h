/* One start of all ranks: spawn, watch, pass signals on, and judge the end (judge.h).
 *
 *   invariants  1. when pd_launch_job_run returns, no worker of this host is left
 *               2. a request to leave reaches every worker of this host that has begun or will begin, once; workers of
 *                  other hosts through the starter, once all ranks have joined (before that a signal would end it)
 *               3. a worker is signalled through its pidfd, so a reused number is never hit
 *               4. requests reach ranks that have begun although the caller waits for a file or for its log
 *   threads     one caller; one of its own takes requests. The signals of hold.h must be blocked, and come through `signals` */
#pragma once

#include "trainer/launch/judge.h"
#include "trainer/launch/requests.h"

/*   ret_said  what the ranks have said; the caller's to free, also after an error
 *   errors    of the launcher itself only; how the ranks ended is the verdict's */
PD_MUST_USE pd_status pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                                        struct pd_rank_table *ret_said, struct pd_launch_verdict *ret_verdict,
                                        struct pd_error *err);
