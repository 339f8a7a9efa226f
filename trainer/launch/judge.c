#include "trainer/launch/judge.h"

#include "trainer/notes/note.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define LOST_TOGETHER_NS UINT64_C(700000000) /* the starter ends the other ranks a second after the first is gone */

/* ---- what happened ---- */

/* The note, the rank and the words that a row's sentence is made of. */
struct facts {
    const struct pd_launch_end *end;
    struct pd_launch_verdict *verdict;
    bool is_success, has_come_up;
    const uint8_t *said; /* (count) a status and 1, or 0: the rank left no note of its end */
    uint32_t rank;       /* of the note */
    struct pd_note_ended note;
    char how[96]; /* "killed by SIGKILL", "exit code 3" */
};

/* Starters give the signal of a rank as 128 + number; before a rank has begun such a code is their own. */
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

/* The scheduler, a user or the kernel ended the starter: nothing that was asked for is wrong. */
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

static bool is_without_a_word(const struct facts *f, uint32_t rank)
{
    return f->end->processes[rank].is_gone && !f->said[rank];
}

/* The first rank that ended without a word; count: none did. */
static uint32_t first_lost(const struct facts *f)
{
    const struct pd_launch_end *end = f->end;
    uint32_t first = end->count;
    for (uint32_t r = 0; r < end->count; r++)
        if (is_without_a_word(f, r) && (first == end->count || end->processes[r].gone_ns < end->processes[first].gone_ns))
            first = r;
    return first;
}

/* Ranks that ended without a word about when the first of them did; later ones were ended by the starter. */
static void count_lost(const struct facts *f)
{
    const struct pd_launch_end *end = f->end;
    struct pd_launch_verdict *v = f->verdict;
    const uint32_t first = first_lost(f);
    if (first == end->count) return;
    v->lost_ranks[v->lost++] = first;
    v->is_lost_here = end->processes[first].is_here;
    for (uint32_t r = 0; r < end->count; r++) {
        const struct pd_launch_process *p = &end->processes[r];
        if (r == first || !is_without_a_word(f, r) || p->gone_ns - end->processes[first].gone_ns > LOST_TOGETHER_NS)
            continue;
        if (v->lost < PD_LAUNCH_LOST_NAMED) v->lost_ranks[v->lost] = r;
        v->lost++;
        v->is_lost_here &= p->is_here;
    }
}

/* Each note once, and only those that are there: at the end of a start there may be one a rank, on a shared file system. */
static uint8_t *read_notes(const struct pd_launch_end *end)
{
    struct pd_note_ended note;
    uint8_t *said = calloc(end->count, sizeof *said);
    bool *has = calloc(end->count, sizeof *has);
    PD_CHECK(said && has);
    pd_note_find(end->start->dir, PD_NOTE_ENDED, end->count, has);
    for (uint32_t r = 0; r < end->count; r++)
        if (has[r] && pd_note_read_ended(end->start->dir, r, &note)) said[r] = (uint8_t)(note.status + 1);
    free(has);
    return said;
}

static struct facts facts_of(const struct pd_launch_end *end, const uint8_t *said, struct pd_launch_verdict *v)
{
    struct facts f = {.end = end, .verdict = v, .said = said};
    const int status = end->status;
    const bool was_killed = !WIFEXITED(status) || (WEXITSTATUS(status) > 128 && WEXITSTATUS(status) != 128 + SIGXFSZ);
    for (uint32_t r = 0; r < end->count; r++)
        f.has_come_up |= end->processes[r].has_begun;
    v->has_begun = pd_note_find(end->start->dir, PD_NOTE_READY, end->count, NULL) > 0;
    v->has_begun |= f.has_come_up && was_killed;
    f.is_success = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    v->was_cut_off = was_ended_from_outside(status);
    if (!f.is_success) count_lost(&f);
    describe_end(&f, f.how, sizeof f.how);
    return f;
}

/* ---- when a row holds ---- */

typedef bool wanted(pd_status status);

/* The note of the lowest rank whose status is wanted. */
static bool find_note(struct facts *f, wanted *is_wanted)
{
    for (uint32_t r = 0; r < f->end->count; r++) {
        if (!f->said[r] || !is_wanted((pd_status)(f->said[r] - 1))) continue;
        if (!pd_note_read_ended(f->end->start->dir, r, &f->note)) continue;
        f->rank = r;
        return true;
    }
    return false;
}

/* Not what others end with because of it. */
static bool is_cause(pd_status status)
{
    return status != PD_OK && status != PD_PEER_LOST && status != PD_STOPPED;
}

static bool is_stopped(pd_status status)
{
    return status == PD_STOPPED;
}

static bool is_away(pd_status status)
{
    return status == PD_HOSTS_AWAY;
}

static bool is_peer_lost(pd_status status)
{
    return status == PD_PEER_LOST;
}

