#include "tools/report/figures.h"

#include "ckpt/base/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARRAYS_MAX 256u

/* The figures being made, and their sources. */
struct making {
    struct pd_figures *f;
    const struct pd_history *histories;
    uint32_t count;
    double x_low, x_high;
    bool has_failed; /* out of memory: reported once, at the end */
};

static void *keep(struct making *m, uint64_t count, size_t bytes)
{
    void *array = m->f->array_count < ARRAYS_MAX ? calloc(count ? count : 1, bytes) : NULL;
    if (array)
        m->f->arrays[m->f->array_count++] = array;
    else
        m->has_failed = true;
    return array;
}

static struct pd_chart *figures_begin(struct making *m, const char *title, const char *y_label, enum pd_quantity quantity)
{
    PD_CHECK(m->f->count < PD_FIGURES_MAX);
    struct pd_chart *chart = &m->f->charts[m->f->count];
    *chart = (struct pd_chart){.title = title,
                               .x_label = "step",
                               .y_label = y_label,
                               .x_quantity = PD_QUANTITY_COUNT,
                               .y_quantity = quantity,
                               .x_low = m->x_low,
                               .x_high = m->x_high,
                               .marks = m->f->marks,
                               .mark_count = m->f->mark_count,
                               .mark_name = "restart"};
    return chart;
}

static void figures_end(struct making *m)
{
    m->f->count += pd_chart_has_data(&m->f->charts[m->f->count]);
}

static struct pd_series *figures_add(struct pd_chart *chart, const char *name, enum pd_series_style style, uint32_t colour,
                                     const double *x, const double *y, const bool *counts, uint64_t count)
{
    static struct pd_series nobody;
    if (chart->series_count == PD_CHART_SERIES_MAX || !x || !y) return &nobody;
    struct pd_series *s = &chart->series[chart->series_count++];
    *s =
        (struct pd_series){.name = name, .style = style, .colour = colour, .x = x, .y = y, .counts = counts, .count = count};
    return s;
}

static struct pd_series *add_column(struct pd_chart *chart, const char *name, enum pd_series_style style, uint32_t colour,
                                    const struct pd_history *h, enum pd_column column)
{
    return figures_add(chart, name, style, colour, h->columns[PD_COLUMN_STEP], h->columns[column], h->counts, h->rows);
}

/* Adds a line for every run. */
static void chart_of_column(struct making *m, const char *title, const char *y_label, enum pd_quantity quantity,
                            enum pd_column column, bool from_zero, bool log_if_wide)
{
    struct pd_chart *chart = figures_begin(m, title, y_label, quantity);
    chart->from_zero = from_zero;
    chart->log_if_wide = log_if_wide;
    for (uint32_t i = 0; i < m->count; i++)
        add_column(chart, m->count > 1 ? m->histories[i].name : y_label, PD_SERIES_LINE, i, &m->histories[i], column);
    figures_end(m);
}

/* ---- marks ---- */

void pd_figures_layout(const struct pd_history_start *s, char *ret_text, size_t capacity)
{
    const struct {
        const char *name;
        uint32_t degree;
    } all[] = {{"dp", s->dp}, {"tp", s->tp}, {"pp", s->pp}, {"sp", s->sp}};
    int used = snprintf(ret_text, capacity, "%s", pd_counted(s->ranks, "rank").text);
    for (int i = 0; i < 4; i++)
        if (all[i].degree > 1 && used > 0 && (size_t)used < capacity)
            used += snprintf(ret_text + used, capacity - (size_t)used, "%s %s %u", i && strchr(ret_text, ',') ? "" : ",",
                             all[i].name, all[i].degree);
}

static bool is_same_layout(const struct pd_history_start *a, const struct pd_history_start *b)
{
    return a->ranks == b->ranks && a->dp == b->dp && a->tp == b->tp && a->pp == b->pp && a->sp == b->sp;
}

static int by_x(const void *a, const void *b)
{
    const struct pd_chart_mark *x = a, *y = b;
    return x->x != y->x ? (x->x > y->x) - (x->x < y->x) : (x->until < y->until) - (x->until > y->until);
}

