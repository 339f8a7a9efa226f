#include "trainer/launch/job.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/process.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/words.h"
#include "trainer/launch/hold.h"
#include "trainer/launch/receiver.h"
#include "trainer/launch/watch.h"
#include "trainer/run/events.h"
#include "trainer/run/launched.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODULE "launch"
#define TICK_MS 50
#define RUN_DIR_TICKS 4u
#define RUN_DIR_SLOW_NS UINT64_C(1000000000)
#define RUN_DIR_SAY_NS UINT64_C(5000000000)
#define WATCH_NS UINT64_C(200000000)
#define STARTER_ALONE_NS UINT64_C(10000000000)
#define LEAVE_OPENING_NS UINT64_C(5000000000)
#define LEAVE_STOPPED_NS UINT64_C(8000000000)
#define JOIN_STEP_NS UINT64_C(1000000000)
#define HEARTBEAT_NS UINT64_C(2000000000) /* at least; relays send four times as many */
#define UNKILLED_NS UINT64_C(2000000000)
#define UNKILLED_SAY_NS UINT64_C(30000000000)
#define BEGIN_WARN_NS UINT64_C(30000000000)

struct worker {
    int pidfd; /* -1: not begun, on another host, or gone */
    bool is_told_to_leave;
    uint32_t saves_told;
};

/* Checks in its own thread whether run.dir still exists, so that a hanging file system delays no one else. */
struct run_dir {
    const char *path, *own; /* own: the directory of this launch */
    bool is_own_below;      /* own is inside run.dir: it disappears only with run.dir */
    struct stat found;      /* when this start began */
    pthread_t thread;
    bool is_running;
    atomic_bool is_gone, ends; /* is_gone: written by the thread; ends: by the launcher */
    _Atomic uint64_t asked_ns; /* by the thread: since when it has waited for an answer; 0: it does not */
};

struct job {
    pthread_t signals; /* runs from the starter's begin to its end */
    bool has_signals;
    atomic_bool signals_end;
    /* The main thread writes `workers`, `seen`'s process numbers and ends, has_joined and has_starter_ended; the signal
     * thread reads them. Both forward requests, and record here what they sent. */
    pthread_mutex_t lock;
    bool has_joined, has_starter_ended;
    struct pd_launch_end end; /* input of the verdict; status: when the starter has ended */
    struct pd_launch_requests *requests;
    struct pd_rank_table *said;
    struct pd_launch_process *seen; /* (end.count), which end.processes names */
    struct worker *workers;         /* (end.count) requests that were passed on, and how the process is reached */
    struct pollfd *polls;           /* signals, the sockets, processes that have not ended */
    struct pd_launch_watch *watch;
    struct pd_launch_receiver *receiver;
    bool is_noted;
    uint64_t watched_ns;
    struct run_dir run_dir;
    uint64_t stuck_ns, stuck_last_ns; /* how long run.dir did not answer, and when that was so last */
    uint64_t stuck_look_ns, stuck_said_ns;
    bool is_begin_warned;
    uint64_t oom_kills;          /* of this cgroup, before the start */
    double grace_seconds;        /* from leave_ns until the rest is killed */
    uint64_t start_ns, leave_ns; /* leave_ns: when ranks were asked to leave; 0: not */
    bool is_starter_told_to_leave;
    uint32_t starter_saves_told;
    uint64_t stopped_since_ns; /* asked to leave, and a worker here is stopped; 0: none */
    bool is_loss_told;
    uint64_t joining_ns, joined_look_ns; /* when all had begun without joining; last check */
    uint64_t alone_since_ns;             /* all workers of this host are gone and the starter is not; 0 */
};

/* ---- watching ---- */

static void mark_gone(struct job *job, uint32_t rank)
{
    struct pd_launch_process *seen = &job->seen[rank];
    const struct pd_heartbeat *heartbeat = pd_launch_watch_heartbeat(job->watch, rank);
    const bool is_mpi = job->end.start->transport == PD_TRANSPORT_MPI;
    pthread_mutex_lock(&job->lock);
    seen->is_gone = true;
    pthread_mutex_unlock(&job->lock);
    seen->was_ended = is_mpi && heartbeat && atomic_load(&heartbeat->is_ended_by_parent);
    seen->gone_ns = pd_clock_monotonic_ns(NULL);
}

