/* The signals that a launch hears: TERM, USR1, USR2, CHLD, and INT and HUP unless its parent ignores them. */
#pragma once

#include <signal.h>
#include <stdbool.h>

sigset_t pd_launch_signals(void);
/* Blocks them: from here on they wait for the launch. Called before reading what the launch needs. */
void pd_launch_signals_hold(void);
/* Of those that are held one asks to leave: all but USR2 and CHLD. */
bool pd_launch_signals_say_leave(void);
