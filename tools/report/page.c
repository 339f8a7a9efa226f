#include "tools/report/page.h"

#include "ckpt/base/regular_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    fprintf(out, " – perdure</title><style>%s</style></head><body>\n<h1>", pd_style_page);
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
static pd_status write_file(const char *path, const char *text, size_t bytes, struct pd_error *err)
{
    const bool is_stdout = strcmp(path, "-") == 0;
    if (is_stdout) {
        fwrite(text, 1, bytes, stdout); /* main says when it could not be written */
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
    const pd_status st = write_file(path, text, bytes, err);
    free(text);
    return st;
}
