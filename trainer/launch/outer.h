/* What started the launcher: a shell, or an mpirun, srun or torchrun of the user. Their environment variables outlive them,
 * in a tmux, a container or a script. So variables count only while the process that set them is an ancestor of this one. */
#pragma once

#include "ckpt/base/status.h"

/* Removes the variables of an outer starter, so that the launcher's own can set them: mpirun refuses to run below another.
 *   errors  PD_USAGE: an outer starter started several launchers, this among them */
PD_MUST_USE pd_status pd_outer_leave(struct pd_error *err);

/* Call before starting ranks as processes. Outside the job that SLURM_JOB_ID names, asks Slurm; if the job is over, removes
 * all Slurm variables, with a warning.
 *   errors  PD_UNSUPPORTED: Slurm does not answer */
PD_MUST_USE pd_status pd_outer_check_slurm(struct pd_error *err);
