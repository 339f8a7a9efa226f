#include "tools/report/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LETTER 6.6 /* approximate width of a letter of 12 pixels */
#define LINE_HEIGHT 17.0

/* Geometry of one drawing. */
struct frame {
    FILE *out;
    const struct pd_chart *chart;
    double width, left, right, top, bottom; /* of the plot */
    struct pd_scale x, y;
};

void pd_chart_escape(FILE *out, const char *text)
{
    for (; *text; text++) {
        const char *entity = *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : *text == '"' ? "&quot;" : NULL;
        if (entity)
            fputs(entity, out);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, out);
    }
}

void pd_chart_text(FILE *out, const char *before, const char *text, const char *after)
{
    fputs(before, out);
    pd_chart_escape(out, text);
    fputs(after, out);
}

static void begin_svg(FILE *out, const char *attributes, double width, double height, const char *title)
{
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" %s viewBox=\"0 0 %.0f %.0f\" role=\"img\">", attributes, width,
            height);
    pd_chart_text(out, "<title>", title, "</title>");
    pd_chart_text(out, "<text class=\"h\" x=\"0\" y=\"15\">", title, "</text>");
}

/* Counts characters, not bytes. */
static double text_width(const char *text)
{
    double width = 0;
    for (; *text; text++)
        width += (*text & 0xc0) != 0x80 ? LETTER : 0;
    return width;
}

static double at_x(const struct frame *f, double x)
{
    return f->left + pd_scale_place(&f->x, x) * (f->right - f->left);
}

static double at_y(const struct frame *f, double y)
{
    return f->bottom - fmin(fmax(pd_scale_place(&f->y, y), 0), 1) * (f->bottom - f->top);
}

static bool is_drawn(const struct pd_series *s, uint64_t i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]) && (!s->counts || s->counts[i]);
}

/* ---- ranges ---- */

struct range {
    double low, high;
};

static void widen(struct range *r, double value)
{
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

/* Areas are stacked; they have equal lengths. */
static struct range y_range(const struct pd_chart *c)
{
    struct range r = {INFINITY, -INFINITY};
    uint64_t longest = 0;
    for (uint32_t k = 0; k < c->series_count; k++) {
        const struct pd_series *s = &c->series[k];
        if (s->style == PD_SERIES_AREA && s->count > longest) longest = s->count;
        const bool is_alone = s->style != PD_SERIES_AREA && s->style != PD_SERIES_RUG;
        for (uint64_t i = 0; i < s->count && is_alone; i++)
            if (is_drawn(s, i)) widen(&r, s->y[i]);
    }
    for (uint64_t i = 0; i < longest; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < c->series_count; k++)
            if (c->series[k].style == PD_SERIES_AREA && is_drawn(&c->series[k], i)) sum += c->series[k].y[i];
        widen(&r, sum);
    }
    if (c->from_zero && r.low > 0) r.low = 0;
    return r;
}

bool pd_chart_has_data(const struct pd_chart *c)
{
    for (uint32_t k = 0; k < c->series_count; k++)
        for (uint64_t i = 0; i < c->series[k].count; i++)
            if (is_drawn(&c->series[k], i)) return true;
    return false;
}

/* ---- around the plot ---- */

static bool has_lines(const struct pd_chart *c)
{
    for (uint64_t i = 0; i < c->mark_count; i++)
        if (c->marks[i].has_line) return true;
    return false;
}

