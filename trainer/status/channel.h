/* A rank's connection to its launcher: a Unix socket on the launcher's host, TCP from others. It is opened once and kept, so its
 * end tells the launcher when this process ended. Lost connections are made again by the next message.
 *
 *   pd_channel_open(...)    connects, proves, sends BEGUN and takes the answer; before there are threads
 *   then pd_channel_say     from any thread
 *   without a launcher      pd_channel_open is not called, and every call does nothing
 *
 * A message that cannot be sent keeps no rank from working: the launcher then knows less. */
#pragma once

#include "trainer/status/seal.h"

/* What a launcher passes in the environment. */
#define PD_CHANNEL_ENV_ADDRESSES \
    "PERDURE_LAUNCH_ADDRESSES"                        /* "@perdure-7f03...,10.0.0.1:4123,[fd00::1]:4123"; @: abstract Unix */
#define PD_CHANNEL_ENV_SECRET "PERDURE_LAUNCH_SECRET" /* the file that holds the secret of the launch, in hexadecimal */
#define PD_CHANNEL_ENV_RESTART "PERDURE_LAUNCH_RESTART" /* which start of the launch */

/* For a rank: `begun` has process, MPI job, heartbeat, step; the rest is filled in here.
 *   errors  PD_UNSUPPORTED: the launcher cannot be reached, does not know the secret, or refuses this rank */
PD_MUST_USE pd_status pd_channel_open(uint32_t rank, uint32_t size, struct pd_begun *begun, struct pd_error *err);
/* True: sent, or for ENDED: it has arrived. */
bool pd_channel_say(enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes);
bool pd_channel_is_relay(void); /* this process is the one that starts the relay of its host */
const char *
pd_channel_config(void); /* the launcher's configuration, on another host than the launcher's; NULL: read the file */

/* The relay of a host other than the launcher's: a process that sends the launcher the heartbeats of the host's ranks, which
 * nobody else can read when a rank is stopped. It is a child of the first rank there, and dies with it. */
/* In the rank that pd_channel_is_relay says is the one. */
void pd_relay_start(uint32_t rank, uint32_t ranks);
/* The relay itself, `perdure relay RANK RANKS`; returns on an error alone. */
PD_MUST_USE pd_status pd_relay_run(uint32_t rank, uint32_t ranks, struct pd_error *err);
