/* The launcher's socket of one start: ranks of other hosts send their notes here, which it writes into the directory where
 * notes are read (trainer/notes/note.h), and relays of those hosts the words of ranks (trainer/notes/wire.h).
 *
 *   invariants  1. nothing but a hello is taken from a connection that has not said the token of this start
 *               2. a note that is answered is in the directory
 *               3. no process of this host is named by what comes from the socket
 *   threads     one caller, which calls at every tick */
#pragma once

#include "trainer/notes/note.h"

#include <poll.h>

struct pd_launch_receiver;

struct pd_launch_receiver_options {
    const char *addresses;   /* of this host, as others reach it: "10.0.0.1,fd00::1" */
    uint16_t port;           /* 0: any that is free */
    const char *dir;         /* for notes */
    const char *config_path; /* read for each rank that begins; NULL: none */
    const char *program;     /* for messages */
    uint32_t ranks;
    void (*hear)(void *context, uint32_t rank, const struct pd_wire_word *word);
    void *context;
};

/*   errors  PD_IO: no port can be had; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_launch_receiver_open(const struct pd_launch_receiver_options *options,
                                              struct pd_launch_receiver **ret_receiver, struct pd_error *err);
/* In the child, before exec. */
void pd_launch_receiver_environment_set(const struct pd_launch_receiver *receiver);
/* Takes what has come, and says what relays wait for. Waits for a peer that reads nothing for a second at most. */
void pd_launch_receiver_look(struct pd_launch_receiver *receiver);
#define PD_LAUNCH_RECEIVER_POLLS 65u
/* What wakes a caller: at most PD_LAUNCH_RECEIVER_POLLS; others are looked at with them. Returns how many. */
uint32_t pd_launch_receiver_polls(const struct pd_launch_receiver *receiver, struct pollfd *ret_polls);
/* Whether this rank has begun over the socket. */
bool pd_launch_receiver_has(const struct pd_launch_receiver *receiver, uint32_t rank);
const char *pd_launch_receiver_addresses(const struct pd_launch_receiver *receiver); /* with the port */
void pd_launch_receiver_free(struct pd_launch_receiver *receiver);