/* Marks where starts resumed; labels those with a new layout. */
static void make_marks(struct making *m)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < m->count; i++)
        count += m->histories[i].start_count;
    m->f->marks = keep(m, count, sizeof *m->f->marks);
    m->f->labels = keep(m, count, sizeof *m->f->labels);
    for (uint32_t i = 0; i < m->count && !m->has_failed; i++) {
        const struct pd_history *h = &m->histories[i];
        const struct pd_history_start *before = NULL;
        for (uint64_t k = 0; k < h->start_count; k++) {
            const struct pd_history_start *s = &h->starts[k];
            if (!s->rows) continue;
            const uint64_t number = m->f->mark_count;
            const bool is_labelled = s->ranks && (!before || !is_same_layout(before, s));
            char layout[64];
            if (is_labelled) pd_figures_layout(s, layout, sizeof layout);
            if (is_labelled)
                snprintf(m->f->labels[number], sizeof m->f->labels[number], "%.40s%s%s", m->count > 1 ? h->name : "",
                         m->count > 1 ? ": " : "", layout);
            if (before || is_labelled)
                m->f->marks[m->f->mark_count++] =
                    (struct pd_chart_mark){.x = fmax((double)s->from_step, h->columns[PD_COLUMN_STEP][0]),
                                           .until = (double)s->last_step,
                                           .has_line = before,
                                           .label = is_labelled ? m->f->labels[number] : NULL};
            before = s;
        }
    }
    if (m->f->mark_count) qsort(m->f->marks, m->f->mark_count, sizeof *m->f->marks, by_x);
}

/* ---- charts of more than one column ---- */

#define SMOOTH_ROWS 20 /* rows that dominate the smoothed loss */

/* An exponential mean of the losses that count. */
static void add_smoothed(struct making *m, struct pd_chart *chart)
{
    const struct pd_history *h = &m->histories[0];
    double *y = m->count == 1 && h->rows >= 2 * SMOOTH_ROWS ? keep(m, h->rows, sizeof *y) : NULL, mean = NAN;
    for (uint64_t row = 0; y && row < h->rows; row++) {
        const double loss = h->columns[PD_COLUMN_LOSS][row];
        const bool is_used = h->counts[row] && isfinite(loss);
        if (is_used) mean = isnan(mean) ? loss : mean + (loss - mean) / SMOOTH_ROWS;
        y[row] = is_used ? mean : NAN;
    }
    if (y) figures_add(chart, "smoothed", PD_SERIES_LINE, 2, h->columns[PD_COLUMN_STEP], y, h->counts, h->rows);
}

static void chart_of_loss(struct making *m)
{
    struct pd_chart *chart = figures_begin(m, "Loss", "nats a token", PD_QUANTITY_NUMBER);
    for (uint32_t i = 0; i < m->count; i++)
        add_column(chart, m->count > 1 ? m->histories[i].name : "training", PD_SERIES_LINE, i, &m->histories[i],
                   PD_COLUMN_LOSS)
            ->is_thin = true;
    add_smoothed(m, chart);
    for (uint32_t i = 0; i < m->count; i++) {
        const struct pd_history *h = &m->histories[i];
        const uint32_t colour = m->count > 1 ? i : 1;
        if (isnan(pd_history_last(h, PD_COLUMN_VALIDATION_LOSS))) continue;
        struct pd_series *line =
            add_column(chart, m->count > 1 ? "" : "validation", PD_SERIES_LINE, colour, h, PD_COLUMN_VALIDATION_LOSS);
        line->is_dashed = true;
        line->is_unnamed = true;
        struct pd_series *points = add_column(chart, "validation", PD_SERIES_POINTS, colour, h, PD_COLUMN_VALIDATION_LOSS);
        points->is_unnamed = m->count > 1;
    }
    figures_end(m);
}

static void chart_of_memory(struct making *m)
{
    struct pd_chart *chart = figures_begin(m, "Memory of rank 0's process, against the plan", "memory", PD_QUANTITY_BYTES);
    chart->from_zero = true;
    chart->note =
        "The plan covers the memory of the ranks. A process needs more, for program, libraries, stacks and tables; perdure "
        "plan shows how much.";
    for (uint32_t i = 0; i < m->count; i++)
        add_column(chart, m->count > 1 ? m->histories[i].name : "resident", PD_SERIES_LINE, i, &m->histories[i],
                   PD_COLUMN_MEMORY);
    for (uint32_t i = 0; i < m->count; i++) {
        const struct pd_history *h = &m->histories[i];
        double *x = keep(m, h->start_count, sizeof *x), *y = keep(m, h->start_count, sizeof *y);
        uint64_t points = 0;
        for (uint64_t k = 0; x && y && k < h->start_count; k++)
            if (h->starts[k].rows && h->starts[k].planned_bytes) {
                x[points] = fmax((double)h->starts[k].from_step, h->columns[PD_COLUMN_STEP][0]);
                y[points++] = (double)h->starts[k].planned_bytes;
            }
        struct pd_series *plan =
            figures_add(chart, m->count > 1 ? "" : "plan", PD_SERIES_LEVEL, m->count > 1 ? i : 1, x, y, NULL, points);
        plan->is_dashed = true;
        plan->is_unnamed = m->count > 1;
    }
    figures_end(m);
}