static void watch_add(struct job *job, uint32_t process, const struct pd_begun *begun)
{
    const struct pd_start *start = job->end.start;
    const uint32_t ranks = start->transport == PD_TRANSPORT_LOCAL ? start->ranks : 1;
    const bool has = begun->heartbeat >= 0;
    pd_launch_watch_add(job->watch, process, ranks, begun->process,
                        has ? pd_heartbeat_map(begun->process, begun->heartbeat, ranks) : NULL);
}

/* For `perdure watch`. Heartbeat 0: none. */
static void ranks_note(struct job *job)
{
    struct pd_json_writer w;
    uint32_t noted = 0;
    if (job->said->begun < job->end.count || job->is_noted) return;
    job->is_noted = true;
    if (!job->end.start->run_dir || atomic_load(&job->run_dir.is_gone)) return;
    pd_event_begin(&w, "ranks");
    pd_json_array_begin(&w, "ranks");
    for (uint32_t r = 0; r < job->end.count && noted < 256; r++) {
        const struct pd_begun *b = &job->said->ranks[r].begun;
        if (!b->is_here) continue;
        noted++;
        pd_json_object_begin(&w, NULL);
        PD_JSON_U64S(&w, {"rank", r}, {"process", (uint64_t)b->process},
                     {"heartbeat", b->heartbeat > 0 ? (uint64_t)b->heartbeat : 0});
        pd_json_object_end(&w);
    }
    pd_json_array_end(&w);
    pd_event_end(&w, job->end.start->run_dir);
}

/* A rank reports its start. */
static void worker_begins(void *context, uint32_t r)
{
    struct job *job = context;
    const struct pd_begun *begun = &job->said->ranks[r].begun;
    const int pidfd = begun->is_here ? (int)syscall(SYS_pidfd_open, begun->process, 0) : -1;
    const bool has_ended = begun->is_here && pidfd < 0 && errno == ESRCH;
    pthread_mutex_lock(&job->lock);
    if (job->workers[r].pidfd >= 0) close(job->workers[r].pidfd); /* it was stopped before it could say so */
    job->workers[r].pidfd = pidfd;
    job->seen[r] = (struct pd_launch_process){.process = begun->process, .has_begun = true, .is_here = begun->is_here};
    pthread_mutex_unlock(&job->lock);
    if (begun->is_here) watch_add(job, r, begun);
    if (has_ended) mark_gone(job, r);
}

static bool is_not_begun(const void *context, uint32_t rank)
{
    const struct job *job = context;
    return rank < job->end.count && !job->seen[rank].has_begun && job->workers[rank].pidfd < 0;
}

/* A stopped process cannot report its start, nor notice its starter's end. */
static void stopped_discover(struct job *job)
{
    int process;
    uint32_t r;
    if (job->said->begun == job->end.count || job->end.start->transport != PD_TRANSPORT_MPI) return;
    if (!pd_launch_find_stopped(job->end.starter, is_not_begun, job, &process, &r)) return;
    const int pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    if (pidfd < 0) return;
    pthread_mutex_lock(&job->lock);
    job->workers[r].pidfd = pidfd;
    job->seen[r] = (struct pd_launch_process){.process = process, .is_here = true};
    pthread_mutex_unlock(&job->lock);
    pd_launch_watch_add(job->watch, r, 1, process, NULL);
}

/* Kernels before 5.3 have no pidfd. */
static bool worker_has_ended(const struct job *job, uint32_t r)
{
    const int pidfd = job->workers[r].pidfd;
    if (pidfd < 0) return kill(job->seen[r].process, 0) != 0 && errno == ESRCH;
    struct pollfd poll_one = {.fd = pidfd, .events = POLLIN};
    return poll(&poll_one, 1, 0) > 0;
}

static void worker_signal(const struct job *job, uint32_t r, int number)
{
    const struct pd_launch_process *seen = &job->seen[r];
    const int pidfd = job->workers[r].pidfd;
    if (!seen->is_here || seen->is_gone) return;
    if (pidfd >= 0)
        syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
    else
        kill(seen->process, number);
}

