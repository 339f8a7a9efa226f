/* A worker without a model, for tests of the launcher: fake_worker DIR PLAN. PLAN has one word a start, separated by commas;
 * the last is for all later starts:
 *
 *   done           success                          wait         serve signals until told to leave
 *   kill:R         rank R kills itself              deaf         hear nothing, for ever
 *   kill:R+S       ranks R and S, at once           kill-starter rank 0 kills what started it
 *   step+kill:R    the same, after a commit         exit:CODE    leave without a word
 *   unjoined       begin, and never join the others
 *   nan:R          all ranks end diverged, by rank R on GPU "odd"; "left-out" is said where any GPU is
 *   fail:S         all ranks end with status S      one:R:S      rank R ends with status S, the others with PD_PEER_LOST
 *
 * DIR/log-<rank> tells what happened, DIR/step is the newest committed step. */
#include "ckpt/base/parse.h"
#include "trainer/run/launched.h"
#include "trainer/run/signals.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *dir;
static struct pd_launched launched;

static void say(const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/log-%u", dir, launched.rank);
    FILE *log = fopen(path, "a");
    if (!log) exit(70);
    fprintf(log, "%s restart=%u ranks=%u pid=%d\n", text, launched.restart, launched.ranks, (int)getpid());
    fclose(log);
}

static void commit(void)
{
    char path[4096], text[32] = "0";
    uint64_t step = 0;
    snprintf(path, sizeof path, "%s/step", dir);
    FILE *file = fopen(path, "r");
    if (file && fgets(text, sizeof text, file)) (void)pd_parse_u64(text, &step);
    if (file) fclose(file);
    file = fopen(path, "w");
    if (!file) exit(70);
    fprintf(file, "%llu", (unsigned long long)step + 1);
    fclose(file);
}

static int end_with(pd_status status, const char *message)
{
    pd_launched_end(&launched, status, message);
    return pd_status_exit_code(status);
}

/* All ranks have agreed, as real ones do before they leave MPI together. */
static int end_together(pd_status status, const char *message)
{
    bool is_told = pd_launched_end(&launched, status, message);
    return is_told && launched.transport == PD_TRANSPORT_MPI ? 0 : pd_status_exit_code(status);
}

static int serve(void)
{
    for (;; usleep(5000)) {
        enum pd_signal signal = pd_signals_pending();
        if (signal == PD_SIGNAL_SAVE) {
            pd_signals_clear_save();
            say("save");
        }
        if (signal >= PD_SIGNAL_SAVE_AND_LEAVE) {
            say("leave");
            usleep(100000); /* other ranks, as if they agreed */
            return end_together(PD_STOPPED, "saved at step 7");
        }
    }
}

/* The process that is a rank of this start; 0: it has not begun. */
static int process_of(uint32_t rank)
{
    char path[4096], line[256];
    int found = 0;
    snprintf(path, sizeof path, "%s/log-%u", dir, rank);
    FILE *log = fopen(path, "r");
    while (log && fgets(line, sizeof line, log)) {
        unsigned restart, ranks;
        int process;
        if (sscanf(line, "start restart=%u ranks=%u pid=%d", &restart, &ranks, &process) == 3 && restart == launched.restart)
            found = process;
    }
    if (log) fclose(log);
    return found;
}

/* Dead, and waited for by its starter or about to be. */
static bool is_dead(int process)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *stat = fopen(path, "r");
    if (!stat) return true;
    if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(stat);
    return state == 'Z' || state == 'X';
}

/* It dies when all have begun, and the others end when it is dead: a rank that is slow to begin changes nothing. */
static int kill_ranks(uint32_t rank, uint32_t other)
{
    const bool is_alone = launched.transport == PD_TRANSPORT_LOCAL;
    for (uint32_t r = 0; !is_alone && r < launched.ranks; r++)
        while (!process_of(r))
            usleep(1000);
    if (launched.rank == rank || launched.rank == other) raise(SIGKILL);
    while (!is_dead(process_of(rank)) || !is_dead(process_of(other)))
        usleep(1000);
    return end_with(PD_PEER_LOST, "a peer is gone");
}

/* Until it has said so: 0 is how it ends in a start in which the rank does not exist. */
static void wait_for_word(uint32_t rank, const char *word)
{
    char path[4096], line[256], said[64];
    unsigned restart;
    snprintf(path, sizeof path, "%s/log-%u", dir, rank);
    for (;; usleep(1000)) {
        FILE *log = fopen(path, "r");
        bool is_said = false;
        while (log && fgets(line, sizeof line, log))
            is_said |=
                sscanf(line, "%63s restart=%u", said, &restart) == 2 && restart == launched.restart && !strcmp(said, word);
        if (log) fclose(log);
        if (is_said) return;
    }
}

static int follow(const char *word)
{
    uint64_t rank = 0, number = 0;
    char first[16];
    if (!strcmp(word, "done")) return end_with(PD_OK, "");
    if (!strcmp(word, "wait")) return serve();
    if (!strcmp(word, "deaf"))
        for (;;)
            pause();
    if (!strncmp(word, "step+kill:", 10) && pd_parse_u64(word + 10, &rank)) {
        if (launched.rank == 0) commit();
        return kill_ranks((uint32_t)rank, (uint32_t)rank);
    }
    if (!strcmp(word, "kill-starter")) {
        if (launched.rank == 0) kill(getppid(), SIGKILL);
        for (;;)
            pause();
    }
    if (sscanf(word, "kill:%15[0-9]+", first) == 1 && pd_parse_u64(first, &rank)) {
        number = rank;
        if (word[5 + strlen(first)] == '+' && !pd_parse_u64(word + 6 + strlen(first), &number)) return 64;
        return kill_ranks((uint32_t)rank, (uint32_t)number);
    }
    if (!strncmp(word, "nan:", 4) && pd_parse_u64(word + 4, &rank)) {
        if (launched.rank == rank) pd_launched_not_finite((uint32_t)rank, "odd", true);
        return end_together(PD_DIVERGED, "rank 0: not finite");
    }
    if (!strncmp(word, "exit:", 5) && pd_parse_u64(word + 5, &number)) return (int)number;
    if (!strncmp(word, "fail:", 5) && pd_parse_u64(word + 5, &number))
        return end_together((pd_status)number, "rank 0: as planned");
    if (sscanf(word, "one:%15[0-9]:", first) == 1 && pd_parse_u64(first, &rank) &&
        pd_parse_u64(word + 5 + strlen(first), &number)) {
        if (launched.rank == rank) {
            int code = end_with((pd_status)number, "as planned");
            say("failed");
            return code;
        }
        wait_for_word((uint32_t)rank, "failed");
        return end_with(PD_PEER_LOST, "a peer is gone");
    }
    return 64;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 64;
    dir = argv[1];
    struct pd_error err;
    if (pd_launched_begin(&launched, &err)) return 70;
    char layout[sizeof launched.layout + 8];
    snprintf(layout, sizeof layout, "layout:%s", launched.layout);
    say(layout);
    const char *left_out = getenv(PD_LAUNCH_ENV_LEFT_OUT);
    if (left_out && *left_out) say("left-out");
    say("start");
    char *rest = argv[2], *word = strtok_r(rest, ",", &rest);
    for (uint32_t i = 0; i < launched.restart; i++) {
        char *next = strtok_r(rest, ",", &rest);
        if (next) word = next;
    }
    while (!strcmp(word, "unjoined"))
        pause();
    pd_launched_ready(&launched);
    return follow(word);
}
