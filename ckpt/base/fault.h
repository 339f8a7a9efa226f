/* Named places where a test makes the program fail or die.
 *
 *   PERDURE_FAULT=name[@rank]:nth[:action][,...]     nth: the n-th passage of that place in this process, from 1
 *   actions  kill (SIGKILL to this process; the default), exit (status 70, nothing flushed),
 *            stop (SIGSTOP: somebody looks at this process, kills it or lets it go on),
 *            error (the place returns PD_IO; "error+": from the n-th passage on)
 *   PERDURE_FAULT_ONCE=file: a fault fires only if it can create the file, so that a restarted launch is spared.
 *
 * Places are named <library>.<operation>.<moment>: "store.commit.renamed". Off, a place costs one load.
 *   threads  any; passages of all threads count together, with @rank those of that rank alone */
#ifndef PD_BASE_FAULT_H
#define PD_BASE_FAULT_H

#include "ckpt/base/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* NULL or "": none. PD_USAGE names the word that is not understood. Not while other threads pass places.
 * main calls pd_fault_configure_env before it starts threads; nothing else reads the environment. */
PD_MUST_USE pd_status pd_fault_configure(const char *spec, const char *once_path, struct pd_error *err);
PD_MUST_USE pd_status pd_fault_configure_env(struct pd_error *err);

extern atomic_bool pd_fault_armed;
PD_MUST_USE pd_status pd_fault_pass(const char *name, bool can_fail, struct pd_error *err);

/* A place that may stop or die. The action "error" there is a mistake of the test and ends the process with 64. */
static inline void pd_fault_point(const char *name)
{
    if (atomic_load_explicit(&pd_fault_armed, memory_order_relaxed)) (void)!pd_fault_pass(name, false, NULL);
}

/* A place that may also fail: PD_TRY(pd_fault_point_status("store.prepare.synced", err)). */
PD_MUST_USE static inline pd_status pd_fault_point_status(const char *name, struct pd_error *err)
{
    if (!atomic_load_explicit(&pd_fault_armed, memory_order_relaxed)) return PD_OK;
    return pd_fault_pass(name, true, err);
}

/* Passages of the places named in the specification, in its order; for a first run that counts. */
uint64_t pd_fault_passages(const char *name);

#endif
