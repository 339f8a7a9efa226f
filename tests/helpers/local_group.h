/* Ranks of a group as threads of the test. */
#pragma once

#include "ckpt/group/group.h"

/* N ranks as threads of this process on `host_count` pretended hosts (rank r lives on host r * host_count / size).
 * rank_main runs once per rank in its own thread; its group is valid until it returns. A rank that has returned is gone:
 * the pending and later calls of the others return PD_PEER_LOST.
 * Returns the first failing status in rank order other than PD_PEER_LOST, or that one, and its error. */
PD_MUST_USE pd_status pd_group_run_local(uint32_t size, uint32_t host_count,
                                         pd_status (*rank_main)(struct pd_group *, void *context, struct pd_error *),
                                         void *context, struct pd_error *err);
