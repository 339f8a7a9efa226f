/* What started the launcher: a shell, or an mpirun, srun or torchrun of the user's own. Those leave variables in the
 * environment that outlive them, in a tmux, a container or a script. Variables count only while the process that set them is
 * above this one. */
#pragma once

#include "ckpt/base/status.h"

/* Removes the variables of an outer starter, so that the launcher's own sets them anew: mpirun refuses to run below another.
 *   errors  PD_USAGE: this is one of several launchers that an outer starter has started */
PD_MUST_USE pd_status pd_outer_leave(struct pd_error *err);

/* Before ranks that are processes are started. Outside the job that SLURM_JOB_ID names Slurm is asked; when the job is over,
 * all variables of Slurm are removed, with a warning.
 *   errors  PD_UNSUPPORTED: Slurm does not answer */
PD_MUST_USE pd_status pd_outer_check_slurm(struct pd_error *err);
