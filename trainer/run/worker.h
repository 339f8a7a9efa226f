/* One rank of a run, from the first open to the last save.
 *
 * All ranks make the same decisions: what one rank alone learns (a signal, a full disk, a damaged block) is agreed upon
 * before anyone acts on it, so every rank returns the same status for the same cause, and exit codes are those of the cause.
 */
#pragma once

#include "trainer/comm/comm.h"
#include "trainer/config/config.h"
#include "trainer/run/launched.h"

/* What a worker process does: all ranks as threads of it (transport local), or its rank of the MPI job. `launched` says how
 * many and of what kind; without a launcher the configuration does. */
PD_MUST_USE pd_status pd_worker_main(const struct pd_config *config, const struct pd_launched *launched,
                                     struct pd_error *err);