/* Time outside the stages: data, agreement, summing the loss. */
static double *rest_of_step(struct making *m, const struct pd_history *h)
{
    double *rest = keep(m, h->rows, sizeof *rest);
    for (uint64_t row = 0; rest && row < h->rows; row++) {
        rest[row] = h->columns[PD_COLUMN_SECONDS][row];
        for (uint32_t s = 0; s < PD_HISTORY_STAGES; s++)
            rest[row] -= h->columns[PD_COLUMN_STAGE + s][row];
        rest[row] = isnan(rest[row]) ? NAN : fmax(rest[row], 0);
    }
    return rest;
}

static void chart_of_stages(struct making *m)
{
    const struct pd_history *h = &m->histories[0];
    struct pd_chart *chart = figures_begin(m, "Time of a step", "time", PD_QUANTITY_SECONDS);
    chart->from_zero = true;
    if (m->count > 1) {
        for (uint32_t i = 0; i < m->count; i++)
            add_column(chart, m->histories[i].name, PD_SERIES_LINE, i, &m->histories[i], PD_COLUMN_SECONDS);
        figures_end(m);
        return;
    }
    const bool has_stages = !isnan(pd_history_last(h, PD_COLUMN_STAGE));
    static const uint32_t colours[PD_HISTORY_STAGES] = {4, 0, 3, 2};
    if (has_stages) chart->title = "Time of a step by stage, on rank 0";
    for (uint32_t s = 0; has_stages && s < PD_HISTORY_STAGES; s++)
        add_column(chart, pd_history_stage_names[s], PD_SERIES_AREA, colours[s], h, (enum pd_column)(PD_COLUMN_STAGE + s));
    if (has_stages)
        figures_add(chart, "rest", PD_SERIES_AREA, 7, h->columns[PD_COLUMN_STEP], rest_of_step(m, h), h->counts, h->rows);
    add_column(chart, "whole step", PD_SERIES_LINE, 1, h, PD_COLUMN_SECONDS)->is_thin = true;
    figures_end(m);
}

struct point {
    double x, y;
};

static int by_step(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    return (x->x > y->x) - (x->x < y->x);
}

/* All values of a column, in step order: keeps a save even if a restart computed its step again. */
static void add_all(struct making *m, struct pd_chart *chart, const char *name, uint32_t colour, const struct pd_history *h,
                    enum pd_column column)
{
    struct point *points = keep(m, h->rows, sizeof *points);
    double *x = keep(m, h->rows, sizeof *x), *y = keep(m, h->rows, sizeof *y);
    uint64_t count = 0;
    if (!points || !x || !y) return;
    for (uint64_t row = 0; row < h->rows; row++)
        if (!isnan(h->columns[column][row]))
            points[count++] = (struct point){h->columns[PD_COLUMN_STEP][row], h->columns[column][row]};
    if (count) qsort(points, count, sizeof *points, by_step);
    for (uint64_t i = 0; i < count; i++)
        x[i] = points[i].x, y[i] = points[i].y;
    figures_add(chart, name, PD_SERIES_POINTS, colour, x, y, NULL, count);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_arrivals(struct making *m, struct pd_chart *chart, const struct pd_history *h)
{
    for (uint32_t t = 0; t < h->tier_count; t++) {
        double *steps = keep(m, h->rows + h->start_count, sizeof *steps);
        const uint64_t count = steps ? pd_history_saves(h, t, steps) : 0;
        if (count) qsort(steps, count, sizeof *steps, ascending);
        for (uint64_t i = 0; i < count; i++)
            steps[i] = fmin(steps[i], m->x_high); /* the final save may come after the last line */
        figures_add(chart, h->tiers[t].dir, PD_SERIES_RUG, 2 + t % (PD_CHART_COLOURS - 2), steps, steps, NULL, count);
    }
    if (h->tier_count) chart->note = "A tick at the top: a checkpoint had arrived in the tier of its colour.";
}

static void chart_of_saves(struct making *m)
{
    struct pd_chart *chart = figures_begin(m, "Saves", "time", PD_QUANTITY_SECONDS);
    chart->from_zero = true;
    chart->log_if_wide = true;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct pd_history *h = &m->histories[i];
        add_all(m, chart, m->count > 1 ? h->name : "whole save, in the background", i, h, PD_COLUMN_SAVE_SECONDS);
        if (m->count > 1) continue;
        add_all(m, chart, "training waited", 1, h, PD_COLUMN_STALL_SECONDS);
        add_arrivals(m, chart, h);
    }
    figures_end(m);
}

