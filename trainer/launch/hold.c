#include "trainer/launch/hold.h"

#include <stddef.h>

sigset_t pd_launch_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP, SIGCHLD};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&mask, numbers[i]);
    return mask;
}

void pd_launch_signals_hold(void)
{
    const sigset_t mask = pd_launch_signals();
    sigprocmask(SIG_BLOCK, &mask, NULL);
}
