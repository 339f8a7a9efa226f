/* What the kernel says of a process of this host; a process that is gone is not stopped, has used nothing, and is nowhere.
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* /proc/<process>/<name>, cut off at `bytes` - 1. False: nothing can be read; ret_text is then "". */
bool pd_process_read(int process, const char *name, char *ret_text, size_t bytes);
/* Its parent may not have waited for it yet. */
bool pd_process_has_ended(int process);
/* Stopped by a signal, as SIGSTOP does it. */
bool pd_process_is_stopped(int process);
/* 0: nothing can be read. */
int pd_process_parent(int process);
/* That it computed, and that its first thread waited for a processor: beside others it may get hardly any. */
double pd_process_busy_seconds(int process);
/* "futex_wait_queue < do_futex": functions of the kernel from the innermost on, or the one name that everybody may read. */
void pd_process_kernel_place(int process, char *ret_text, size_t bytes);
