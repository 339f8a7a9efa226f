#include "trainer/launch/job.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "trainer/run/note.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODULE "launch"
#define TICK_MS 50
#define LOST_TOGETHER_NS UINT64_C(700000000) /* the starter ends the other ranks a second after the first is gone */
#define STARTER_ALONE_NS UINT64_C(10000000000)

struct worker {
    int32_t process;
    int pidfd; /* -1: not begun, elsewhere, or gone */
    bool has_begun, is_here, is_gone, is_told_to_leave;
    uint32_t saves_told;
    uint64_t gone_ns;
};

struct job {
    const struct pd_start *start;
    struct pd_launch_requests *requests;
    struct worker *workers; /* (processes) */
    uint32_t processes;     /* 1 for LOCAL, else ranks */
    const char *starter_name;
    pid_t starter;
    bool is_starter_told_to_leave;
    uint32_t starter_saves_told;
    uint64_t alone_since_ns; /* all workers of this host are gone and the starter is not; 0 */
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

/* ---- starting ---- */

static void child_fail(int report, int number)
{
    ssize_t ignored = write(report, &number, sizeof number);
    (void)ignored;
    _exit(127);
}

/* Own process group, so that a terminal's interrupt reaches the launcher alone; no terminal input, which would stop it. */
static void child_main(const struct pd_start *start, const struct pd_starter_command *command, pid_t launcher, int report)
{
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    signal(SIGTTOU, SIG_IGN); /* or a terminal with tostop would stop its output */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) child_fail(report, errno);
    if (getppid() != launcher) _exit(127);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int input = open("/dev/null", O_RDONLY);
    if (input >= 0) dup2(input, STDIN_FILENO);
    if (input > STDERR_FILENO) close(input);
    pd_starter_environment_set(start, (int)launcher);
    execvp(command->argv[0], command->argv);
    child_fail(report, errno);
}

static pd_status job_spawn(struct job *job, const struct pd_starter_command *command, struct pd_error *err)
{
    int report[2], number = 0;
    if (pipe2(report, O_CLOEXEC)) PD_FAIL_ERRNO(err, errno, "starting %s", command->name);
    pid_t launcher = getpid();
    fflush(NULL);
    job->starter = fork();
    if (job->starter == 0) child_main(job->start, command, launcher, report[1]);
    int fork_errno = errno;
    close(report[1]);
    if (job->starter < 0) {
        close(report[0]);
        PD_FAIL_ERRNO(err, fork_errno, "starting %s", command->name);
    }
    setpgid(job->starter, job->starter); /* whoever is first */
    ssize_t got = read(report[0], &number, sizeof number);
    close(report[0]);
    if (got != (ssize_t)sizeof number) return PD_OK;
    waitpid(job->starter, NULL, 0);
    PD_FAIL_ERRNO(err, number, "starting %s", command->argv[0]);
}

/* ---- watching ---- */

static void workers_discover(struct job *job)
{
    for (uint32_t r = 0; r < job->processes; r++) {
        struct worker *worker = &job->workers[r];
        struct pd_note_begun note;
        if (worker->has_begun || !pd_note_read_begun(job->start->dir, r, &note)) continue;
        worker->has_begun = true;
        worker->is_here = note.is_here;
        worker->process = note.process;
        if (note.is_here) worker->pidfd = (int)syscall(SYS_pidfd_open, note.process, 0);
        if (note.is_here && worker->pidfd < 0 && errno == ESRCH) worker->is_gone = true;
    }
}

/* Kernels before 5.3 have no pidfd. */
static bool worker_has_ended(const struct worker *worker)
{
    if (worker->pidfd < 0) return kill(worker->process, 0) != 0 && errno == ESRCH;
    struct pollfd poll_one = {.fd = worker->pidfd, .events = POLLIN};
    return poll(&poll_one, 1, 0) > 0;
}

static void worker_signal(const struct worker *worker, int number)
{
    if (!worker->is_here || worker->is_gone) return;
    if (worker->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, worker->pidfd, number, NULL, 0);
    else
        kill(worker->process, number);
}

