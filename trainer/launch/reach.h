/* Whose kernels answer, of the hosts of a start. A probe is a TCP connection to a port that nobody listens on, which the kernel
 * of a host refuses at once, however busy its processes are, or stopped.
 *
 *   doubtful  it has answered before, and has left a probe unanswered: more follow, one each 0.2 s
 *   silent    none of eight probes has an answer, the first of them after two seconds. Answers are looked for before time is, so
 *             a caller that comes late finds those that have arrived meanwhile
 *   ignored   it has never answered: a packet filter, or a host that the network does not know by its name
 *   threads   one caller, which calls at every tick and is never held up */
#pragma once

#include "trainer/launch/hosts.h"

#include <sys/socket.h>

#define PD_LAUNCH_REACH_PORT 9u /* discard */
#define PD_LAUNCH_REACH_PROBES 8u

struct pd_launch_reach_host {
    char name[PD_LAUNCH_HOST_BYTES];
    struct sockaddr_storage address;
    socklen_t address_bytes;
    bool has_answered, is_silent, is_ignored;
    int probes[PD_LAUNCH_REACH_PROBES]; /* on their way; -1: none, or one that failed */
    uint32_t sent;                      /* since the last answer */
    uint64_t first_ns, last_ns;         /* of those */
};

struct pd_launch_reach {
    struct pd_launch_reach_host *hosts; /* (count) */
    uint32_t count;
    char own[4 * PD_LAUNCH_ADDRESS_BYTES]; /* addresses of this host by which those are reached, with commas between them */
};

/* One more, `address` in numbers. Nothing where it is none. */
PD_MUST_USE pd_status pd_launch_reach_add(struct pd_launch_reach *reach, const char *name, const char *address,
                                          uint16_t port, struct pd_error *err);
void pd_launch_reach_look(struct pd_launch_reach *reach, uint64_t now_ns);
bool pd_launch_reach_is_doubtful(const struct pd_launch_reach_host *host);
/* Asks these addresses, in numbers, until all have answered, two seconds at most.   ret_answers (count) */
void pd_launch_reach_ask(const char *const *addresses, uint32_t count, bool *ret_answers);
void pd_launch_reach_deinit(struct pd_launch_reach *reach);
