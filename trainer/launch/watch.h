/* The one detector of silence: finds the rank that holds up the others, from the heartbeats of ranks of this host
 * (ckpt/base/heartbeat.h) and from those that relays send of other hosts. Ranks report what they wait for and for whom; none
 * of them gives up on another by a clock of its own.
 *
 *   when     no rank completed anything for max(floor, 5 x the 99th percentile, 2 x the longest) of the times
 *            between completions so far; ten times that where the rank computes and its process uses the CPU. Before the
 *            second step, `open` instead of floor
 *   who      a stopped rank, while others are not; else one that waits for storage; else the end of the chain "a
 *            waits for b, b for c". A rank of another host that sent no heartbeat for three periods, or never, ends such a
 *            chain
 *   not      ranks that are all stopped (suspended by a batch system), or held by a fault of a test
 *   storage  a rank that waits for storage is reported and not ended: another start would wait for the same storage */
#pragma once

#include "ckpt/base/heartbeat.h"
#include "ckpt/base/status.h"
#include "trainer/status/message.h"

struct pd_launch_watch;

struct pd_launch_hang {
    uint32_t rank;
    bool is_storage, is_known; /* is_known: it is of this host, and has a process */
    char text[640];            /* "rank 3 (process 77) holds up the run: ..." */
};

/* floor_seconds, open_seconds: as above. open_seconds 0: only stopped ranks are found before the second step. */
PD_MUST_USE pd_status pd_launch_watch_new(uint32_t ranks, double floor_seconds, double open_seconds,
                                          struct pd_launch_watch **ret_watch, struct pd_error *err);
/* Ranks first to first + count - 1 are of this process. heartbeats: (count) mapped, owned from here on; NULL is fine. */
void pd_launch_watch_add(struct pd_launch_watch *watch, uint32_t first, uint32_t count, int process,
                         const struct pd_heartbeat *heartbeats);
/* A heartbeat of a rank of another host. `period_ns`: how often there is one, at least. */
void pd_launch_watch_hear(struct pd_launch_watch *watch, uint32_t rank, const struct pd_remote_heartbeat *beat,
                          uint64_t period_ns, uint64_t now_ns);
/* The heartbeat of a rank; NULL: there is none. It can be read when its process is gone. */
const struct pd_heartbeat *pd_launch_watch_heartbeat(const struct pd_launch_watch *watch, uint32_t rank);
/* Whether a rank hangs now; after that the time begins anew. */
bool pd_launch_watch_look(struct pd_launch_watch *watch, uint64_t now_ns, struct pd_launch_hang *ret_hang);
void pd_launch_watch_free(struct pd_launch_watch *watch);

/* A stopped process that the starter has started here for a rank that is wanted, by the rank in its environment: one that
 * has not said yet that it has begun. */
bool pd_launch_find_stopped(int starter, bool (*is_wanted)(const void *context, uint32_t rank), const void *context,
                            int *ret_process, uint32_t *ret_rank);
