/* The tables and sentences of a report. */
#include "tools/output.h"
#include "tools/report/page.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#define ROWS_MAX 60u

/* ---- cells ---- */

struct text {
    char text[64];
};
static struct text number(double value)
{
    struct text t;
    snprintf(t.text, sizeof t.text, isnan(value) ? "–" : "%.4f", value);
    return t;
}

static struct text whole(double value)
{
    struct text t = {"–"};
    if (!isnan(value)) snprintf(t.text, sizeof t.text, "%s", pd_text_count((uint64_t)value).text);
    return t;
}

static struct text moment(double seconds)
{
    struct text t;
    pd_history_moment(seconds, t.text, sizeof t.text);
    return t;
}

/* A heading that begins with '>' is for numbers, with '~' for sentences. */
static void begin_table(FILE *out, const char *const *headings)
{
    fputs("<div class=\"scroll\"><table><thead><tr>", out);
    for (; *headings; headings++)
        fprintf(out, **headings == '>' ? "<th class=\"r\">%s</th>" : "<th>%s</th>", *headings + !!strchr(">~", **headings));
    fputs("</tr></thead><tbody>\n", out);
}

static void add_cells(FILE *out, const char *const *headings, const char *const *cells)
{
    fputs("<tr>", out);
    for (; *headings; headings++, cells++)
        pd_chart_text(out,
                      **headings == '>'   ? "<td class=\"r\">"
                      : **headings == '~' ? "<td class=\"w\">"
                                          : "<td>",
                      *cells, "</td>");
    fputs("</tr>\n", out);
}
#define ADD_CELLS(out, headings, ...) add_cells(out, headings, PD_TEXTS(__VA_ARGS__))

static void end_table(FILE *out)
{
    fputs("</tbody></table></div>\n", out);
}

static void heading(FILE *out, const struct pd_report_data *r, uint32_t run, const char *what)
{
    fprintf(out, "<h2>%s", what);
    if (r->count > 1) {
        fputs(": ", out);
        pd_chart_escape(out, r->runs[run].history.name);
    }
    fputs("</h2>\n", out);
}

/* ---- main numbers ---- */

struct pd_counted pd_report_unread(const struct pd_history *h)
{
    struct pd_counted t = pd_counted(h->damaged_lines, "line");
    snprintf(t.text + strlen(t.text), sizeof t.text - strlen(t.text), " could not be read");
    return t;
}

static double lowest(const struct pd_history *h, enum pd_column column)
{
    return pd_history_quantile(h, column, 0, h->rows - 1, 0);
}

/* "not finite since step 5; 8 skipped", "8 steps skipped"; "": neither. */
static struct text losses_lost(const struct pd_history *h)
{
    struct text t;
    const double skipped = pd_history_last(h, PD_COLUMN_SKIPPED);
    if (!pd_history_not_finite_since(h, t.text, sizeof t.text) && skipped > 0 && skipped < 0x1p53)
        snprintf(t.text, sizeof t.text, "%s skipped", pd_counted((uint64_t)skipped, "step").text);
    return t;
}

PD_PRINTF(4, 5)
static void add_row(struct pd_summary *s, const char *name, const char *value, const char *more, ...)
{
    va_list arguments;
    PD_CHECK(s->count < PD_SUMMARY_ROWS);
    struct pd_summary_row *row = &s->rows[s->count++];
    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->value, sizeof row->value, "%s", value);
    va_start(arguments, more);
    vsnprintf(row->more, sizeof row->more, more, arguments);
    va_end(arguments);
}

