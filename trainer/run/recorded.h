/* What run.dir says of the run that lives there: events.jsonl and metrics.jsonl, since the run last began at step 1. A store that
 * holds no checkpoint, or those of another run, is held against it. Other than on that, nothing of a run depends on the two. */
#pragma once

#include "trainer/config/config.h"
#include "trainer/run/metrics.h"

#define PD_RUN_ID_BYTES 33

struct pd_recorded {
    char run_id[PD_RUN_ID_BYTES]; /* "": no start has opened the run, or one of an earlier version */
    uint64_t step;                /* newest that was committed where it outlives a reboot; 0: none */
    char dir[1024];               /* where that was */
    double since;                 /* seconds since 1970 when it last began at step 1, or --fresh was said; 0: not known */
};

void pd_recorded_run_id(const uint64_t run_id[2], char ret_text[PD_RUN_ID_BYTES]); /* hexadecimal */
/* What cannot be read says nothing. */
void pd_recorded_read(const char *run_dir, struct pd_recorded *ret);
/* Where no checkpoint is in sight and the run is about to begin at step 1.   errors  PD_CORRUPT: it had some */
PD_MUST_USE pd_status pd_recorded_check_lost(const struct pd_config *config, struct pd_error *err);
/* The last whole line of metrics.jsonl, or "". */
void pd_recorded_last_line(const char *run_dir, char *ret_line, size_t bytes);
/* What the last line of step->step in metrics.jsonl says of it; what is not found is left as it is. */
void pd_recorded_step(const char *run_dir, struct pd_metrics_step *step);