/* Whether there is any reason for ranks to save and leave. */
static bool wants_leave(const struct job *job)
{
    return job->requests->wants_leave || job->requests->wants_regroup || job->end.is_run_dir_gone;
}

/* A rank reports a missing peer before the peer's host could: hosts asked now answer by the time all have ended. */
static void lost_tell(struct job *job, uint32_t rank)
{
    const struct pd_launch_requests *requests = job->requests;
    const struct pd_ended *ended = job->said->ranks[rank].ended;
    if (ended && ended->status != PD_PEER_LOST) return;
    if (!ended)
        pd_log(PD_LOG_DEBUG, MODULE, "rank %u (process %d) disappeared without a message", rank, job->seen[rank].process);
    if (requests->has_lost && !job->is_loss_told && !wants_leave(job)) requests->has_lost(requests->context);
    job->is_loss_told = true;
}

/* When a process ends, the kernel of its host closes the connection, before its starter can kill others. */
static void connection_ends(void *context, uint32_t rank)
{
    struct job *job = context;
    struct pd_launch_process *seen = &job->seen[rank];
    if (!seen->has_begun || seen->is_here || seen->is_gone) return;
    mark_gone(job, rank);
    lost_tell(job, rank);
}

static void connection_is_back(void *context, uint32_t rank)
{
    struct job *job = context;
    if (job->seen[rank].has_begun && !job->seen[rank].is_here) job->seen[rank].is_gone = false;
}

static void workers_look(struct job *job)
{
    for (uint32_t r = 0; r < job->end.count; r++) {
        struct pd_launch_process *seen = &job->seen[r];
        if (!seen->has_begun || !seen->is_here || seen->is_gone || !worker_has_ended(job, r)) continue;
        mark_gone(job, r);
        if (job->end.start->transport == PD_TRANSPORT_MPI) lost_tell(job, r);
    }
}

/* Joining is collective. */
static bool all_are_ready(const struct job *job)
{
    return job->said->ready > 0;
}

static bool all_are_here(const struct job *job)
{
    for (uint32_t r = 0; r < job->end.count; r++)
        if (!job->seen[r].has_begun || !job->seen[r].is_here) return false;
    return true;
}

/* The starter forwards USR1 and USR2 to ranks on all hosts; ranks here may get it twice, which has no effect. */
static void starter_tell(struct job *job, bool wants_leaving)
{
    const struct pd_launch_requests *requests = job->requests;
    const bool is_leaving = wants_leaving && !job->is_starter_told_to_leave;
    bool wants_save = requests->saves > job->starter_saves_told;
    if (job->end.start->transport != PD_TRANSPORT_MPI || (!is_leaving && !wants_save)) return;
    if (all_are_here(job) || !job->has_joined) return;
    if (is_leaving) kill(job->end.starter, SIGUSR1);
    if (wants_save) kill(job->end.starter, SIGUSR2);
    job->is_starter_told_to_leave |= is_leaving;
    job->starter_saves_told = requests->saves;
}

/* ---- run.dir ---- */

static bool is_below(const char *dir, const struct stat *parent)
{
    struct stat above;
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/..", dir);
    return stat(path, &above) == 0 && above.st_dev == parent->st_dev && above.st_ino == parent->st_ino;
}

static bool run_dir_is_gone(const struct run_dir *d)
{
    struct stat now = {0};
    const bool is_found = stat(d->path, &now) == 0, is_same = now.st_dev == d->found.st_dev && now.st_ino == d->found.st_ino;
    if (is_found ? !is_same : errno == ENOENT) return true;
    return d->is_own_below && access(d->own, F_OK) != 0 && errno == ENOENT;
}

static void *run_dir_main(void *context)
{
    struct run_dir *d = context;
    for (uint32_t tick = 0; !atomic_load(&d->ends); tick++) {
        if (tick % RUN_DIR_TICKS == 0) {
            atomic_store(&d->asked_ns, pd_clock_monotonic_ns(NULL));
            if (run_dir_is_gone(d)) atomic_store(&d->is_gone, true);
            atomic_store(&d->asked_ns, 0);
        }
        pd_clock_sleep_ns(TICK_MS * UINT64_C(1000000));
    }
    return NULL;
}

