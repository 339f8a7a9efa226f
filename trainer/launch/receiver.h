/* The launcher's end of the connections of one start: a Unix socket for ranks of this host, TCP for ranks and relays of
 * other hosts. Writes the ranks' reports into their table (trainer/status/message.h).
 *
 *   invariants  1. a peer that has not proven that it knows the secret may send only HELLO and PROOF
 *               2. ENDED is acknowledged once it is in the table
 *               3. no message from another host names a process of this one
 *   threads     one caller, which calls at every tick */
#pragma once

#include "trainer/status/message.h"
#include "trainer/status/seal.h"

struct pd_launch_receiver;

struct pd_launch_receiver_options {
    const uint8_t *secret; /* (PD_SEAL_SECRET_BYTES) */
    uint32_t start;        /* number of this start */
    const char *addresses; /* where other hosts reach this one: "10.0.0.1,fd00::1". The socket listens on these. "*": on all
                     * interfaces; "": ranks are on this host only */
    uint16_t port;         /* 0: any free one */
    const char *config_path; /* read for each rank that begins on another host; NULL: none */
    const char *program;     /* of the ranks; other hosts have the same build */
    struct pd_rank_table *table;
    /* Callbacks: a rank began; its heartbeat arrived; its connection ended without a report (its process is presumably
     * gone). */
    void (*begun)(void *context, uint32_t rank);
    void (*beat)(void *context, uint32_t rank, const struct pd_remote_heartbeat *heartbeat);
    void (*closed)(void *context, uint32_t rank);
    void (*reopened)(void *context, uint32_t rank); /* it was not gone */
    void *context;
};

/*   errors  PD_IO: no free port; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_launch_receiver_open(const struct pd_launch_receiver_options *options,
                                              struct pd_launch_receiver **ret_receiver, struct pd_error *err);
/* Where ranks reach it: PD_CHANNEL_ENV_ADDRESSES. */
const char *pd_launch_receiver_addresses(const struct pd_launch_receiver *receiver);
/* Readable when messages are waiting. */
int pd_launch_receiver_fd(const struct pd_launch_receiver *receiver);
/* Handles waiting messages and tells relays which ranks to watch. Waits at most a second for a peer that does not read. */
void pd_launch_receiver_look(struct pd_launch_receiver *receiver);
/* Number of peers that did not know the secret, or sent something else. Logged at most once in ten seconds. */
uint64_t pd_launch_receiver_refused(const struct pd_launch_receiver *receiver);
void pd_launch_receiver_free(struct pd_launch_receiver *receiver);
