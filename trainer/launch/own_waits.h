/* A launcher that waits for storage itself (data, checkpoints, run.dir) does nothing else: a thread says so in the log. */
#pragma once

/* Once a process, before it has threads. The thread runs as long as the process; if it cannot be made, nothing is logged. */
void pd_launch_own_waits_report(void);
