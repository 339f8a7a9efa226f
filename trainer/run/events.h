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
 * Every line has `event` and `time`, seconds since 1970. For people and tools, and for one question: whether a run that finds no
 * checkpoint has had some (recorded.h). A line that cannot be written is left out, which is logged once. Appended with one
 * write, so several writers do not mix. */
#pragma once

#include "ckpt/base/json.h"

void pd_event_begin(struct pd_json_writer *ret_writer, const char *event);
void pd_event_end(struct pd_json_writer *writer, const char *run_dir); /* appends, and ends the writer */

struct run;
struct pd_resume_report;
/* The event `open`. Collective. */
PD_MUST_USE pd_status pd_event_open(struct run *run, const struct pd_resume_report *report, double gemm_flops_per_second,
                                    struct pd_error *err);
/* The event `leave`, of rank 0: all is saved. */
void pd_event_leave(struct run *run);
