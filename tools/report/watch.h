/* perdure watch: shows the current state of a run from its files, as a screen or as lines. */
#pragma once

#include "tools/report/history.h"

#include <sys/stat.h>

enum pd_watch_state {
    PD_WATCH_STARTING,
    PD_WATCH_TRAINING,
    PD_WATCH_SILENT,
    PD_WATCH_BETWEEN,
    PD_WATCH_ENDED,
    PD_WATCH_GONE,
    PD_WATCH_NO_DIRECTORY,
    PD_WATCH_STATES
};

/* A snapshot of the run. */
struct pd_watch {
    struct pd_history history;
    uint64_t steps; /* run.steps; 0: unknown */
    double step;    /* newest; NaN: none */
    double now;
    enum pd_watch_state state;
    bool is_here; /* this is the launcher's host, so processes of ranks can be examined */

    struct stat directory, config; /* run.dir when opened, config.yaml when read */
};

PD_MUST_USE pd_status pd_watch_open(const char *dir, struct pd_watch *ret_watch, struct pd_error *err);
PD_MUST_USE pd_status pd_watch_look(struct pd_watch *watch, struct pd_error *err);
void pd_watch_close(struct pd_watch *watch);

/* Renders at most `rows` lines of at most `columns` characters, each after an escape that clears its line. malloc'ed */
PD_MUST_USE pd_status pd_watch_screen(const struct pd_watch *watch, unsigned columns, unsigned rows, char **ret_text,
                                      struct pd_error *err);
/* "training", "training; rank 1 is stopped".   ret_text (capacity) */
void pd_watch_state(const struct pd_watch *watch, char *ret_text, size_t capacity);
/* One line: "step 60/120 loss 5.0874 ... 2 ranks, dp 2, training".   ret_text (capacity) */
void pd_watch_line(const struct pd_watch *watch, char *ret_text, size_t capacity);
void pd_watch_json(const struct pd_watch *watch, struct pd_json_writer *writer); /* the same, as an object */
/* Prints the run's events from index `first` on, a line each. Returns their number so far. */
uint64_t pd_watch_events(const struct pd_watch *watch, uint64_t first, FILE *out);
