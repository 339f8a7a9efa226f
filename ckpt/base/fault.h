/* Named places where a test makes the program die or stop.
 *
 *   PERDURE_FAULT=name[@rank]:nth[:action][,...]     nth: the n-th passage of that place in this process, from 1
 *   actions  kill (SIGKILL to this process; the default), exit (status 70, nothing flushed),
 *            stop (SIGSTOP: somebody looks at this process, kills it or lets it go on). A place that asks
 *            (pd_fault_asks) does what it is there for, such as damaging a byte, whatever the action
 *   PERDURE_FAULT_ONCE=file: a fault fires only if it can create the file, so that a restarted launch is spared.
 *
 * Places are named <library>.<operation>.<moment>: "store.commit.renamed". Off, a place costs one load.
 *   threads  any; passages of all threads count together, with @rank those of that rank alone */
#pragma once

#include "ckpt/base/status.h"
#include <stdatomic.h>

/* NULL or "": none. PD_USAGE names the word that is not understood. Not while other threads pass places.
 * main calls pd_fault_configure_env before it starts threads; nothing else reads the environment. */
PD_MUST_USE pd_status pd_fault_configure(const char *spec, const char *once_path, struct pd_error *err);
PD_MUST_USE pd_status pd_fault_configure_env(struct pd_error *err);

extern atomic_bool pd_fault_armed;
void pd_fault_pass(const char *name);

static inline void pd_fault_point(const char *name)
{
    if (atomic_load_explicit(&pd_fault_armed, memory_order_relaxed)) pd_fault_pass(name);
}

/* Whether this passage is the n-th; nothing else happens here. */
bool pd_fault_passes_nth(const char *name);

static inline bool pd_fault_asks(const char *name)
{
    return atomic_load_explicit(&pd_fault_armed, memory_order_relaxed) && pd_fault_passes_nth(name);
}