static void run_dir_begin(struct job *job)
{
    struct run_dir *d = &job->run_dir;
    *d = (struct run_dir){.path = job->end.start->run_dir, .own = job->end.start->dir};
    if (!d->path) return;
    atomic_store(&d->is_gone, stat(d->path, &d->found) != 0);
    d->is_own_below = !atomic_load(&d->is_gone) && is_below(d->own, &d->found);
    d->is_running = !atomic_load(&d->is_gone) && !pd_thread_start(&d->thread, NULL, run_dir_main, d);
}

static void run_dir_end(struct job *job)
{
    atomic_store(&job->run_dir.ends, true);
    if (job->run_dir.is_running) pthread_join(job->run_dir.thread, NULL);
}

/* Ranks read the secret and the configuration there before they report. */
static void run_dir_wait(struct job *job)
{
    const uint64_t now = pd_clock_monotonic_ns(NULL), asked = atomic_load(&job->run_dir.asked_ns);
    const uint64_t waited_ns = asked && now > asked ? now - asked : 0;
    if (waited_ns > RUN_DIR_SLOW_NS) {
        job->stuck_ns += now - job->stuck_look_ns;
        job->stuck_last_ns = now;
    }
    job->stuck_look_ns = now;
    if (waited_ns < RUN_DIR_SAY_NS || (job->stuck_said_ns && now - job->stuck_said_ns < UNKILLED_SAY_NS)) return;
    job->stuck_said_ns = now;
    pd_log_warn(MODULE, "run.dir (%s) has not answered for %.0f s. Its storage is slow or stuck: waiting for it",
                job->run_dir.path, (double)waited_ns * 1e-9);
}

/* Ranks leave, and save if they can: without run.dir their reports are lost, and a restart would have nothing to resume. */
static void run_dir_look(struct job *job)
{
    if (job->end.is_run_dir_gone || !atomic_load(&job->run_dir.is_gone)) return;
    job->end.is_run_dir_gone = true;
    pd_log_error(MODULE, "run.dir (%s) was moved or deleted: saving where that is possible, and leaving", job->run_dir.path);
}

/* Under the lock. */
static void workers_tell(struct job *job, bool is_leaving)
{
    const struct pd_launch_requests *requests = job->requests;
    for (uint32_t r = 0; r < job->end.count; r++) {
        struct worker *worker = &job->workers[r];
        if (!job->seen[r].has_begun) continue;
        if (requests->saves > worker->saves_told) worker_signal(job, r, SIGUSR2);
        worker->saves_told = requests->saves;
        if (is_leaving && !worker->is_told_to_leave) worker_signal(job, r, SIGTERM);
        worker->is_told_to_leave |= is_leaving;
    }
    starter_tell(job, is_leaving);
}

static void job_kill(struct job *job)
{
    kill(-job->end.starter, SIGKILL);
    for (uint32_t r = 0; r < job->end.count; r++)
        worker_signal(job, r, SIGKILL);
}

/* Lets the starter end itself once its ranks are gone, so that it removes its files. */
static void job_abort(struct job *job)
{
    bool has_begun = false;
    for (uint32_t r = 0; r < job->end.count; r++) {
        has_begun |= job->seen[r].has_begun;
        worker_signal(job, r, SIGKILL);
    }
    if (!has_begun || job->end.start->transport == PD_TRANSPORT_LOCAL) job_kill(job);
}

/* ---- requests reach the ranks although the main thread waits for a file ---- */

static void *signals_main(void *context)
{
    struct job *job = context;
    const struct timespec tick = {.tv_nsec = TICK_MS * 1000000};
    sigset_t mask = pd_launch_signals();
    sigdelset(&mask, SIGCHLD);
    while (!atomic_load(&job->signals_end)) {
        const int number = sigtimedwait(&mask, NULL, &tick);
        if (number < 0) continue;
        pthread_mutex_lock(&job->lock);
        const struct pd_launch_heard heard = pd_launch_requests_hear(job->requests, number);
        if (!job->has_starter_ended && job->requests->wants_abort)
            job_abort(job);
        else if (!job->has_starter_ended)
            workers_tell(job, job->requests->wants_leave);
        pthread_mutex_unlock(&job->lock);
        pd_launch_heard_log(&heard);
    }
    return NULL;
}

