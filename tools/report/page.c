#include "tools/report/page.h"

#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void add_starts(struct pd_json_writer *w, const struct pd_history *h)
{
    pd_json_array_begin(w, "starts");
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "fence", s->fence);
        pd_json_measured(w, "begun", s->begun);
        pd_json_measured(w, "opened", s->opened);
        pd_json_measured(w, "ended", s->ended);
        PD_JSON_U64S(w, {"ranks", s->ranks}, {"hosts", s->hosts}, {"threads", s->threads}, {"dp", s->dp}, {"tp", s->tp},
                     {"pp", s->pp}, {"sp", s->sp}, {"zero_stage", s->zero_stage});
        pd_json_string(w, "device", s->device);
        PD_JSON_U64S(w, {"from_step", s->from_step}, {"last_step", s->last_step}, {"lost_steps", s->lost_steps});
        pd_json_double(w, "lost_seconds", s->lost_seconds);
        PD_JSON_U64S(w, {"planned_bytes", s->planned_bytes}, {"checkpoint_bytes", s->checkpoint_bytes});
        if (s->exit_code < 0)
            pd_json_null(w, "exit_code");
        else
            pd_json_i64(w, "exit_code", s->exit_code);
        pd_json_string(w, "cause", s->cause[0] ? s->cause : NULL);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

static void add_numbers(struct pd_json_writer *w, const struct pd_history *h)
{
    const uint64_t last = h->rows - 1;
    pd_json_measured(w, "step", pd_history_last(h, PD_COLUMN_STEP));
    pd_json_u64(w, "checkpoint_step", h->saved_step);
    pd_json_measured(w, "loss", pd_history_last(h, PD_COLUMN_LOSS));
    pd_json_measured(w, "validation_loss", pd_history_last(h, PD_COLUMN_VALIDATION_LOSS));
    pd_json_measured(w, "best_validation_loss", pd_history_quantile(h, PD_COLUMN_VALIDATION_LOSS, 0, last, 0));
    pd_json_measured(w, "tokens_per_second_median", pd_history_quantile(h, PD_COLUMN_TOKENS_PER_SECOND, 0, last, 0.5));
    pd_json_measured(w, "gemm_share_median", pd_history_quantile(h, PD_COLUMN_GEMM_SHARE, 0, last, 0.5));
    pd_json_measured(w, "step_seconds_median", pd_history_quantile(h, PD_COLUMN_SECONDS, 0, last, 0.5));
    pd_json_measured(w, "step_seconds_max", pd_history_quantile(h, PD_COLUMN_SECONDS, 0, last, 1));
    pd_json_measured(w, "gradient_norm_max", pd_history_quantile(h, PD_COLUMN_GRADIENT_NORM, 0, last, 1));
    pd_json_measured(w, "memory_bytes_max", pd_history_quantile(h, PD_COLUMN_MEMORY, 0, last, 1));
    pd_json_measured(w, "save_seconds_median", pd_history_quantile(h, PD_COLUMN_SAVE_SECONDS, 0, last, 0.5));
    pd_json_measured(w, "save_seconds_max", pd_history_quantile(h, PD_COLUMN_SAVE_SECONDS, 0, last, 1));
    pd_json_measured(w, "stall_seconds_max", pd_history_quantile(h, PD_COLUMN_STALL_SECONDS, 0, last, 1));
    const uint64_t since = pd_history_not_finite_since(h, NULL, 0);
    pd_json_measured(w, "loss_not_finite_since", since ? (double)since : NAN);
    pd_json_measured(w, "skipped_steps", pd_history_last(h, PD_COLUMN_SKIPPED));
    PD_JSON_U64S(w, {"lines", h->rows}, {"damaged_lines", h->damaged_lines});
}

