/* events.jsonl in the run directory: what happened to the run as a whole, an object a line, beside metrics.jsonl with its line
 * a step. The launcher writes how starts begin and end, rank 0 what a start has come to be:
 *
 *   fresh   --fresh: what was recorded before is of another run
 *   start   restart, ranks, layout, transport, from_step (null: none), process, host
 *   ranks   processes and heartbeats (descriptors; ckpt/base/heartbeat.h) of the ranks of the launcher's host, 256 at most
 *   open    run_id, fence, step, lineage, degrees, memory by the plan, bytes of a checkpoint, the bound, tiers
 *   leave   step, tiers with the newest step of each: what is saved after the last line of metrics
 *   end     restart, status, exit_code, cause, restarts (whether another start follows)
 *
 * Every line has `event` and `time`, seconds since 1970. For people and tools, and for two questions: whether a run that finds
 * no checkpoint has had some (pd_recorded_check_lost), and which of its tiers had. A line that cannot be written is left out,
 * which is logged once. Appended with one write, so several writers do not mix. */
#pragma once

#include "ckpt/base/json.h"
#include "trainer/config/config.h"
#include "trainer/run/metrics.h"

void pd_event_begin(struct pd_json_writer *ret_writer, const char *event);
void pd_event_end(struct pd_json_writer *writer, const char *run_dir); /* appends, and ends the writer */

struct run;
struct pd_resume_report;
/* The event `open`. Collective. */
PD_MUST_USE pd_status pd_event_open(struct run *run, const struct pd_resume_report *report, double gemm_flops_per_second,
                                    struct pd_error *err);
/* The event `leave`, of rank 0: all is saved. */
void pd_event_leave(struct run *run);

/* What run.dir says of the run that lives there: events.jsonl and metrics.jsonl, since the run last began at step 1. A store that
 * holds no checkpoint, or another run's, is compared with it. Other than on that, nothing of a run depends on the two. */
#define PD_RUN_ID_BYTES 33

struct pd_recorded {
    char run_id[PD_RUN_ID_BYTES]; /* "": no start has opened the run, or one of an earlier version */
    uint64_t step;                /* newest that was committed where it outlives a reboot; 0: none */
    char dir[1024];               /* where that was */
    double since;                 /* seconds since 1970 when it last began at step 1, or with --fresh; 0: not known */
};

void pd_recorded_run_id(const uint64_t run_id[2], char ret_text[PD_RUN_ID_BYTES]); /* hexadecimal */
/* What cannot be read says nothing. */
void pd_recorded_read(const char *run_dir, struct pd_recorded *ret);
/* Tiers, by bit, whose directories had a checkpoint of the run; all, where that cannot be read. */
uint64_t pd_recorded_used(const char *run_dir, const struct pd_tiers_options *options);
/* Where no checkpoint is in sight and the run is about to begin at step 1.   errors  PD_CORRUPT: it had some */
PD_MUST_USE pd_status pd_recorded_check_lost(const struct pd_config *config, struct pd_error *err);
/* The last whole line of metrics.jsonl, or "". */
void pd_recorded_last_line(const char *run_dir, char *ret_line, size_t bytes);
/* What the last line of step->step in metrics.jsonl says of it; what is not found is left as it is. */
void pd_recorded_step(const char *run_dir, struct pd_metrics_step *step);