/* Meanwhile the main thread handles only SIGCHLD. Without the thread it handles all of them, as between starts. */
static void signals_begin(struct job *job)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    job->has_signals = !pd_thread_start(&job->signals, NULL, signals_main, job);
    if (job->has_signals) (void)signalfd(job->requests->signals, &mask, 0);
}

static void signals_end(struct job *job)
{
    const sigset_t mask = pd_launch_signals();
    if (!job->has_signals) return;
    atomic_store(&job->signals_end, true);
    pthread_join(job->signals, NULL);
    (void)signalfd(job->requests->signals, &mask, 0);
}

static bool has_any_begun(const struct job *job)
{
    for (uint32_t r = 0; r < job->end.count; r++)
        if (job->seen[r].has_begun) return true;
    return false;
}

/* Not before the first step: there is nothing to save. */
static void growth_look(struct job *job)
{
    struct pd_launch_requests *requests = job->requests;
    if (!requests->has_grown || wants_leave(job) || !has_any_begun(job)) return;
    if (!job->said->is_training || !requests->has_grown(requests->context)) return;
    requests->wants_regroup = true;
    pd_log_info(MODULE, "hosts are there for more ranks (launch.grow: now): saving, and starting again with them");
}

/* Opening ranks check signals late, or wait for a rank that never comes. Before the first step there is nothing to save:
 * they get a few seconds to leave by themselves. */
static void opening_look(struct job *job)
{
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    const bool has_begun = has_any_begun(job);
    const double seconds = job->end.start->begin_seconds;
    const bool is_overdue = seconds > 0 && (double)(now - job->start_ns - job->stuck_ns) > seconds * 1e9;
    if (job->requests->wants_leave && !job->leave_ns) job->leave_ns = now;
    if (job->leave_ns && now - job->leave_ns > LEAVE_OPENING_NS && (!has_begun || !job->said->is_training))
        job->end.is_left_opening = true;
    if (is_overdue && job->said->begun < job->end.count) /* and rank 0 waits for ranks that have not begun */
        job->end.is_begin_overdue = !has_begun || !job->said->is_training;
    if (job->end.is_left_opening || job->end.is_begin_overdue) {
        job_kill(job);
    } else if (!has_begun && !job->is_begin_warned && now - job->start_ns > BEGIN_WARN_NS) {
        job->is_begin_warned = true;
        pd_log_warn(MODULE, "%s has started no rank yet; waiting up to %.0f s", job->end.starter_name, seconds);
    }
}

/* If packets between hosts are dropped, MPI_Init never ends. Time while suspended, with the launcher, does not count. */
static void joining_look(struct job *job)
{
    const double seconds = job->end.start->join_seconds;
    const uint64_t now = pd_clock_monotonic_ns(NULL), since = now - job->joined_look_ns;
    bool is_other =
        job->said->begun < job->end.count || job->end.start->transport != PD_TRANSPORT_MPI || job->end.is_join_overdue;
    if (since < WATCH_NS || seconds <= 0) return;
    job->joined_look_ns = now;
    for (uint32_t r = 0; r < job->end.count && !is_other; r++)
        is_other = job->seen[r].is_gone || (job->seen[r].is_here && pd_process_is_stopped(job->seen[r].process));
    if (is_other || all_are_ready(job)) return;
    job->joining_ns += since < JOIN_STEP_NS ? since : JOIN_STEP_NS;
    if ((double)job->joining_ns <= seconds * 1e9) return;
    job->end.is_join_overdue = true;
    job_kill(job);
}

/* A stopped process only reacts to KILL, and those that wait for it do not end either. A save may take any time, but a
 * stopped process does not save. */
static void stopped_look(struct job *job)
{
    bool any = false;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (!job->requests->wants_leave || job->end.is_left_opening) return;
    for (uint32_t r = 0; r < job->end.count; r++) {
        const struct pd_launch_process *seen = &job->seen[r];
        any |= seen->has_begun && seen->is_here && !seen->is_gone && pd_process_is_stopped(seen->process);
    }
    if (!any)
        job->stopped_since_ns = 0;
    else if (!job->stopped_since_ns)
        job->stopped_since_ns = now;
    else if (now - job->stopped_since_ns > LEAVE_STOPPED_NS)
        job->end.is_left_stopped = true;
    if (job->end.is_left_stopped) job_kill(job);
}

