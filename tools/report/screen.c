/* The screen of perdure watch: lines in a fixed order; a short terminal cuts off the last ones. */
#include "tools/report/page.h"
#include "tools/report/watch.h"

#include "ckpt/base/utf8.h"
#include "tools/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CLEAR_LINE "\033[K"

enum { LABEL = 18, DATE = sizeof "2026-01-01 " - 1 };

struct screen {
    FILE *out;
    unsigned columns, rows, line; /* line: number of full lines */
};

/* Adds a text after its label, on as many lines as it needs. Removes anything that would move the cursor. */
PD_PRINTF(3, 4)
static void screen_add(struct screen *s, const char *label, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pd_utf8_clean(text);
    const char *at = text;
    for (; s->line < s->rows && (*at || at == text); label = "") {
        fprintf(s->out, s->line++ ? "\r\n%-*.*s" : "%-*.*s", LABEL, LABEL, label);
        for (unsigned left = s->columns - LABEL; *at && (left || (*at & 0xc0) == 0x80); at++) {
            left -= (*at & 0xc0) != 0x80; /* start of a one-column character */
            fputc((unsigned char)*at < ' ' ? ' ' : *at, s->out);
        }
        fputs(CLEAR_LINE, s->out);
        if (!*text) return;
    }
}

static void add_progress(struct screen *s, const struct pd_watch *w)
{
    const double eta = pd_history_last(&w->history, PD_COLUMN_ETA);
    const bool has_eta = w->state == PD_WATCH_TRAINING && !isnan(eta);
    char steps[64] = "";
    if (w->steps)
        snprintf(steps, sizeof steps, " of %s, %.0f %%", pd_text_count(w->steps).text, 100 * w->step / (double)w->steps);
    if (isnan(w->step))
        screen_add(s, w->history.name, "no step yet");
    else
        screen_add(s, w->history.name, "step %s%s%s%s", pd_text_count((uint64_t)w->step).text, steps,
                   has_eta ? ", left: " : "", has_eta ? pd_quantity_text(PD_QUANTITY_SECONDS, eta).text : "");
}

static void add_state(struct screen *s, const struct pd_watch *w)
{
    const struct pd_history *h = &w->history;
    const struct pd_history_start *last = h->start_count ? &h->starts[h->start_count - 1] : NULL;
    const double age = fmax(w->now - pd_history_last(h, PD_COLUMN_TIME), 0);
    char state[128], layout[64] = "";
    pd_watch_state(w, state, sizeof state);
    if (w->state == PD_WATCH_ENDED)
        snprintf(state, sizeof state, last->exit_code ? "ended with exit code %d" : "done", last->exit_code);
    if (last) pd_figures_layout(last, layout, sizeof layout);
    screen_add(s, "state", "%s%s%s", state, layout[0] ? "; " : "", layout);
    if (!isnan(age)) screen_add(s, "last step", "%s ago", pd_quantity_text(PD_QUANTITY_SECONDS, floor(age)).text);
}

static void screen_add_tiers(struct screen *s, const struct pd_watch *w)
{
    const struct pd_history *h = &w->history;
    for (uint32_t i = 0; i < h->tier_count; i++) {
        const struct pd_history_tier *t = &h->tiers[i];
        const double newest = h->tier_count > 1 ? (double)t->newest : (double)h->saved_step;
        const char *label = i ? "" : "saved";
        if (t->failures)
            screen_add(s, label, "%s: %s: %s", t->dir, pd_counted(t->failures, "failure").text, t->cause);
        else if (t->is_left_out)
            screen_add(s, label, "%s: left out, it does not fit into memory", t->dir);
        else if (newest <= 0)
            screen_add(s, label, "%s: nothing yet", t->dir);
        else
            screen_add(s, label, "%s: step %.0f, %s behind", t->dir, newest,
                       pd_counted((uint64_t)fmax(w->step - newest, 0), "step").text);
        if (t->uploading)
            screen_add(s, "", "%s: uploading step %llu, %.0f %%, %s/s", t->dir, (unsigned long long)t->uploading,
                       100 * t->progress, pd_quantity_text(PD_QUANTITY_BYTES, t->bytes_per_second).text);
    }
}

/* Newest first. */
static void add_events(struct screen *s, const struct pd_watch *w)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *all = open_memstream(&text, &bytes);
    if (!all) return;
    (void)pd_watch_events(w, 0, all);
    if (fclose(all) || !text) return;
    for (const char *label = "events"; bytes && s->line < s->rows; label = "") {
        text[bytes - 1] = '\0'; /* end of the last line */
        const char *before = strrchr(text, '\n'), *line = before ? before + 1 : text;
        screen_add(s, label, "%s", line + DATE);
        bytes = (size_t)(line - text);
    }
    free(text);
}

pd_status pd_watch_screen(const struct pd_watch *w, unsigned columns, unsigned rows, char **ret_text, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes;
    struct screen s = {open_memstream(&text, &bytes), columns, rows, 0};
    struct pd_history_life life;
    struct pd_summary summary;
    if (!s.out) PD_FAIL(err, PD_NO_MEMORY, "no memory for the screen");
    add_progress(&s, w);
    add_state(&s, w);
    pd_history_life(&w->history, &life);
    pd_summary_make(&w->history, &life, &summary);
    for (uint32_t i = 1; i < summary.count && w->history.rows; i++) /* the first is the step */
        screen_add(&s, summary.rows[i].name, "%-10s %s", summary.rows[i].value, summary.rows[i].more);
    screen_add_tiers(&s, w);
    add_events(&s, w);
    if (fclose(s.out)) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the screen");
    }
    *ret_text = text;
    return PD_OK;
}
