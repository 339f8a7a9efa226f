/* Asks the kernel about a process on this host. One that no longer exists is not stopped and has used no time.
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Reads /proc/<process>/<name>, cut at `bytes` - 1. False, with ret_text "", if it cannot be read. */
bool pd_process_read(int process, const char *name, char *ret_text, size_t bytes);
/* True also for a zombie, which its parent has not waited for yet. */
bool pd_process_has_ended(int process);
/* True if a signal such as SIGSTOP has stopped it. */
bool pd_process_is_stopped(int process);
/* Returns 0 if it cannot be read. */
int pd_process_parent(int process);
/* CPU time, plus the time its first thread waited for a CPU: on a busy machine it may get hardly any. */
double pd_process_busy_seconds(int process);
/* Kernel stack, innermost first: "futex_wait_queue < do_futex", or the one function that unprivileged users may read. */
void pd_process_kernel_place(int process, char *ret_text, size_t bytes);
