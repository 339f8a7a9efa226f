/* What run.dir says of the run that lives there: events.jsonl and metrics.jsonl, since the run last began at step 1. A store that
 * holds no checkpoint, or those of another run, is held against it. Other than on that, nothing of a run depends on the two. */
#pragma once

#include "trainer/config/config.h"

#define PD_RUN_ID_BYTES 33

struct pd_recorded {
    char run_id[PD_RUN_ID_BYTES]; /* "": no start has opened the run, or one of an earlier version */
    uint64_t step;                /* newest that was committed where it outlives a reboot; 0: none */
    char dir[1024];               /* where that was */
    uint64_t kept; /* newest that is whole without any one host: copied to another, or, without replicas, saved; 0: none */
};

void pd_recorded_run_id(const uint64_t run_id[2], char ret_text[PD_RUN_ID_BYTES]); /* hexadecimal */
/* What cannot be read says nothing. */
void pd_recorded_read(const char *run_dir, struct pd_recorded *ret);
/* Where no checkpoint is in sight and the run is about to begin at step 1.   errors  PD_CORRUPT: it had some */
PD_MUST_USE pd_status pd_recorded_check_lost(const struct pd_config *config, struct pd_error *err);
/* The last whole line of metrics.jsonl, or "". */
void pd_recorded_last_line(const char *run_dir, char *ret_line, size_t bytes);

/* What a run lost when it ended: the steps that metrics.jsonl has beyond the one that it goes on from. For people. */
struct pd_lost_steps {
    uint64_t steps;
    double seconds; /* between the line of the step that the run goes on from and the last one */
    double age;     /* of the former, now; below 0: metrics have no line of it */
};

/* Reads the last 4 MiB of the file at most; nothing lost where it cannot. */
struct pd_lost_steps pd_lost_steps(const char *metrics_path, uint64_t step);
