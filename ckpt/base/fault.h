/* Fault points: named places in the code where a test kills or stops the program.
 *
 *   PERDURE_FAULT=name[@rank]:nth[:action][,...]     fires at the nth pass of that place in this process, from 1
 *   actions  kill (SIGKILL to this process; the default), exit (status 70, nothing flushed),
 *            stop (SIGSTOP: the test inspects, kills or continues the process), sleep (at this pass and at each later
 *            one, 20 ms, or as many as in sleep50, so that a run that only has to be there leaves the processor to
 *            others). A place that calls pd_fault_asks ignores the action and injects its own fault, such as a damaged byte
 *   PERDURE_FAULT_ONCE=file: a fault fires only if it can create the file, so that it does not hit a restarted launch again.
 *
 * Places are named <library>.<operation>.<moment>: "store.commit.renamed". Disabled, a place costs one load.
 *   threads  any; passes of all threads count together; with @rank only that rank's count */
#pragma once

#include "ckpt/base/status.h"
#include <stdatomic.h>

/* NULL or "": no faults. PD_USAGE names the word that is not understood. Do not call while other threads pass fault
 * points. main calls pd_fault_configure_env before it starts threads; nothing else reads the environment. */
PD_MUST_USE pd_status pd_fault_configure(const char *spec, const char *once_path, struct pd_error *err);
PD_MUST_USE pd_status pd_fault_configure_env(struct pd_error *err);

extern atomic_bool pd_fault_armed;
void pd_fault_pass(const char *name);

static inline void pd_fault_point(const char *name)
{
    if (atomic_load_explicit(&pd_fault_armed, memory_order_relaxed)) pd_fault_pass(name);
}

/* Returns whether this is the n-th pass. It does nothing else. */
bool pd_fault_passes_nth(const char *name);

static inline bool pd_fault_asks(const char *name)
{
    return atomic_load_explicit(&pd_fault_armed, memory_order_relaxed) && pd_fault_passes_nth(name);
}
