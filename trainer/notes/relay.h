/* A process on each other host than the launcher's that says where the ranks of it are: child of one of them, which ends with it,
 * so that what a rank that is stopped has said before is read by somebody who is not.
 *
 *   the launcher names processes and descriptors of pulses (PD_WIRE_WATCH); twice a second each has a word (struct pd_wire_word).
 *   A connection that is lost is made again, and the launcher names all of them again */
#pragma once

#include "ckpt/base/status.h"

/* In the rank, before it has threads. Without a relay the launcher knows less. */
void pd_relay_start(uint32_t rank, uint32_t ranks);
/* In the process of the relay, until it is killed. */
PD_MUST_USE pd_status pd_relay_run(uint32_t rank, uint32_t ranks, struct pd_error *err);
