#include "trainer/launch/job.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/process.h"
#include "trainer/launch/receiver.h"
#include "trainer/launch/watch.h"
#include "trainer/notes/note.h"
#include "trainer/run/events.h"
#include "trainer/run/launched.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
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
#define WATCH_NS UINT64_C(200000000)
#define STARTER_ALONE_NS UINT64_C(10000000000)
#define LEAVE_OPENING_NS UINT64_C(5000000000)
#define LEAVE_STOPPED_NS UINT64_C(8000000000)
#define JOIN_STEP_NS UINT64_C(1000000000)
#define WORD_NS UINT64_C(2000000000) /* at least; relays say four times as many */
#define BEGIN_WARN_NS UINT64_C(30000000000)

struct worker {
    int pidfd; /* -1: not begun, elsewhere, or gone */
    bool is_told_to_leave;
    uint32_t saves_told;
    uint64_t beat_step; /* of a rank on another host: the step at its last beat */
};

struct job {
    struct pd_launch_end end; /* what the verdict is made from; status: when the starter has ended */
    struct pd_launch_requests *requests;
    struct pd_launch_process *seen;      /* (end.count), which end.processes names */
    struct worker *workers;              /* (end.count) what they were told, and how they are reached */
    bool *has_note;                      /* (end.count) scratch of workers_discover */
    uint32_t begun;                      /* of seen */
    struct pollfd *polls;                /* signals, processes that have not ended, the socket */
    struct pd_launch_watch *watch;       /* NULL: nobody looks for hangs */
    struct pd_launch_receiver *receiver; /* NULL: notes of other hosts are files */
    bool is_unreached_told, is_silence_told;
    uint64_t watched_ns, heard_ns;
    struct stat run_dir;   /* when this start began */
    bool is_below_run_dir; /* the directory of this launch, which nobody removes who does not remove run.dir */
    bool is_begin_warned;
    double grace_seconds;        /* from leave_ns until what is left is ended */
    uint64_t start_ns, leave_ns; /* leave_ns: when ranks were asked to leave; 0: they were not */
    bool is_starter_told_to_leave;
    uint32_t starter_saves_told;
    uint64_t stopped_since_ns; /* asked to leave, and some worker of this host is stopped; 0: none is */
    uint64_t starter_ended_ns;
    bool is_loss_told;
    uint64_t joining_ns, joined_look_ns; /* how long all have begun and not joined; when that was looked at last */
    uint64_t alone_since_ns;             /* all workers of this host are gone and the starter is not; 0 */
};

void pd_launch_requests_poll(struct pd_launch_requests *requests, int timeout_ms)
{
    struct pollfd poll_one = {.fd = requests->signals, .events = POLLIN};
    if (poll(&poll_one, 1, timeout_ms) <= 0) return;
    struct signalfd_siginfo info;
    while (read(requests->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == SIGCHLD) continue;
        if (number == SIGUSR2) {
            requests->saves++;
            pd_log(PD_LOG_INFO, MODULE, "SIGUSR2: saving and going on");
            continue;
        }
        if (number == SIGINT && ++requests->interrupts > 1) {
            requests->wants_abort = true;
            pd_log(PD_LOG_WARN, MODULE, "second SIGINT: ending the ranks now, without saving");
            continue;
        }
        if (!requests->wants_leave)
            pd_log(PD_LOG_INFO, MODULE, "SIG%s: saving and leaving%s", sigabbrev_np(number),
                   number == SIGINT ? "; once more ends without saving" : "");
        requests->wants_leave = true;
    }
}

/* ---- watching ---- */

static void mark_gone(struct pd_launch_process *seen)
{
    seen->is_gone = true;
    seen->gone_ns = pd_clock_monotonic_ns(NULL);
}

static void watch_add(struct job *job, uint32_t process, const struct pd_note_begun *note)
{
    const struct pd_start *start = job->end.start;
    const uint32_t ranks = start->transport == PD_TRANSPORT_LOCAL ? start->ranks : 1;
    const struct pd_pulse *pulses = note->pulse < 0 ? NULL : pd_pulse_map(note->process, note->pulse, ranks);
    if (job->watch) pd_launch_watch_add(job->watch, process, ranks, note->process, pulses);
}

