/* perdure bench survive: what failures cost a run, and whether it ends with the bits of one that nothing happened to.
 *
 *   1. a few steps tell how many sequences make a step of about a second
 *   2. perdure train --chaos runs for the minutes that were asked for, started again where it ends with 75, and is told to leave
 *   3. the same steps without failures; losses of every step and the last state are compared */
#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/parse.h"
#include "tools/bench/room.h"
#include "tools/report/history.h"
#include "trainer/launch/chaos.h"
#include "trainer/run/recovery.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM_BYTES (UINT64_C(1) << 30)
#define RECOVERIES_MAX 4096u
#define STEP_SECONDS 1.0
#define LOOK_NS UINT64_C(100000000)

extern char **environ;

static const char config_text[] = "run: {seed: 1, steps: 1000000}\n"
                                  "model: {family: llama, vocab: 256, context: 128, layers: 4, hidden: 128, heads: 4, "
                                  "kv_heads: 4, head_size: 32, ffn: 256}\n"
                                  "batch: {micro_batch: 1, context: 128}\n"
                                  "optimizer: {warmup_steps: 10, decay_steps: 1000000}\n"
                                  "checkpoint: {every: 1, keep_last: 3}\n"
                                  "validation: {every: 0}\n"
                                  "layout: {threads: 1}\n"
                                  "restart: {hang_seconds: 5, straggler_seconds: 0}\n";

struct survive {
    double minutes;
    uint64_t every, seed, ranks, sequences;
    const char *dir;
    bool json;
    struct pd_bench_room room;
    char self[4096], config[4096], run[4096], quiet[4096], log[4096];
    /* What events.jsonl says. */
    uint64_t blows[PD_CHAOS_KINDS], false_alarms, recoveries;
    double recover[PD_RECOVERY_PHASES + 1][RECOVERIES_MAX]; /* the last: all phases together */
};

/* ---- runs ---- */

static pd_status make_files(struct survive *s, struct pd_error *err)
{
    char text[4096];
    pd_bench_room_path(&s->room, "text.txt", text);
    FILE *f = fopen(text, "we");
    for (uint64_t i = 0, state = 1; f && i < 1 << 16; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        fprintf(f, "%llu ", (unsigned long long)(state >> 54));
    }
    if (!f || fclose(f)) PD_FAIL_ERRNO(err, errno, "%s: writing the text to train on", text);
    f = fopen(s->config, "we");
    if (f) fprintf(f, "%sdata: {train: [{path: \"%s\"}], validation_fraction: 0}\n", config_text, text);
    if (!f || fclose(f)) PD_FAIL_ERRNO(err, errno, "%s: writing the configuration", s->config);
    return PD_OK;
}

