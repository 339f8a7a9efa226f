/* perdure report: writes the page and the numbers of runs. */
#include "ckpt/base/regular_file.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/report/page.h"

#include <stdlib.h>
#include <string.h>

struct report {
    const char *paths[PD_REPORT_RUNS_MAX], *output;
    uint32_t path_count;
    bool json;
    struct pd_report_run runs[PD_REPORT_RUNS_MAX];
    struct pd_report_data data;
};

/* ---- configurations ---- */

static void take_config(struct pd_report_run *run)
{
    char path[4400];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/config.yaml", run->history.dir);
    FILE *f = pd_regular_fopen(path, false);
    if (!f) return;
    if (getdelim(&run->config, &bytes, '\0', f) < 0) {
        free(run->config);
        run->config = NULL;
    }
    (void)fclose(f);
}

/* ---- names ---- */

/* Distinguishes runs with equal directory names by the given paths. */
static void tell_apart(struct report *r)
{
    bool is_shared[PD_REPORT_RUNS_MAX] = {false};
    for (uint32_t i = 0; i < r->data.count; i++)
        for (uint32_t k = 0; k < r->data.count; k++)
            is_shared[i] |= i != k && strcmp(r->runs[i].history.name, r->runs[k].history.name) == 0;
    for (uint32_t i = 0; i < r->data.count; i++)
        if (is_shared[i]) snprintf(r->runs[i].history.name, sizeof r->runs[i].history.name, "%.255s", r->paths[i]);
}

/* ---- all of it ---- */

static pd_status read_runs(struct report *r, struct pd_error *err)
{
    for (uint32_t i = 0; i < r->path_count; i++) {
        struct pd_report_run *run = &r->runs[i];
        PD_TRY(pd_history_open(r->paths[i], &run->history, err));
        r->data.count = i + 1;
        if (run->history.damaged_lines && !run->history.rows && !run->history.start_count)
            PD_FAIL(err, PD_CORRUPT,
                    "%s: of %s in metrics.jsonl and events.jsonl none can be read; name the run.dir of a run",
                    run->history.dir, pd_counted(run->history.damaged_lines, "line").text);
        pd_history_life(&run->history, &run->life);
        take_config(run);
    }
    tell_apart(r);
    return PD_OK;
}

static void say_unread(const struct report *r)
{
    for (uint32_t i = 0; i < r->data.count; i++) {
        const struct pd_history *h = &r->runs[i].history;
        if (h->damaged_lines) (void)fprintf(stderr, "%s: %s\n", h->dir, pd_report_unread(h).text);
    }
}

/* stdout takes only one document. */
static pd_status check_outputs(const struct report *r, struct pd_error *err)
{
    if (r->json && r->output && strcmp(r->output, "-") == 0)
        PD_FAIL(err, PD_USAGE, "--json and --output=- both write to stdout; name a file for the page: -o report.html");
    return PD_OK;
}

static pd_status write_report(struct report *r, struct pd_error *err)
{
    struct pd_json_writer w;
    uint64_t rows = 0;
    r->data.runs = r->runs;
    for (uint32_t i = 0; i < r->data.count; i++)
        rows += r->runs[i].history.rows;
    if (r->json) {
        pd_json_writer_init(&w, 2);
        pd_report_json(&r->data, &w);
        PD_TRY(pd_output_json(&w, err));
    }
    if (!r->output && r->json) r->output = "";
    if (!r->output) r->output = "report.html";
    if (r->output[0]) PD_TRY(pd_page_write(&r->data, r->output, err));
    if (r->output[0] && strcmp(r->output, "-") != 0)
        (void)fprintf(stderr, "%s: %s of %s\n", r->output, pd_counted(rows, "line").text,
                      pd_counted(r->data.count, "run").text);
    say_unread(r);
    return PD_OK;
}

static void close_runs(struct report *r)
{
    for (uint32_t i = 0; i < r->data.count; i++) {
        pd_history_close(&r->runs[i].history);
        free(r->runs[i].config);
    }
}

pd_status pd_cmd_report(int argc, char **argv, struct pd_error *err)
{
    struct report *r = calloc(1, sizeof *r);
    if (!r) PD_FAIL(err, PD_NO_MEMORY, "no memory for a report");
    bool done = false;
    struct pd_option options[] = {PD_OPTION("output", "FILE", "file of the page (default: report.html), - for stdout",
                                            PD_OPTION_TEXT, &r->output, .letter = 'o'),
                                  {0}};
    const struct pd_usage usage = {.arguments = "RUN [RUN...]",
                                   .doc =
                                       "Writes an HTML page about a run: loss, speed, memory, saves, a timeline, how each "
                                       "start ended. RUN is the run.dir of a run, running or not; "
                                       "up to 8 runs are drawn over each other. The page is one file and needs no network.",
                                   .options = options,
                                   .json = &r->json,
                                   PD_WORDS(r->paths, PD_REPORT_RUNS_MAX, &r->path_count)};
    _Static_assert(PD_REPORT_RUNS_MAX == 8, "--help says so");
    pd_status st = pd_command_parse(&usage, argc, argv, &done, err);
    if (!st && !done && !r->path_count)
        st = pd_error_set(err, PD_USAGE, PD_WHERE, 0, "report needs the run.dir of a run: perdure report runs/mine");
    if (!st && !done) st = check_outputs(r, err);
    if (!st && !done) st = read_runs(r, err);
    if (!st && !done) st = write_report(r, err);
    close_runs(r);
    free(r);
    return st;
}