static void page_add_tiers(struct pd_json_writer *w, const struct pd_history *h)
{
    pd_json_array_begin(w, "tiers");
    for (uint32_t i = 0; i < h->tier_count; i++) {
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "directory", h->tiers[i].dir);
        pd_json_u64(w, "saves", pd_history_saves(h, i, NULL));
        pd_json_measured(w, "seconds_mean", h->tiers[i].timed ? h->tiers[i].seconds / (double)h->tiers[i].timed : NAN);
        pd_json_measured(w, "seconds_max", h->tiers[i].timed ? h->tiers[i].seconds_max : NAN);
        PD_JSON_U64S(w, {"newest_step", h->tiers[i].newest}, {"failures", h->tiers[i].failures});
        pd_json_measured(w, "newest_age", h->tiers[i].age > 0 ? h->tiers[i].age : NAN);
        pd_json_measured(w, "bytes_per_second", h->tiers[i].bytes_per_second > 0 ? h->tiers[i].bytes_per_second : NAN);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

/* Of the last step. */
static void page_add_experts(struct pd_json_writer *w, const struct pd_history *h)
{
    if (!h->block_count) return;
    pd_json_array_begin(w, "experts");
    for (uint32_t i = 0; i < h->block_count; i++) {
        pd_json_object_begin(w, NULL);
        pd_json_u64(w, "block", h->blocks[i].block);
        for (uint32_t f = 0; f < PD_HISTORY_EXPERT_FIGURES; f++)
            if (!isnan(h->blocks[i].figures[f])) pd_json_double(w, pd_history_expert_names[f], h->blocks[i].figures[f]);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
}

void pd_report_json(const struct pd_report_data *r, struct pd_json_writer *w)
{
    pd_json_object_begin(w, NULL);
    pd_json_array_begin(w, "runs");
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_report_run *run = &r->runs[i];
        pd_json_object_begin(w, NULL);
        pd_json_string(w, "run_dir", run->history.dir);
        add_numbers(w, &run->history);
        const struct pd_history_life *l = &run->life;
        pd_json_object_begin(w, "seconds");
        PD_JSON_DOUBLES(w, {"whole", l->whole}, {"useful", l->useful}, {"lost", l->lost}, {"saving", l->saving},
                        {"opening", l->opening}, {"down", l->down}, {"idle", l->idle}, {"other", l->other});
        pd_json_object_end(w);
        pd_json_measured(w, "goodput", l->goodput);
        PD_JSON_U64S(w, {"failures", l->failures}, {"lost_steps", l->lost_steps});
        add_starts(w, &run->history);
        page_add_tiers(w, &run->history);
        page_add_experts(w, &run->history);
        pd_json_object_end(w);
    }
    pd_json_array_end(w);
    pd_json_object_end(w);
}

/* Sizes of drawings. */
#define SHAPES                                                                                                      \
    "text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}.h{font-weight:600;font-size:14px}" \
    ".e{text-anchor:end}.m{text-anchor:middle}.note{font-size:10.5px}path{fill:none;stroke-linejoin:round}"         \
    "[class^=l]{stroke-width:1.6}.thin{stroke-width:1.1}.dash{stroke-dasharray:5 "                                  \
    "3}.grid{stroke-width:.7}.axis{stroke-width:1}"                                                                 \
    ".mark{stroke-width:1;stroke-dasharray:2 2}[class^=a]{stroke:none;fill-opacity:.55}.axis{stroke-dasharray:none}"

#define COLOUR(NUMBER, RGB) ".l" #NUMBER "{stroke:" RGB "}.p" #NUMBER ",.a" #NUMBER "{fill:" RGB ";stroke:none}"
#define LIGHT                                                                  \
    COLOUR(0, "#0072b2")                                                       \
    COLOUR(1, "#d55e00")                                                       \
    COLOUR(2, "#009e73")                                                       \
    COLOUR(3, "#aa4499")                                                       \
    COLOUR(4, "#b8860b")                                                       \
    COLOUR(5, "#56b4e9")                                                       \
    COLOUR(6, "#444")                                                          \
    COLOUR(7, "#999")                                                          \
    "text{fill:#222}.unit,.note,.e,.m,.b{fill:#555}"                           \
    ".grid{stroke:#e3e3e3}.axis{stroke:#777}.mark{stroke:#888}.opening{fill:#" \
    "b8860b}.training{fill:#0072b2}"                                           \
    ".lost{fill:#d55e00}.down{fill:#ececec}"
#define DARK                                                                \
    COLOUR(0, "#5ab4f0")                                                    \
    COLOUR(1, "#ff8c42")                                                    \
    COLOUR(2, "#3fd0a4")                                                    \
    COLOUR(3, "#e39bd0")                                                    \
    COLOUR(4, "#e6b93c")                                                    \
    COLOUR(5, "#2f78b8")                                                    \
    COLOUR(6, "#ddd")                                                       \
    COLOUR(7, "#8a8a8a")                                                    \
    "text{fill:#e8e8e8}.unit,.note,.e,.m,.b{fill:#b4b4b4}"                  \
    ".grid{stroke:#333}.axis{stroke:#999}.mark{stroke:#999}.opening{fill:#" \
    "e6b93c}.training{fill:#2f78b8}"                                        \
    ".lost{fill:#ff8c42}.down{fill:#2a2a2a}"

static const char style_page[] =
    ":root{color-scheme:light dark}*{box-sizing:border-box}"
    "body{font:14px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;margin:0 "
    "auto;padding:16px;max-width:1640px;"
    "color:#222;background:#fff}h1{font-size:22px;margin:4px 0;overflow-wrap:anywhere}h2{font-size:17px;margin:28px 0 8px}"
    "p{margin:4px "
    "0}.soft{color:#555}.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:14px "
    "0}"
    ".card{border:1px solid #ddd;border-radius:6px;padding:8px 10px}.card b{display:block;font-size:19px;line-height:1.3}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));gap:26px 30px;margin:18px 0}"
    "figure{margin:0;break-inside:avoid}svg{width:100%;height:auto;display:block}.n,.x{display:none}"
    ".scroll{overflow-x:auto;margin:0 0 16px}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td{white-space:nowrap}th,td{padding:3px 12px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid "
    "#e4e4e4}th{font-weight:600}"
    "td.r,th.r{text-align:right}td.w{white-space:normal;min-width:220px;overflow-wrap:anywhere}pre{overflow-x:auto;font-"
    "size:12px}"
    "@media(min-width:1100px){.x{display:block}.v{display:none}}"
    "@media(max-width:620px){.w{display:none}.n{display:block}}" SHAPES LIGHT
    "@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}.soft{color:#b4b4b4}.card{border-color:#3a3a3a}"
    "th,td{border-color:#333}" DARK "}"
    "@media print{body{color:#000;background:#fff;max-width:none}.charts{grid-template-columns:1fr "
    "1fr}svg.w{display:block}svg.n,svg.x{display:none}" LIGHT "}";

#define WIDE 720.0
#define NARROW 368.0
#define CHART_HEIGHT 300.0
#define LANES_TITLE "What was done when"

/* ---- the page ---- */

static void write_title(FILE *out, const struct pd_report_data *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        fputs(i ? ", " : "", out);
        pd_chart_escape(out, r->runs[i].history.name);
    }
}

