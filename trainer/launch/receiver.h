/* The launcher's end of the connections of one start: ranks of this host by a Unix socket, ranks and relays of other hosts
 * by TCP. It writes what ranks report into their table (trainer/status/message.h).
 *
 *   invariants  1. nothing but HELLO and PROOF is taken from a peer that has not proven that it knows the secret
 *               2. ENDED is answered once it is in the table
 *               3. no message from another host names a process of this one
 *   threads     one caller, which calls at every tick */
#pragma once

#include "trainer/status/message.h"
#include "trainer/status/seal.h"

struct pd_launch_receiver;

struct pd_launch_receiver_options {
    const uint8_t *secret; /* (PD_SEAL_SECRET_BYTES) */
    uint32_t start;        /* of the launch */
    const char
        *addresses; /* of this host, as other hosts of the start reach it: "10.0.0.1,fd00::1". The socket listens on these.
                              * "*": on every address of this host's interfaces; "": ranks are on this host alone */
    uint16_t port;  /* 0: any that is free */
    const char *config_path; /* read for each rank of another host that begins; NULL: none */
    const char *program;     /* of the ranks: those of other hosts have the same build */
    struct pd_rank_table *table;
    /* A rank has begun, or its heartbeat came; its connection ended without a word (the process is gone, as far as is
     * known). */
    void (*begun)(void *context, uint32_t rank);
    void (*beat)(void *context, uint32_t rank, const struct pd_remote_heartbeat *heartbeat);
    void (*closed)(void *context, uint32_t rank);
    void (*reopened)(void *context, uint32_t rank); /* it was not gone */
    void *context;
};

/*   errors  PD_IO: no port can be had; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_launch_receiver_open(const struct pd_launch_receiver_options *options,
                                              struct pd_launch_receiver **ret_receiver, struct pd_error *err);
/* Where ranks reach it: PD_CHANNEL_ENV_ADDRESSES. */
const char *pd_launch_receiver_addresses(const struct pd_launch_receiver *receiver);
/* Readable when there is something to take. */
int pd_launch_receiver_fd(const struct pd_launch_receiver *receiver);
/* Takes what has come, and tells relays whom to watch. Waits for a peer that reads nothing for a second at most. */
void pd_launch_receiver_look(struct pd_launch_receiver *receiver);
/* Peers that did not know the secret, or sent something else; logged as they come, once in ten seconds. */
uint64_t pd_launch_receiver_refused(const struct pd_launch_receiver *receiver);
void pd_launch_receiver_free(struct pd_launch_receiver *receiver);
