/* perdure report: writes the page and the numbers of runs. */
#include "ckpt/base/grow.h"
#include "ckpt/base/regular_file.h"
#include "resharder/layout.h"
#include "tools/command.h"
#include "tools/commands/ckpt_place.h"
#include "tools/output.h"
#include "tools/report/page.h"

#include <stdlib.h>
#include <string.h>

#define DIFFERENCES_MAX 128u

struct report {
    const char *paths[PD_REPORT_RUNS_MAX], *output;
    uint32_t path_count;
    bool json;
    struct pd_report_run runs[PD_REPORT_RUNS_MAX];
    struct pd_report_difference differences[DIFFERENCES_MAX];
    struct pd_report_data data;
};

/* ---- stored checkpoints ---- */

static pd_status take_checkpoint(struct pd_ckpt_place *place, const struct pd_store_entry *entry, const char *dir,
                                 struct pd_report_run *run, struct pd_error *err)
{
    struct pd_commit commit;
    if (!pd_grow(&run->checkpoints, run->checkpoint_count, sizeof *run->checkpoints))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a list of checkpoints");
    PD_TRY(pd_store_read_commit(place->store, entry, &commit, err));
    struct pd_report_checkpoint *c = &run->checkpoints[run->checkpoint_count++];
    *c = (struct pd_report_checkpoint){.step = entry->step,
                                       .lineage = entry->lineage,
                                       .fence = entry->fence,
                                       .ranks = pd_layout_world(&commit.state.layout),
                                       .bytes = entry->bytes,
                                       .loss = commit.state.last_loss};
    snprintf(c->name, sizeof c->name, "%s", entry->name);
    snprintf(c->dir, sizeof c->dir, "%.1023s", dir);
    pd_commit_deinit(&commit);
    return PD_OK;
}

/* A run names its tiers as its configuration did at the start; if they were moved, match them by number. */
static pd_status take_store(struct pd_report_run *run, struct pd_error *err)
{
    struct pd_ckpt_place place;
    PD_TRY(pd_ckpt_place_open_quiet(run->history.dir, &place, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < place.tiers.count; i++) {
        const char *dir = i < run->history.tier_count ? run->history.tiers[i].dir : place.tiers.tiers[i].dir;
        if (!pd_ckpt_place_turn_to(&place, i)) continue;
        for (uint32_t k = 0; !st && k < pd_store_count(place.store); k++)
            st = take_checkpoint(&place, pd_store_entry_at(place.store, k), dir, run, err);
    }
    pd_ckpt_place_close(&place);
    return st;
}

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

static struct pd_report_difference *difference_of(struct report *r, const char *key)
{
    for (uint32_t i = 0; i < r->data.difference_count; i++)
        if (strcmp(r->differences[i].key, key) == 0) return &r->differences[i];
    if (r->data.difference_count == DIFFERENCES_MAX) return NULL;
    struct pd_report_difference *d = &r->differences[r->data.difference_count++];
    d->key = key;
    return d;
}

/* Compares each with the first; a run without differences shows the first one's value. */
static void compare(struct report *r, const struct pd_config *configs)
{
    static struct pd_resume_difference found[DIFFERENCES_MAX];
    for (uint32_t i = 1; i < r->data.count; i++) {
        const uint32_t total = pd_config_compare(&configs[0], &configs[i], found, DIFFERENCES_MAX);
        for (uint32_t k = 0; k < total && k < DIFFERENCES_MAX; k++) {
            struct pd_report_difference *d = difference_of(r, found[k].key);
            if (!d) continue;
            snprintf(d->values[0], sizeof d->values[0], "%s", found[k].before);
            snprintf(d->values[i], sizeof d->values[i], "%s", found[k].now);
        }
    }
    for (uint32_t k = 0; k < r->data.difference_count; k++)
        for (uint32_t i = 1; i < r->data.count; i++)
            if (!r->differences[k].values[i][0])
                memcpy(r->differences[k].values[i], r->differences[k].values[0], sizeof r->differences[k].values[0]);
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
        struct pd_error why = {0};
        PD_TRY(pd_history_open(r->paths[i], &run->history, err));
        r->data.count = i + 1;
        if (run->history.damaged_lines && !run->history.rows && !run->history.start_count)
            PD_FAIL(err, PD_CORRUPT,
                    "%s: of %s in metrics.jsonl and events.jsonl none can be read; name the run.dir of a run",
                    run->history.dir, pd_counted(run->history.damaged_lines, "line").text);
        pd_history_life(&run->history, &run->life);
        if (take_store(run, &why)) snprintf(run->store_note, sizeof run->store_note, "%.500s", why.message);
        take_config(run);
    }
    tell_apart(r);
    /* Draws a run even if its configuration cannot be read. */
    struct pd_config configs[PD_REPORT_RUNS_MAX];
    uint32_t read = 0;
    for (; read < r->data.count; read++) {
        char path[4400];
        snprintf(path, sizeof path, "%s/config.yaml", r->runs[read].history.dir);
        if (pd_config_load_saved(path, &configs[read], NULL)) break;
    }
    if (read == r->data.count && read > 1) compare(r, configs);
    while (read-- > 0)
        pd_config_deinit(&configs[read]);
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
    r->data.differences = r->differences;
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
        free(r->runs[i].checkpoints);
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
                                       "start ended, which checkpoints exist. RUN is the run.dir of a run, running or not; "
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
