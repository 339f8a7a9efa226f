/* How long a run took from the last finished step before a loss to the first one after it, phase by phase: what the launcher
 * says of its part, and what this start took. For people; no decision reads it.
 *
 *   detect  from the end of the last step to the launcher's first sign of the loss: what was computed in vain is in it
 *   end     until all processes of that start are gone
 *   decide  until the next starter is spawned: hosts are asked, a layout is chosen
 *   start   until this program runs: mpirun, its agents, exec
 *   join    until the ranks know each other: MPI_Init
 *   open    memory, tiers, files
 *   load    the checkpoint
 *   step    the first step
 *   threads the thread of rank 0, and before that the first of its process */
#pragma once

#include <stdint.h>

enum pd_recovery_phase {
    PD_RECOVERY_DETECT,
    PD_RECOVERY_END,
    PD_RECOVERY_DECIDE,
    PD_RECOVERY_START,
    PD_RECOVERY_JOIN,
    PD_RECOVERY_OPEN,
    PD_RECOVERY_LOAD,
    PD_RECOVERY_STEP,
    PD_RECOVERY_PHASES
};
extern const char *const pd_recovery_names[PD_RECOVERY_PHASES];

/* Seconds of the first three, and the wall clock's nanoseconds at the spawn; "": nothing was lost. */
#define PD_LAUNCH_ENV_RECOVERY "PERDURE_LAUNCH_RECOVERY"

void pd_recovery_begin(void); /* first thing in the process */
/* The time since the call before belongs to the phase. Nothing where nothing was lost. */
void pd_recovery_reached(enum pd_recovery_phase phase);
/* The first step is done: a line in the log, and one in events.jsonl. Nothing from the second call on. */
void pd_recovery_end(const char *run_dir, uint64_t step);