static void workers_look(struct job *job)
{
    struct pd_note_ended note;
    for (uint32_t r = 0; r < job->processes; r++) {
        struct worker *worker = &job->workers[r];
        if (!worker->has_begun || !worker->is_here || worker->is_gone || !worker_has_ended(worker)) continue;
        worker->is_gone = true;
        worker->gone_ns = pd_clock_monotonic_ns(NULL);
        if (job->start->transport == PD_TRANSPORT_MPI && !pd_note_read_ended(job->start->dir, r, &note))
            pd_log(PD_LOG_DEBUG, MODULE, "rank %u (process %d) is gone without a word", r, worker->process);
    }
}

static bool all_are_ready(const struct job *job)
{
    for (uint32_t r = 0; r < job->processes; r++)
        if (pd_note_read_ready(job->start->dir, r)) return true; /* joining is collective */
    return false;
}

static bool all_are_here(const struct job *job)
{
    for (uint32_t r = 0; r < job->processes; r++)
        if (!job->workers[r].has_begun || !job->workers[r].is_here) return false;
    return true;
}

/* The starter passes USR1 and USR2 on to ranks of all hosts; ranks of this one hear the same thing twice, which is once. */
static void starter_tell(struct job *job)
{
    const struct pd_launch_requests *requests = job->requests;
    bool wants_leave = requests->wants_leave && !job->is_starter_told_to_leave;
    bool wants_save = requests->saves > job->starter_saves_told;
    if (job->start->transport != PD_TRANSPORT_MPI || (!wants_leave && !wants_save)) return;
    if (all_are_here(job) || !all_are_ready(job)) return;
    if (wants_leave) kill(job->starter, SIGUSR1);
    if (wants_save) kill(job->starter, SIGUSR2);
    job->is_starter_told_to_leave |= wants_leave;
    job->starter_saves_told = requests->saves;
}

static void workers_tell(struct job *job)
{
    const struct pd_launch_requests *requests = job->requests;
    for (uint32_t r = 0; r < job->processes; r++) {
        struct worker *worker = &job->workers[r];
        if (!worker->has_begun) continue;
        if (requests->saves > worker->saves_told) worker_signal(worker, SIGUSR2);
        worker->saves_told = requests->saves;
        if (requests->wants_leave && !worker->is_told_to_leave) worker_signal(worker, SIGTERM);
        worker->is_told_to_leave |= requests->wants_leave;
    }
    starter_tell(job);
}

static void job_kill(struct job *job)
{
    kill(-job->starter, SIGKILL);
    for (uint32_t r = 0; r < job->processes; r++)
        worker_signal(&job->workers[r], SIGKILL);
}

/* The starter is left to end by itself when its ranks are gone, since it has files of its own to remove. */
static void job_abort(struct job *job)
{
    bool has_begun = false;
    for (uint32_t r = 0; r < job->processes; r++) {
        has_begun |= job->workers[r].has_begun;
        worker_signal(&job->workers[r], SIGKILL);
    }
    if (!has_begun || job->start->transport == PD_TRANSPORT_LOCAL) job_kill(job);
}

/* When a rank fails, mpirun gives the others two seconds to end, even if they have. It is not told to hurry: version 4 then
 * often crashes on its way out, with a page of addresses. One that takes much longer is stuck. */
static void starter_look(struct job *job)
{
    bool is_alone = job->start->transport == PD_TRANSPORT_MPI && all_are_here(job);
    for (uint32_t r = 0; is_alone && r < job->processes; r++)
        is_alone = job->workers[r].is_gone;
    uint64_t now = pd_clock_monotonic_ns(NULL);
    if (!is_alone) {
        job->alone_since_ns = 0;
    } else if (job->alone_since_ns == 0) {
        job->alone_since_ns = now;
    } else if (now - job->alone_since_ns > STARTER_ALONE_NS) {
        pd_log(PD_LOG_WARN, MODULE, "%s does not end although all its ranks have: ending it", job->starter_name);
        job_kill(job);
    }
}

/* Until the starter has ended; its wait status. */
static int job_watch(struct job *job)
{
    for (int status;;) {
        pd_launch_requests_poll(job->requests, TICK_MS);
        workers_discover(job);
        workers_look(job);
        if (job->requests->wants_abort)
            job_abort(job);
        else
            workers_tell(job);
        starter_look(job);
        pid_t got = waitpid(job->starter, &status, WNOHANG);
        if (got == job->starter) return status;
        if (got < 0 && errno != EINTR) return 0;
    }
}