static bool needs_hosts(struct facts *f)
{
    return find_note(f, is_away);
}

/* By a limit of the address space that the ranks inherit: they would run out again. */
static bool is_memory_limited(void)
{
    struct rlimit space;
    return getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
}

static bool names_final_cause(struct facts *f)
{
    const bool is_cause_named = find_note(f, is_cause);
    const pd_status st = f->note.status;
    if (st == PD_NO_MEMORY) return is_memory_limited();
    return is_cause_named && st != PD_DIVERGED && st != PD_BUG && st != PD_DEVICE_LOST;
}

static bool names_passing_cause(struct facts *f)
{
    return find_note(f, is_cause);
}

/* Notes lie in it, and what the ranks need to start again. */
static bool is_directory_gone(struct facts *f)
{
    return !f->is_success && f->end->is_run_dir_gone;
}

static bool is_left_opening(struct facts *f)
{
    return f->end->is_left_opening;
}

static bool is_left_stopped(struct facts *f)
{
    return f->end->is_left_stopped;
}

/* Those that say that they have saved were only slow to end. */
static bool is_left_late(struct facts *f)
{
    return f->end->is_left_late && !find_note(f, is_stopped);
}

static bool is_begin_overdue(struct facts *f)
{
    if (f->end->is_begin_overdue) f->verdict->was_cut_off = false; /* by this launcher alone */
    return f->end->is_begin_overdue;
}

static bool is_join_overdue(struct facts *f)
{
    if (f->end->is_join_overdue) f->verdict->was_cut_off = false; /* by this launcher alone */
    return f->verdict->may_be_network = f->end->is_join_overdue;
}

/* Where its directory is full a rank can leave no note: its exit code says what to do, and its last line the cause. */
static bool names_cause_by_code(struct facts *f)
{
    static const pd_status finals[] = {PD_IO, PD_UNSUPPORTED, PD_CORRUPT};
    if (!WIFEXITED(f->end->status)) return false;
    for (size_t i = 0; i < sizeof finals / sizeof *finals; i++) {
        f->note.status = finals[i];
        if (pd_status_exit_code(finals[i]) == WEXITSTATUS(f->end->status)) return true;
    }
    return false;
}

/* What others say of it is that it did not come. */
static bool is_hung(struct facts *f)
{
    if (!f->end->hang[0]) return false;
    f->verdict->may_be_network = true;
    f->verdict->is_told = true;
    f->verdict->lost = 1;
    f->verdict->lost_ranks[0] = f->end->hang_rank;
    f->verdict->is_lost_here = f->end->is_hang_here;
    return true;
}

static bool is_host_silent(struct facts *f)
{
    return f->end->silent[0];
}

/* Its ranks die with it. Where all of them had ended before, it was stuck and was ended by this launcher. */
static bool is_starter_killed(struct facts *f)
{
    bool is_one_missing = false;
    for (uint32_t r = 0; r < f->end->count; r++)
        is_one_missing |= !f->said[r];
    return is_mpi(f) && f->verdict->was_cut_off && is_one_missing;
}

static bool is_worker_lost(struct facts *f)
{
    return !is_mpi(f) && f->verdict->lost;
}

/* A starter gives the code of the rank that it saw end first, which on a busy machine is one that left because of the lost
 * one: then it is not how that one died. */
static bool is_rank_lost_beside_another(struct facts *f)
{
    if (!f->verdict->lost || !WIFEXITED(f->end->status)) return false;
    for (uint32_t r = 0; r < f->end->count; r++)
        if (f->said[r] && pd_status_exit_code((pd_status)(f->said[r] - 1)) == WEXITSTATUS(f->end->status)) return true;
    return false;
}

static bool is_rank_lost(struct facts *f)
{
    return f->verdict->lost;
}

static bool has_left(struct facts *f)
{
    return find_note(f, is_stopped);
}

