/* How many ranks the next start has, and on which hosts. Follows from the configuration, launch.hosts, and the account of
 * failures (account.h).
 *
 *   without launch.hosts   ranks are on this host or on those that the starter knows; all counts are the launch's
 *   with it                before every start the list is read again and the hosts are asked whether they answer */
#pragma once

#include "trainer/launch/account.h"
#include "trainer/launch/job.h"
#include "trainer/launch/reach.h"

/* Borrowed from the configuration. */
struct pd_launch_places {
    const char *hosts, *agent; /* hosts: "" or NULL: no list */
    uint32_t slots;            /* for hosts that give none; 0: 1 */
    uint16_t port;             /* where the launcher listens for ranks of other hosts; 0: any */
    bool grows_now;
    double wait_seconds;
    uint32_t min, max; /* ranks; min 0: 1; max 0: as many as requested */
};

struct pd_launch_placement {
    const struct pd_launch_places *places;
    struct pd_launch_account account;
    struct pd_launch_look look;
    char *left_out;               /* GPUs */
    char *hosts;                  /* for this start's starter; NULL: no list */
    char away[1024];              /* listed hosts not used */
    uint64_t looked_ns;           /* the last look while ranks run */
    bool is_look_of_loss;         /* started when a rank was lost; pd_launch_placement_charge finishes it */
    struct pd_launch_reach reach; /* hosts of this start except this one */
    bool doubts_links;            /* the next look tests links between hosts */
    bool is_look_of_doubt;        /* like is_look_of_loss, but no rank was lost: a host does not answer probes */
    uint32_t offered;             /* of the wanted ranks, those that could run at this start; a layout may use fewer */
};

static inline bool pd_launch_placement_has_list(const struct pd_launch_placement *p)
{
    return p->places->hosts && p->places->hosts[0];
}

/* Reads the list and asks the hosts.
 *   errors  PD_UNSUPPORTED: cannot get a list; PD_STOPPED: asked to leave meanwhile */
PD_MUST_USE pd_status pd_launch_placement_look(struct pd_launch_placement *p, struct pd_launch_requests *requests,
                                               struct pd_error *err);
/* Ranks that can run now, at most `wanted` (0: all). If fewer than places->min, waits for hosts.
 *   errors  PD_PEER_LOST: none came within places->wait_seconds; errors of a look */
PD_MUST_USE pd_status pd_launch_placement_ranks(struct pd_launch_placement *p, uint32_t wanted,
                                                struct pd_launch_requests *requests, uint32_t *ret_ranks,
                                                struct pd_error *err);
/* Waits until a host that the last start lacked can have ranks: it holds what the run needs, described by `why`.
 *   errors  as pd_launch_placement_ranks */
PD_MUST_USE pd_status pd_launch_placement_await(struct pd_launch_placement *p, const char *why,
                                                struct pd_launch_requests *requests, struct pd_error *err);
/* Chooses the hosts of a start with `ranks` ranks, no more than they have slots for. */
PD_MUST_USE pd_status pd_launch_placement_take(struct pd_launch_placement *p, uint32_t ranks, struct pd_error *err);
/* Call when the first rank disappears: asks hosts while the other ranks end. */
void pd_launch_placement_lose(struct pd_launch_placement *p);
/* Call at every tick: do hosts of this start answer neither kernel probes nor the agent? Never waits.
 *   ret_names  "b, c" */
bool pd_launch_placement_has_silent(struct pd_launch_placement *p, char *ret_names, size_t bytes);
/* Call when a start failed: looks again, charges hosts, and names them in the verdict. True: the hosts are the cause, and
 * the next start leaves them out. */
bool pd_launch_placement_charge(struct pd_launch_placement *p, const struct pd_rank_table *said,
                                struct pd_launch_requests *requests, struct pd_launch_verdict *verdict);
/* Ranks lost their GPUs: leaves these out of the next start. Returns how many ranks have no other GPU, without those of
 * listed hosts, which get a place less instead. */
uint32_t pd_launch_placement_lose_devices(struct pd_launch_placement *p, const struct pd_rank_table *said);
/* A rank computed a value that was not finite, which did not recur. Leaves its GPU out of the next start if it has another;
 * without a GPU, its host if the others are enough. host: from the list, or "". */
void pd_launch_placement_suspect(struct pd_launch_placement *p, const struct pd_suspect *suspect, const char *host);
/* All ranks left because hosts will be taken away, as their ranks reported: leaves those hosts out. True: the others are
 * enough, and the launcher's own host stays. */
bool pd_launch_placement_taken(struct pd_launch_placement *p, const struct pd_rank_table *said);
/* Call at every tick while ranks run: could more of `wanted` run? Never waits. */
bool pd_launch_placement_has_grown(struct pd_launch_placement *p, uint32_t wanted);
void pd_launch_placement_deinit(struct pd_launch_placement *p);
