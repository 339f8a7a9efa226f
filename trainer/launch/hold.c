#include "trainer/launch/hold.h"

#include <stddef.h>

/* By nohup, or by a shell for background jobs. A blocked signal stays pending even if it is ignored. */
static bool is_ignored(int number)
{
    struct sigaction now;
    return (number == SIGHUP || number == SIGINT) && !sigaction(number, NULL, &now) && now.sa_handler == SIG_IGN;
}

sigset_t pd_launch_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP, SIGCHLD};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!is_ignored(numbers[i])) sigaddset(&mask, numbers[i]);
    return mask;
}

void pd_launch_signals_hold(void)
{
    const sigset_t mask = pd_launch_signals();
    sigprocmask(SIG_BLOCK, &mask, NULL);
}

bool pd_launch_signals_say_leave(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGUSR1) == 1 ||
                                         sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGHUP) == 1);
}
