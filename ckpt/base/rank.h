/* The rank that this thread works for. Log lines show it, fault points match it; nothing else uses it. */
#pragma once

/* Sets the rank of this process (a worker under MPI); -1, the initial value: none. */
void pd_rank_set_process(int rank);
/* Sets the rank of this thread, if ranks are threads; it overrides the process's. -1: none. */
void pd_rank_set_thread(int rank);
int pd_rank_current(void); /* of the thread, else of the process, else -1 */