static bool has_socket(const struct job *job, uint32_t rank)
{
    return job->receiver && pd_launch_receiver_has(job->receiver, rank);
}

/* Its note is there, and did not come over the socket. */
static void unreached_tell(struct job *job, uint32_t rank)
{
    if (!job->receiver || job->is_unreached_told || has_socket(job, rank)) return;
    job->is_unreached_told = true;
    pd_log_warn(MODULE,
                "rank %u, on another host, does not reach this launcher at %s: what ranks there say goes through files in "
                "run.dir, and later; a packet filter has to let that port through (launch.port=N names one)",
                rank, pd_launch_receiver_addresses(job->receiver));
}

static void workers_discover(struct job *job)
{
    const char *dir = job->end.start->dir;
    if (job->begun == job->end.count || !pd_note_find(dir, PD_NOTE_BEGUN, job->end.count, job->has_note)) return;
    for (uint32_t r = 0; r < job->end.count; r++) {
        struct pd_launch_process *seen = &job->seen[r];
        struct pd_note_begun note;
        if (!job->has_note[r] || seen->has_begun || !pd_note_read_process(dir, PD_NOTE_BEGUN, r, &note)) continue;
        job->begun++;
        if (job->workers[r].pidfd >= 0) close(job->workers[r].pidfd); /* it was stopped before it could say so */
        job->workers[r].pidfd = -1;
        *seen = (struct pd_launch_process){.process = note.process, .has_begun = true, .is_here = note.is_here};
        if (!note.is_here) unreached_tell(job, r);
        if (!note.is_here) continue;
        watch_add(job, r, &note);
        job->workers[r].pidfd = (int)syscall(SYS_pidfd_open, note.process, 0);
        if (job->workers[r].pidfd < 0 && errno == ESRCH) mark_gone(seen);
    }
}

static bool is_not_begun(const void *context, uint32_t rank)
{
    const struct job *job = context;
    return rank < job->end.count && !job->seen[rank].has_begun && job->workers[rank].pidfd < 0;
}

