/* How many ranks the next start has, and on which hosts: what the configuration wants, what launch.hosts offer, and what hosts
 * have cost so far (account.h).
 *
 *   without launch.hosts   ranks of this host, or of those that the starter knows itself: all counts here are those of the launch
 *   with them              the list is read again, and hosts are asked whether they answer, before every start */
#pragma once

#include "trainer/launch/account.h"
#include "trainer/launch/job.h"
#include "trainer/launch/reach.h"

/* Borrowed from the configuration. */
struct pd_launch_places {
    const char *hosts, *agent; /* hosts "" or NULL: no list */
    uint32_t slots;            /* of a host that does not say; 0: 1 */
    uint16_t port;             /* on which ranks of other hosts are heard; 0: any */
    bool grows_now;
    double wait_seconds;
    uint32_t min, max; /* ranks; 0: 1; as many as were asked for */
};

struct pd_launch_placement {
    const struct pd_launch_places *places;
    struct pd_launch_account account;
    struct pd_launch_look look;
    char *left_out;               /* GPUs */
    char *hosts;                  /* of this start, for the starter; NULL: no list */
    char away[1024];              /* hosts of the list that it is without */
    uint64_t looked_ns;           /* while ranks run */
    bool is_look_of_loss;         /* was begun when a rank was lost, and ends in pd_launch_placement_charge */
    struct pd_launch_reach reach; /* hosts of this start, but for this one */
    bool doubts_links;            /* the next look asks hosts whether they reach one another */
    bool is_look_of_doubt;        /* of loss, and no rank was lost: a host does not answer probes */
    uint32_t offered;             /* ranks that could run at this start, of those wanted; a layout may take fewer */
};

static inline bool pd_launch_placement_has_list(const struct pd_launch_placement *p)
{
    return p->places->hosts && p->places->hosts[0];
}

/* Reads the list and asks the hosts.
 *   errors  PD_UNSUPPORTED: no list can be had; PD_STOPPED: asked to leave meanwhile */
PD_MUST_USE pd_status pd_launch_placement_look(struct pd_launch_placement *p, struct pd_launch_requests *requests,
                                               struct pd_error *err);
/* Ranks that can run now, of `wanted` (0: all that can): waits for hosts where they are fewer than places->min.
 *   errors  PD_PEER_LOST: none came in places->wait_seconds; those of a look */
PD_MUST_USE pd_status pd_launch_placement_ranks(struct pd_launch_placement *p, uint32_t wanted,
                                                struct pd_launch_requests *requests, uint32_t *ret_ranks,
                                                struct pd_error *err);
/* Hosts that the last start was without hold what it needs, which `why` says: waits until one of them can have ranks.
 *   errors  as pd_launch_placement_ranks */
PD_MUST_USE pd_status pd_launch_placement_await(struct pd_launch_placement *p, const char *why,
                                                struct pd_launch_requests *requests, struct pd_error *err);
/* The hosts of a start with so many ranks, no more than there is room for. */
PD_MUST_USE pd_status pd_launch_placement_take(struct pd_launch_placement *p, uint32_t ranks, struct pd_error *err);
/* The first rank is gone without a word: hosts are asked while the others end. */
void pd_launch_placement_lose(struct pd_launch_placement *p);
/* At every tick: whether hosts of this start answer neither probes of their kernels nor the agent. Never waits.
 *   ret_names  "b, c" */
bool pd_launch_placement_has_silent(struct pd_launch_placement *p, char *ret_names, size_t bytes);
/* A start has ended, and not well: looks again, charges hosts, and names them in the verdict. True: what ended is theirs, and the
 * next start is without them. */
bool pd_launch_placement_charge(struct pd_launch_placement *p, const struct pd_rank_table *said,
                                struct pd_launch_requests *requests, struct pd_launch_verdict *verdict);
/* Ranks lost their GPUs: those are left out of the next start.   Returns how many ranks have no other, of those whose host is
 * not of the list: hosts of the list have a place less. */
uint32_t pd_launch_placement_lose_devices(struct pd_launch_placement *p, const struct pd_rank_table *said);
/* A rank computed what was not finite, and has not again: its GPU is left out of the next start where it has another, and without
 * a GPU its host where the others are enough. host: of the list, "": of none. */
void pd_launch_placement_suspect(struct pd_launch_placement *p, const struct pd_suspect *suspect, const char *host);
/* All have left, since hosts will be taken away, which their ranks have said: those are left out. True: the others are enough,
 * and the launcher's own stays. */
bool pd_launch_placement_taken(struct pd_launch_placement *p, const struct pd_rank_table *said);
/* While ranks run, at every tick: whether more of `wanted` could. Never waits. */
bool pd_launch_placement_has_grown(struct pd_launch_placement *p, uint32_t wanted);
void pd_launch_placement_deinit(struct pd_launch_placement *p);