/* The machine is taken away in time: a save that is not done by then would be cut off silently. */
static void grace_look(struct job *job)
{
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (!job->leave_ns || job->end.is_left_late || (double)(now - job->leave_ns) <= job->grace_seconds * 1e9) return;
    job->end.is_left_late = true;
    job_kill(job);
}

/* PERDURE_GRACE_S belongs to the batch system, not to the run, so it is not a configuration key. */
static pd_status read_grace(double *ret_seconds, struct pd_error *err)
{
    const char *given = getenv(PD_LAUNCH_ENV_GRACE), *text = given ? given : PD_LAUNCH_GRACE_SECONDS;
    if (pd_parse_double(text, ret_seconds)) return PD_OK;
    PD_FAIL(err, PD_USAGE,
            PD_LAUNCH_ENV_GRACE "=%s is not a number of seconds; set it to the time between TERM and KILL, less a few",
            text);
}

/* A relay sends heartbeats only for live processes: if one seemed to have ended, only its connection was lost. */
static void heartbeat_hear(void *context, uint32_t rank, const struct pd_remote_heartbeat *beat)
{
    struct job *job = context;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (job->seen[rank].is_gone && now - job->seen[rank].gone_ns > HEARTBEAT_NS) connection_is_back(job, rank);
    pd_launch_watch_hear(job->watch, rank, beat, HEARTBEAT_NS, now);
}

/* Kills a rank that holds up the others, and with it the start. */
static void hang_look(struct job *job)
{
    struct pd_launch_hang hang;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (job->end.start->hang_seconds <= 0 || job->end.hang[0] || now - job->watched_ns < WATCH_NS) return;
    job->watched_ns = now;
    stopped_discover(job);
    if (!pd_launch_watch_look(job->watch, now, &hang)) return;
    /* Once run.dir answers again, ranks get the full time again. */
    const bool is_run_dir_stuck =
        job->stuck_last_ns && (double)(now - job->stuck_last_ns) < job->end.start->hang_seconds * 1e9;
    if (hang.is_storage || is_run_dir_stuck) {
        pd_log_warn(MODULE, "%s. Its storage is slow or stuck: waiting for the rank", hang.text);
        return;
    }
    pd_log_warn(MODULE, "%s: ending it", hang.text);
    snprintf(job->end.hang, sizeof job->end.hang, "%s", hang.text);
    job->end.hang_rank = hang.rank;
    if (hang.is_known)
        worker_signal(job, job->end.start->transport == PD_TRANSPORT_LOCAL ? 0 : hang.rank, SIGKILL);
    else
        job_kill(job);
}

/* Ranks that wait for ranks of a lost host are told by no one, as long as mpirun does not notice. */
static void hosts_look(struct job *job)
{
    const struct pd_launch_requests *requests = job->requests;
    if (!requests->has_silent || job->end.silent[0]) return;
    if (!requests->has_silent(requests->context, job->end.silent, sizeof job->end.silent)) return;
    pd_log_warn(MODULE, "%s: neither its kernel nor launch.agent answers: ending this start", job->end.silent);
    job_kill(job);
}

/* When a rank fails, mpirun sleeps a second or two to let the others end, even if they have. SIGCHLD wakes it harmlessly.
 * Asking it to end is worse: version 4 then often crashes, with a page of addresses. If it takes much longer it is stuck. */
static void starter_look(struct job *job)
{
    bool is_alone = job->end.start->transport == PD_TRANSPORT_MPI && all_are_here(job);
    for (uint32_t r = 0; is_alone && r < job->end.count; r++)
        is_alone = job->seen[r].is_gone;
    uint64_t now = pd_clock_monotonic_ns(NULL);
    if (is_alone) kill(job->end.starter, SIGCHLD);
    if (!is_alone) {
        job->alone_since_ns = 0;
    } else if (job->alone_since_ns == 0) {
        job->alone_since_ns = now;
    } else if (now - job->alone_since_ns > STARTER_ALONE_NS) {
        pd_log(PD_LOG_WARN, MODULE, "%s does not end although all its ranks have: ending it", job->end.starter_name);
        job->alone_since_ns = now;
        job_kill(job);
    }
}