/* Returns the height it takes. */
static double draw_legend(const struct frame *f, double top)
{
    const struct pd_chart *c = f->chart;
    double x = 0, y = top;
    for (uint32_t k = 0; k <= c->series_count; k++) {
        const bool is_mark = k == c->series_count;
        const struct pd_series *s = is_mark ? NULL : &c->series[k];
        const char *name = is_mark ? c->mark_name : s->name;
        if (!name || (is_mark && !has_lines(c)) || (s && s->is_unnamed)) continue;
        const double width = 24 + text_width(name) + 12;
        if (x > 0 && x + width > f->width) x = 0, y += LINE_HEIGHT;
        if (is_mark)
            fprintf(f->out, "<path class=\"mark\" d=\"M%.1f %.1fv10\"/>", x + 9, y - 9);
        else if (s->style == PD_SERIES_RUG)
            fprintf(f->out, "<path class=\"l%u\" d=\"M%.1f %.1fv8\"/>", s->colour, x + 9, y - 8);
        else if (s->style == PD_SERIES_POINTS)
            fprintf(f->out, "<circle class=\"p%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>", s->colour, x + 9, y - 4);
        else if (s->style == PD_SERIES_AREA)
            fprintf(f->out, "<rect class=\"a%u\" x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"9\"/>", s->colour, x, y - 9);
        else
            fprintf(f->out, "<path class=\"l%u%s\" d=\"M%.1f %.1fh17\"/>", s->colour, s->is_dashed ? " dash" : "", x, y - 4);
        fprintf(f->out, "<text x=\"%.1f\" y=\"%.1f\">", x + 22, y);
        pd_chart_escape(f->out, name);
        fputs("</text>", f->out);
        x += width;
    }
    return y - top + LINE_HEIGHT;
}

static void label_with_unit(const struct frame *f, const char *label, const struct pd_scale *scale)
{
    pd_chart_escape(f->out, label);
    if (scale->unit_name[0] && strcmp(scale->unit_name, "k") && strcmp(scale->unit_name, "M"))
        fprintf(f->out, ", %s", scale->unit_name);
    else if (scale->unit_name[0])
        fprintf(f->out, ", %s", scale->unit_name[0] == 'k' ? "thousands" : "millions");
}

static void draw_label(const struct frame *f, double x, const char *label)
{
    fprintf(f->out, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\">", x + 3, f->top - 5);
    pd_chart_escape(f->out, label);
    fputs("</text>", f->out);
}

static bool is_in_plot(const struct frame *f, const struct pd_chart_mark *mark)
{
    return mark->x >= f->x.low && mark->x <= f->x.high;
}

/* Shows the first of several labels at one place.   returns  the number of others without space */
static uint32_t place_labels(const struct frame *f, bool draws)
{
    double free_from = f->left, last = NAN;
    uint32_t crowded = 0;
    for (uint64_t i = 0; i < f->chart->mark_count; i++) {
        const struct pd_chart_mark *mark = &f->chart->marks[i];
        if (!mark->label || !is_in_plot(f, mark) || mark->x == last) continue;
        const double x = at_x(f, mark->x), until = x + 3 + text_width(mark->label) * 0.9;
        last = mark->x;
        if (x < free_from || until > f->width) {
            crowded++;
            continue;
        }
        if (draws) draw_label(f, x, mark->label);
        free_from = until + 6;
    }
    return crowded;
}

static uint32_t count_labels(const struct pd_chart *c)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < c->mark_count; i++) {
        bool is_new = c->marks[i].label;
        for (uint64_t k = 0; is_new && k < i; k++)
            is_new = !c->marks[k].label || strcmp(c->marks[k].label, c->marks[i].label) != 0;
        count += is_new;
    }
    return count;
}

/* Draws one of many lines at one place. */
static void draw_marks(const struct frame *f)
{
    double last_line = -INFINITY;
    for (uint64_t i = 0; i < f->chart->mark_count; i++) {
        const struct pd_chart_mark *mark = &f->chart->marks[i];
        if (!mark->has_line || !is_in_plot(f, mark)) continue;
        const double x = at_x(f, mark->x);
        if (x - last_line >= 1.5) fprintf(f->out, "<path class=\"mark\" d=\"M%.1f %.1fV%.1f\"/>", x, f->top, f->bottom);
        last_line = fmax(x, last_line);
    }
    /* If labels are missing, one sentence gives the number of layouts: the shown ones would pass for all. */
    char text[64];
    const uint32_t count = place_labels(f, false) ? count_labels(f->chart) : 1;
    snprintf(text, sizeof text, "%u layouts, see the table", count);
    if (count > 1)
        draw_label(f, f->left, text);
    else
        (void)place_labels(f, true);
}

/* ---- series ---- */

