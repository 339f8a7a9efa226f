/* One rank of a run, from the first open to the last save.
 *
 * All ranks make the same decisions. If one rank alone learns something (a signal, a full disk, a damaged block), the ranks
 * agree on it before any of them acts. So every rank returns the same status for the same cause, and the exit code is that
 * of the cause. */
#pragma once

#include "trainer/comm/comm.h"
#include "trainer/config/config.h"
#include "trainer/run/launched.h"

/* Runs a worker process: all ranks as its threads (transport local), or its one rank of the MPI job. `launched` has their
 * number and kind, or the configuration if there is no launcher. */
PD_MUST_USE pd_status pd_worker_main(const struct pd_config *config, const struct pd_launched *launched,
                                     struct pd_error *err);
