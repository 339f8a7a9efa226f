/* Who this thread works for: shown in log lines and matched by fault points, used for nothing else. */
#pragma once

/* The rank of this process (a worker under MPI); -1, the start value: none. */
void pd_rank_set_process(int rank);
/* The rank of this thread where ranks are threads; it goes before the process's. -1: none. */
void pd_rank_set_thread(int rank);
int pd_rank_current(void); /* of the thread, else of the process, else -1 */
