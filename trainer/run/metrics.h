/* What a run reports while it trains: one line per step to every sink (metrics_sink.h), and a progress line for people.
 *
 * metrics.jsonl is the run's record: a step's line is written before the step is saved. TensorBoard's files are beside it in
 * run.dir, and the Prometheus endpoint keeps only the newest line, so neither delays a step more than metrics.jsonl would.
 * If a sink fails, its lines are lost and the run goes on.
 *
 * A terminal shows the progress line in place (PERDURE_PROGRESS=bar). Elsewhere it is printed at most every ten seconds
 * (line; line:60 for every sixty); PERDURE_PROGRESS=off disables it. Only rank 0 writes. */
#pragma once

#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"
#include "trainer/run/stragglers.h"

struct pd_metrics;

enum pd_metrics_kind {
    PD_METRICS_STEP,        /* the complete line of a step */
    PD_METRICS_TO_VALIDATE, /* its line before a validation, which is long and may be preceded by a save */
    PD_METRICS_VALIDATED    /* the same line again, with the validation loss */
};

struct pd_metrics_step {
    enum pd_metrics_kind kind;
    uint64_t step, fence;
    struct pd_step_result result;
    double loss_scale;      /* of the step */
    uint64_t skipped_steps; /* of the run */
    bool rolls_back;        /* the run returns to the state of step rolled_back_to */
    uint64_t rolled_back_to;
    double seconds;               /* of the step */
    double validation_loss;       /* NaN: not measured in this step */
    uint64_t device_free_bytes;   /* of a GPU; 0 on a CPU */
    uint64_t memory_bytes;        /* resident, of rank 0 */
    struct pd_tiers *tiers;       /* for contents per tier, if there are several; may be NULL */
    uint64_t last_checkpoint;     /* newest committed step; 0: none */
    uint64_t save_failures;       /* consecutive saves that failed in all requested tiers; 0: saves work */
    uint64_t save_failures_since; /* the first step not saved */
    uint32_t saves;               /* saves that ended since the last line */
    double save_seconds;          /* time they took; 0: none */
    double stall_seconds;         /* time they made training wait */
    uint32_t straggler_count;     /* ranks that are slow now; the first of them: */
    struct pd_straggler stragglers[PD_STRAGGLERS_SAID];
};

struct pd_metrics_options {
    const struct pd_config *config; /* borrowed; fp16: loss scale and skips are shown */
    uint32_t ranks;
    uint64_t planned_bytes; /* of rank 0 */
    bool has_stages;        /* shows the bubble */
    double flops_per_token;
    double gemm_flops_per_second; /* of all ranks together, measured at the start */
};

PD_MUST_USE pd_status pd_metrics_open(const struct pd_metrics_options *options, struct pd_metrics **ret_metrics,
                                      struct pd_error *err);
/* Logs sinks that fail; the run goes on. */
void pd_metrics_write(struct pd_metrics *metrics, const struct pd_metrics_step *step);
void pd_metrics_close(struct pd_metrics *metrics); /* NULL is fine; ends the progress line */

uint64_t pd_metrics_resident_bytes(void); /* of this process; 0 without /proc */
