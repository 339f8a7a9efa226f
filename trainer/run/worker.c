/* The life of a rank: open, step, close (internal.h); and how a process becomes one rank or holds all of them. */
#include "trainer/run/worker.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"
#include "trainer/engine/rank_device.h"
#include "trainer/run/internal.h"
#include "trainer/run/launched.h"
#include "trainer/run/signals.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

/* ---- preempt.notice ---- */

/* preempt.notice: a command that reports whether this host is about to be taken away. One process per host runs it every
 * five seconds, in its own thread. Exit code 0 asks to save and leave, like TERM, and reports the host to the launcher; the
 * polling then ends. */

#define MODULE "preempt"
#define TICK_NS UINT64_C(50000000)
#define PERIOD_TICKS 100u
#define ABSENT 127 /* from sh: the command does not exist, or may not be run */

extern char **environ;

struct pd_preempt {
    const char *command;
    uint32_t rank;
    pthread_t thread;
    atomic_bool ends;
};

/* The worker blocks and catches signals; its commands must die of them. Their output is discarded, since they run so often,
 * but not their errors. */
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

/* Its exit code. -1: no result: it ran longer than a period, was killed, or could not start. */
static int ask(struct pd_preempt *p)
{
    pid_t child;
    int status;
    if (!spawn(p->command, &child)) return -1;
    for (uint32_t tick = 0; tick < PERIOD_TICKS && !atomic_load(&p->ends); tick++) {
        const pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (got < 0 && errno != EINTR) return -1;
        pd_clock_sleep_ns(TICK_NS);
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
        pd_clock_sleep_ns(TICK_NS);
    }
    return NULL;
}

/* command: for sh; borrowed. rank: of this process. Returns NULL if the command is "", or without a thread, which is logged:
 * the signal still arrives. */
static struct pd_preempt *preempt_start(const char *command, uint32_t rank)
{
    struct pd_preempt *p = command[0] ? calloc(1, sizeof *p) : NULL;
    if (p) *p = (struct pd_preempt){.command = command, .rank = rank};
    if (p && !pd_thread_start(&p->thread, NULL, poll_command, p)) return p;
    if (command[0]) pd_log_warn(MODULE, "no memory or no thread to run preempt.notice: only signals are heard");
    free(p);
    return NULL;
}

/* Kills a running command; NULL is fine. */
static void preempt_stop(struct pd_preempt *p)
{
    if (!p) return;
    atomic_store(&p->ends, true);
    pthread_join(p->thread, NULL);
    free(p);
}

/* ---- one rank ---- */

static bool has_another(const struct run *r)
{
    return r->device.dev && pd_rank_device_is_spare(&r->device, r->comm->ranks_here, getenv(PD_LAUNCH_ENV_LEFT_OUT));
}

/* Runs until the end of the run, or until a rollback. Collective. Reports a failure to `launched` at once; may be NULL. */
static pd_status run_open_rank(const struct pd_config *config, struct pd_comm *comm, const struct pd_launched *launched,
                               struct pd_rollbacks *rollbacks, struct pd_error *err)
{
    struct run r = {.config = config, .comm = comm, .is_thread = !launched, .rollbacks = rollbacks};
    r.threads = pd_launched_threads(config->layout.threads, comm->ranks_here);
    pd_numerics_thread_init();
    pd_status st = pd_run_open(&r, err);
    pd_fault_point("worker.opened");
    if (!st && comm->rank == 0) pd_launched_training();
    const bool doubts = !st && rollbacks->doubts;
    if (doubts) st = pd_run_end_in_doubt(&r, err);
    if (!st) {
        st = pd_run_steps(&r, err);
        if (st == PD_NOT_FOUND) st = pd_error_change(err, PD_IO); /* it existed when the run began */
    }
    if (st == PD_DIVERGED && comm->rank == r.engine->not_finite_rank)
        pd_launched_not_finite(comm->rank, r.device.dev ? r.device.dev->identity : "", has_another(&r));
    const bool is_lost = st == PD_DEVICE_LOST && r.device.dev && (!doubts || comm->rank == rollbacks->wrong_rank);
    if (is_lost) pd_launched_lost_gpu(comm->rank, r.device.dev->identity, has_another(&r));
    if (is_lost || !doubts) st = pd_rank_device_explain_lost(&r.device, st, err);
    /* If training failed, still finish saving the state before, as long as peers can commit it. */
    if (st && st != PD_PEER_LOST && r.saver) pd_saver_wait(r.saver);
    /* Peers may still access this rank's memory: stop that before it is freed. */
    if (st) pd_comm_abort(comm);
    if (st && r.nccl) pd_comm_abort(r.nccl);
    if (st && r.engine) pd_engine_abort(r.engine);
    /* Report this first: the starter may now kill this process at any time, and it is not the rank that died. */
    if (st == PD_PEER_LOST) pd_launched_misses(pd_comm_missed(comm));
    if (st && launched) pd_launched_end(launched, st, err ? err->message : "");
    pd_run_close(&r);
    return st;
}

/* Runs `config` on this rank. A rollback closes the rank and reopens it at an earlier step, so no memory, file or thread of
 * later steps remains. */
static pd_status run_rank(const struct pd_config *config, struct pd_comm *comm, const struct pd_launched *launched,
                          struct pd_error *err)
{
    struct pd_rollbacks rollbacks = {.count = 0};
    pd_status st = PD_OK;
    do {
        if (rollbacks.goes_back) pd_heartbeat_enter(PD_HEARTBEAT_SAVING); /* tells the hang detector it waits for storage */
        st = run_open_rank(config, comm, launched, &rollbacks, err);
    } while (!st && rollbacks.goes_back);
    return st;
}

static pd_status run_local_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    pd_rank_set_thread((int)comm->rank);
    return run_rank(context, comm, NULL, err);
}

pd_status pd_worker_main(const struct pd_config *config, const struct pd_launched *launched, struct pd_error *err)
{
    uint32_t ranks = launched->is_launched ? launched->ranks : config->layout.ranks ? config->layout.ranks : 1;
    enum pd_transport transport = launched->is_launched ? launched->transport : config->layout.transport;
    if (transport != PD_TRANSPORT_MPI) {
        pd_launched_ready(launched);
        struct pd_preempt *preempt = preempt_start(config->preempt.notice, 0);
        pd_status st = pd_comm_run_local(ranks, 1, run_local_rank, (void *)config, err);
        preempt_stop(preempt);
        pd_fault_point("worker.ended");
        return st;
    }
    struct pd_comm *comm;
    PD_TRY(pd_comm_open_mpi(&comm, err));
    pd_rank_set_process((int)comm->rank);
    pd_launched_ready(launched);
    struct pd_preempt *preempt = preempt_start(comm->rank_here ? "" : config->preempt.notice, comm->rank);
    pd_status st = run_rank(config, comm, launched, err);
    preempt_stop(preempt);
    pd_comm_free(comm);
    pd_fault_point("worker.ended");
    return st;
}
