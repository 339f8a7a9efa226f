/* Draws a chart as an SVG element: title, legend, axes with units, series, marks.
 *
 * Colours and fonts are classes of a style sheet (page.c), so a page follows its reader's colour scheme. Lengths are
 * pixels. Lines are thinned to pixel columns. */
#pragma once

#include "tools/report/scale.h"

#include <stdio.h>

#define PD_CHART_SERIES_MAX 24u
#define PD_CHART_COLOURS 8u

enum pd_series_style {
    PD_SERIES_LINE,
    PD_SERIES_POINTS,
    PD_SERIES_AREA,  /* stacked on the areas before it: means of pixel columns */
    PD_SERIES_LEVEL, /* holds until the next point */
    PD_SERIES_RUG,   /* a tick at each x, at the top of the plot, one row for each such series; y is ignored */
};

/* Borrowed arrays, in the order of x. */
struct pd_series {
    const char *name;
    enum pd_series_style style;
    uint32_t colour;
    bool is_dashed, is_thin, is_unnamed; /* unnamed: not in the legend */
    const double *x, *y;
    const bool *counts; /* (count) which points to draw; NULL: all */
    uint64_t count;
};

struct pd_chart_mark {
    double x, until; /* until: end of the labelled event; at one place only the longest is labelled */
    bool has_line;
    const char *label; /* above the plot; NULL: none */
};

struct pd_chart {
    const char *title;
    const char *x_label, *y_label;
    enum pd_quantity x_quantity, y_quantity;
    bool from_zero, log_if_wide;
    double x_low, x_high; /* the same in all charts of a report */
    uint32_t series_count;
    struct pd_series series[PD_CHART_SERIES_MAX];
    const struct pd_chart_mark *marks; /* (mark_count), in the order of x */
    uint64_t mark_count;
    const char *mark_name; /* in the legend */
    const char *note;      /* a sentence under the chart on the page; NULL: none */
};

/* False if there is nothing to draw. */
bool pd_chart_has_data(const struct pd_chart *chart);
/* `attributes`: for the svg element, such as class="w" or x="0" y="300". */
void pd_chart_draw(FILE *out, const struct pd_chart *chart, double width, double height, const char *attributes);
/* Writes text with <, & and quotes as entities. */
void pd_chart_escape(FILE *out, const char *text);
/* Writes escaped text between two tags. */
void pd_chart_text(FILE *out, const char *before, const char *text, const char *after);

/* A timeline: segments one after the other. */
enum pd_lane_kind { PD_LANE_OPENING, PD_LANE_TRAINING, PD_LANE_LOST, PD_LANE_KINDS };
struct pd_lane_segment {
    double begin, end;
    enum pd_lane_kind kind;
    uint32_t number; /* of the failure at its end; 0: none */
};
struct pd_lane {
    const char *name;
    const struct pd_lane_segment *segments; /* (count), in the order of time */
    uint64_t count;
};
void pd_lanes_draw(FILE *out, const char *title, const struct pd_lane *lanes, uint32_t count, double end, double width,
                   const char *attributes);