static void write_page(FILE *out, const struct pd_report_data *r, const struct pd_figures *figures)
{
    char now[64];
    const time_t seconds = time(NULL);
    struct tm local;
    strftime(now, sizeof now, "%Y-%m-%d %H:%M %Z", localtime_r(&seconds, &local));
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width\">"
          "<link rel=\"icon\" href=\"data:,\"><title>",
          out);
    write_title(out, r);
    fprintf(out, " – perdure</title><style>%s</style></head><body>\n<h1>", style_page);
    write_title(out, r);
    fprintf(out, "</h1><p class=\"soft\">perdure %s, report of %s</p>\n", PERDURE_VERSION, now);
    pd_tables_summary(out, r);
    if (figures->lane_count) {
        fputs("<figure>", out);
        static const struct {
            double width;
            const char *attributes;
        } all[] = {{2 * WIDE, "class=\"x\""}, {WIDE, "class=\"w v\""}, {NARROW, "class=\"n\""}};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            pd_lanes_draw(out, LANES_TITLE, figures->lanes, figures->lane_count, figures->lanes_end, all[i].width,
                          all[i].attributes);
        fputs("</figure>\n", out);
    }
    fputs("<div class=\"charts\">\n", out);
    for (uint32_t i = 0; i < figures->count; i++) {
        fputs("<figure>", out);
        pd_chart_draw(out, &figures->charts[i], WIDE, CHART_HEIGHT, "class=\"w\"");
        pd_chart_draw(out, &figures->charts[i], NARROW, CHART_HEIGHT, "class=\"n\"");
        if (figures->charts[i].note) fprintf(out, "<figcaption class=\"soft\">%s</figcaption>", figures->charts[i].note);
        fputs("</figure>\n", out);
    }
    fputs("</div>\n", out);
    pd_tables_rest(out, r);
    fputs("</body></html>\n", out);
}

/* ---- files ---- */

static pd_status draw_text(const struct pd_report_data *report, char **ret_text, size_t *ret_bytes, struct pd_error *err)
{
    struct pd_history *histories = calloc(report->count, sizeof *histories);
    struct pd_figures figures = {.count = 0};
    char *text = NULL;
    if (!histories) PD_FAIL(err, PD_NO_MEMORY, "no memory for a report");
    for (uint32_t i = 0; i < report->count; i++)
        histories[i] = report->runs[i].history;
    pd_status st = pd_figures_make(histories, report->count, &figures, err);
    FILE *out = st ? NULL : open_memstream(&text, ret_bytes);
    if (out) write_page(out, report, &figures);
    if (!st && (!out || fclose(out))) st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a report");
    if (figures.arrays) pd_figures_deinit(&figures);
    free(histories);
    if (st) free(text);
    if (!st) *ret_text = text;
    return st;
}

static pd_status fail_to_write(const char *path, int number, struct pd_error *err)
{
    PD_FAIL(err, pd_status_from_errno(number), "%s: %s; name another file with -o FILE", path, strerror(number));
}

/* "-": stdout. */
static pd_status page_write_file(const char *path, const char *text, size_t bytes, struct pd_error *err)
{
    const bool is_stdout = strcmp(path, "-") == 0;
    if (is_stdout) {
        fwrite(text, 1, bytes, stdout); /* main reports a failed write */
        return PD_OK;
    }
    FILE *f = fopen(path, "we");
    if (!f) return fail_to_write(path, errno, err);
    const bool is_written = fwrite(text, 1, bytes, f) == bytes;
    const int number = errno;
    if (fclose(f) == 0 && is_written) return PD_OK;
    const int last = is_written ? errno : number;
    if (!pd_regular_is_other(path)) unlink(path);
    return fail_to_write(path, last, err);
}

pd_status pd_page_write(const struct pd_report_data *report, const char *path, struct pd_error *err)
{
    char *text;
    size_t bytes;
    PD_TRY(draw_text(report, &text, &bytes, err));
    const pd_status st = page_write_file(path, text, bytes, err);
    free(text);
    return st;
}
