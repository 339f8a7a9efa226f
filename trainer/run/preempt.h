/* preempt.notice: a command that says whether this host is about to be taken away. One process of each host asks it every five
 * seconds, in a thread of its own; exit code 0 asks to save and leave, as TERM does, and nothing is asked after that. */
#ifndef PD_TRAINER_RUN_PREEMPT_H
#define PD_TRAINER_RUN_PREEMPT_H

struct pd_preempt;

/* command: for sh; borrowed. NULL: it is "", or there can be no thread, which is logged: the signal will come all the same. */
struct pd_preempt *pd_preempt_start(const char *command);
void pd_preempt_stop(struct pd_preempt *preempt); /* ends a command that runs; NULL is fine */

#endif