void pd_summary_make(const struct pd_history *h, const struct pd_history_life *life, struct pd_summary *ret)
{
    const struct text lost = losses_lost(h);
    const double speed = pd_history_quantile(h, PD_COLUMN_TOKENS_PER_SECOND, 0, h->rows - 1, 0.5),
                 share = pd_history_quantile(h, PD_COLUMN_GEMM_SHARE, 0, h->rows - 1, 0.5),
                 memory = pd_history_quantile(h, PD_COLUMN_MEMORY, 0, h->rows - 1, 1),
                 validation = lowest(h, PD_COLUMN_VALIDATION_LOSS);
    const uint64_t planned = h->start_count ? h->starts[h->start_count - 1].planned_bytes : 0;
    ret->count = 0;
    add_row(ret, "step", whole(pd_history_last(h, PD_COLUMN_STEP)).text, "newest checkpoint: %s",
            whole((double)h->saved_step).text);
    add_row(ret, pd_history_not_finite_since(h, NULL, 0) ? "last finite loss" : "loss",
            number(pd_history_last(h, PD_COLUMN_LOSS)).text, "%s%s%s%s",
            isnan(validation) ? "nats a token; no validation" : "best validation: ",
            isnan(validation) ? "" : number(validation).text, lost.text[0] ? "; loss " : "", lost.text);
    add_row(ret, "tokens a second", pd_quantity_text(PD_QUANTITY_COUNT, speed).text, "median; %s of bare products",
            pd_quantity_text(PD_QUANTITY_SHARE, share).text);
    add_row(ret, "goodput", pd_quantity_text(PD_QUANTITY_SHARE, life->goodput).text, "of %s went into steps that count",
            pd_quantity_text(PD_QUANTITY_SECONDS, life->whole - life->idle).text);
    add_row(ret, pd_counted(h->start_count, "start").text, pd_counted(life->failures, "failure").text, "%s computed again",
            pd_counted(life->lost_steps, "step").text);
    add_row(ret, "memory, most", pd_quantity_text(PD_QUANTITY_BYTES, memory).text, "plan: %s",
            planned ? pd_quantity_text(PD_QUANTITY_BYTES, (double)planned).text : "not known");
}

static void summary_table(FILE *out, const struct pd_report_data *r)
{
    static const char *const headings[] = {"run",      ">step", ">loss",   ">best validation", ">tokens a second",
                                           ">goodput", ">time", ">starts", ">failures",        ">steps lost",
                                           "~loss is", NULL};
    begin_table(out, headings);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_history *h = &r->runs[i].history;
        const struct pd_history_life *life = &r->runs[i].life;
        const double speed = pd_history_quantile(h, PD_COLUMN_TOKENS_PER_SECOND, 0, h->rows - 1, 0.5);
        ADD_CELLS(out, headings, h->name, whole(pd_history_last(h, PD_COLUMN_STEP)).text,
                  number(pd_history_last(h, PD_COLUMN_LOSS)).text, number(lowest(h, PD_COLUMN_VALIDATION_LOSS)).text,
                  pd_quantity_text(PD_QUANTITY_COUNT, speed).text, pd_quantity_text(PD_QUANTITY_SHARE, life->goodput).text,
                  pd_quantity_text(PD_QUANTITY_SECONDS, life->whole).text, pd_text_plain(h->start_count).text,
                  pd_text_plain(life->failures).text, pd_text_plain(life->lost_steps).text, losses_lost(h).text);
    }
    end_table(out);
}

void pd_tables_summary(FILE *out, const struct pd_report_data *r)
{
    struct pd_summary s = {.count = 0};
    if (r->count == 1)
        pd_summary_make(&r->runs[0].history, &r->runs[0].life, &s);
    else
        summary_table(out, r);
    if (s.count) fputs("<div class=\"cards\">", out);
    for (uint32_t i = 0; i < s.count; i++) {
        fprintf(out, "<div class=\"card\">%s<b>", s.rows[i].name);
        pd_chart_escape(out, s.rows[i].value);
        pd_chart_text(out, "</b><span class=\"soft\">", s.rows[i].more, "</span></div>\n");
    }
    if (s.count) fputs("</div>\n", out);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_history *h = &r->runs[i].history;
        if (!h->damaged_lines) continue;
        fputs("<p><b>", out);
        pd_chart_escape(out, h->name);
        fprintf(out, ": %s</b></p>\n", pd_report_unread(h).text);
    }
}

/* ---- starts ---- */

static const char *const start_headings[] = {">start", "at",    "layout",    ">from step", ">to step",
                                             ">lost",  ">time", "~ended by", NULL};