/* ---- judging ---- */

/* Starters give the signal of a rank as 128 + number; before a rank has begun such a code is their own. */
static void describe_end(int status, bool has_begun, char *ret_text, size_t bytes)
{
    int number = WIFSIGNALED(status)                      ? WTERMSIG(status)
                 : has_begun && WEXITSTATUS(status) > 128 ? WEXITSTATUS(status) - 128
                                                          : 0;
    const char *name = number ? sigabbrev_np(number) : NULL;
    if (name)
        snprintf(ret_text, bytes, "killed by SIG%s", name);
    else
        snprintf(ret_text, bytes, "exit code %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* The scheduler, a user or the kernel ended the starter: nothing that was asked for is wrong. */
static bool was_ended_from_outside(int status)
{
    if (!WIFSIGNALED(status)) return false;
    const int number = WTERMSIG(status);
    return number == SIGKILL || number == SIGTERM || number == SIGHUP || number == SIGINT;
}

static bool is_consequence(pd_status status)
{
    return status == PD_OK || status == PD_PEER_LOST || status == PD_STOPPED;
}

/* The lowest rank whose note has a status for which `wanted` holds. */
static bool find_note(const struct job *job, bool wants_cause, pd_status wanted, uint32_t *ret_rank,
                      struct pd_note_ended *ret_note)
{
    for (uint32_t r = 0; r < job->processes; r++) {
        struct pd_note_ended note;
        if (!pd_note_read_ended(job->start->dir, r, &note)) continue;
        if (wants_cause ? is_consequence(note.status) : note.status != wanted) continue;
        *ret_rank = r;
        *ret_note = note;
        return true;
    }
    return false;
}

/* Ranks that ended without a word about when the first of them did; later ones were ended by the starter. */
static uint32_t count_lost(const struct job *job, uint32_t *ret_first)
{
    uint32_t lost = 0;
    uint64_t first_ns = UINT64_MAX;
    struct pd_note_ended note;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t r = 0; r < job->processes; r++) {
            const struct worker *worker = &job->workers[r];
            if (!worker->is_gone || pd_note_read_ended(job->start->dir, r, &note)) continue;
            if (pass == 0 && worker->gone_ns < first_ns) {
                first_ns = worker->gone_ns;
                *ret_first = r;
            }
            if (pass == 1) lost += worker->gone_ns - first_ns <= LOST_TOGETHER_NS;
        }
    }
    return lost;
}

/* A starter gives the code of the rank that it saw end first, which on a busy machine is one that left because of the lost
 * one. */
static bool is_code_of_another(const struct job *job, int status)
{
    struct pd_note_ended note;
    for (uint32_t r = 0; WIFEXITED(status) && r < job->processes; r++)
        if (pd_note_read_ended(job->start->dir, r, &note) && pd_status_exit_code(note.status) == WEXITSTATUS(status))
            return true;
    return false;
}

static void say_lost(const struct job *job, uint32_t first, int status, const char *end, struct pd_launch_verdict *verdict)
{
    const struct worker *worker = &job->workers[first];
    char others[48] = "";
    if (verdict->lost > 1)
        snprintf(others, sizeof others, ", and %u more %s with it", verdict->lost - 1,
                 verdict->lost == 2 ? "rank" : "ranks");
    if (job->start->transport == PD_TRANSPORT_LOCAL)
        snprintf(verdict->message, sizeof verdict->message, "the worker (process %d) ended without a word: %s",
                 worker->process ? worker->process : (int)job->starter, end);
    else if (is_code_of_another(job, status))
        snprintf(verdict->message, sizeof verdict->message, "rank %u (process %d) ended without a word%s", first,
                 worker->process, others);
    else
        snprintf(verdict->message, sizeof verdict->message, "rank %u (process %d) died: %s%s", first, worker->process, end,
                 others);
}

/* Ranks that agreed upon a failure, and threads of one process, have put the rank in front themselves. */
static void say_note(const struct job *job, uint32_t rank, const struct pd_note_ended *note,
                     struct pd_launch_verdict *verdict)
{
    char who[24] = "";
    if (job->start->transport == PD_TRANSPORT_MPI && !pd_error_names_rank(note->message))
        snprintf(who, sizeof who, "rank %u: ", rank);
    snprintf(verdict->message, sizeof verdict->message, "%s%.900s", who, note->message);
}

