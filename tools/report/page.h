/* Writes a report of runs: one HTML file without scripts or external resources, or JSON. */
#pragma once

#include "ckpt/base/words.h"
#include "tools/report/figures.h"

struct pd_report_run {
    struct pd_history history;
    struct pd_history_life life;
    char *config; /* config.yaml, owned; NULL: none */
};

struct pd_report_data {
    uint32_t count;
    struct pd_report_run *runs; /* (count) */
};

PD_MUST_USE pd_status pd_page_write(const struct pd_report_data *report, const char *path, struct pd_error *err);
void pd_report_json(const struct pd_report_data *report, struct pd_json_writer *writer);

/* ---- parts ---- */

/* A run in a few rows: a name, a number and details. For the top of a page and the screen of watch. */
#define PD_SUMMARY_ROWS 6u
struct pd_summary {
    uint32_t count;
    struct pd_summary_row {
        char name[40], value[64], more[160];
    } rows[PD_SUMMARY_ROWS];
};
void pd_summary_make(const struct pd_history *history, const struct pd_history_life *life, struct pd_summary *ret_summary);

/* tables.c: everything but charts. */
void pd_tables_summary(FILE *out, const struct pd_report_data *report);
void pd_tables_rest(FILE *out, const struct pd_report_data *report);
/* "60 lines could not be read" */
struct pd_counted pd_report_unread(const struct pd_history *history);
