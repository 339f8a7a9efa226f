/* events.jsonl in the run directory records events of the whole run, one object per line (metrics.jsonl has one line per
 * step). The launcher writes how starts begin and end; rank 0 writes the details of a start:
 *
 *   fresh   --fresh: earlier records are of another run
 *   start   restart, ranks, layout, transport, from_step (null: none), process, host
 *   ranks   processes and heartbeats (descriptors; ckpt/base/heartbeat.h) of the ranks of the launcher's host, 256 at most
 *   open    run_id, fence, step, lineage, degrees, memory by the plan, bytes of a checkpoint, the bound, tiers
 *   leave   step, tiers with the newest step of each: what is saved after the last line of metrics
 *   end     restart, status, exit_code, cause, restarts (whether another start follows)
 *
 * Every line has `event` and `time`, seconds since 1970. People and tools read it; the program uses it only to learn whether
 * a run without checkpoints once had some (pd_recorded_check_lost), and in which tiers. A line that cannot be written is
 * dropped, and that is logged once. Each line is one appending write, so lines of several writers do not mix. */
#pragma once

#include "ckpt/base/json.h"
#include "trainer/config/config.h"
#include "trainer/run/metrics.h"

void pd_event_begin(struct pd_json_writer *ret_writer, const char *event);
void pd_event_end(struct pd_json_writer *writer, const char *run_dir); /* appends the line and frees the writer */

struct run;
struct pd_resume_report;
/* Writes the event `open`. Collective. */
PD_MUST_USE pd_status pd_event_open(struct run *run, const struct pd_resume_report *report, double gemm_flops_per_second,
                                    struct pd_error *err);
/* Writes the event `leave`, on rank 0, when everything is saved. */
void pd_event_leave(struct run *run);

/* What events.jsonl and metrics.jsonl in run.dir record of the run since it last began at step 1. Used to check a store that
 * has no checkpoint, or another run's. The run depends on the two files in no other way. */
#define PD_RUN_ID_BYTES 33

struct pd_recorded {
    char run_id[PD_RUN_ID_BYTES]; /* "": no start opened the run, or an older version did */
    uint64_t step;                /* newest step committed to storage that survives a reboot; 0: none */
    char dir[1024];               /* where that is */
    double since;                 /* seconds since 1970 when it last began at step 1 or with --fresh; 0: unknown */
};

void pd_recorded_run_id(const uint64_t run_id[2], char ret_text[PD_RUN_ID_BYTES]); /* hexadecimal */
/* Ignores what it cannot read. */
void pd_recorded_read(const char *run_dir, struct pd_recorded *ret);
/* Tiers, one bit each, whose directories had a checkpoint of the run; all if that cannot be read. */
uint64_t pd_recorded_used(const char *run_dir, const struct pd_tiers_options *options);
/* Call if no checkpoint is found and the run would begin at step 1. errors PD_CORRUPT: it had some */
PD_MUST_USE pd_status pd_recorded_check_lost(const struct pd_config *config, struct pd_error *err);
/* The last complete line of metrics.jsonl, or "". */
void pd_recorded_last_line(const char *run_dir, char *ret_line, size_t bytes);
/* Reads the last line of step->step in metrics.jsonl. Fields that are not found keep their values. */
void pd_recorded_step(const char *run_dir, struct pd_metrics_step *step);