/* Steps lost if only this tier survived. */
static double *steps_behind(struct making *m, const struct pd_history *h, enum pd_column column)
{
    double *behind = keep(m, h->rows, sizeof *behind);
    for (uint64_t row = 0; behind && row < h->rows; row++)
        behind[row] = h->columns[PD_COLUMN_STEP][row] - h->columns[column][row];
    return behind;
}

static void chart_of_risk(struct making *m)
{
    struct pd_chart *chart = figures_begin(m, "Steps that are not saved yet", "steps", PD_QUANTITY_COUNT);
    chart->from_zero = true;
    for (uint32_t i = 0; i < m->count; i++) {
        const struct pd_history *h = &m->histories[i];
        const bool has_tiers = m->count == 1 && h->tier_count > 1;
        if (!has_tiers)
            figures_add(chart, m->count > 1 ? h->name : "behind the newest checkpoint", PD_SERIES_LINE, i,
                        h->columns[PD_COLUMN_STEP], steps_behind(m, h, PD_COLUMN_CHECKPOINT), h->counts, h->rows);
        for (uint32_t t = 0; has_tiers && t < h->tier_count; t++)
            figures_add(chart, h->tiers[t].dir, PD_SERIES_LINE, t, h->columns[PD_COLUMN_STEP],
                        steps_behind(m, h, (enum pd_column)(PD_COLUMN_TIER + t)), h->counts, h->rows);
    }
    figures_end(m);
}

/* Figure number f of experts: the worst block's, and of a single run the median block's. */
static void add_expert_figure(struct making *m, struct pd_chart *chart, uint32_t f, const char *worst, const char *median)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const enum pd_column column = (enum pd_column)(PD_COLUMN_EXPERTS + 2 * f);
        const uint32_t colour = m->count > 1 ? i : f % 2;
        add_column(chart, m->count > 1 ? m->histories[i].name : worst, PD_SERIES_LINE, colour, &m->histories[i], column);
        if (m->count == 1)
            add_column(chart, median, PD_SERIES_LINE, colour, &m->histories[i], (enum pd_column)(column + 1))->is_dashed =
                true;
    }
}

static void charts_of_experts(struct making *m)
{
    struct pd_chart *chart = figures_begin(m, "Tokens of the busiest and the idlest expert", "share", PD_QUANTITY_SHARE);
    chart->from_zero = true;
    chart->note = "Shares of the tokens of a block. The table of experts has each block at the last step.";
    add_expert_figure(m, chart, 0, "busiest, worst block", "busiest, median block");
    if (m->count == 1) add_expert_figure(m, chart, 1, "idlest, worst block", "idlest, median block");
    figures_end(m);
    chart = figures_begin(m, "Entropy of the choice of experts", "nats", PD_QUANTITY_NUMBER);
    add_expert_figure(m, chart, 2, "worst block", "median block");
    figures_end(m);
    chart = figures_begin(m, "Range of the selection bias", "highest less lowest", PD_QUANTITY_NUMBER);
    chart->from_zero = true;
    add_expert_figure(m, chart, 3, "widest block", "median block");
    figures_end(m);
}

/* ---- the timeline ---- */

struct span {
    double first, until, last, finish; /* of its steps: the first, the last that counts, the last; when it ended */
};

/* Ignores lines without a time. */
static struct span span_of(const struct pd_history *h, const struct pd_history_start *s)
{
    struct span t = {.first = NAN, .until = NAN, .last = NAN};
    bool counts = true;
    for (uint64_t row = s->first_row; s->rows && row <= s->last_row; row++) {
        const double time = h->columns[PD_COLUMN_TIME][row], seconds = h->columns[PD_COLUMN_SECONDS][row];
        counts = counts && h->counts[row];
        if (isnan(time)) continue;
        if (isnan(t.first)) t.first = t.until = time - (isnan(seconds) ? 0 : seconds);
        if (counts) t.until = time;
        t.last = time;
    }
    if (isnan(t.last)) t.last = isnan(s->opened) ? s->begun : s->opened;
    t.finish = isnan(s->ended) ? t.last : s->ended;
    if (isnan(t.first)) t.first = t.until = s->rows ? t.last : t.finish;
    return t;
}

