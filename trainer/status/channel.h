/* A rank's connection to its launcher: a Unix socket on the launcher's host, TCP from others. It stays open, so its end
 * tells the launcher that the process ended. The next message reopens a lost connection.
 *
 *   pd_channel_open(...)    connects, proves, sends BEGUN and gets the answer; before there are threads
 *   then pd_channel_say     from any thread
 *   without a launcher      do not call pd_channel_open; every call then does nothing
 *
 * A message that cannot be sent does not stop the rank: the launcher just knows less. */
#pragma once

#include "trainer/status/seal.h"

/* Environment variables set by the launcher. */
#define PD_CHANNEL_ENV_ADDRESSES \
    "PERDURE_LAUNCH_ADDRESSES"                        /* "@perdure-7f03...,10.0.0.1:4123,[fd00::1]:4123"; @: abstract Unix */
#define PD_CHANNEL_ENV_SECRET "PERDURE_LAUNCH_SECRET" /* file with the launch's secret, in hexadecimal */
#define PD_CHANNEL_ENV_RESTART "PERDURE_LAUNCH_RESTART" /* which start of the launch */

/* Called by a rank. `begun` has process, MPI job, heartbeat, step; the rest is filled in here.
 *   errors  PD_UNSUPPORTED: the launcher cannot be reached, does not know the secret, or refuses this rank */
PD_MUST_USE pd_status pd_channel_open(uint32_t rank, uint32_t size, struct pd_begun *begun, struct pd_error *err);
/* True: sent; for ENDED: received. */
bool pd_channel_say(enum pd_message_kind kind, uint32_t rank, const void *data, uint32_t bytes);
bool pd_channel_is_relay(void);      /* this process must start its host's relay */
const char *pd_channel_config(void); /* the launcher's configuration, on other hosts; NULL: read the file */

/* The relay of another host than the launcher's: a process that sends the launcher the heartbeats of the host's ranks,
 * because a stopped rank cannot. It is a child of the first rank there, and dies with it. */
/* Called by the rank for which pd_channel_is_relay is true. */
void pd_relay_start(uint32_t rank, uint32_t ranks);
/* The relay itself, `perdure relay RANK RANKS`; returns only on an error. */
PD_MUST_USE pd_status pd_relay_run(uint32_t rank, uint32_t ranks, struct pd_error *err);