/* A process end wakes the launcher at once, so that it knows which died first. For other hosts and old kernels it checks
 * every tick. */
static void wait_for_news(struct job *job)
{
    nfds_t count = 0;
    job->polls[count++] = (struct pollfd){.fd = job->requests->signals, .events = POLLIN};
    for (uint32_t r = 0; r < job->end.count; r++)
        if (job->workers[r].pidfd >= 0 && job->seen[r].has_begun && !job->seen[r].is_gone)
            job->polls[count++] = (struct pollfd){.fd = job->workers[r].pidfd, .events = POLLIN};
    job->polls[count++] = (struct pollfd){.fd = pd_launch_receiver_fd(job->receiver), .events = POLLIN};
    (void)poll(job->polls, count, TICK_MS);
    pd_launch_requests_poll(job->requests, 0);
}

/* Forwards requests to ranks that began later. */
static void requests_pass(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    job->has_joined = all_are_ready(job);
    workers_tell(job, wants_leave(job));
    pthread_mutex_unlock(&job->lock);
}

/* Until the starter has ended; its wait status. */
static int job_watch(struct job *job)
{
    for (int status;;) {
        wait_for_news(job);
        workers_look(job); /* before the slower search for others */
        pd_launch_receiver_look(job->receiver);
        ranks_note(job); /* ranks have their answer and train, even if run.dir hangs */
        run_dir_wait(job);
        run_dir_look(job);
        growth_look(job);
        if (job->requests->wants_abort)
            job_abort(job);
        else
            requests_pass(job);
        opening_look(job);
        joining_look(job);
        stopped_look(job);
        grace_look(job);
        hang_look(job);
        hosts_look(job);
        starter_look(job);
        pthread_mutex_lock(&job->lock);
        const pid_t got = waitpid(job->end.starter, &status, WNOHANG);
        job->has_starter_ended = got == job->end.starter;
        pthread_mutex_unlock(&job->lock);
        if (got == job->end.starter) return status;
        if (got < 0 && errno != EINTR) return 0;
    }
}

static void job_close(struct job *job)
{
    for (uint32_t r = 0; job->workers && r < job->end.count; r++)
        if (job->workers[r].pidfd >= 0) close(job->workers[r].pidfd);
    free(job->workers);
    free(job->seen);
    free(job->polls);
    pd_launch_receiver_free(job->receiver);
    pd_launch_watch_free(job->watch);
}

/* A worker of this host that is not gone, after another look. */
static uint32_t find_left(struct job *job)
{
    pd_launch_receiver_look(job->receiver);
    workers_look(job);
    for (uint32_t r = 0; r < job->end.count; r++)
        if (job->seen[r].has_begun && job->seen[r].is_here && !job->seen[r].is_gone) return r;
    return job->end.count;
}

static void describe_left(const struct job *job, uint32_t r, char *ret_text, size_t bytes)
{
    char kernel[240] = "";
    pd_process_kernel_place(job->seen[r].process, kernel, sizeof kernel);
    snprintf(ret_text, bytes, "rank %u (process %d) was killed and does not end: it waits in the kernel%s%s", r,
             job->seen[r].process, kernel[0] ? ", at " : "", kernel);
}

/* The starter is gone: kill its remaining ranks on this host. A process that cannot be killed, because its storage or device
 * hangs, still has its files and GPU, so no other is started beside it. */
static pd_status job_sweep(struct job *job, struct pd_error *err)
{
    char text[400];
    uint32_t left;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    uint64_t said = 0;
    kill(-job->end.starter, SIGKILL);
    while ((left = find_left(job)) < job->end.count) {
        const uint64_t now = pd_clock_monotonic_ns(NULL);
        for (uint32_t r = 0; r < job->end.count; r++)
            worker_signal(job, r, SIGKILL);
        pd_launch_requests_poll(job->requests, 10);
        if (now - began < UNKILLED_NS) continue;
        describe_left(job, left, text, sizeof text);
        if (job->requests->wants_leave || job->requests->wants_abort)
            PD_FAIL(err, PD_PEER_LOST, "%s: left without it; run the same command again when it is gone", text);
        if (!said || now - said > UNKILLED_SAY_NS) pd_log_warn(MODULE, "%s: no other is started before it is gone", text);
        said = now;
    }
    return PD_OK;
}