static pd_status spawn(const struct survive *s, const char *const *words, pid_t *ret_process, struct pd_error *err)
{
    const char *argv[16] = {s->self};
    posix_spawn_file_actions_t files;
    for (uint32_t i = 0; (argv[i + 1] = words[i]); i++)
        PD_CHECK(i < 14);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int number = posix_spawn(ret_process, s->self, &files, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (number) PD_FAIL_ERRNO(err, number, "starting %s", s->self);
    return PD_OK;
}

/* Of a process that is asked to leave at `until_ns`, or when this one is.   *ret_code: its exit code, or -1 */
static void wait_until(pid_t process, uint64_t until_ns, int *ret_code)
{
    int status;
    bool is_told = false;
    while (waitpid(process, &status, WNOHANG) == 0) {
        if (!is_told && (pd_clock_monotonic_ns(NULL) > until_ns || pd_signals_pending() != PD_SIGNAL_NONE)) {
            kill(process, SIGTERM);
            is_told = true;
        }
        pd_clock_sleep_ns(NULL, LOOK_NS);
    }
    *ret_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The end of the log tells more than a code: the room goes with it. */
static pd_status fail_run(const struct survive *s, const char *what, int code, struct pd_error *err)
{
    char tail[1500] = "";
    FILE *f = fopen(s->log, "re");
    if (f && fseek(f, -(long)sizeof tail + 1, SEEK_END)) rewind(f);
    if (f) tail[fread(tail, 1, sizeof tail - 1, f)] = '\0';
    if (f) fclose(f);
    fputs(tail, stderr);
    PD_FAIL(err, PD_BUG, "%s ended with %d; the end of its log is above; --seed=%llu replays its failures", what, code,
            (unsigned long long)s->seed);
}

static pd_status train(const struct survive *s, const char *run_dir, uint64_t steps, const char *chaos, uint64_t until_ns,
                       int *ret_code, struct pd_error *err)
{
    pid_t process;
    char keys[4][4200];
    snprintf(keys[0], sizeof keys[0], "run.dir=%s", run_dir);
    snprintf(keys[1], sizeof keys[1], "run.steps=%llu", (unsigned long long)steps);
    snprintf(keys[2], sizeof keys[2], "batch.sequences=%llu", (unsigned long long)s->sequences);
    snprintf(keys[3], sizeof keys[3], "layout.ranks=%llu", (unsigned long long)s->ranks);
    const char *words[] = {"train", s->config, keys[0], keys[1], keys[2], keys[3], chaos, NULL};
    PD_TRY(pd_bench_room_settle(&s->room, err));
    PD_TRY(spawn(s, words, &process, err));
    wait_until(process, until_ns, ret_code);
    if (pd_signals_pending() != PD_SIGNAL_NONE) PD_FAIL(err, PD_STOPPED, "bench: asked to leave, its files are removed");
    return PD_OK;
}

static pd_status train_quietly(const struct survive *s, const char *run_dir, uint64_t steps, struct pd_error *err)
{
    int code;
    PD_TRY(train(s, run_dir, steps, NULL, UINT64_MAX, &code, err));
    return code ? fail_run(s, "a run without failures", code, err) : PD_OK;
}

static double step_seconds(const struct pd_history *h)
{
    return pd_history_quantile(h, PD_COLUMN_SECONDS, h->rows > 2, h->rows - 1, 0.5);
}

static pd_status choose_sequences(struct survive *s, struct pd_error *err)
{
    char dir[4096];
    struct pd_history h;
    pd_bench_room_path(&s->room, "first", dir);
    s->sequences = s->ranks * 4;
    PD_TRY(train_quietly(s, dir, 4, err));
    PD_TRY(pd_history_open(dir, &h, err));
    const double seconds = step_seconds(&h);
    pd_history_close(&h);
    const double wanted = seconds > 0 ? STEP_SECONDS / seconds * 4 : 4;
    s->sequences = s->ranks * (uint64_t)(wanted < 1 ? 1 : wanted > 4096 ? 4096 : wanted);
    return pd_bench_room_remove(&s->room, "first", err);
}

/* As a batch system: 75 runs again, until the time is over. What failures left behind then has a start without them to show in,
 * and its one step more. */
static pd_status train_in_chaos(struct survive *s, struct pd_error *err)
{
    const uint64_t until_ns = pd_clock_monotonic_ns(NULL) + (uint64_t)(s->minutes * 60e9);
    for (uint64_t launch = 0;; launch++) {
        int code;
        char chaos[64];
        snprintf(chaos, sizeof chaos, "--chaos=%llu,%g", (unsigned long long)(s->seed + launch), 60.0 / (double)s->every);
        PD_TRY(train(s, s->run, 1000000, chaos, until_ns, &code, err));
        if (code != 75) return fail_run(s, "the run with failures", code, err);
        if (pd_clock_monotonic_ns(NULL) > until_ns) break;
    }
    struct pd_history h;
    PD_TRY(pd_history_open(s->run, &h, err));
    const uint64_t steps = h.rows ? (uint64_t)pd_history_last(&h, PD_COLUMN_STEP) : 0;
    pd_history_close(&h);
    return train_quietly(s, s->run, steps + 1, err);
}

/* ---- what events say ---- */

static void take_recovery(struct survive *s, const struct pd_json_value *event)
{
    const struct pd_json_value *seconds = pd_json_member(event, "recover_seconds");
    if (!seconds || s->recoveries == RECOVERIES_MAX) return;
    for (int i = 0; i <= PD_RECOVERY_PHASES; i++)
        (void)pd_json_is_number(pd_json_member(seconds, i < PD_RECOVERY_PHASES ? pd_recovery_names[i] : "total"),
                                &s->recover[i][s->recoveries]);
    s->recoveries++;
}

/* *is_struck: something was done since the start that must end it. */
static void take_event(struct survive *s, const struct pd_json_value *event, bool *is_struck)
{
    bool restarts = false;
    const char *what = pd_json_text(pd_json_member(event, "event")), *kind = pd_json_text(pd_json_member(event, "kind"));
    if (!what) return;
    if (!strcmp(what, "recover")) take_recovery(s, event);
    for (int k = 0; kind && !strcmp(what, "chaos") && k < PD_CHAOS_KINDS; k++) {
        if (strcmp(kind, pd_chaos_names[k])) continue;
        s->blows[k]++;
        *is_struck |= k != PD_CHAOS_PAUSE && k != PD_CHAOS_FLIP && k != PD_CHAOS_FILL;
    }
    if (strcmp(what, "end")) return;
    (void)pd_json_is_bool(pd_json_member(event, "restarts"), &restarts);
    s->false_alarms += restarts && !*is_struck;
    *is_struck = false;
}

static pd_status read_events(struct survive *s, struct pd_error *err)
{
    char path[4200], *line = NULL;
    size_t room = 0;
    bool is_struck = false;
    snprintf(path, sizeof path, "%s/events.jsonl", s->run);
    FILE *f = fopen(path, "re");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: reading it", path);
    for (ssize_t bytes; (bytes = getline(&line, &room, f)) > 0;) {
        struct pd_json_document *document;
        if (pd_json_parse(path, line, (size_t)bytes, &document, NULL)) continue;
        take_event(s, pd_json_root(document), &is_struck);
        pd_json_document_free(document);
    }
    free(line);
    fclose(f);
    return PD_OK;
}

/* ---- whether the bits are the same ---- */

/* A step that was computed twice has two rows; one behind the last that is saved has none to compare with. Columns hold what
 * was printed to the last bit. */
static uint64_t differing_losses(const struct pd_history *run, const struct pd_history *quiet)
{
    uint64_t differing = 0;
    for (uint64_t row = 0; row < run->rows; row++) {
        const uint64_t step = (uint64_t)run->columns[PD_COLUMN_STEP][row];
        if (step < 1 || step > quiet->rows) continue;
        differing += quiet->columns[PD_COLUMN_LOSS][step - 1] != run->columns[PD_COLUMN_LOSS][row];
    }
    return differing;
}

static pd_status compare_states(const struct survive *s, bool *ret_same, struct pd_error *err)
{
    pid_t process;
    int code;
    const char *words[] = {"ckpt", "diff", s->run, s->quiet, NULL};
    PD_TRY(spawn(s, words, &process, err));
    wait_until(process, UINT64_MAX, &code);
    if (code != 0 && code != 65) return fail_run(s, "ckpt diff", code, err);
    *ret_same = code == 0;
    return PD_OK;
}

/* ---- results ---- */

/* But for first steps, which are useful or lost. */
static double recovery_seconds(const struct survive *s)
{
    double seconds = 0;
    for (uint64_t i = 0; i < s->recoveries; i++)
        seconds += s->recover[PD_RECOVERY_PHASES][i] - s->recover[PD_RECOVERY_STEP][i];
    return seconds;
}

static void report_recovery(struct survive *s, struct pd_report *report)
{
    char key[48];
    for (int i = 0; s->recoveries && i <= PD_RECOVERY_PHASES; i++) {
        snprintf(key, sizeof key, "recover_%s", i < PD_RECOVERY_PHASES ? pd_recovery_names[i] : "total");
        const double low = pd_bench_quantile(s->recover[i], (uint32_t)s->recoveries, 0),
                     high = pd_bench_quantile(s->recover[i], (uint32_t)s->recoveries, 1);
        pd_report_range(report, key, pd_bench_quantile(s->recover[i], (uint32_t)s->recoveries, 0.5), low, high,
                        PD_UNIT_SECONDS);
    }
}

static pd_status report(struct survive *s, const struct pd_history *run, const struct pd_history *quiet,
                        struct pd_error *err)
{
    struct pd_report r;
    struct pd_history_life life;
    bool same = false;
    char key[48];
    PD_TRY(compare_states(s, &same, err));
    pd_history_life(run, &life);
    const uint64_t differing = differing_losses(run, quiet);
    pd_report_begin(&r, s->json);
    pd_report_u64(&r, "seed", s->seed, PD_UNIT_NONE);
    pd_report_double(&r, "seconds", life.whole, PD_UNIT_SECONDS);
    pd_report_u64(&r, "steps", quiet->rows, PD_UNIT_NONE);
    pd_report_double(&r, "step_seconds", step_seconds(quiet), PD_UNIT_SECONDS);
    for (int k = 0; k < PD_CHAOS_KINDS; k++) {
        snprintf(key, sizeof key, "failures_%s", pd_chaos_names[k]);
        pd_report_u64(&r, key, s->blows[k], PD_UNIT_NONE);
    }
    pd_report_double(&r, "goodput", life.goodput, PD_UNIT_SHARE);
    const double recovering = recovery_seconds(s), used = life.useful + life.lost + life.saving + recovering;
    const double shares[] = {life.lost, life.saving, recovering, fmax(life.whole - used, 0)};
    static const char *const names[] = {"lost", "saving", "recovering", "other"};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        pd_report_double(&r, names[i], shares[i] / life.whole, PD_UNIT_SHARE);
    pd_report_u64(&r, "steps_lost", life.lost_steps, PD_UNIT_NONE);
    report_recovery(s, &r);
    pd_report_u64(&r, "false_alarms", s->false_alarms, PD_UNIT_NONE);
    pd_report_u64(&r, "differing_losses", differing, PD_UNIT_NONE);
    pd_report_text(&r, "same_bits", same && !differing ? "yes" : "no");
    PD_TRY(pd_report_end(&r, err));
    if (same && !differing) return PD_OK;
    PD_FAIL(err, PD_CORRUPT,
            "the run with failures has other bits than the quiet one (%llu losses differ, the last state %s); --seed=%llu "
            "replays its failures, perdure replay recomputes a step",
            (unsigned long long)differing, same ? "alike" : "differs", (unsigned long long)s->seed);
}

static pd_status survive_in(struct survive *s, struct pd_error *err)
{
    struct pd_history run, quiet;
    pd_bench_room_path(&s->room, "run.yaml", s->config);
    pd_bench_room_path(&s->room, "run", s->run);
    pd_bench_room_path(&s->room, "quiet", s->quiet);
    pd_bench_room_path(&s->room, "log", s->log);
    PD_TRY(make_files(s, err));
    PD_TRY(choose_sequences(s, err));
    PD_TRY(train_in_chaos(s, err));
    PD_TRY(read_events(s, err));
    PD_TRY(pd_history_open(s->run, &run, err));
    pd_status st = train_quietly(s, s->quiet, run.saved_step, err);
    if (!st) st = pd_history_open(s->quiet, &quiet, err);
    if (!st) {
        st = report(s, &run, &quiet, err);
        pd_history_close(&quiet);
    }
    pd_history_close(&run);
    return st;
}

static pd_status set_minutes(const struct pd_option *option, const char *text, struct pd_error *err)
{
    double minutes;
    if (!pd_parse_double(text, &minutes) || !(minutes > 0 && minutes <= 10000))
        return pd_option_refuse(option, text, "minutes, such as 5 or 0.5, up to 10000", err);
    *(double *)option->value = minutes;
    return PD_OK;
}

pd_status pd_bench_survive(int argc, char **argv, struct pd_error *err)
{
    static struct survive s;
    s = (struct survive){.minutes = 5, .every = 30, .seed = 1, .ranks = 2, .dir = "."};
    struct pd_option options[] = {
        {.name = "minutes",
         "N",
         "of the run with failures (5); a quiet one of as many steps follows",
         PD_OPTION_SET,
         &s.minutes,
         .set = set_minutes},
        {.name = "every", "SECONDS", "between two failures, on average (30)", PD_OPTION_U64, &s.every, 1, 100000},
        {.name = "seed", "N", "of kinds and moments (1)", PD_OPTION_U64, &s.seed},
        {.name = "ranks", "N", "processes (2)", PD_OPTION_U64, &s.ranks, 1, 1024},
        {.name = "dir", "DIR", "where files of the bench live while it runs (.)", PD_OPTION_TEXT, &s.dir},
        {0}};
    const struct pd_usage usage = {
        .doc =
            "Trains while ranks are killed, stopped and preempted and checkpoints damaged, at random moments, and says what "
            "that cost and whether the bits are those of a run that nothing happened to.",
        .options = options,
        .json = &s.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    const ssize_t length = readlink("/proc/self/exe", s.self, sizeof s.self - 1);
    if (length < 0) PD_FAIL_ERRNO(err, errno, "/proc/self/exe: where this program lies");
    setenv("PERDURE_PROGRESS", "off", 1);
    PD_TRY(pd_bench_room_open(s.dir, ROOM_BYTES, false, &s.room, err));
    const pd_status st = survive_in(&s, err);
    pd_bench_room_close(&s.room);
    return st;
}
