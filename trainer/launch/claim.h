/* One launch owns a run: from pd_launch_claim until its process ends nobody else trains in the same run.dir, whatever
 * their directories of checkpoints are. The claim is a lock on the directory itself, so nothing is left behind, and the
 * kernel gives it up when the process dies, however it dies. */
#pragma once

#include "ckpt/base/status.h"

/* Where another launch has the run: says at once whom it waits for, and waits `wait_ms` at most. File systems that lock no
 * directories (NFS) have no such claim: there the claim of each directory of checkpoints (ckpt/store) keeps launches apart.
 *   errors   PD_BUSY: the other launch, by its process; PD_STOPPED: a signal asked to leave meanwhile
 *   signals  those of hold.h are blocked */
PD_MUST_USE pd_status pd_launch_claim(const char *run_dir, uint32_t wait_ms, int *ret_claim, struct pd_error *err);
void pd_launch_claim_drop(int claim); /* below 0: there is none */
