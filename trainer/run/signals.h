/* What signals ask of a worker. The handler only sets flags; the step reads them between micro-batches.
 *
 *   TERM USR1 HUP   save and leave
 *   USR2            save and go on
 *   INT             save and leave; a second one ends the process at once, with exit code 75
 *   threads         any; flags are per process */
#pragma once

#include "ckpt/base/stop.h"

#include "ckpt/base/status.h"

/* Ascending urgency, so that ranks agree by maximum. */
enum pd_signal { PD_SIGNAL_NONE, PD_SIGNAL_SAVE, PD_SIGNAL_SAVE_AND_LEAVE };

/* Signals ignored at process start (nohup) stay ignored. Call before threads are created. */
PD_MUST_USE pd_status pd_signals_install(struct pd_error *err);

enum pd_signal pd_signals_pending(void); /* the most urgent */
bool pd_signals_say_leave(void);         /* PD_SIGNAL_SAVE_AND_LEAVE is pending */
pd_should_stop pd_signals_stop(void);    /* asks for that */
bool pd_signals_say_save(void);          /* a save is requested, with or without leaving */
void pd_signals_ask_leave(void);         /* same as TERM */
/* A TERM from the parent, which starts the ranks, means that another rank has ended; it is noted in the heartbeat. Before
 * pd_signals_joined this rank may hang in MPI_Init waiting for that rank, and Slurm sends KILL only after KillWait. So it
 * exits with code 75 two seconds after the TERM. */
void pd_signals_mind_parent(void);
void pd_signals_joined(void);
void pd_signals_clear_save(void); /* clears PD_SIGNAL_SAVE; the others are never cleared */
