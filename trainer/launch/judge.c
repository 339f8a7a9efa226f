#include "trainer/launch/judge.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define LOST_TOGETHER_NS UINT64_C(700000000) /* the starter ends the other ranks a second after the first is gone */

/* ---- conditions ---- */

/* Values for the sentence of a row. */
struct facts {
    const struct pd_launch_end *end;
    struct pd_launch_verdict *verdict;
    bool is_success, has_come_up;
    uint32_t rank;                /* whose report the sentence quotes */
    const struct pd_ended *ended; /* its report */
    pd_status code;               /* names_cause_by_code */
    char how[96];                 /* "killed by SIGKILL", "exit code 3" */
};

/* Starters return a rank's signal as 128 + number; before a rank has begun such a code is their own. */
static void describe_end(const struct facts *f, char *ret_text, size_t bytes)
{
    const int status = f->end->status;
    int number = WIFSIGNALED(status)                           ? WTERMSIG(status)
                 : f->has_come_up && WEXITSTATUS(status) > 128 ? WEXITSTATUS(status) - 128
                                                               : 0;
    const char *name = number ? sigabbrev_np(number) : NULL;
    if (name)
        snprintf(ret_text, bytes, "killed by SIG%s", name);
    else
        snprintf(ret_text, bytes, "exit code %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* The scheduler, a user or the kernel killed the starter: nothing in the request is wrong. */
static bool was_ended_from_outside(int status)
{
    if (!WIFSIGNALED(status)) return false;
    const int number = WTERMSIG(status);
    return number == SIGKILL || number == SIGTERM || number == SIGHUP || number == SIGINT;
}

static bool is_mpi(const struct facts *f)
{
    return f->end->start->transport == PD_TRANSPORT_MPI;
}

static const struct pd_ended *said(const struct facts *f, uint32_t rank)
{
    return f->end->said->ranks[rank].ended;
}

static bool is_without_a_word(const struct facts *f, uint32_t rank)
{
    const struct pd_launch_process *p = &f->end->processes[rank];
    return p->is_gone && !p->was_ended && !said(f, rank);
}

/* The first rank that ended without a report; count: none. */
static uint32_t first_lost(const struct facts *f)
{
    const struct pd_launch_end *end = f->end;
    uint32_t first = end->count;
    for (uint32_t r = 0; r < end->count; r++)
        if (is_without_a_word(f, r) && (first == end->count || end->processes[r].gone_ns < end->processes[first].gone_ns))
            first = r;
    return first;
}

/* Ranks that ended without a report about when the first did; the starter killed later ones. */
static void count_lost(const struct facts *f)
{
    const struct pd_launch_end *end = f->end;
    struct pd_launch_verdict *v = f->verdict;
    const uint32_t first = first_lost(f);
    if (first == end->count) return;
    v->lost_ranks[v->lost++] = first;
    for (uint32_t r = 0; r < end->count; r++) {
        const struct pd_launch_process *p = &end->processes[r];
        if (r == first || !is_without_a_word(f, r) || p->gone_ns - end->processes[first].gone_ns > LOST_TOGETHER_NS)
            continue;
        if (v->lost < PD_LAUNCH_LOST_NAMED) v->lost_ranks[v->lost] = r;
        v->lost++;
    }
}

static struct facts facts_of(const struct pd_launch_end *end, struct pd_launch_verdict *v)
{
    struct facts f = {.end = end, .verdict = v};
    const int status = end->status;
    const bool was_killed = !WIFEXITED(status) || (WEXITSTATUS(status) > 128 && WEXITSTATUS(status) != 128 + SIGXFSZ);
    for (uint32_t r = 0; r < end->count; r++)
        f.has_come_up |= end->processes[r].has_begun;
    v->has_begun = end->said->ready > 0;
    v->has_begun |= f.has_come_up && was_killed;
    f.is_success = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    v->was_cut_off = was_ended_from_outside(status);
    if (!f.is_success) count_lost(&f);
    describe_end(&f, f.how, sizeof f.how);
    return f;
}

/* ---- when a row holds ---- */

#define ONE(status) (1u << (status))
#define NOT_DONE (~ONE(PD_OK))
#define CAUSES (NOT_DONE & ~ONE(PD_PEER_LOST) & ~ONE(PD_STOPPED)) /* excludes what only follows from another rank */

/* The report of the lowest rank with one of the statuses. */
static bool find_ended(struct facts *f, uint32_t statuses)
{
    for (uint32_t r = 0; r < f->end->count; r++) {
        if (!said(f, r) || !(statuses & ONE(said(f, r)->status))) continue;
        f->rank = r;
        f->ended = said(f, r);
        return true;
    }
    return false;
}

static bool needs_hosts(struct facts *f)
{
    return find_ended(f, ONE(PD_HOSTS_AWAY));
}

/* The ranks inherit a limit of the address space: they would exceed it again. */
static bool is_memory_limited(void)
{
    struct rlimit space;
    return getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
}

static bool names_final_cause(struct facts *f)
{
    if (!find_ended(f, CAUSES)) return false;
    const pd_status st = f->ended->status;
    if (st == PD_NO_MEMORY) return is_memory_limited();
    return st != PD_DIVERGED && st != PD_BUG && st != PD_DEVICE_LOST;
}

static bool names_passing_cause(struct facts *f)
{
    return find_ended(f, CAUSES);
}

/* run.dir has what ranks need to restart. */
static bool is_directory_gone(struct facts *f)
{
    return f->end->is_run_dir_gone && (!f->is_success || find_ended(f, NOT_DONE));
}

static bool is_left_opening(struct facts *f)
{
    return f->end->is_left_opening;
}

static bool is_left_stopped(struct facts *f)
{
    return f->end->is_left_stopped;
}

/* Ranks that reported a save were only slow to end. */
static bool is_left_late(struct facts *f)
{
    return f->end->is_left_late && !find_ended(f, ONE(PD_STOPPED));
}

static bool is_begin_overdue(struct facts *f)
{
    return f->end->is_begin_overdue;
}

static bool is_join_overdue(struct facts *f)
{
    return f->end->is_join_overdue;
}

/* If run.dir is full a rank may not report: its exit code says what to do, its last line the cause. */
static bool names_cause_by_code(struct facts *f)
{
    static const pd_status finals[] = {PD_IO, PD_UNSUPPORTED, PD_CORRUPT};
    if (!WIFEXITED(f->end->status)) return false;
    for (size_t i = 0; i < sizeof finals / sizeof *finals; i++) {
        f->code = finals[i];
        if (pd_status_exit_code(finals[i]) == WEXITSTATUS(f->end->status)) return true;
    }
    return false;
}

/* Others report only that it did not come. */
static bool is_hung(struct facts *f)
{
    if (!f->end->hang[0]) return false;
    f->verdict->lost = 1;
    f->verdict->lost_ranks[0] = f->end->hang_rank;
    return true;
}

static bool is_host_silent(struct facts *f)
{
    return f->end->silent[0];
}

/* Its ranks die with it. If all had ended before, it was stuck and the launcher killed it. */
static bool is_starter_killed(struct facts *f)
{
    bool is_one_missing = false;
    for (uint32_t r = 0; r < f->end->count; r++)
        is_one_missing |= !said(f, r);
    return is_mpi(f) && f->verdict->was_cut_off && is_one_missing;
}

static bool is_worker_lost(struct facts *f)
{
    return !is_mpi(f) && f->verdict->lost;
}

/* A starter returns the code of the first rank it saw end. On a busy machine that may be one that left because of the lost
 * rank, so the code is not the lost rank's. */
static bool is_rank_lost_beside_another(struct facts *f)
{
    if (!f->verdict->lost || !WIFEXITED(f->end->status)) return false;
    for (uint32_t r = 0; r < f->end->count; r++)
        if (said(f, r) && pd_status_exit_code(said(f, r)->status) == WEXITSTATUS(f->end->status)) return true;
    return false;
}

static bool is_rank_lost(struct facts *f)
{
    return f->verdict->lost;
}

static bool has_left(struct facts *f)
{
    return find_ended(f, ONE(PD_STOPPED));
}

/* The rank missed by every rank that missed any: only they can tell, for other hosts. If they disagree, or it missed one of
 * them, the network is between them and no one is blamed. */
static uint32_t missed_by_all(const struct facts *f)
{
    uint32_t missed = PD_MESSAGE_NOBODY;
    for (uint32_t r = 0; r < f->end->count; r++) {
        const struct pd_ended *e = said(f, r);
        if (!e || e->status != PD_PEER_LOST || e->missed >= f->end->count || e->missed == missed) continue;
        if (missed != PD_MESSAGE_NOBODY) return PD_MESSAGE_NOBODY;
        missed = e->missed;
    }
    return missed == PD_MESSAGE_NOBODY || said(f, missed) ? PD_MESSAGE_NOBODY : missed;
}

static bool is_peer_missed(struct facts *f)
{
    if (!find_ended(f, ONE(PD_PEER_LOST))) return false;
    f->verdict->lost_ranks[0] = missed_by_all(f);
    f->verdict->lost = f->verdict->lost_ranks[0] != PD_MESSAGE_NOBODY;
    return f->verdict->lost;
}

/* A rank was stopped for a while, or a link was cut: all may be well again. */
static bool has_silent_peer(struct facts *f)
{
    return find_ended(f, ONE(PD_PEER_LOST));
}

/* The kernel's choice: the next start would be killed too. Ranks on other hosts have other limits. */
static bool is_out_of_memory(struct facts *f)
{
    const struct pd_launch_verdict *v = f->verdict;
    return f->end->oom_kills && v->lost && f->end->processes[v->lost_ranks[0]].is_here;
}

/* The starter itself, or a rank that had not begun. */
static bool is_starter_out_of_memory(struct facts *f)
{
    const int status = f->end->status;
    const bool was_killed = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 128 + SIGKILL;
    return f->end->oom_kills && was_killed && (is_starter_killed(f) || !f->verdict->lost);
}

static bool is_success(struct facts *f)
{
    return f->is_success;
}

static bool says_nothing(struct facts *f)
{
    return f->has_come_up;
}

static bool always(struct facts *f)
{
    (void)f;
    return true;
}

/* ---- the table: the first row that holds counts ---- */

enum { SAID = -1 };
#define NO_WORD "%S (process %Q) ended with %H and could not report why; see its last line above (run.dir: %D)"
#define DIRECTORY_GONE "%D was moved or deleted; put it back, then run this again"
#define LEFT_OPENING "asked to leave before the first step; there was nothing to save"
#define LEFT_STOPPED \
    "asked to leave while a rank was stopped (SIGSTOP), which cannot save: ended; the last checkpoint stands"
#define LEFT_LATE "asked to leave, and not all ranks had saved in time (PERDURE_GRACE_S): ended; the last checkpoint stands"
#define BEGIN_OVERDUE "%S (process %Q) did not start all ranks in restart.begin_seconds"
#define JOIN_OVERDUE "all ranks have begun, and have not joined one another (MPI_Init) in restart.join_seconds"
#define LIMIT_REACHED "the memory limit, %M, is reached; perdure plan shows what a rank needs, and what needs less"
#define OUT_OF_MEMORY "rank %R (process %P) was killed by the kernel: " LIMIT_REACHED
#define STARTER_KILLED "%S (process %Q) was %H, and its ranks with it"
#define WORKER_LOST "the worker (process %P) ended without a message: %H"
#define LOST_BESIDE "rank %R (process %P) ended without a message%O"
#define NO_REPORT "%S ended (%H) and no rank reported why"
#define NONE_BEGAN "%S ended (%H) before a rank had begun"
#define STARTER_OUT_OF_MEMORY "the kernel killed %S (process %Q) or what it had started: " LIMIT_REACHED

/* A cause named by a rank comes first: the other ends follow from it. Ranks that leave together end with 0 whatever they
 * report, so reports come before success.
 *   blame     RANKS: those in verdict->lost_ranks; if the same one is lost again without progress, the next start leaves it
 *             out and charges its host. NOBODY: the next start has the same size
 *   marks     NETWORK: the network may be the cause; a host that is cut off is then charged. OVERDUE: nothing is tried again if
 *             no rank ever joined. CUT_OFF: somebody killed the starter, which says nothing about the ranks; BY_US: it was
 *             this launcher. LOGGED: already logged, when it was seen
 *   sentence  %N the rank's report, %P the process and %R the rank that was lost first, %O the others lost with it, %S the
 *             starter and %Q its process, %H how it ended, %D the run's directory, %U what hung, %A hosts that do not
 *             answer, %M the memory limit */
enum blame { NOBODY, RANKS };
enum { NETWORK = 1, OVERDUE = 2, CUT_OFF = 4, BY_US = 8, LOGGED = 16 };
static const struct row {
    bool (*holds)(struct facts *);
    int status; /* SAID: the rank's own */
    enum blame blame;
    enum pd_launch_next next;
    unsigned marks;
    const char *sentence;
} rows[] = {
    // clang-format off
    {needs_hosts,                 SAID,         NOBODY, PD_LAUNCH_AWAIT, 0,                "%N"},
    {is_directory_gone,           PD_IO,        NOBODY, PD_LAUNCH_END,   0,                DIRECTORY_GONE},
    {names_final_cause,           SAID,         NOBODY, PD_LAUNCH_END,   0,                "%N"},
    {names_passing_cause,         SAID,         NOBODY, PD_LAUNCH_AGAIN, 0,                "%N"},
    {is_left_opening,             PD_STOPPED,   NOBODY, PD_LAUNCH_END,   0,                LEFT_OPENING},
    {is_left_stopped,             PD_STOPPED,   NOBODY, PD_LAUNCH_END,   0,                LEFT_STOPPED},
    {is_left_late,                PD_STOPPED,   NOBODY, PD_LAUNCH_END,   0,                LEFT_LATE},
    {is_begin_overdue,            PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, OVERDUE | BY_US,  BEGIN_OVERDUE},
    {is_join_overdue,             PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, NETWORK | BY_US,  JOIN_OVERDUE},
    {names_cause_by_code,         SAID,         NOBODY, PD_LAUNCH_END,   0,                NO_WORD},
    {is_hung,                     PD_PEER_LOST, RANKS,  PD_LAUNCH_AGAIN, NETWORK | LOGGED, "%U"},
    {is_host_silent,              PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, 0,                "no answer from %A"},
    {is_starter_out_of_memory,    PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, CUT_OFF,          STARTER_OUT_OF_MEMORY},
    {is_starter_killed,           PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, 0,                STARTER_KILLED},
    {is_out_of_memory,            PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, 0,                OUT_OF_MEMORY},
    {is_worker_lost,              PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, 0,                WORKER_LOST},
    {is_rank_lost_beside_another, PD_PEER_LOST, RANKS,  PD_LAUNCH_AGAIN, 0,                LOST_BESIDE},
    {is_rank_lost,                PD_PEER_LOST, RANKS,  PD_LAUNCH_AGAIN, 0,                "rank %R (process %P) died: %H%O"},
    {has_left,                    PD_STOPPED,   NOBODY, PD_LAUNCH_END,   0,                "%N"},
    {is_peer_missed,              PD_PEER_LOST, RANKS,  PD_LAUNCH_AGAIN, NETWORK,          "%N"},
    {has_silent_peer,             PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, NETWORK,          "%N"},
    {is_success,                  PD_OK,        NOBODY, PD_LAUNCH_END,   0,                ""},
    {says_nothing,                PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, 0,                NO_REPORT},
    {always,                      PD_PEER_LOST, NOBODY, PD_LAUNCH_AGAIN, 0,                NONE_BEGAN},
    // clang-format on
};

/* ---- sentences ---- */

/* Ranks that agreed on a failure, and threads of one process, have put the rank in front already. */
static void add_said(const struct facts *f, FILE *out)
{
    if (is_mpi(f) && !pd_error_names_rank(f->ended->message)) fprintf(out, "rank %u: ", f->rank);
    fprintf(out, "%.900s", f->ended->message);
}

static void add_word(const struct facts *f, char letter, FILE *out)
{
    const uint32_t named = f->verdict->lost_ranks[0];
    const struct pd_launch_process *first = &f->end->processes[named < f->end->count ? named : 0];
    const uint32_t lost = f->verdict->lost;
    switch (letter) {
    case 'N':
        add_said(f, out);
        return;
    case 'P':
        fprintf(out, "%d", first->process ? first->process : f->end->starter);
        return;
    case 'R':
        fprintf(out, "%u", f->verdict->lost_ranks[0]);
        return;
    case 'O':
        if (lost > 1) fprintf(out, ", and %u more %s with it", lost - 1, lost == 2 ? "rank" : "ranks");
        return;
    case 'S':
        fputs(f->end->starter_name, out);
        return;
    case 'Q':
        fprintf(out, "%d", f->end->starter);
        return;
    case 'H':
        fputs(f->how, out);
        return;
    case 'U':
        fprintf(out, "%.600s", f->end->hang);
        return;
    case 'M':
        fputs(f->end->memory_limit, out);
        return;
    case 'A':
        fprintf(out, "%s", f->end->silent);
        return;
    case 'D':
        fprintf(out, "run.dir (%s)", f->end->start->run_dir);
        return;
    default:
        PD_CHECK(!"a letter of the table");
    }
}

static void write_sentence(const struct facts *f, const char *sentence, char *ret_text, size_t bytes)
{
    FILE *out = fmemopen(ret_text, bytes, "w");
    ret_text[0] = '\0';
    if (!out) return;
    for (const char *p = sentence; *p; p++) {
        if (*p == '%')
            add_word(f, *++p, out);
        else
            fputc(*p, out);
    }
    (void)fclose(out); /* truncated if too long, like snprintf */
    ret_text[bytes - 1] = '\0';
}

void pd_launch_judge(const struct pd_launch_end *end, struct pd_launch_verdict *ret_verdict)
{
    *ret_verdict = (struct pd_launch_verdict){.status = PD_OK};
    struct facts f = facts_of(end, ret_verdict);
    const struct row *row = rows;
    while (!row->holds(&f))
        row++;
    ret_verdict->status = row->status != SAID ? (pd_status)row->status : f.ended ? f.ended->status : f.code;
    if (row->holds == names_cause_by_code) ret_verdict->status = f.code;
    ret_verdict->next = row->next;
    ret_verdict->may_be_network = row->marks & NETWORK;
    ret_verdict->is_overdue = row->marks & OVERDUE;
    ret_verdict->is_logged = row->marks & LOGGED;
    if (row->marks & (CUT_OFF | BY_US)) ret_verdict->was_cut_off = row->marks & CUT_OFF;
    if (row->blame == NOBODY) ret_verdict->lost = 0;
    write_sentence(&f, row->sentence, ret_verdict->message, sizeof ret_verdict->message);
}