/* True if steps between two points are missing: rows in between are over three times as far apart as their neighbours. */
static bool has_gap(const struct pd_series *s, uint64_t from, uint64_t until)
{
    for (uint64_t i = from + 1; i <= until; i++) {
        const double before = i >= 2 ? s->x[i - 1] - s->x[i - 2] : 0, behind = i + 1 < s->count ? s->x[i + 1] - s->x[i] : 0;
        if (s->x[i] - s->x[i - 1] > 3 * fmax(fmax(before, behind), 1)) return true;
    }
    return false;
}

static void draw_path(const struct frame *f, const struct pd_series *s, const uint64_t *indices, uint64_t count)
{
    fprintf(f->out, "<path class=\"l%u%s%s\" d=\"", s->colour, s->is_dashed ? " dash" : "", s->is_thin ? " thin" : "");
    for (uint64_t i = 0; i < count; i++) {
        const double x = at_x(f, s->x[indices[i]]), y = at_y(f, s->y[indices[i]]);
        if (i && s->style == PD_SERIES_LEVEL) fprintf(f->out, "H%.1f", x);
        const bool goes_on = i && (s->style == PD_SERIES_LEVEL || !has_gap(s, indices[i - 1], indices[i]));
        fprintf(f->out, "%c%.1f %.1f", goes_on ? 'L' : 'M', x, y);
    }
    if (s->style == PD_SERIES_LEVEL) fprintf(f->out, "H%.1f", f->right);
    if (count == 1 && s->style == PD_SERIES_LINE) fputs("h.1", f->out);
    fputs("\"/>", f->out);
}

static void draw_points(const struct frame *f, const struct pd_series *s, const uint64_t *indices, uint64_t count)
{
    const double radius = count > 200 ? 1.8 : count > 60 ? 2.5 : 3.5;
    for (uint64_t i = 0; i < count; i++)
        fprintf(f->out, "<circle class=\"p%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>", s->colour, at_x(f, s->x[indices[i]]),
                at_y(f, s->y[indices[i]]), radius);
}

/* Stacks the means of pixel columns, (columns), on `floor`, and adds them to it. */
static void draw_area(const struct frame *f, const struct pd_series *s, uint32_t columns, double *floor, double *mean,
                      double *number)
{
    memset(mean, 0, columns * sizeof *mean);
    memset(number, 0, columns * sizeof *number);
    for (uint64_t i = 0; i < s->count; i++) {
        if (!is_drawn(s, i)) continue;
        const double place = pd_scale_place(&f->x, s->x[i]) * columns;
        const uint32_t column = place >= columns ? columns - 1 : (uint32_t)fmax(place, 0);
        mean[column] += s->y[i];
        number[column]++;
    }
    const double step = (f->right - f->left) / columns;
    fprintf(f->out, "<path class=\"a%u\" d=\"", s->colour);
    bool is_open = false;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t k = 0; k < columns; k++) {
            const uint32_t c = pass ? columns - 1 - k : k;
            if (!number[c]) continue;
            const double value = floor[c] + (pass ? 0 : mean[c] / number[c]);
            const double from = f->left + step * c, until = fmin(from + step * 1.02, f->right);
            fprintf(f->out, "%c%.1f %.1fH%.1f", is_open ? 'L' : 'M', pass ? until : from, at_y(f, value),
                    pass ? from : until);
            is_open = true;
        }
    fputs(is_open ? "Z\"/>" : "\"/>", f->out);
    for (uint32_t c = 0; c < columns; c++)
        if (number[c]) floor[c] += mean[c] / number[c];
}

/* With few points a column is as wide as their distance. */
static uint32_t area_columns(const struct frame *f)
{
    uint64_t most = 1;
    for (uint32_t k = 0; k < f->chart->series_count; k++)
        if (f->chart->series[k].style == PD_SERIES_AREA && f->chart->series[k].count > most)
            most = f->chart->series[k].count;
    const double pixels = (f->right - f->left) / 2;
    return (uint32_t)fmax(1, fmin(pixels, (double)most / 2));
}

