/* Locks a run for one launch. From pd_launch_lock until the process ends no other launch trains in the same run.dir, even
 * with other checkpoint directories. The lock is on the directory itself, so it leaves no file behind, and the kernel
 * releases it however the process dies. */
#pragma once

#include "ckpt/base/status.h"

/* If another launch has the run, logs at once which one, and waits at most `wait_ms`. Some file systems (NFS) cannot lock
 * directories: there only the locks of checkpoint directories (ckpt/store) keep launches apart.
 *   errors   PD_BUSY: names the other launch's process; PD_STOPPED: a signal asked to leave while waiting
 *   signals  the signals of hold.h are blocked */
PD_MUST_USE pd_status pd_launch_lock(const char *run_dir, uint32_t wait_ms, int *ret_lock, struct pd_error *err);
void pd_launch_unlock(int lock); /* below 0: does nothing */
