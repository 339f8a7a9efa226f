/* The signals that a launch handles: TERM, USR1, USR2, CHLD, and INT and HUP unless its parent ignores them. */
#pragma once

#include <signal.h>
#include <stdbool.h>

sigset_t pd_launch_signals(void);
/* Blocks them, so that they stay pending. Call before reading what the launch needs. */
void pd_launch_signals_hold(void);
/* Whether a pending signal asks to leave: any but USR2 and CHLD. */
bool pd_launch_signals_say_leave(void);
