/* Tests which hosts of a start are alive. A probe is a TCP connection to an unused port. The host's kernel refuses it at
 * once, even if all its processes are busy or stopped.
 *
 *   doubtful  it answered before, but left a probe unanswered: more follow, every 0.2 s
 *   silent    none of eight probes was answered, the first for two seconds. Answers are read before the clock, so a late
 *             caller still finds those that arrived meanwhile
 *   ignored   it never answered: a packet filter, or its name has no address
 *   threads   one caller, which calls at every tick and never waits */
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
    int probes[PD_LAUNCH_REACH_PROBES]; /* in flight; -1: none, or failed */
    uint32_t sent;                      /* since the last answer */
    uint64_t first_ns, last_ns;         /* of those */
};

struct pd_launch_reach {
    struct pd_launch_reach_host *hosts; /* (count) */
    uint32_t count;
    char own[4 * PD_LAUNCH_ADDRESS_BYTES]; /* this host's addresses on the routes to them, separated by commas */
};

/* Adds a host; `address` is numeric. Does nothing if it is not an address. */
PD_MUST_USE pd_status pd_launch_reach_add(struct pd_launch_reach *reach, const char *name, const char *address,
                                          uint16_t port, struct pd_error *err);
void pd_launch_reach_look(struct pd_launch_reach *reach, uint64_t now_ns);
bool pd_launch_reach_is_doubtful(const struct pd_launch_reach_host *host);
/* Probes these numeric addresses until all answer, two seconds at most. ret_answers (count) */
void pd_launch_reach_ask(const char *const *addresses, uint32_t count, bool *ret_answers);
void pd_launch_reach_deinit(struct pd_launch_reach *reach);
