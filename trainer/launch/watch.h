/* Finds the rank that holds up the others, from what ranks of this host say in their pulses (ckpt/base/pulse.h), and those of
 * others in words (trainer/notes/wire.h).
 *
 *   when   nothing was completed by any rank for max(floor, 5 x the 99th percentile, 2 x the longest) of the times between
 *          completions so far; ten times that where the rank computes and its process uses the CPU. Not before the second step
 *   who    one that is stopped, as long as others are not; otherwise who is at the end of the chain "a waits for b, b for c".
 *          Ranks of other hosts have words of their relays; one of which there was none for three periods, or never, ends such a
 *          chain
 *   not    ranks that are all stopped (suspended by a batch system), or by a fault of a test
 *   storage  a rank that waits for its saves holds up others, too, and is no lost one: it is named and not ended */
#pragma once

#include "ckpt/base/pulse.h"
#include "ckpt/base/status.h"
#include "trainer/notes/wire.h"

struct pd_launch_watch;

struct pd_launch_hang {
    uint32_t rank;
    bool is_storage, is_known; /* is_known: it is of this host, and has a process */
    char text[640];            /* "rank 3 (process 77) holds up the others: ..." */
};

PD_MUST_USE pd_status pd_launch_watch_new(uint32_t ranks, double floor_seconds, struct pd_launch_watch **ret_watch,
                                          struct pd_error *err);
/* Ranks first to first + count - 1 are of this process. pulses: (count) mapped, owned from here on; NULL is fine. */
void pd_launch_watch_add(struct pd_launch_watch *watch, uint32_t first, uint32_t count, int process,
                         const struct pd_pulse *pulses);
/* What is known of a rank of another host; process 0: its pulse alone. `period_ns`: how often there is a word, at least. */
void pd_launch_watch_hear(struct pd_launch_watch *watch, uint32_t rank, const struct pd_wire_word *word, uint64_t period_ns,
                          uint64_t now_ns);
/* A host whose relay has said nothing for three periods, while ranks have gone on for some looks since; NULL: there is none. */
const char *pd_launch_watch_silent_host(const struct pd_launch_watch *watch);
/* Whether a rank hangs now; after that the time begins anew. */
bool pd_launch_watch_look(struct pd_launch_watch *watch, uint64_t now_ns, struct pd_launch_hang *ret_hang);
/* When the last step was done, by the monotonic clock; 0: nobody has said so. */
uint64_t pd_launch_watch_stepped_ns(const struct pd_launch_watch *watch); /* NULL is fine */
void pd_launch_watch_free(struct pd_launch_watch *watch);

/* A stopped process that the starter has started here for a rank that is wanted, by the rank in its environment: one that has not
 * said yet that it has begun. */
bool pd_launch_find_stopped(int starter, bool (*is_wanted)(const void *context, uint32_t rank), const void *context,
                            int *ret_process, uint32_t *ret_rank);
