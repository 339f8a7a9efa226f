/* What signals ask of a worker. The handler only raises flags; the step looks at them between micro-batches.
 *
 *   TERM USR1 HUP   save and leave
 *   USR2            save and go on
 *   INT             save and leave; the second one ends the process at once, with exit code 75
 *   threads         any; flags are of the process */
#pragma once

#include "ckpt/base/status.h"

/* Ascending urgency, so that ranks agree by maximum. */
enum pd_signal { PD_SIGNAL_NONE, PD_SIGNAL_SAVE, PD_SIGNAL_SAVE_AND_LEAVE };

/* A signal that was ignored when the process started (nohup) stays ignored. Call before threads are made. */
PD_MUST_USE pd_status pd_signals_install(struct pd_error *err);

enum pd_signal pd_signals_pending(void); /* the most urgent */
bool pd_signals_say_leave(void);         /* a pd_should_stop: PD_SIGNAL_SAVE_AND_LEAVE is pending */
bool pd_signals_say_save(void);          /* a save is asked for, whatever else is */
void pd_signals_ask_leave(void);         /* as TERM does */
/* A TERM of the parent, the starter of ranks, is noted in the heartbeat: it ends this rank because another one ended. Until
 * pd_signals_joined this rank may wait for that one in MPI_Init, and Slurm sends KILL only after its KillWait. So it ends by
 * itself two seconds after the TERM, with exit code 75. */
void pd_signals_mind_parent(void);
void pd_signals_joined(void);
void pd_signals_clear_save(void); /* PD_SIGNAL_SAVE is done; the others stay for good */
