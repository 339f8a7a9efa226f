#include "ckpt/base/cpu.h"
#include "trainer/run/launched.h"
#include "trainer/run/signals.h"
#include "trainer/status/channel.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

Test(signals, each_asks_for_its_own)
{
    cr_assert_eq(pd_signals_install(NULL), PD_OK);
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_NONE);
    raise(SIGUSR2);
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_SAVE);
    raise(SIGTERM);
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_SAVE_AND_LEAVE, "the most urgent");
    pd_signals_clear_save();
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_SAVE_AND_LEAVE, "leaving stays");
}

Test(signals, leaving_takes_no_longer_than_there_is)
{
    unsetenv("PERDURE_GRACE_S");
    cr_expect_eq(pd_launched_leave_seconds(20), 20);
    setenv("PERDURE_GRACE_S", "10", 1);
    cr_expect_eq(pd_launched_leave_seconds(20), 8, "and the rest is for the launcher");
    setenv("PERDURE_GRACE_S", "600", 1);
    cr_expect_eq(pd_launched_leave_seconds(20), 20);
}

Test(signals, save_is_cleared)
{
    cr_assert_eq(pd_signals_install(NULL), PD_OK);
    raise(SIGUSR2);
    pd_signals_clear_save();
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_NONE);
    raise(SIGUSR1);
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_SAVE_AND_LEAVE);
}

Test(signals, what_was_ignored_stays_ignored)
{
    signal(SIGHUP, SIG_IGN);
    cr_assert_eq(pd_signals_install(NULL), PD_OK);
    raise(SIGHUP);
    cr_assert_eq(pd_signals_pending(), PD_SIGNAL_NONE);
}

Test(signals, the_second_interrupt_ends_the_process)
{
    pid_t process = fork();
    if (process == 0) {
        signal(SIGINT, SIG_DFL); /* a test in the background of a shell ignores it */
        if (pd_signals_install(NULL)) _exit(1);
        raise(SIGINT);
        if (pd_signals_pending() != PD_SIGNAL_SAVE_AND_LEAVE) _exit(2);
        raise(SIGINT);
        _exit(3);
    }
    int status;
    cr_assert_eq(waitpid(process, &status, 0), process);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 75);
}

Test(launched, without_a_launcher_nothing_happens)
{
    unsetenv(PD_CHANNEL_ENV_ADDRESSES);
    struct pd_launched launched;
    struct pd_error err;
    cr_assert_eq(pd_launched_begin(&launched, &err), PD_OK);
    cr_assert_not(launched.is_launched);
    cr_assert_eq(launched.transport, PD_TRANSPORT_AUTO);
    pd_launched_ready(&launched);
    pd_launched_end(&launched, PD_IO, "nobody reads this");
}

Test(launched, a_worker_whose_launcher_is_gone_does_not_start)
{
    setenv(PD_CHANNEL_ENV_ADDRESSES, "@nobody", 1);
    setenv(PD_LAUNCH_ENV_TRANSPORT, "local", 1);
    setenv(PD_LAUNCH_ENV_PARENT, "1", 1);
    struct pd_launched launched;
    struct pd_error err;
    cr_assert_eq(pd_launched_begin(&launched, &err), PD_PEER_LOST);
    cr_assert(strstr(err.message, "launcher ended"), "%s", err.message);
}

Test(launched, threads_are_a_share_of_the_cores)
{
    uint32_t cores = pd_cpu_cores();
    cr_assert_geq(cores, 1);
    cr_assert_eq(pd_launched_threads(3, 1), 3, "what was asked");
    cr_assert_eq(pd_launched_threads(0, 1), cores);
    cr_assert_eq(pd_launched_threads(0, cores * 2), 1, "at least one");
}
