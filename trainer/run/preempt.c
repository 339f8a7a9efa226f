#include "trainer/run/preempt.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/thread.h"
#include "trainer/run/launched.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>

#define MODULE "preempt"
#define TICK_NS UINT64_C(50000000)
#define PERIOD_TICKS 100u
#define ABSENT 127 /* of sh: there is no such command, or none that it may run */

extern char **environ;

struct pd_preempt {
    const char *command;
    uint32_t rank;
    pthread_t thread;
    atomic_bool ends;
};

/* Signals are the worker's: it blocks and catches what its commands should die of. What they print goes nowhere, since they
 * are asked so often, but errors are somebody's to read. */
static bool spawn(const char *command, pid_t *ret_child)
{
    char *words[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawn(ret_child, "/bin/sh", &files, &attributes, words, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return !failed;
}

/* Its exit code. -1: it took longer than a period, was killed, or could not be started, and says nothing. */
static int ask(struct pd_preempt *p)
{
    pid_t child;
    int status;
    if (!spawn(p->command, &child)) return -1;
    for (uint32_t tick = 0; tick < PERIOD_TICKS && !atomic_load(&p->ends); tick++) {
        const pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (got < 0 && errno != EINTR) return -1;
        pd_clock_sleep_ns(NULL, TICK_NS);
    }
    kill(-child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return -1;
}

static void *poll_command(void *preempt)
{
    struct pd_preempt *p = preempt;
    bool is_warned = false;
    for (uint32_t tick = 0; !atomic_load(&p->ends); tick++) {
        if (tick % PERIOD_TICKS == 0) {
            const int code = ask(p);
            if (code == 0 && !atomic_load(&p->ends)) {
                pd_log_info(MODULE, "this host will be taken away (preempt.notice): saving and leaving");
                pd_launched_taken(p->rank); /* before the ranks can have left */
                pd_signals_ask_leave();
                return NULL;
            }
            if (code >= ABSENT - 1 && !is_warned)
                pd_log_warn(MODULE, "preempt.notice: sh cannot run it (exit code %d): %s", code, p->command);
            is_warned |= code >= ABSENT - 1;
        }
        pd_clock_sleep_ns(NULL, TICK_NS);
    }
    return NULL;
}

struct pd_preempt *pd_preempt_start(const char *command, uint32_t rank)
{
    struct pd_preempt *p = command[0] ? calloc(1, sizeof *p) : NULL;
    if (p) *p = (struct pd_preempt){.command = command, .rank = rank};
    if (p && !pd_thread_start(&p->thread, NULL, poll_command, p)) return p;
    if (command[0]) pd_log_warn(MODULE, "no memory or no thread to run preempt.notice: only signals are heard");
    free(p);
    return NULL;
}

void pd_preempt_stop(struct pd_preempt *p)
{
    if (!p) return;
    atomic_store(&p->ends, true);
    pthread_join(p->thread, NULL);
    free(p);
}