static void start_row(FILE *out, const struct pd_history *h, uint64_t i, uint32_t failure)
{
    const struct pd_history_start *s = &h->starts[i];
    char layout[64] = "–", words[512];
    if (s->ranks) pd_figures_layout(s, layout, sizeof layout);
    const double ended = !isnan(s->ended) ? s->ended : s->rows ? h->columns[PD_COLUMN_TIME][s->last_row] : s->opened;
    if (s->exit_code == 0)
        snprintf(words, sizeof words, "done");
    else if (s->exit_code < 0)
        snprintf(words, sizeof words,
                 i + 1 == h->start_count ? "no end is known: it is running, or its launcher was killed"
                                         : "no message: its launcher was killed");
    else if (!pd_history_failed(s))
        snprintf(words, sizeof words, "left when asked to, with step %" PRIu64 " saved", s->left_step);
    else
        snprintf(words, sizeof words, "%u: %s", failure, s->cause);
    ADD_CELLS(out, start_headings, pd_text_plain(i + 1).text, moment(s->begun).text, layout,
              pd_text_plain(s->from_step).text, s->rows ? pd_text_plain(s->last_step).text : "–",
              pd_text_plain(s->lost_steps).text, pd_quantity_text(PD_QUANTITY_SECONDS, ended - s->begun).text, words);
}

/* If there are many, shows the first and the last ones. */
static void starts(FILE *out, const struct pd_history *h)
{
    uint32_t failures = 0;
    begin_table(out, start_headings);
    for (uint64_t i = 0; i < h->start_count; i++) {
        failures += pd_history_failed(&h->starts[i]);
        if (i == ROWS_MAX / 2 && h->start_count > ROWS_MAX)
            fprintf(out, "<tr><td></td><td colspan=\"7\">… %" PRIu64 " more</td></tr>\n", h->start_count - ROWS_MAX);
        if (i < ROWS_MAX / 2 || i + ROWS_MAX / 2 >= h->start_count) start_row(out, h, i, failures);
    }
    end_table(out);
}

static void life(FILE *out, const struct pd_history_life *l)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {{"steps that count", l->useful},
                 {"steps computed again", l->lost},
                 {"waiting for saves", l->saving},
                 {"starting and loading", l->opening},
                 {"between starts", l->down},
                 {"between launches, when nobody ran", l->idle},
                 {"validation, ends and the rest", l->other}};
    static const char *const headings[] = {"time went into", ">time", ">share", NULL};
    begin_table(out, headings);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ADD_CELLS(out, headings, parts[i].name, pd_quantity_text(PD_QUANTITY_SECONDS, parts[i].seconds).text,
                  pd_quantity_text(PD_QUANTITY_SHARE, l->whole > 0 ? parts[i].seconds / l->whole : NAN).text);
    end_table(out);
}

/* ---- layouts ---- */

static bool is_same(const struct pd_history_start *a, const struct pd_history_start *b)
{
    return a->ranks == b->ranks && a->hosts == b->hosts && a->threads == b->threads && a->dp == b->dp && a->tp == b->tp &&
           a->pp == b->pp && a->sp == b->sp && a->zero_stage == b->zero_stage && strcmp(a->device, b->device) == 0;
}

/* One row for each layout, at its first start; speed is the median of its start with most rows. */
static void layouts(FILE *out, const struct pd_history *h)
{
    static const char *const headings[] = {
        "device", ">ranks",           ">hosts", ">threads",        ">dp", ">tp", ">pp", ">sp", ">ZeRO", ">starts",
        ">steps", ">tokens a second", ">step",  ">memory by plan", NULL};
    begin_table(out, headings);
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i], *longest = s;
        uint64_t before = 0, count = 0, steps = 0;
        while (before < i && !is_same(&h->starts[before], s))
            before++;
        if (before < i || !s->fence || !s->dp) continue;
        for (uint64_t k = i; k < h->start_count; k++) {
            if (!is_same(&h->starts[k], s)) continue;
            count++;
            steps += h->starts[k].rows ? h->starts[k].last_step - h->starts[k].from_step - h->starts[k].lost_steps : 0;
            if (h->starts[k].rows > longest->rows) longest = &h->starts[k];
        }
        const bool has_rows = longest->rows > 0;
        const uint64_t first = longest->first_row, last = longest->last_row;
        const double speed = has_rows ? pd_history_quantile(h, PD_COLUMN_TOKENS_PER_SECOND, first, last, 0.5) : NAN,
                     seconds = has_rows ? pd_history_quantile(h, PD_COLUMN_SECONDS, first, last, 0.5) : NAN;
        ADD_CELLS(out, headings, s->device, pd_text_plain(s->ranks).text, pd_text_plain(s->hosts).text,
                  pd_text_plain(s->threads).text, pd_text_plain(s->dp).text, pd_text_plain(s->tp).text,
                  pd_text_plain(s->pp).text, pd_text_plain(s->sp).text, pd_text_plain(s->zero_stage).text,
                  pd_text_plain(count).text, pd_text_plain(steps).text, pd_quantity_text(PD_QUANTITY_COUNT, speed).text,
                  pd_quantity_text(PD_QUANTITY_SECONDS, seconds).text,
                  pd_quantity_text(PD_QUANTITY_BYTES, (double)s->planned_bytes).text);
    }
    end_table(out);
}