/* It cannot say that it has begun, and would not hear its starter's end. */
static void stopped_discover(struct job *job)
{
    int process;
    uint32_t r;
    if (job->begun == job->end.count || job->end.start->transport != PD_TRANSPORT_MPI) return;
    if (!pd_launch_find_stopped(job->end.starter, is_not_begun, job, &process, &r)) return;
    job->workers[r].pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    if (job->workers[r].pidfd < 0) return;
    job->seen[r] = (struct pd_launch_process){.process = process, .is_here = true};
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

/* One of the reasons why ranks save and leave. */
static bool wants_leave(const struct job *job)
{
    return job->requests->wants_leave || job->requests->wants_regroup || job->end.is_run_dir_gone;
}

/* A rank that misses another says so before that one's host does: whoever is asked then has answered when all have ended. */
static void lost_tell(struct job *job, uint32_t rank)
{
    struct pd_note_ended note;
    const struct pd_launch_requests *requests = job->requests;
    const bool has_note = pd_note_read_ended(job->end.start->dir, rank, &note);
    if (has_note && note.status != PD_PEER_LOST) return;
    if (!has_note)
        pd_log(PD_LOG_DEBUG, MODULE, "rank %u (process %d) is gone without a word", rank, job->seen[rank].process);
    if (requests->has_lost && !job->is_loss_told && !wants_leave(job)) requests->has_lost(requests->context);
    job->is_loss_told = true;
}

static void workers_look(struct job *job)
{
    for (uint32_t r = 0; r < job->end.count; r++) {
        struct pd_launch_process *seen = &job->seen[r];
        if (!seen->has_begun || !seen->is_here || seen->is_gone || !worker_has_ended(job, r)) continue;
        mark_gone(seen);
        if (job->end.start->transport == PD_TRANSPORT_MPI) lost_tell(job, r);
    }
}

static bool all_are_ready(const struct job *job)
{
    return pd_note_find(job->end.start->dir, PD_NOTE_READY, job->end.count, NULL) > 0; /* joining is collective */
}

static bool all_are_here(const struct job *job)
{
    for (uint32_t r = 0; r < job->end.count; r++)
        if (!job->seen[r].has_begun || !job->seen[r].is_here) return false;
    return true;
}

/* The starter passes USR1 and USR2 on to ranks of all hosts; ranks of this one hear the same thing twice, which is once. */
static void starter_tell(struct job *job)
{
    const struct pd_launch_requests *requests = job->requests;
    const bool is_leaving = wants_leave(job) && !job->is_starter_told_to_leave;
    bool wants_save = requests->saves > job->starter_saves_told;
    if (job->end.start->transport != PD_TRANSPORT_MPI || (!is_leaving && !wants_save)) return;
    if (all_are_here(job) || !all_are_ready(job)) return;
    if (is_leaving) kill(job->end.starter, SIGUSR1);
    if (wants_save) kill(job->end.starter, SIGUSR2);
    job->is_starter_told_to_leave |= is_leaving;
    job->starter_saves_told = requests->saves;
}

static bool is_below(const char *dir, const struct stat *parent)
{
    struct stat above;
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/..", dir);
    return stat(path, &above) == 0 && above.st_dev == parent->st_dev && above.st_ino == parent->st_ino;
}

/* Ranks leave, and save where they can: what they report is lost, and a restart would find nothing to start from. */
static void run_dir_look(struct job *job)
{
    struct stat now = {0};
    const char *path = job->end.start->run_dir;
    if (!path || job->end.is_run_dir_gone) return;
    const bool is_found = stat(path, &now) == 0,
               is_same = now.st_dev == job->run_dir.st_dev && now.st_ino == job->run_dir.st_ino;
    const bool has_notes = !job->is_below_run_dir || access(job->end.start->dir, F_OK) == 0 || errno != ENOENT;
    if (has_notes && (is_found ? is_same : errno != ENOENT)) return;
    job->end.is_run_dir_gone = true;
    pd_log_error(MODULE, "run.dir (%s) was moved or deleted: saving where that is possible, and leaving", path);
}

static void workers_tell(struct job *job)
{
    const struct pd_launch_requests *requests = job->requests;
    const bool is_leaving = wants_leave(job);
    for (uint32_t r = 0; r < job->end.count; r++) {
        struct worker *worker = &job->workers[r];
        if (!job->seen[r].has_begun) continue;
        if (requests->saves > worker->saves_told) worker_signal(job, r, SIGUSR2);
        worker->saves_told = requests->saves;
        if (is_leaving && !worker->is_told_to_leave) worker_signal(job, r, SIGTERM);
        worker->is_told_to_leave |= is_leaving;
    }
    starter_tell(job);
}

static void job_kill(struct job *job)
{
    kill(-job->end.starter, SIGKILL);
    for (uint32_t r = 0; r < job->end.count; r++)
        worker_signal(job, r, SIGKILL);
}

/* The starter is left to end by itself when its ranks are gone, since it has files of its own to remove. */
static void job_abort(struct job *job)
{
    bool has_begun = false;
    for (uint32_t r = 0; r < job->end.count; r++) {
        has_begun |= job->seen[r].has_begun;
        worker_signal(job, r, SIGKILL);
    }
    if (!has_begun || job->end.start->transport == PD_TRANSPORT_LOCAL) job_kill(job);
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
    if (pd_note_has_mark(job->end.start->dir, PD_NOTE_OPENING, 0) || !requests->has_grown(requests->context)) return;
    requests->wants_regroup = true;
    pd_log_info(MODULE, "hosts are there for more ranks (launch.grow: now): saving, and starting again with them");
}

/* Ranks that open look at signals late, or wait for one that never comes. Before the first step there is nothing to save: they
 * have some seconds to leave by themselves. */
static void opening_look(struct job *job)
{
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    const bool has_begun = has_any_begun(job);
    const double seconds = job->end.start->begin_seconds;
    const bool is_overdue = seconds > 0 && (double)(now - job->start_ns) > seconds * 1e9;
    if (job->requests->wants_leave && !job->leave_ns) job->leave_ns = now;
    if (job->leave_ns && now - job->leave_ns > LEAVE_OPENING_NS &&
        (!has_begun || pd_note_has_mark(job->end.start->dir, PD_NOTE_OPENING, 0)))
        job->end.is_left_opening = true;
    if (is_overdue && job->begun < job->end.count) /* and rank 0 waits for who has not begun */
        job->end.is_begin_overdue = !has_begun || pd_note_has_mark(job->end.start->dir, PD_NOTE_OPENING, 0);
    if (job->end.is_left_opening || job->end.is_begin_overdue) {
        job_kill(job);
    } else if (!has_begun && !job->is_begin_warned && now - job->start_ns > BEGIN_WARN_NS) {
        job->is_begin_warned = true;
        pd_log_warn(MODULE, "%s has started no rank yet; it is given %.0f s", job->end.starter_name, seconds);
    }
}

/* Where packets between hosts are dropped MPI_Init does not end. What is suspended, the launcher too, is not late. */
static void joining_look(struct job *job)
{
    const double seconds = job->end.start->begin_seconds;
    const uint64_t now = pd_clock_monotonic_ns(NULL), since = now - job->joined_look_ns;
    bool is_other = job->begun < job->end.count || job->end.start->transport != PD_TRANSPORT_MPI || job->end.is_join_overdue;
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

/* One that somebody stopped hears no signal but the last, and those that wait for it do not end either. How long a save may
 * take is nobody's guess, but a stopped process does not save. */
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

/* What takes the machine away does not wait: a save that is not through by then would be cut off without a word. */
static void grace_look(struct job *job)
{
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (!job->leave_ns || job->end.is_left_late || (double)(now - job->leave_ns) <= job->grace_seconds * 1e9) return;
    job->end.is_left_late = true;
    job_kill(job);
}

/* PERDURE_GRACE_S is the batch system's, not the run's: it is no key of the configuration. */
static pd_status read_grace(double *ret_seconds, struct pd_error *err)
{
    const char *given = getenv(PD_LAUNCH_ENV_GRACE), *text = given ? given : PD_LAUNCH_GRACE_SECONDS;
    if (pd_parse_double(text, ret_seconds)) return PD_OK;
    PD_FAIL(err, PD_USAGE,
            PD_LAUNCH_ENV_GRACE "=%s is no number of seconds; set it to the time between TERM and KILL, less a few", text);
}

/* People who look on see steps by the times of notes. */
static void word_hear(void *context, uint32_t rank, const struct pd_wire_word *word)
{
    struct job *job = context;
    if (job->watch) pd_launch_watch_hear(job->watch, rank, word, WORD_NS, pd_clock_monotonic_ns(NULL));
    if (word->pulse.step > job->workers[rank].beat_step) pd_note_beat(job->end.start->dir, rank);
    job->workers[rank].beat_step = word->pulse.step;
}

/* Ranks of other hosts, whose memory is not seen here, and from where the socket is not reached. */
static void pulses_hear(struct job *job, uint64_t now)
{
    struct pd_wire_word word = {.process = 0};
    const uint64_t period_ns = pd_note_pulse_ns(job->end.count);
    if (now - job->heard_ns < period_ns / 2) return;
    job->heard_ns = now;
    for (uint32_t r = 0; r < job->end.count; r++)
        if (job->seen[r].has_begun && !job->seen[r].is_here && !has_socket(job, r) &&
            pd_note_read_pulse(job->end.start->dir, r, &word.pulse))
            pd_launch_watch_hear(job->watch, r, &word, period_ns, now);
}

/* It has lost its relay alone: ranks there go on. */
static void silence_tell(struct job *job)
{
    const char *host = job->is_silence_told ? NULL : pd_launch_watch_silent_host(job->watch);
    if (!host) return;
    job->is_silence_told = true;
    pd_log_warn(
        MODULE,
        "host %s says nothing any more, and others go on: its relay is gone, or what it sends is dropped; until the next "
        "start a rank that hangs there is ended without a word of where it is",
        host);
}

/* A rank that holds up the others is ended, and the start with it. */
static void hang_look(struct job *job)
{
    struct pd_launch_hang hang;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (!job->watch || job->end.hang[0] || now - job->watched_ns < WATCH_NS) return;
    job->watched_ns = now;
    pulses_hear(job, now);
    stopped_discover(job);
    const bool is_hung = pd_launch_watch_look(job->watch, now, &hang);
    silence_tell(job);
    if (!is_hung) return;
    if (hang.is_storage) {
        pd_log_warn(MODULE, "%s. Its storage is slow or stuck: the rank is waited for", hang.text);
        return;
    }
    pd_log_warn(MODULE, "%s: ending it", hang.text);
    snprintf(job->end.hang, sizeof job->end.hang, "%s", hang.text);
    job->end.hang_rank = hang.rank;
    job->end.is_hang_here = hang.is_known;
    if (hang.is_known)
        worker_signal(job, job->end.start->transport == PD_TRANSPORT_LOCAL ? 0 : hang.rank, SIGKILL);
    else
        job_kill(job);
}

/* Ranks that wait for those of a host that is gone hear of it from nobody, for as long as mpirun does not. */
static void hosts_look(struct job *job)
{
    const struct pd_launch_requests *requests = job->requests;
    if (!requests->has_silent || job->end.silent[0]) return;
    if (!requests->has_silent(requests->context, job->end.silent, sizeof job->end.silent)) return;
    pd_log_warn(MODULE, "%s: neither its kernel nor launch.agent answers: ending this start", job->end.silent);
    job_kill(job);
}

/* When a rank fails, mpirun sleeps for a second or two, so that the others may end, even if they have: SIGCHLD, which says
 * nothing that it does not see for itself, wakes it. It is not told to end: version 4 then often crashes on its way out, with
 * a page of addresses. One that takes much longer is stuck. */
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

/* The end of a process wakes the launcher at once, so that who died first is known. Elsewhere and on old kernels it looks
 * at every tick. */
static void wait_for_news(struct job *job)
{
    nfds_t count = 0;
    job->polls[count++] = (struct pollfd){.fd = job->requests->signals, .events = POLLIN};
    for (uint32_t r = 0; r < job->end.count; r++)
        if (job->workers[r].pidfd >= 0 && job->seen[r].has_begun && !job->seen[r].is_gone)
            job->polls[count++] = (struct pollfd){.fd = job->workers[r].pidfd, .events = POLLIN};
    if (job->receiver) count += pd_launch_receiver_polls(job->receiver, job->polls + count);
    (void)poll(job->polls, count, TICK_MS);
    pd_launch_requests_poll(job->requests, 0);
}

/* Until the starter has ended; its wait status. */
static int job_watch(struct job *job)
{
    for (int status;;) {
        wait_for_news(job);
        workers_look(job); /* before others are looked for, which takes longer */
        if (job->receiver) pd_launch_receiver_look(job->receiver);
        workers_discover(job);
        run_dir_look(job);
        growth_look(job);
        if (job->requests->wants_abort)
            job_abort(job);
        else
            workers_tell(job);
        opening_look(job);
        joining_look(job);
        stopped_look(job);
        grace_look(job);
        hang_look(job);
        hosts_look(job);
        starter_look(job);
        pid_t got = waitpid(job->end.starter, &status, WNOHANG);
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
    free(job->has_note);
    pd_launch_receiver_free(job->receiver);
    pd_launch_watch_free(job->watch);
}

/* The starter is gone: what is left of its ranks on this host goes too, and is waited for. */
static void job_sweep(struct job *job)
{
    kill(-job->end.starter, SIGKILL);
    for (int tries = 0; tries < 200; tries++) {
        bool is_left = false;
        workers_discover(job);
        workers_look(job);
        for (uint32_t r = 0; r < job->end.count; r++) {
            const struct pd_launch_process *seen = &job->seen[r];
            is_left |= seen->has_begun && seen->is_here && !seen->is_gone;
            worker_signal(job, r, SIGKILL);
        }
        if (!is_left) return;
        pd_clock_sleep_ns(NULL, 10000000);
    }
}

/* After the sweep. */
static void times_set(const struct job *job, struct pd_launch_verdict *verdict)
{
    verdict->stepped_ns = pd_launch_watch_stepped_ns(job->watch);
    verdict->known_ns = job->starter_ended_ns;
    for (uint32_t r = 0; r < job->end.count; r++)
        if (job->seen[r].is_gone && job->seen[r].gone_ns < verdict->known_ns) verdict->known_ns = job->seen[r].gone_ns;
    verdict->ended_ns = pd_clock_monotonic_ns(NULL);
}

/* Without it notes of other hosts are files. */
static void listen_for_others(struct job *job)
{
    struct pd_error why;
    const struct pd_start *start = job->end.start;
    const struct pd_launch_receiver_options options = {.addresses = start->addresses,
                                                       .port = start->port,
                                                       .dir = start->dir,
                                                       .config_path = start->config_path,
                                                       .program = start->worker[0],
                                                       .ranks = job->end.count,
                                                       .hear = word_hear,
                                                       .context = job};
    if (start->addresses && start->addresses[0] && pd_launch_receiver_open(&options, &job->receiver, &why))
        pd_log_warn(MODULE, "%s; what ranks of other hosts say goes through files in run.dir", why.message);
}

pd_status pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                            struct pd_launch_verdict *ret_verdict, struct pd_error *err)
{
    struct pd_starter_command command;
    PD_TRY(pd_starter_check_limits(start, err));
    PD_TRY(pd_starter_command_make(start, &command, err));
    struct job job = {.end = {.start = start, .starter_name = command.name}, .requests = requests};
    PD_TRY(read_grace(&job.grace_seconds, err));
    job.end.count = start->transport == PD_TRANSPORT_LOCAL ? 1 : start->ranks;
    job.workers = calloc(job.end.count, sizeof *job.workers);
    job.seen = calloc(job.end.count, sizeof *job.seen);
    job.polls = calloc(1 + PD_LAUNCH_RECEIVER_POLLS + (size_t)job.end.count, sizeof *job.polls);
    job.has_note = calloc(job.end.count, sizeof *job.has_note);
    if (!job.workers || !job.seen || !job.polls || !job.has_note) {
        job.end.count = 0;
        job_close(&job);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a launch of %u ranks", start->ranks);
    }
    if (start->hang_seconds > 0) (void)!pd_launch_watch_new(start->ranks, start->hang_seconds, &job.watch, err);
    for (uint32_t r = 0; r < job.end.count; r++)
        job.workers[r] = (struct worker){.pidfd = -1, .saves_told = requests->saves};
    job.starter_saves_told = requests->saves;
    job.end.is_run_dir_gone = start->run_dir && stat(start->run_dir, &job.run_dir) != 0;
    job.is_below_run_dir = start->run_dir && is_below(start->dir, &job.run_dir);
    pd_note_clear(start->dir);
    job.end.processes = job.seen;
    job.start_ns = pd_clock_monotonic_ns(NULL);
    listen_for_others(&job);
    pd_status st = pd_starter_spawn(start, &command, job.receiver, &job.end.starter, err);
    if (!st) {
        job.end.status = job_watch(&job);
        job.starter_ended_ns = pd_clock_monotonic_ns(NULL);
        if (job.receiver) pd_launch_receiver_look(job.receiver);
        workers_discover(&job);
        workers_look(&job);
        run_dir_look(&job);
        pd_launch_judge(&job.end, ret_verdict);
        job_sweep(&job);
        times_set(&job, ret_verdict);
    }
    job_close(&job);
    return st;
}
