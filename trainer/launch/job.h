/* One start of all ranks: spawn, watch, forward signals, and judge the end (judge.h).
 *
 *   invariants  1. when pd_launch_job_run returns, no worker is left on this host
 *               2. a request to leave reaches every worker of this host once, even if it begins later; workers of other
 *                  hosts through the starter, once all ranks have joined (before that a signal would end it)
 *               3. workers are signalled through pidfds, so a reused process number is never hit
 *               4. requests reach running ranks even if the caller waits for a file or for its log
 *   threads     one caller; its own thread handles requests. The signals of hold.h must be blocked, as `signals` needs */
#pragma once

#include "trainer/launch/judge.h"
#include "trainer/launch/requests.h"

/*   ret_said  the ranks' reports; the caller frees it, also after an error
 *   errors    only of the launcher itself; the verdict says how the ranks ended */
PD_MUST_USE pd_status pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                                        struct pd_rank_table *ret_said, struct pd_launch_verdict *ret_verdict,
                                        struct pd_error *err);