static uint64_t add_segment(struct pd_lane_segment *out, uint64_t used, double figures_begin, double figures_end,
                            enum pd_lane_kind kind)
{
    if (isnan(figures_begin) || isnan(figures_end)) return used;
    out[used] = (struct pd_lane_segment){figures_begin, figures_end, kind, 0};
    return used + 1;
}

static uint64_t lane_of(struct making *m, const struct pd_history *h, struct pd_lane_segment *out)
{
    const double zero = h->start_count ? h->starts[0].begun : 0;
    uint64_t used = 0;
    uint32_t number = 0;
    for (uint64_t i = 0; i < h->start_count; i++) {
        const struct pd_history_start *s = &h->starts[i];
        const struct span t = span_of(h, s);
        const uint64_t before = used;
        number += pd_history_failed(s);
        used = add_segment(out, used, s->begun - zero, t.first - zero, PD_LANE_OPENING);
        if (s->rows) used = add_segment(out, used, t.first - zero, t.until - zero, PD_LANE_TRAINING);
        if (s->rows && s->lost_steps) used = add_segment(out, used, t.until - zero, t.last - zero, PD_LANE_LOST);
        if (used > before && pd_history_failed(s)) out[used - 1].number = number;
        m->f->lanes_end = fmax(m->f->lanes_end, t.finish - zero);
    }
    return used;
}

static void find_steps(struct making *m)
{
    m->x_low = INFINITY;
    m->x_high = -INFINITY;
    for (uint32_t i = 0; i < m->count; i++)
        for (uint64_t row = 0; row < m->histories[i].rows; row++) {
            m->x_low = fmin(m->x_low, m->histories[i].columns[PD_COLUMN_STEP][row]);
            m->x_high = fmax(m->x_high, m->histories[i].columns[PD_COLUMN_STEP][row]);
        }
}

pd_status pd_figures_make(const struct pd_history *histories, uint32_t count, struct pd_figures *ret_figures,
                          struct pd_error *err)
{
    struct pd_figures f = {.arrays = calloc(ARRAYS_MAX, sizeof *f.arrays)};
    struct making m = {.f = &f, .histories = histories, .count = count, .has_failed = !f.arrays};
    find_steps(&m);
    if (!m.has_failed) make_marks(&m);
    if (!m.has_failed) {
        chart_of_loss(&m);
        chart_of_column(&m, "Gradient norm before clipping", "norm", PD_QUANTITY_NUMBER, PD_COLUMN_GRADIENT_NORM, false,
                        true);
        chart_of_column(&m, "Learning rate", "learning rate", PD_QUANTITY_NUMBER, PD_COLUMN_LEARNING_RATE, true, false);
        chart_of_column(&m, "Speed", "tokens a second", PD_QUANTITY_COUNT, PD_COLUMN_TOKENS_PER_SECOND, true, false);
        chart_of_column(&m, "Speed as a share of bare matrix products", "share", PD_QUANTITY_SHARE, PD_COLUMN_GEMM_SHARE,
                        true, false);
        chart_of_stages(&m);
        chart_of_memory(&m);
        charts_of_experts(&m);
        chart_of_saves(&m);
        chart_of_risk(&m);
        for (uint32_t i = 0; i < m.count; i++) {
            const struct pd_history *h = &m.histories[i];
            struct pd_lane_segment *segments = keep(&m, 3 * h->start_count, sizeof *segments);
            if (!segments || !h->start_count || isnan(h->starts[0].begun)) continue;
            m.f->lanes[m.f->lane_count++] = (struct pd_lane){h->name, segments, lane_of(&m, h, segments)};
        }
    }
    if (m.has_failed) {
        pd_figures_deinit(&f);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for the charts");
    }
    *ret_figures = f;
    return PD_OK;
}

void pd_figures_deinit(struct pd_figures *f)
{
    for (uint32_t i = 0; i < f->array_count; i++)
        free(f->arrays[i]);
    free(f->arrays);
    *f = (struct pd_figures){.count = 0};
}
