/* Metrics sinks: each is a table of functions in its own file, and a row in metrics.c. */
#pragma once

#include "trainer/run/metrics.h"

/* Totals of this start, including steps that sinks did not get (run.log_every). */
struct pd_metrics_totals {
    uint64_t steps, tokens, saves;
    double seconds, save_seconds, stall_seconds, stage_seconds[PD_STEP_STAGES];
};

/* A step with derived values. */
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
    bool is_record; /* the run's record: the run does not start without it */
    bool (*is_wanted)(const struct pd_config *config);
    /* options stay valid until close. */
    pd_status (*open)(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err);
    pd_status (*write)(void *sink, const struct pd_metrics_line *line, struct pd_error *err);
    void (*close)(void *sink);
};

extern const struct pd_metrics_sink pd_metrics_json;        /* metrics_json.c */
extern const struct pd_metrics_sink pd_metrics_tensorboard; /* metrics_tensorboard.c */
extern const struct pd_metrics_sink pd_metrics_prometheus;  /* prometheus.c */
