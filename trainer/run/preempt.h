/* preempt.notice: a command that says whether this host is about to be taken away. One process of each host asks it every five
 * seconds, in a thread of its own; exit code 0 asks to save and leave, as TERM does, tells the launcher that it is this host, and
 * nothing is asked after that. */
#pragma once

#include <stdint.h>

struct pd_preempt;

/* command: for sh; borrowed. rank: of this process. NULL: the command is "", or there can be no thread, which is logged: the
 * signal will come all the same. */
struct pd_preempt *pd_preempt_start(const char *command, uint32_t rank);
void pd_preempt_stop(struct pd_preempt *preempt); /* ends a command that runs; NULL is fine */
