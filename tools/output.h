/* Output of commands on stdout: tables for people, JSON for programs, numbers with their units. */
#pragma once

#include "ckpt/base/json.h"
#include "ckpt/base/progress.h"
#include "ckpt/inspect/inspect.h"

#define PD_TABLE_COLUMNS_MAX 12

struct pd_table {
    uint32_t columns, rows;
    bool right[PD_TABLE_COLUMNS_MAX]; /* right-aligned: numbers */
    char **cells;                     /* (rows * columns), owned */
    bool failed;                      /* out of memory; print reports it */
};

/* One heading a column; a leading '>' marks a column of numbers. */
void pd_table_init(struct pd_table *table, const char *const *headings, uint32_t columns);
/* Adds a row of `columns` texts. */
void pd_table_row(struct pd_table *table, const char *const *cells);
/* Shorthands: PD_TABLE_INIT(&table, "NAME", ">SIZE"), PD_TABLE_ROW(&table, name, size). */
#define PD_TABLE_INIT(table, ...) \
    pd_table_init(table, PD_TEXTS(__VA_ARGS__), sizeof PD_TEXTS(__VA_ARGS__) / sizeof(const char *))
#define PD_TABLE_ROW(table, ...) pd_table_row(table, PD_TEXTS(__VA_ARGS__))
#define PD_TEXTS(...) ((const char *const[]){__VA_ARGS__})
void pd_table_deinit(struct pd_table *table);
/* Prints and frees. */
PD_MUST_USE pd_status pd_table_print(struct pd_table *table, struct pd_error *err);

/* Finishes the text, prints it and frees the writer, even on failure. main reports a stdout that cannot be written. */
PD_MUST_USE pd_status pd_output_json(struct pd_json_writer *writer, struct pd_error *err);

/* Adds the members exit_code, code ("usage"; null on success) and error (a sentence, or null). */
void pd_output_ending(struct pd_json_writer *writer, pd_status status, const char *message);
/* Prints an object of these alone, unless the command has already printed JSON. */
void pd_output_json_error(const struct pd_error *error);

struct pd_config;
/* Prints the configuration for --print-config: YAML, as the member "config" with --json. */
PD_MUST_USE pd_status pd_output_config(const struct pd_config *config, bool is_json, struct pd_error *err);

/* A result for both outputs: a row for each value, or one JSON object with the same keys. */
struct pd_report {
    struct pd_json_writer writer;
    bool is_json;
};
enum pd_unit { PD_UNIT_NONE, PD_UNIT_BYTES, PD_UNIT_SECONDS, PD_UNIT_SHARE, PD_UNIT_BYTES_PER_SECOND };
void pd_report_begin(struct pd_report *report, bool is_json);
/* Prints a sentence above the rows; not in JSON. */
void pd_report_say(struct pd_report *report, const char *format, ...) PD_PRINTF(2, 3);
void pd_report_text(struct pd_report *report, const char *key, const char *text);
void pd_report_u64(struct pd_report *report, const char *key, uint64_t value, enum pd_unit unit);
/* Several values without a unit: PD_REPORT_U64S(report, {"pairs", pairs}, {"threads", threads}). */
#define PD_REPORT_U64S(report, ...) pd_report_u64s(report, (const struct pd_json_u64_member[]){__VA_ARGS__, {0}})
void pd_report_u64s(struct pd_report *report, const struct pd_json_u64_member *members);
void pd_report_double(struct pd_report *report, const char *key, double value, enum pd_unit unit);
/* "0.89 (0.86 to 0.97)"; "<key>", "<key>_low" and "<key>_high" in JSON. */
void pd_report_range(struct pd_report *report, const char *key, double value, double low, double high, enum pd_unit unit);
PD_MUST_USE pd_status pd_report_end(struct pd_report *report, struct pd_error *err);

struct pd_text {
    char text[32];
};
struct pd_text pd_text_bytes(uint64_t bytes);  /* "1.50 GiB" */
struct pd_text pd_text_count(uint64_t count);  /* "12,345,678" */
struct pd_text pd_text_plain(uint64_t number); /* "12345678": of steps and ranks */
struct pd_text pd_text_short(double number);   /* "12345678": for steps and ranks */
struct pd_text pd_text_number(double number);  /* six digits */
struct pd_text pd_text_hex(uint64_t number);

/* Shows bytes done of the total, rate and time left on stderr. start returns NULL if nothing is to be shown. */
struct pd_shown_progress {
    struct pd_progress_mode mode;
    uint64_t start_ns, shown_ns;
    bool is_shown;
};
pd_inspect_progress pd_shown_progress_start(struct pd_shown_progress *progress);
void pd_shown_progress_end(const struct pd_shown_progress *progress);
