/* The charts of a report: which columns of which runs are drawn, and how. */
#pragma once

#include "tools/report/chart.h"
#include "tools/report/history.h"

#define PD_REPORT_RUNS_MAX 8u
#define PD_FIGURES_MAX 13u

struct pd_figures {
    uint32_t count;
    struct pd_chart charts[PD_FIGURES_MAX];
    uint32_t lane_count;
    struct pd_lane lanes[PD_REPORT_RUNS_MAX];
    double lanes_end; /* seconds */

    /* Arrays that the charts borrow, owned. */
    struct pd_chart_mark *marks;
    uint64_t mark_count;
    void **arrays;
    uint32_t array_count;
    char (*labels)[112];
};

/* Leaves out charts without data. The histories are borrowed. */
PD_MUST_USE pd_status pd_figures_make(const struct pd_history *histories, uint32_t count, struct pd_figures *ret_figures,
                                      struct pd_error *err);
void pd_figures_deinit(struct pd_figures *figures);
/* "2 ranks, dp 2": short text for the layout of a start. */
void pd_figures_layout(const struct pd_history_start *start, char *ret_text, size_t capacity);
