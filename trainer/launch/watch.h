/* The only hang detector: finds the rank that holds up the others, from the heartbeats of ranks of this host
 * (ckpt/base/heartbeat.h) and those that relays send from other hosts. Ranks report what they wait for and for whom; no rank
 * gives up on another by its own clock.
 *
 *   when     no rank completed anything for max(floor, 5 x the 99th percentile, 2 x the longest) of the times between
 *            completions so far; ten times that if the rank computes and its process uses the CPU. Before the second step,
 *            `open` instead of floor
 *   who      a stopped rank, if others are not; else one that waits for storage; else the end of the chain "a waits for b, b
 *            for c", which includes "the GPU of a is in an operation that the GPU of b has not come to". A rank of another
 *            host without a heartbeat for three periods, or ever, ends such a chain
 *   not      ranks that are all stopped (suspended by a batch system), or held by an injected fault
 *   storage  a rank that waits for storage is reported but not ended: another start would wait for the same storage */
#pragma once

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/status.h"
#include "trainer/status/message.h"

struct pd_launch_watch;

struct pd_launch_hang {
    uint32_t rank;
    bool is_storage, is_known; /* is_known: it is on this host, and its process is known */
    char text[640];            /* "rank 3 (process 77) holds up the run: ..." */
};

/* floor_seconds, open_seconds: as above. open_seconds 0: only stopped ranks are found before the second step. */
PD_MUST_USE pd_status pd_launch_watch_new(uint32_t ranks, double floor_seconds, double open_seconds,
                                          struct pd_launch_watch **ret_watch, struct pd_error *err);
/* Ranks first to first + count - 1 are in this process. heartbeats: (count) mapped, owned from now on; NULL is fine. */
void pd_launch_watch_add(struct pd_launch_watch *watch, uint32_t first, uint32_t count, int process,
                         const struct pd_heartbeat *heartbeats);
/* Records a heartbeat from another host. `period_ns`: the longest interval between them. */
void pd_launch_watch_hear(struct pd_launch_watch *watch, uint32_t rank, const struct pd_remote_heartbeat *beat,
                          uint64_t period_ns, uint64_t now_ns);
/* The heartbeat of a rank, or NULL. Still readable when its process is gone. */
const struct pd_heartbeat *pd_launch_watch_heartbeat(const struct pd_launch_watch *watch, uint32_t rank);
/* Whether a rank hangs now. If so, the time starts anew. */
bool pd_launch_watch_look(struct pd_launch_watch *watch, uint64_t now_ns, struct pd_launch_hang *ret_hang);
void pd_launch_watch_free(struct pd_launch_watch *watch);

/* Finds a stopped process that the starter started on this host for a wanted rank, by the rank in its environment: one that
 * has not yet reported its start. */
bool pd_launch_find_stopped(int starter, bool (*is_wanted)(const void *context, uint32_t rank), const void *context,
                            int *ret_process, uint32_t *ret_rank);