/* It is out of sight, on another host, or stuck: the others go on without it. */
static bool has_silent_peer(struct facts *f)
{
    if (!find_note(f, is_peer_lost)) return false;
    f->verdict->may_be_network = true;
    f->verdict->lost = 1;
    f->verdict->lost_ranks[0] = UINT32_MAX; /* nobody knows which */
    f->verdict->is_lost_here = false;
    return true;
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

enum { OF_NOTE = -1 };
#define NO_NOTE "%S (process %Q) ended with %H, and could not write why into %D; its last line above says it"
#define LEFT_OPENING "asked to leave before the first step; there was nothing to save"
#define LEFT_STOPPED \
    "asked to leave while a rank was stopped (SIGSTOP), which cannot save: ended; the last checkpoint stands"
#define LEFT_LATE "asked to leave, and the save was not through in time (PERDURE_GRACE_S): ended; the last checkpoint stands"
#define BEGIN_OVERDUE "%S (process %Q) did not start all ranks in restart.peer_timeout"
#define JOIN_OVERDUE "all ranks have begun, and have not joined one another (MPI_Init) in restart.peer_timeout"

/* Causes that a rank names come first: what others end with follows from them. Ranks that left together end with 0
 * whatever they have to say, so notes come before success. In sentences: %N the note, %P the process and %R the rank that
 * was lost first, %O the others lost with it, %S the starter and %Q its process, %H how it ended, %D the run's directory,
 * %U what hung, %A hosts that do not answer. */
static const struct row {
    bool (*holds)(struct facts *);
    int status; /* OF_NOTE: the note's */
    enum pd_launch_next next;
    const char *sentence;
} rows[] = {
    // clang-format off
    {needs_hosts,                 OF_NOTE,      PD_LAUNCH_AWAIT,   "%N"},
    {names_final_cause,           OF_NOTE,      PD_LAUNCH_END,     "%N"},
    {names_passing_cause,         OF_NOTE,      PD_LAUNCH_REPEAT,  "%N"},
    {is_directory_gone,           PD_IO,        PD_LAUNCH_END,     "%D was moved or deleted; put it back, then run this again"},
    {is_left_opening,             PD_STOPPED,   PD_LAUNCH_END,     LEFT_OPENING},
    {is_left_stopped,             PD_STOPPED,   PD_LAUNCH_END,     LEFT_STOPPED},
    {is_left_late,                PD_STOPPED,   PD_LAUNCH_END,     LEFT_LATE},
    {is_begin_overdue,            PD_PEER_LOST, PD_LAUNCH_REPEAT,  BEGIN_OVERDUE},
    {is_join_overdue,             PD_PEER_LOST, PD_LAUNCH_REPEAT,  JOIN_OVERDUE},
    {names_cause_by_code,         OF_NOTE,      PD_LAUNCH_END,     NO_NOTE},
    {is_hung,                     PD_PEER_LOST, PD_LAUNCH_REPLACE, "%U"},
    {is_host_silent,              PD_PEER_LOST, PD_LAUNCH_REPEAT,  "no answer from %A"},
    {is_starter_killed,           PD_PEER_LOST, PD_LAUNCH_REPEAT,  "%S (process %Q) was %H, and its ranks with it"},
    {is_worker_lost,              PD_PEER_LOST, PD_LAUNCH_REPEAT,  "the worker (process %P) ended without a word: %H"},
    {is_rank_lost_beside_another, PD_PEER_LOST, PD_LAUNCH_REPLACE, "rank %R (process %P) ended without a word%O"},
    {is_rank_lost,                PD_PEER_LOST, PD_LAUNCH_REPLACE, "rank %R (process %P) died: %H%O"},
    {has_left,                    PD_STOPPED,   PD_LAUNCH_END,     "%N"},
    {has_silent_peer,             PD_PEER_LOST, PD_LAUNCH_REPLACE, "%N"},
    {is_success,                  PD_OK,        PD_LAUNCH_END,     ""},
    {says_nothing,                PD_PEER_LOST, PD_LAUNCH_REPEAT,  "%S ended (%H) and no rank says why"},
    {always,                      PD_PEER_LOST, PD_LAUNCH_REPEAT,  "%S ended (%H) before a rank had begun"},
    // clang-format on
};

/* ---- sentences ---- */

/* Ranks that agreed upon a failure, and threads of one process, have put the rank in front themselves. */
static void add_note(const struct facts *f, FILE *out)
{
    if (is_mpi(f) && !pd_error_names_rank(f->note.message)) fprintf(out, "rank %u: ", f->rank);
    fprintf(out, "%.900s", f->note.message);
}

static void add_word(const struct facts *f, char letter, FILE *out)
{
    const struct pd_launch_process *first = &f->end->processes[f->verdict->lost_ranks[0]];
    const uint32_t lost = f->verdict->lost;
    switch (letter) {
    case 'N':
        add_note(f, out);
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
    (void)fclose(out); /* cut where it is too long, as snprintf would */
    ret_text[bytes - 1] = '\0';
}

void pd_launch_judge(const struct pd_launch_end *end, struct pd_launch_verdict *ret_verdict)
{
    *ret_verdict = (struct pd_launch_verdict){.status = PD_OK};
    uint8_t *said = read_notes(end);
    struct facts f = facts_of(end, said, ret_verdict);
    const struct row *row = rows;
    while (!row->holds(&f))
        row++;
    ret_verdict->status = row->status == OF_NOTE ? f.note.status : (pd_status)row->status;
    ret_verdict->next = row->next;
    if (row->next != PD_LAUNCH_REPLACE) ret_verdict->lost = 0;
    write_sentence(&f, row->sentence, ret_verdict->message, sizeof ret_verdict->message);
    free(said);
}
