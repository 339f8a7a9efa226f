#include "trainer/run/signals.h"

#include "ckpt/base/heartbeat.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define JOIN_SECONDS 2 /* after TERM: longer than mpirun takes to send KILL, so the launcher sees which rank died first */

static _Atomic int wants_save, wants_leave;
static _Atomic int interrupts, minds_parent, has_joined;

/* Only lock-free atomics, alarm and _exit: all of it may run inside a handler. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (number == SIGTERM && atomic_load(&minds_parent) && info->si_code <= 0 && info->si_pid == getppid()) {
        pd_heartbeat_ended_by_parent();
        alarm(JOIN_SECONDS);
    }
    if (number == SIGINT && atomic_fetch_add(&interrupts, 1) > 0) _exit(75);
    atomic_store(number == SIGUSR2 ? &wants_save : &wants_leave, 1);
}

static void on_alarm(int number)
{
    (void)number;
    if (!atomic_load(&has_joined)) _exit(75);
}

pd_status pd_signals_install(struct pd_error *err)
{
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGHUP, SIGUSR2, SIGINT};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (sigaction(numbers[i], NULL, &before)) PD_FAIL_ERRNO(err, errno, "signal %d", numbers[i]);
        /* nohup, and shells for background jobs, ignore these two; requests to leave are always handled */
        if (before.sa_handler == SIG_IGN && (numbers[i] == SIGHUP || numbers[i] == SIGINT)) continue;
        if (sigaction(numbers[i], &action, NULL)) PD_FAIL_ERRNO(err, errno, "signal %d", numbers[i]);
    }
    return PD_OK;
}

enum pd_signal pd_signals_pending(void)
{
    if (atomic_load(&wants_leave)) return PD_SIGNAL_SAVE_AND_LEAVE;
    return atomic_load(&wants_save) ? PD_SIGNAL_SAVE : PD_SIGNAL_NONE;
}

bool pd_signals_say_leave(void)
{
    return atomic_load(&wants_leave);
}

static bool ask_leave(void *context)
{
    (void)context;
    return pd_signals_say_leave();
}

pd_should_stop pd_signals_stop(void)
{
    return (pd_should_stop){.ask = ask_leave};
}

bool pd_signals_say_save(void)
{
    return atomic_load(&wants_save);
}

void pd_signals_ask_leave(void)
{
    atomic_store(&wants_leave, 1);
}

void pd_signals_mind_parent(void)
{
    signal(SIGALRM, on_alarm);
    atomic_store(&minds_parent, 1);
}

void pd_signals_joined(void)
{
    atomic_store(&has_joined, 1);
}

void pd_signals_clear_save(void)
{
    atomic_store(&wants_save, 0);
}