static void draw_series(const struct frame *f)
{
    const uint32_t columns = (uint32_t)(f->right - f->left), areas = area_columns(f);
    uint64_t *indices = malloc(4ul * columns * sizeof *indices);
    double *sums = calloc(3ul * areas, sizeof *sums);
    uint32_t rugs = 0;
    for (uint32_t k = 0; indices && sums && k < f->chart->series_count; k++) {
        const struct pd_series *s = &f->chart->series[k];
        if (s->style == PD_SERIES_AREA) {
            draw_area(f, s, areas, sums, sums + areas, sums + 2ul * areas);
            continue;
        }
        const uint64_t count = pd_thin(s->x, s->y, s->counts, s->count, f->x.low, f->x.high, columns, indices);
        if (s->style == PD_SERIES_RUG) {
            uint32_t row = rugs++;
            fprintf(f->out, "<path class=\"l%u\" d=\"", s->colour);
            for (uint64_t i = 0; i < count; i++)
                fprintf(f->out, "M%.1f %.1fv7", at_x(f, s->x[indices[i]]), f->top + 1 + 9.0 * row);
            fputs("\"/>", f->out);
        } else if (s->style == PD_SERIES_POINTS)
            draw_points(f, s, indices, count);
        else if (count)
            draw_path(f, s, indices, count);
    }
    free(indices);
    free(sums);
}

/* ---- the whole ---- */

static bool has_labels(const struct pd_chart *c)
{
    for (uint64_t i = 0; i < c->mark_count; i++)
        if (c->marks[i].label) return true;
    return false;
}

static void make_scales(struct frame *f)
{
    const struct pd_chart *c = f->chart;
    const struct range y = y_range(c);
    const bool is_wide = c->log_if_wide && y.low > 0 && y.high / y.low > 50;
    pd_scale_make(&f->y, c->y_quantity, y.low, y.high, 5, is_wide, true);
    double widest = 0;
    for (uint32_t i = 0; i < f->y.tick_count; i++) {
        char text[32];
        pd_scale_label(&f->y, f->y.ticks[i], text, sizeof text);
        widest = fmax(widest, text_width(text));
    }
    f->left = widest + 12;
    f->right = f->width - 10;
    pd_scale_make(&f->x, c->x_quantity, c->x_low, c->x_high, (uint32_t)fmax(2, (f->right - f->left) / 80), false, false);
}

void pd_chart_draw(FILE *out, const struct pd_chart *chart, double width, double height, const char *attributes)
{
    struct frame f = {.out = out, .chart = chart, .width = width};
    make_scales(&f);
    begin_svg(out, attributes, width, height, chart->title);
    const double legend = draw_legend(&f, 36);
    fprintf(out, "<text class=\"unit\" x=\"0\" y=\"%.1f\">", 36 + legend);
    label_with_unit(&f, chart->y_label, &f.y);
    fprintf(out, "%s</text>", f.y.is_log ? " (logarithmic)" : "");
    f.top = 36 + legend + (has_labels(chart) ? 24 : 10);
    f.bottom = height - 40;
    char text[32];
    for (uint32_t i = 0; i < f.y.tick_count; i++) {
        const double y = at_y(&f, f.y.ticks[i]);
        pd_scale_label(&f.y, f.y.ticks[i], text, sizeof text);
        fprintf(f.out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"e\" x=\"%.1f\" y=\"%.1f\">%s</text>",
                f.left, y, f.right, f.left - 6, y + 4, text);
    }
    for (uint32_t i = 0; i < f.x.tick_count; i++) {
        const double x = at_x(&f, f.x.ticks[i]);
        pd_scale_label(&f.x, f.x.ticks[i], text, sizeof text);
        const double half = text_width(text) / 2, inside = fmin(x, f.width - half - 1);
        fprintf(f.out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/><text class=\"m\" x=\"%.1f\" y=\"%.1f\">%s</text>", x,
                f.bottom, inside, f.bottom + 17, text);
    }
    fprintf(f.out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/><text class=\"m\" x=\"%.1f\" y=\"%.1f\">", f.left,
            f.top, f.bottom, f.right, (f.left + f.right) / 2, f.bottom + 34);
    label_with_unit(&f, f.chart->x_label, &f.x);
    fputs("</text>", f.out);
    draw_series(&f);
    draw_marks(&f);
    fputs("</svg>\n", out);
}

