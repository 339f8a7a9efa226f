/* The timeline: a lane a run, its segments by what was done. */
#include "tools/report/chart.h"

#include <math.h>

#define LANE_HEIGHT 26.0
#define LANE_STEP 62.0

static const char *const kind_names[PD_LANE_KINDS + 1] = {"starting", "steps that count", "steps computed again later",
                                                          "nothing"};
static const char *const kind_classes[PD_LANE_KINDS + 1] = {"opening", "training", "lost", "down"};

static void draw_legend(FILE *out, double width)
{
    double x = 0, y = 36;
    for (int k = 0; k <= PD_LANE_KINDS; k++) {
        double room = 24;
        for (const char *c = kind_names[k]; *c; c++)
            room += 6.8;
        if (x > 0 && x + room > width) x = 0, y += 17;
        fprintf(out,
                "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"9\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>",
                kind_classes[k], x, y - 9, x + 22, y, kind_names[k]);
        x += room + 12;
    }
}

/* Segments thinner than a pixel are drawn as one pixel, the shorter ones last, so that a short failure is seen. */
static void draw_segments(FILE *out, const struct pd_lane *lane, double top, double scale, double width)
{
    double number_from = 0;
    for (int kind = PD_LANE_TRAINING; kind >= 0; kind--)
        for (uint64_t i = 0; i < lane->count; i++) {
            const struct pd_lane_segment *s = &lane->segments[i];
            if ((int)s->kind != kind) continue;
            fprintf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"/>", kind_classes[kind],
                    s->begin * scale, top, fmax((s->end - s->begin) * scale, 0.6), LANE_HEIGHT);
        }
    for (uint64_t i = 0; i < lane->count; i++) {
        const struct pd_lane_segment *s = &lane->segments[i];
        if (s->kind == PD_LANE_LOST)
            fprintf(out, "<rect class=\"lost\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\"/>", s->begin * scale,
                    top, fmax((s->end - s->begin) * scale, 1), LANE_HEIGHT);
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
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" %s viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>", attributes,
            width, height);
    pd_chart_escape(out, title);
    fputs("</title><text class=\"h\" x=\"0\" y=\"15\">", out);
    pd_chart_escape(out, title);
    fputs("</text>", out);
    draw_legend(out, width);
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
