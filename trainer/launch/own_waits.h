/* While the launcher itself waits for storage (data, checkpoints, run.dir) it can do nothing else. A thread logs that. */
#pragma once

/* Call once per process, before it has threads. The thread lives as long as the process; without it nothing is logged. */
void pd_launch_own_waits_report(void);