#define LANE_HEIGHT 26.0
#define LANE_STEP 62.0

static const char *const kind_names[PD_LANE_KINDS + 1] = {"starting", "steps that count", "steps computed again later",
                                                          "nothing"};
static const char *const kind_classes[PD_LANE_KINDS + 1] = {"opening", "training", "lost", "down"};

static void lane_draw_legend(FILE *out, double width)
{
    double x = 0, y = 36;
    for (int k = 0; k <= PD_LANE_KINDS; k++) {
        double advance = 24;
        for (const char *c = kind_names[k]; *c; c++)
            advance += 6.8;
        if (x > 0 && x + advance > width) x = 0, y += 17;
        fprintf(out,
                "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"9\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>",
                kind_classes[k], x, y - 9, x + 22, y, kind_names[k]);
        x += advance + 12;
    }
}

static void draw_segment(FILE *out, const struct pd_lane_segment *s, double top, double scale, double least)
{
    fprintf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"/>", kind_classes[s->kind],
            s->begin * scale, top, fmax((s->end - s->begin) * scale, least), LANE_HEIGHT);
}

/* Draws segments thinner than a pixel as one pixel, the shorter ones last, so that a short failure is visible. */
static void draw_segments(FILE *out, const struct pd_lane *lane, double top, double scale, double width)
{
    double number_from = 0;
    for (int kind = PD_LANE_TRAINING; kind >= 0; kind--)
        for (uint64_t i = 0; i < lane->count; i++) {
            const struct pd_lane_segment *s = &lane->segments[i];
            if ((int)s->kind == kind) draw_segment(out, s, top, scale, 0.6);
        }
    for (uint64_t i = 0; i < lane->count; i++) {
        const struct pd_lane_segment *s = &lane->segments[i];
        if (s->kind == PD_LANE_LOST) draw_segment(out, s, top, scale, 1);
        if (!s->number) continue;
        const double x = fmin(s->end * scale, width - 1);
        fprintf(out, "<path class=\"mark\" d=\"M%.1f %.1fv%.0f\"/>", x, top - 3, LANE_HEIGHT + 6);
        if (x < number_from || x > width - 16) continue;
        fprintf(out, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\">%u</text>", x + 3, top - 3, s->number);
        number_from = x + 18;
    }
}

void pd_lanes_draw(FILE *out, const char *title, const struct pd_lane *lanes, uint32_t count, double end, double width,
                   const char *attributes)
{
    const double top = width < 500 ? 76 : 58, bottom = top + LANE_STEP * count, height = bottom + 38, inner = width - 12;
    struct pd_scale time;
    pd_scale_make(&time, PD_QUANTITY_SECONDS, 0, end > 0 ? end : 1, (uint32_t)(width / 90), false, false);
    const double scale = inner / time.high;
    begin_svg(out, attributes, width, height, title);
    lane_draw_legend(out, width);
    for (uint32_t i = 0; i < count; i++) {
        const double lane_top = top + LANE_STEP * i + 30;
        if (count > 1) {
            fprintf(out, "<text x=\"0\" y=\"%.1f\">", lane_top - 16);
            pd_chart_escape(out, lanes[i].name);
            fputs("</text>", out);
        }
        fprintf(out, "<rect class=\"down\" x=\"0\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"/>", lane_top, inner,
                LANE_HEIGHT);
        draw_segments(out, &lanes[i], lane_top, scale, inner);
    }
    for (uint32_t i = 0; i < time.tick_count; i++) {
        char text[32];
        pd_scale_label(&time, time.ticks[i], text, sizeof text);
        const double x = time.ticks[i] * scale;
        fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/><text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%s</text>", x,
                bottom + 2, i ? "m" : "b", fmin(x, width - 14), bottom + 17, text);
    }
    fprintf(out,
            "<path class=\"axis\" d=\"M0 %.1fH%.1f\"/><text class=\"m\" x=\"%.1f\" y=\"%.1f\">time since the first start, "
            "%s</text></svg>\n",
            bottom + 2, inner, width / 2, bottom + 33, time.unit_name);
}
