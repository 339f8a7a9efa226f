/* The screen of perdure watch: lines of a fixed order; where the terminal is short the last ones have no room. */
#include "tools/report/figures.h"
#include "tools/report/watch.h"

#include "ckpt/base/utf8.h"
#include "ckpt/base/words.h"
#include "tools/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CLEAR_LINE "\033[K"
#define LABEL 9u

enum colour { PLAIN, BOLD, DIM, BLUE, ORANGE, GREEN, RED };
static const char *const codes[] = {"0", "1", "2", "38;5;39", "38;5;208", "38;5;78", "38;5;203"};

struct screen {
    FILE *out;
    const struct pd_watch *watch;
    struct pd_watch_style style;
    unsigned line, column; /* lines that are full; characters of the one that is not */
};

/* ---- writing ---- */

static bool is_full(const struct screen *s)
{
    return s->line >= s->style.rows;
}

static unsigned room(const struct screen *s)
{
    return s->style.columns > s->column ? s->style.columns - s->column : 0;
}

/* Characters of one column each; what has no room is cut. */
static void put(struct screen *s, enum colour colour, const char *text)
{
    if (is_full(s)) return;
    if (s->style.has_colour && colour != PLAIN) fprintf(s->out, "\033[%sm", codes[colour]);
    for (unsigned left = room(s); *text && (left || (*text & 0xc0) == 0x80); text++) {
        const bool is_first = (*text & 0xc0) != 0x80;
        left -= is_first;
        s->column += is_first;
        fputc((unsigned char)*text < ' ' ? ' ' : *text, s->out);
    }
    if (s->style.has_colour && colour != PLAIN) fputs("\033[0m", s->out);
}

static void say(struct screen *s, enum colour colour, const char *format, ...) PD_PRINTF(3, 4);
static void say(struct screen *s, enum colour colour, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pd_utf8_clean(text);
    put(s, colour, text);
}

static void end_line(struct screen *s)
{
    if (is_full(s)) return;
    fputs(CLEAR_LINE, s->out);
    if (++s->line < s->style.rows) fputs("\r\n", s->out);
    s->column = 0;
}

static void label(struct screen *s, const char *text)
{
    say(s, DIM, "%-*s", (int)LABEL, text);
}

/* "5 s", "12 min": whole seconds where they are few. */
static struct pd_quantity_text age_text(double seconds)
{
    struct pd_quantity_text t = pd_quantity_text(PD_QUANTITY_SECONDS, floor(seconds));
    if (seconds < 120) snprintf(t.text, sizeof t.text, "%.0f s", floor(seconds));
    return t;
}

/* ---- drawings of characters ---- */