static pd_status job_listen(struct job *job, struct pd_error *err)
{
    const struct pd_start *start = job->end.start;
    const bool is_mpi = start->transport == PD_TRANSPORT_MPI;
    const char *addresses = !is_mpi ? "" : start->hosts ? start->addresses : pd_starter_may_reach_others() ? "*" : "";
    const struct pd_launch_receiver_options options = {.secret = start->secret,
                                                       .start = start->restart,
                                                       .addresses = addresses ? addresses : "",
                                                       .port = start->port,
                                                       .config_path = start->config_path,
                                                       .program = start->worker[0],
                                                       .table = job->said,
                                                       .begun = worker_begins,
                                                       .beat = heartbeat_hear,
                                                       .closed = connection_ends,
                                                       .reopened = connection_is_back,
                                                       .context = job};
    return pd_launch_receiver_open(&options, &job->receiver, err);
}

static pd_status job_init(struct job *job, struct pd_error *err)
{
    const struct pd_start *start = job->end.start;
    PD_TRY(read_grace(&job->grace_seconds, err));
    const uint32_t count = start->transport == PD_TRANSPORT_LOCAL ? 1 : start->ranks;
    PD_TRY(pd_rank_table_init(job->said, start->ranks, err));
    job->workers = calloc(count, sizeof *job->workers);
    job->seen = calloc(count, sizeof *job->seen);
    job->polls = calloc(2 + (size_t)count, sizeof *job->polls);
    if (!job->workers || !job->seen || !job->polls)
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a launch of %u ranks", start->ranks);
    job->end.count = count;
    job->end.processes = job->seen;
    for (uint32_t r = 0; r < count; r++)
        job->workers[r] = (struct worker){.pidfd = -1, .saves_told = job->requests->saves};
    job->starter_saves_told = job->requests->saves;
    PD_TRY(pd_launch_watch_new(start->ranks, start->hang_seconds, start->open_seconds, &job->watch, err));
    PD_ON_STORAGE(run_dir_begin(job));
    return job_listen(job, err);
}

/* Counts kills at a memory limit; ranks here are in the launcher's cgroup. */
static void oom_look(struct job *job)
{
    struct pd_memory_limit limit;
    job->end.oom_kills = pd_memory_oom_kills(NULL) - job->oom_kills;
    if (!pd_memory_limit_read(NULL, &limit)) return;
    snprintf(job->end.memory_limit, sizeof job->end.memory_limit, "%s (%.200s)",
             pd_bytes_text((double)limit.most_bytes).text, limit.most_who);
}

static pd_status job_run(struct job *job, const struct pd_starter_command *command, struct pd_launch_verdict *ret_verdict,
                         struct pd_error *err)
{
    PD_TRY(job_init(job, err));
    job->start_ns = job->stuck_look_ns = pd_clock_monotonic_ns(NULL);
    job->oom_kills = pd_memory_oom_kills(NULL);
    PD_TRY(pd_starter_spawn(job->end.start, command, pd_launch_receiver_addresses(job->receiver), &job->end.starter, err));
    signals_begin(job);
    job->end.status = job_watch(job);
    signals_end(job);
    pd_launch_receiver_look(job->receiver);
    workers_look(job);
    run_dir_look(job);
    oom_look(job);
    job->end.is_left_opening |= job->requests->wants_leave && !all_are_ready(job);
    pd_launch_judge(&job->end, ret_verdict);
    PD_TRY(pd_starter_end_step(job->end.start, job->said, job->requests, err));
    return job_sweep(job, err);
}

pd_status pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                            struct pd_rank_table *ret_said, struct pd_launch_verdict *ret_verdict, struct pd_error *err)
{
    struct pd_starter_command command;
    PD_TRY(pd_starter_check_limits(start, err));
    PD_TRY(pd_starter_command_make(start, &command, err));
    struct job job = {.end = {.start = start, .starter_name = command.name, .said = ret_said},
                      .requests = requests,
                      .said = ret_said,
                      .lock = PTHREAD_MUTEX_INITIALIZER};
    const pd_status st = job_run(&job, &command, ret_verdict, err);
    pd_rank_table_remove_memory(ret_said);
    run_dir_end(&job);
    job_close(&job);
    return st;
}
