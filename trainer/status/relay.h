/* The relay of a host other than the launcher's: a process that sends the launcher the heartbeats of the host's ranks, which
 * nobody else can read when a rank is stopped. It is a child of the first rank there, and dies with it. */
#pragma once

#include "trainer/status/channel.h"

/* In the rank that pd_channel_is_relay says is the one. */
void pd_relay_start(uint32_t rank, uint32_t ranks);
/* The relay itself, `perdure relay RANK RANKS`; returns on an error alone. */
PD_MUST_USE pd_status pd_relay_run(uint32_t rank, uint32_t ranks, struct pd_error *err);
