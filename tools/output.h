/* What commands print: tables for people, JSON for programs, numbers with their units. All on stdout. */
#ifndef PD_TOOLS_OUTPUT_H
#define PD_TOOLS_OUTPUT_H

#include "ckpt/base/json.h"
#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_TABLE_COLUMNS_MAX 12

struct pd_table {
    uint32_t columns, rows, capacity;
    bool right[PD_TABLE_COLUMNS_MAX]; /* numbers stand at the right */
    char **cells;                     /* (rows * columns), owned */
    bool failed;                      /* out of memory: told by print */
};

/* Headings, one a column; one that begins with '>' is a column of numbers. */
void pd_table_init(struct pd_table *table, const char *const *headings, uint32_t columns);
/* A row of `columns` texts. */
void pd_table_row(struct pd_table *table, const char *const *cells);
void pd_table_deinit(struct pd_table *table);
/* Prints and frees. */
PD_MUST_USE pd_status pd_table_print(struct pd_table *table, struct pd_error *err);

/* Finishes the text, prints it and frees the writer, also on failure. */
PD_MUST_USE pd_status pd_output_json(struct pd_json_writer *writer, struct pd_error *err);

struct pd_text {
    char text[32];
};
struct pd_text pd_text_bytes(uint64_t bytes); /* "1.50 GiB" */
struct pd_text pd_text_count(uint64_t count); /* "12,345,678" */
struct pd_text pd_text_short(double number);  /* "1.24 G": for FLOP and the like */
struct pd_text pd_text_number(double number); /* six digits */
struct pd_text pd_text_hex(uint64_t number);

#endif
