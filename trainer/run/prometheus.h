/* Metrics in Prometheus' text format, version 0.0.4: names end in their unit, counters in _total.
 * source: prometheus.io/docs/instrumenting/exposition_formats, prometheus.io/docs/practices/naming */
#pragma once

#include "trainer/run/metrics_sink.h"

/* What every line of one start has in common. */
struct pd_prometheus {
    char run[1024]; /* run.dir: the label of every sample */
    uint32_t ranks;
    uint64_t planned_bytes, steps;
    uint32_t tier_count;
    char tiers[PD_TIERS_MAX][1024];
};

void pd_prometheus_init(struct pd_prometheus *ret_prometheus, const struct pd_metrics_options *options);
/* *ret_text: malloc'ed, terminated. */
PD_MUST_USE pd_status pd_prometheus_text(const struct pd_prometheus *prometheus, const struct pd_metrics_line *line,
                                         char **ret_text, struct pd_error *err);
