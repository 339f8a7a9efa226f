/* A thread that writes to one sink, behind a bounded queue.
 *
 *   invariants  1. pd_metrics_queue_push never waits for the sink: a full queue loses its oldest line
 *               2. no failure of a sink reaches the run. The first is logged, with what to do; the sink is opened again after
 *                  ever longer times, and when it works that is logged too
 *               3. pd_metrics_queue_close ends within PD_METRICS_DRAIN_SECONDS: a thread that hangs in the system is left behind
 *                  with its memory
 *   threads     one caller */
#pragma once

#include "trainer/run/metrics_sink.h"

#define PD_METRICS_QUEUE_LINES 64u
#define PD_METRICS_DRAIN_SECONDS 3

struct pd_metrics_queue;

/* A sink looks at the options while it opens, and not after close has returned. */
PD_MUST_USE pd_status pd_metrics_queue_open(const struct pd_metrics_sink *sink, const struct pd_metrics_options *options,
                                            struct pd_metrics_queue **ret_queue, struct pd_error *err);
void pd_metrics_queue_push(struct pd_metrics_queue *queue, const struct pd_metrics_line *line);
void pd_metrics_queue_close(struct pd_metrics_queue *queue); /* NULL is fine */
