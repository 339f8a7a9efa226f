/* Where metrics go: a sink is a table of functions in a file of its own and a row in metrics.c. */
#ifndef PD_TRAINER_RUN_METRICS_SINK_H
#define PD_TRAINER_RUN_METRICS_SINK_H

#include "trainer/run/metrics.h"

/* A step with what follows from it. */
struct pd_metrics_line {
    const struct pd_metrics_options *options;
    const struct pd_metrics_step *step;
    double tokens_per_second, gemm_share, eta_seconds;
};

struct pd_metrics_sink {
    pd_status (*open)(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err);
    pd_status (*write)(void *sink, const struct pd_metrics_line *line, struct pd_error *err);
    void (*close)(void *sink);
};

extern const struct pd_metrics_sink pd_metrics_json; /* metrics_json.c */

#endif
