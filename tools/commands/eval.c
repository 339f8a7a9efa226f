/* perdure eval: loss and perplexity of a checkpoint, ours or another system's. */
#include "ckpt/base/fault.h"
#include "ckpt/base/progress.h"
#include "tools/command.h"
#include "tools/commands/ckpt.h"
#include "tools/commands/ckpt_foreign.h"
#include "tools/commands/run_tiers.h"
#include "tools/output.h"
#include "trainer/run/signals.h"
#include "trainer/sample/evaluate.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct eval {
    const char *path, *data;
    uint64_t windows;
    uint32_t path_count, context, threads;
    bool json;
};

static void show_progress(void *context, uint64_t done, uint64_t windows)
{
    (void)context;
    if (pd_progress_mode().kind != PD_PROGRESS_BAR) return;
    (void)fprintf(stderr, PD_PROGRESS_CLEAR "window %llu of %llu", (unsigned long long)done, (unsigned long long)windows);
    if (done == windows) fputs(PD_PROGRESS_CLEAR, stderr);
}

static pd_status evaluate(const struct eval *e, const char *checkpoints, pd_should_stop should_stop,
                          struct pd_evaluated *ret_evaluated, struct pd_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", e->data);
    const struct pd_evaluation evaluation = {.checkpoints = checkpoints,
                                             .data = {.path = path},
                                             .windows = e->windows,
                                             .context = e->context,
                                             .threads = e->threads,
                                             .should_stop = should_stop,
                                             .progress = show_progress};
    return pd_evaluate(&evaluation, ret_evaluated, err);
}

/* ---- another system's ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

/* As init.from begins a run: a checkpoint of ours is made of it, which is evaluated and removed. */
static pd_status evaluate_foreign(const struct eval *e, struct pd_evaluated *ret_evaluated, struct pd_error *err)
{
    const char *parent = getenv("TMPDIR");
    char folder[4000], checkpoints[4100], from[4200], train[4200];
    struct pd_config config;
    snprintf(folder, sizeof folder, "%s/perdure-eval-XXXXXX", parent && *parent ? parent : "/tmp");
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err));
    if (!mkdtemp(folder))
        PD_FAIL(err, PD_IO, "%s cannot be made; set TMPDIR to a directory with room for the model", folder);
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    snprintf(from, sizeof from, "init.from=%.4000s", e->path);
    snprintf(train, sizeof train, "data.train[0].path=%.4000s", e->data);
    const char *overrides[] = {"run.dir=evaluated", from, train};
    pd_status st = pd_config_load(NULL, overrides, 3, &config, err);
    if (!st) {
        st = pd_ckpt_import_model(&config, err);
        if (!st) st = pd_ckpt_import_for_run(&config, checkpoints, pd_signals_say_leave, err);
        pd_config_deinit(&config);
    }
    if (!st) st = evaluate(e, checkpoints, pd_signals_say_leave, ret_evaluated, err);
    const bool is_removed = nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
    if (st == PD_STOPPED) (void)pd_error_set(err, PD_STOPPED, PD_WHERE, 0, "asked to leave; the same command begins anew");
    if (!is_removed) fprintf(stderr, "%s stays behind: %s\n", folder, strerror(errno));
    return st;
}

static pd_status print_result(const struct eval *e, const struct pd_evaluated *v, struct pd_error *err)
{
    struct pd_report report;
    pd_report_begin(&report, e->json);
    pd_report_text(&report, "data", e->data);
    pd_report_u64(&report, "step", v->step, PD_UNIT_NONE);
    pd_report_double(&report, "loss", v->loss, PD_UNIT_NONE);
    pd_report_double(&report, "perplexity", exp(v->loss), PD_UNIT_NONE);
    pd_report_double(&report, "bits_per_token", v->loss / log(2), PD_UNIT_NONE);
    pd_report_u64(&report, "tokens", v->tokens, PD_UNIT_NONE);
    pd_report_u64(&report, "windows", v->windows, PD_UNIT_NONE);
    pd_report_u64(&report, "context", v->context, PD_UNIT_NONE);
    pd_report_double(&report, "seconds", v->seconds, PD_UNIT_SECONDS);
    return pd_report_end(&report, err);
}

pd_status pd_cmd_eval(int argc, char **argv, struct pd_error *err)
{
    struct eval e = {.path = NULL};
    struct pd_evaluated evaluated;
    char buffer[4096];
    const char *checkpoints;
    struct pd_option options[] = {
        {.name = "data", "FILE", "text, or tokens as data.train takes them", PD_OPTION_TEXT, &e.data},
        {.name = "windows",
         "N",
         "at most so many windows, evenly over the file; all",
         PD_OPTION_U64,
         &e.windows,
         1,
         1u << 30},
        {.name = "context", "T", "tokens of a window; as in training", PD_OPTION_U32, &e.context, 1, 1u << 20},
        {.name = "threads", "N", "all cores", PD_OPTION_U32, &e.threads, 1, 1024},
        {0}};
    const struct pd_usage usage = {
        .arguments = "RUN --data=FILE",
        .doc =
            "Loss and perplexity of the newest checkpoint of RUN on FILE, on the CPU: RUN is a run, its checkpoints, one of "
            "them, or a checkpoint of another system, of which one of ours is made for the moment in TMPDIR.",
        .options = options,
        .json = &e.json,
        .words = &e.path,
        .words_max = 1,
        .word_count = &e.path_count};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!e.path || !e.data) PD_FAIL(err, PD_USAGE, "eval needs a model and a file: perdure eval runs/mine --data=test.txt");
    if (access(e.data, R_OK))
        PD_FAIL(err, PD_INVALID, "--data=%s: %s; name a file of text or tokens", e.data, strerror(errno));
    if (pd_ckpt_is_foreign(e.path)) {
        PD_TRY(evaluate_foreign(&e, &evaluated, err));
    } else {
        PD_TRY(pd_run_tiers_checkpoints_of(e.path, buffer, &checkpoints, err));
        PD_TRY(evaluate(&e, checkpoints, NULL, &evaluated, err));
    }
    return print_result(&e, &evaluated, err);
}