/* In this order: a cause that a rank names; ranks that could not say anything; leaving; a silent peer; success. Ranks that
 * left together end with 0 whatever they have to say, so notes go before the starter's exit code. */
static void job_judge(const struct job *job, int status, struct pd_launch_verdict *verdict)
{
    struct pd_note_ended note = {.status = PD_OK};
    uint32_t rank = 0, first = 0;
    char end[96];
    *verdict = (struct pd_launch_verdict){.status = PD_OK};
    bool has_come_up = false;
    for (uint32_t r = 0; r < job->processes; r++) {
        has_come_up |= job->workers[r].has_begun;
        verdict->has_begun |= pd_note_read_ready(job->start->dir, r);
    }
    bool was_killed = !WIFEXITED(status) || (WEXITSTATUS(status) > 128 && WEXITSTATUS(status) != 128 + SIGXFSZ);
    verdict->has_begun |= has_come_up && was_killed;
    verdict->was_cut_off = was_ended_from_outside(status);
    describe_end(status, has_come_up, end, sizeof end);
    bool is_success = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!is_success) verdict->lost = count_lost(job, &first);
    if (find_note(job, true, PD_OK, &rank, &note)) {
        verdict->status = note.status;
        verdict->lost = 0;
        say_note(job, rank, &note, verdict);
    } else if (verdict->lost > 0) {
        verdict->status = PD_PEER_LOST;
        say_lost(job, first, status, end, verdict);
    } else if (find_note(job, false, PD_STOPPED, &rank, &note) || find_note(job, false, PD_PEER_LOST, &rank, &note)) {
        verdict->status = note.status;
        verdict->lost = note.status == PD_PEER_LOST;
        say_note(job, rank, &note, verdict);
    } else if (!is_success) {
        verdict->status = PD_PEER_LOST;
        snprintf(verdict->message, sizeof verdict->message, "%s ended (%s) %s", job->starter_name, end,
                 has_come_up ? "and no rank says why" : "before a rank had begun");
    }
}

static void job_close(struct job *job)
{
    for (uint32_t r = 0; r < job->processes; r++)
        if (job->workers[r].pidfd >= 0) close(job->workers[r].pidfd);
    free(job->workers);
}

/* The starter is gone: what is left of its ranks on this host goes too, and is waited for. */
static void job_sweep(struct job *job)
{
    kill(-job->starter, SIGKILL);
    for (int tries = 0; tries < 200; tries++) {
        bool is_left = false;
        workers_discover(job);
        workers_look(job);
        for (uint32_t r = 0; r < job->processes; r++) {
            const struct worker *worker = &job->workers[r];
            is_left |= worker->has_begun && worker->is_here && !worker->is_gone;
            worker_signal(worker, SIGKILL);
        }
        if (!is_left) return;
        pd_clock_sleep_ns(NULL, 10000000);
    }
}

pd_status pd_launch_job_run(const struct pd_start *start, struct pd_launch_requests *requests,
                            struct pd_launch_verdict *ret_verdict, struct pd_error *err)
{
    struct pd_starter_command command;
    PD_TRY(pd_starter_command_make(start, &command, err));
    struct job job = {.start = start, .requests = requests, .starter_name = command.name};
    job.processes = start->transport == PD_TRANSPORT_LOCAL ? 1 : start->ranks;
    job.workers = calloc(job.processes, sizeof *job.workers);
    if (!job.workers) PD_FAIL(err, PD_NO_MEMORY, "a launch of %u ranks", start->ranks);
    for (uint32_t r = 0; r < job.processes; r++)
        job.workers[r] = (struct worker){.pidfd = -1, .saves_told = requests->saves};
    job.starter_saves_told = requests->saves;
    pd_note_clear(start->dir);
    pd_status st = job_spawn(&job, &command, err);
    if (!st) {
        int status = job_watch(&job);
        workers_discover(&job);
        workers_look(&job);
        job_judge(&job, status, ret_verdict);
        job_sweep(&job);
    }
    job_close(&job);
    return st;
}