static void bar(struct screen *s, enum colour colour, double share, unsigned width)
{
    static const char *const parts[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const double filled = fmin(fmax(isnan(share) ? 0 : share, 0), 1) * width;
    for (unsigned i = 0; i < width; i++) {
        const double part = fmin(fmax(filled - i, 0), 1);
        if (s->style.is_ascii)
            put(s, colour, part >= 0.5 ? "#" : ".");
        else if (part >= 1)
            put(s, colour, "█");
        else
            put(s, part > 0 ? colour : DIM, part > 0 ? parts[(int)(part * 8)] : "·");
    }
}

/* Means of equal parts of the rows that count, from the lowest to the highest of them. */
static void sparkline(struct screen *s, enum colour colour, enum pd_column column, unsigned width)
{
    static const char *const levels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, ascii[] = "_.-:=+*#";
    const struct pd_history *h = &s->watch->history;
    double *sums = calloc(2ul * width + 2, sizeof *sums), *counts = sums + width, low = INFINITY, high = -INFINITY;
    uint64_t counted = 0, number = 0;
    for (uint64_t row = 0; row < h->rows; row++)
        counted += h->counts[row];
    const uint64_t parts = counted < width ? counted : width;
    for (uint64_t row = 0; sums && row < h->rows; row++) {
        const uint64_t part = h->counts[row] ? number++ * parts / counted : 0;
        if (!h->counts[row] || !isfinite(h->columns[column][row])) continue;
        sums[part] += h->columns[column][row];
        counts[part]++;
    }
    for (uint64_t i = 0; sums && i < parts; i++)
        if (counts[i]) low = fmin(low, sums[i] / counts[i]), high = fmax(high, sums[i] / counts[i]);
    for (uint64_t i = 0; sums && i < parts; i++) {
        const double share = (sums[i] / counts[i] - low) / (high - low);
        const int level = !counts[i] ? -1 : share >= 0 && share <= 1 ? (int)(share * 7.999) : 3;
        put(s, colour, level < 0 ? " " : s->style.is_ascii ? (char[]){ascii[level], '\0'} : levels[level]);
    }
    for (uint64_t i = parts; i < width; i++)
        put(s, PLAIN, " ");
    free(sums);
}

/* ---- parts of the screen ---- */

static void add_state(struct screen *s)
{
    const struct pd_watch *w = s->watch;
    const struct pd_history *h = &w->history;
    const struct pd_history_start *last = h->start_count ? &h->starts[h->start_count - 1] : NULL;
    const double age = fmax(w->now - pd_history_last(h, PD_COLUMN_TIME), 0);
    char layout[64] = "";
    static const enum colour colours[] = {ORANGE, GREEN, RED, ORANGE, BOLD, RED, RED};
    if (last) pd_figures_layout(last, layout, sizeof layout);
    label(s, "state");
    if (w->state == PD_WATCH_ENDED)
        say(s, pd_history_failed(last) ? RED : GREEN, last->exit_code ? "ended with exit code %d" : "done", last->exit_code);
    else
        put(s, colours[w->state], pd_watch_states[w->state]);
    if (layout[0]) say(s, PLAIN, "; %s", layout);
    if (last) say(s, PLAIN, "; start %" PRIu64, h->start_count);
    if (!isnan(age)) say(s, DIM, "; last step %s ago", age_text(age).text);
    end_line(s);
}

static void add_curve(struct screen *s, const char *name, enum pd_column column, enum colour colour, const char *value,
                      const char *more)
{
    const unsigned left = 12, right = s->style.columns > 110 ? 30 : 22;
    label(s, name);
    say(s, PLAIN, "%-*s", (int)left, value);
    sparkline(s, colour, column,
              s->style.columns > LABEL + left + right + 10 ? s->style.columns - LABEL - left - right : 10);
    say(s, DIM, "  %s", more);
    end_line(s);
}

static void add_loss(struct screen *s)
{
    const struct pd_history *h = &s->watch->history;
    const double validation = pd_history_last(h, PD_COLUMN_VALIDATION_LOSS);
    char value[96], more[96] = "";
    if (pd_history_not_finite_since(h, value, sizeof value)) {
        label(s, "loss");
        put(s, RED, value);
        end_line(s);
        return;
    }
    snprintf(value, sizeof value, "%.4f", pd_history_last(h, PD_COLUMN_LOSS));
    if (!isnan(validation)) snprintf(more, sizeof more, "validation %.4f", validation);
    add_curve(s, "loss", PD_COLUMN_LOSS, BLUE, value, more);
}

static void add_curves(struct screen *s)
{
    const struct pd_history *h = &s->watch->history;
    char value[64], more[96];
    add_loss(s);
    snprintf(value, sizeof value, "%.3f", pd_history_last(h, PD_COLUMN_GRADIENT_NORM));
    snprintf(more, sizeof more, "lr %.2e", pd_history_last(h, PD_COLUMN_LEARNING_RATE));
    add_curve(s, "|g|", PD_COLUMN_GRADIENT_NORM, ORANGE, value, more);
    snprintf(more, sizeof more, "%s of products",
             pd_quantity_text(PD_QUANTITY_SHARE, pd_history_last(h, PD_COLUMN_GEMM_SHARE)).text);
    add_curve(s, "tokens/s", PD_COLUMN_TOKENS_PER_SECOND, GREEN,
              pd_quantity_text(PD_QUANTITY_COUNT, pd_history_last(h, PD_COLUMN_TOKENS_PER_SECOND)).text, more);
}

static void add_memory(struct screen *s)
{
    const struct pd_history *h = &s->watch->history;
    const double memory = pd_history_last(h, PD_COLUMN_MEMORY);
    const uint64_t planned = h->start_count ? h->starts[h->start_count - 1].planned_bytes : 0;
    label(s, "memory");
    say(s, PLAIN, "%-12s", pd_quantity_text(PD_QUANTITY_BYTES, memory).text);
    if (planned) {
        bar(s, memory > 1.1 * (double)planned ? ORANGE : BLUE, memory / (double)planned, s->style.columns / 3);
        say(s, DIM, "  planned %s", pd_quantity_text(PD_QUANTITY_BYTES, (double)planned).text);
    }
    end_line(s);
}

static void add_stages(struct screen *s)
{
    static const enum colour colours[PD_HISTORY_STAGES] = {ORANGE, BLUE, RED, GREEN};
    const struct pd_history *h = &s->watch->history;
    const uint64_t first = h->rows > 20 ? h->rows - 20 : 0;
    const double whole = pd_history_quantile(h, PD_COLUMN_SECONDS, first, h->rows - 1, 0.5);
    label(s, "step");
    say(s, PLAIN, "%-12s", pd_quantity_text(PD_QUANTITY_SECONDS, whole).text);
    for (uint32_t i = 0; i < PD_HISTORY_STAGES; i++) {
        const double share = pd_history_quantile(h, (enum pd_column)(PD_COLUMN_STAGE + i), first, h->rows - 1, 0.5) / whole;
        if (isnan(share)) continue;
        say(s, PLAIN, "%s ", pd_history_stage_names[i]);
        if (s->style.columns > 120) bar(s, colours[i], share, 16), put(s, PLAIN, " ");
        say(s, DIM, "%.0f%%  ", 100 * share);
    }
    end_line(s);
}

static void add_tiers(struct screen *s)
{
    const struct pd_history *h = &s->watch->history;
    const double step = s->watch->step;
    for (uint32_t i = 0; i < h->tier_count; i++) {
        const struct pd_history_tier *t = &h->tiers[i];
        const double newest = h->tier_count > 1 ? (double)t->newest : (double)h->saved_step;
        label(s, i ? "" : "saved");
        if (t->failures)
            say(s, RED, "%s: %s: %s", t->dir, pd_counted(t->failures, "failure").text, t->cause);
        else if (t->is_left_out)
            say(s, ORANGE, "%s: left out, it does not fit into memory", t->dir);
        else if (newest <= 0)
            say(s, PLAIN, "%s: nothing yet", t->dir);
        else
            say(s, PLAIN, "%s: step %.0f, %s behind", t->dir, newest,
                pd_counted((uint64_t)fmax(step - newest, 0), "step").text);
        end_line(s);
    }
}

/* Of many ranks those that are silent longest come first. */
static int oldest_first(const void *a, const void *b)
{
    const struct pd_watch_rank *x = a, *y = b;
    const bool x_gone = pd_watch_is_gone(x), y_gone = pd_watch_is_gone(y);
    if (x_gone != y_gone) return y_gone - x_gone;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static void add_ranks(struct screen *s)
{
    const struct pd_watch *w = s->watch;
    struct pd_watch_rank ranks[PD_WATCH_RANKS_MAX];
    const unsigned width = 19, a_line = (s->style.columns - LABEL) / width, lines = s->style.rows > 40 ? 8 : 2;
    if (w->state == PD_WATCH_ENDED || !w->rank_count) return;
    memcpy(ranks, w->ranks, w->rank_count * sizeof ranks[0]);
    qsort(ranks, w->rank_count, sizeof ranks[0], oldest_first);
    for (uint32_t i = 0; i < w->rank_count && a_line && i < a_line * lines; i++) {
        const struct pd_watch_rank *r = &ranks[i];
        char text[64];
        const bool is_gone = pd_watch_is_gone(r), is_stopped = pd_watch_is_stopped(r);
        if (i % a_line == 0) label(s, i ? "" : "ranks");
        if (is_gone || is_stopped)
            snprintf(text, sizeof text, "%u %s", r->rank, is_gone ? "gone" : "stopped");
        else if (isnan(r->age))
            snprintf(text, sizeof text, "%u joining", r->rank);
        else
            snprintf(text, sizeof text, "%u alive %s ago", r->rank, age_text(r->age).text);
        say(s, is_gone ? RED : is_stopped ? ORANGE : PLAIN, "%-*s", (int)width, text);
        if (i % a_line == a_line - 1 || i + 1 == w->rank_count) end_line(s);
    }
}

/* Over several lines where it is long. */
static void add_event(struct screen *s, const char *name, const char *event)
{
    const unsigned width = s->style.columns - LABEL;
    for (bool is_first = true; *event || is_first; is_first = false) {
        unsigned length = (unsigned)strnlen(event, width);
        while (length && (event[length] & 0xc0) == 0x80) /* within a character */
            length--;
        label(s, is_first ? name : "");
        say(s, PLAIN, "%.*s", (int)length, event);
        end_line(s);
        event += length;
    }
}

/* The newest events in what room is left. */
static void add_events(struct screen *s)
{
    enum { EVENTS_MAX = 64, DATE = sizeof "2026-01-01 " - 1 };
    char *text = NULL, *events[EVENTS_MAX];
    size_t bytes;
    unsigned left = s->style.rows > s->line ? s->style.rows - s->line : 0;
    uint64_t count = 0, first;
    FILE *all = open_memstream(&text, &bytes);
    if (!all) return;
    (void)pd_watch_events(s->watch, 0, all);
    if (fclose(all) || !text) return;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        events[count++ % EVENTS_MAX] = line + DATE;
    }
    for (first = count; first > 0 && count - first < EVENTS_MAX; first--) {
        const char *event = events[(first - 1) % EVENTS_MAX];
        const unsigned width = s->style.columns - LABEL, length = (unsigned)strlen(event);
        const unsigned lines = length ? (length + width - 1) / width : 1;
        if (lines > left) break;
        left -= lines;
    }
    for (uint64_t i = first; i < count; i++)
        add_event(s, i == first ? "events" : "", events[i % EVENTS_MAX]);
    free(text);
}

pd_status pd_watch_screen(const struct pd_watch *watch, const struct pd_watch_style *style, char **ret_text,
                          struct pd_error *err)
{
    char *text = NULL;
    size_t bytes;
    struct screen s = {open_memstream(&text, &bytes), watch, *style, 0, 0};
    if (!s.out) PD_FAIL(err, PD_NO_MEMORY, "no memory for the screen");
    const struct pd_watch *w = s.watch;
    const double step = w->step, eta = pd_history_last(&w->history, PD_COLUMN_ETA);
    char right[128] = "";
    if (!isnan(step) && w->steps)
        snprintf(right, sizeof right, "step %s of %s, %.0f %%", pd_text_count((uint64_t)step).text,
                 pd_text_count(w->steps).text, 100 * step / (double)w->steps);
    else if (!isnan(step))
        snprintf(right, sizeof right, "step %s", pd_text_count((uint64_t)step).text);
    if (w->state == PD_WATCH_TRAINING && !isnan(eta))
        snprintf(right + strlen(right), sizeof right - strlen(right), ", %s left",
                 pd_quantity_text(PD_QUANTITY_SECONDS, eta).text);
    say(&s, BOLD, "%s", w->history.name);
    const unsigned width = (unsigned)strlen(right);
    if (room(&s) > width + 2)
        say(&s, PLAIN, "%*s", (int)room(&s), right);
    else
        say(&s, PLAIN, "  %s", right);
    end_line(&s);
    bar(&s, BLUE, w->steps ? step / (double)w->steps : 0, s.style.columns);
    end_line(&s);
    add_state(&s);
    if (watch->history.rows) {
        add_curves(&s);
        add_stages(&s);
        add_memory(&s);
    }
    add_tiers(&s);
    add_ranks(&s);
    add_events(&s);
    if (fclose(s.out)) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the screen");
    }
    *ret_text = text;
    return PD_OK;
}
