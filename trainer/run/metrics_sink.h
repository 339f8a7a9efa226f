/* Where metrics go: a sink is a table of functions in a file of its own and a row in metrics.c. */
#pragma once

#include "trainer/run/metrics.h"

/* Since this start; what was not handed to a sink (run.log_every, a full queue) counts too. */
struct pd_metrics_totals {
    uint64_t steps, tokens, saves;
    double seconds, save_seconds, stall_seconds, stage_seconds[PD_STEP_STAGES];
};

/* A step with what follows from it. Plain: it can be kept, apart from step.tiers and the names in `tiers`. */
struct pd_metrics_line {
    double time; /* seconds since 1970, for people */
    struct pd_metrics_step step;
    double tokens_per_second, gemm_share, eta_seconds;
    double validation_loss; /* the newest; NaN: none yet */
    struct pd_metrics_totals totals;
    uint32_t tier_count;
    struct pd_tier_report tiers[PD_TIERS_MAX]; /* in the order of checkpoint.tiers */
};

struct pd_metrics_sink {
    const char *name;
    bool in_line; /* written by the step itself, and a run without it does not begin */
    bool (*is_wanted)(const struct pd_config *config);
    /* What is in_line may keep the options until close; others look at them here alone. */
    pd_status (*open)(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err);
    pd_status (*write)(void *sink, const struct pd_metrics_line *line, struct pd_error *err);
    void (*close)(void *sink);
};

extern const struct pd_metrics_sink pd_metrics_json;            /* metrics_json.c */
extern const struct pd_metrics_sink pd_metrics_tensorboard;     /* metrics_tensorboard.c */
extern const struct pd_metrics_sink pd_metrics_prometheus_file; /* prometheus.c */
extern const struct pd_metrics_sink pd_metrics_prometheus_http; /* prometheus.c */

/* A thread that writes to one sink, behind a bounded queue.
 *
 *   invariants  1. pd_metrics_queue_push never waits for the sink: a full queue loses its oldest line
 *               2. no failure of a sink reaches the run. The first is logged, with what to do; the sink is opened again after
 *                  ever longer times, and when it works that is logged too
 *               3. pd_metrics_queue_close ends within PD_METRICS_DRAIN_SECONDS: a thread that hangs in the system is left behind
 *                  with its memory
 *   threads     one caller */
#define PD_METRICS_QUEUE_LINES 64u
#define PD_METRICS_DRAIN_SECONDS 3

struct pd_metrics_queue;

/* A sink looks at the options while it opens, and not after close has returned. */
PD_MUST_USE pd_status pd_metrics_queue_open(const struct pd_metrics_sink *sink, const struct pd_metrics_options *options,
                                            struct pd_metrics_queue **ret_queue, struct pd_error *err);
void pd_metrics_queue_push(struct pd_metrics_queue *queue, const struct pd_metrics_line *line);
void pd_metrics_queue_close(struct pd_metrics_queue *queue); /* NULL is fine */