/* ---- saves and the store ---- */

static void tiers(FILE *out, const struct pd_history *h)
{
    static const char *const headings[] = {"tier",
                                           ">saves",
                                           ">each",
                                           ">longest",
                                           ">newest step",
                                           ">its age",
                                           ">upload",
                                           ">failures in a row",
                                           ">steps given up",
                                           "~",
                                           NULL};
    begin_table(out, headings);
    for (uint32_t i = 0; i < h->tier_count; i++) {
        const struct pd_history_tier *t = &h->tiers[i];
        char rate[64] = "";
        if (t->bytes_per_second > 0)
            snprintf(rate, sizeof rate, "%s/s", pd_quantity_text(PD_QUANTITY_BYTES, t->bytes_per_second).text);
        ADD_CELLS(out, headings, t->dir, pd_text_plain(pd_history_saves(h, i, NULL)).text,
                  t->timed ? pd_quantity_text(PD_QUANTITY_SECONDS, t->seconds / (double)t->timed).text : "",
                  t->timed ? pd_quantity_text(PD_QUANTITY_SECONDS, t->seconds_max).text : "", pd_text_plain(t->newest).text,
                  t->age > 0 ? pd_quantity_text(PD_QUANTITY_SECONDS, t->age).text : "", rate,
                  pd_text_plain(t->failures).text, pd_text_plain(t->skipped).text,
                  t->is_left_out ? "left out: it lies in memory and does not fit"
                  : t->failures  ? t->cause
                  : t->in_memory ? "in memory"
                                 : "");
    }
    end_table(out);
}

/* ---- experts ---- */

static void experts(FILE *out, const struct pd_history *h)
{
    static const char *const headings[] = {">block", ">busiest expert", ">idlest expert", ">entropy", ">bias range", NULL};
    begin_table(out, headings);
    for (uint32_t i = 0; i < h->block_count; i++) {
        const double *f = h->blocks[i].figures;
        ADD_CELLS(out, headings, pd_text_plain(h->blocks[i].block).text, pd_quantity_text(PD_QUANTITY_SHARE, f[0]).text,
                  pd_quantity_text(PD_QUANTITY_SHARE, f[1]).text, number(f[2]).text, number(f[3]).text);
    }
    end_table(out);
}

void pd_tables_rest(FILE *out, const struct pd_report_data *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pd_report_run *run = &r->runs[i];
        heading(out, r, i, "Starts, and how they ended");
        starts(out, &run->history);
        life(out, &run->life);
        heading(out, r, i, "Layouts");
        layouts(out, &run->history);
        heading(out, r, i, "Saves");
        tiers(out, &run->history);
        if (run->history.block_count) {
            heading(out, r, i, "Experts at the last step");
            experts(out, &run->history);
        }
        if (!run->config) continue;
        heading(out, r, i, "Configuration");
        fputs("<details><summary>config.yaml</summary><pre>", out);
        for (const char *c = run->config; *c; c++)
            fputs(*c == '<' ? "&lt;" : *c == '&' ? "&amp;" : (char[]){*c, '\0'}, out);
        fputs("</pre></details>\n", out);
    }
}
