/* What a run reports while it goes: a line a step to every sink (metrics_sink.h), and a progress line for people.
 *
 * metrics.jsonl is the run's record: a step writes its line before it is saved. TensorBoard's files lie beside it in run.dir,
 * and the endpoint for Prometheus only keeps the newest line, so neither can hold up a step that metrics.jsonl would not. A
 * sink that fails loses its lines, and the run goes on.
 *
 * The progress line is redrawn in place on a terminal (PERDURE_PROGRESS=bar) and printed at most every ten seconds elsewhere
 * (line; line:60 for every sixty); PERDURE_PROGRESS=off is silent. Rank 0 alone writes. */
#pragma once

#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"
#include "trainer/run/stragglers.h"

struct pd_metrics;

enum pd_metrics_kind {
    PD_METRICS_STEP,        /* the line of a step, whole */
    PD_METRICS_TO_VALIDATE, /* its line before its validation, which is long, since it is saved before */
    PD_METRICS_VALIDATED    /* the same line again, with the validation loss */
};

struct pd_metrics_step {
    enum pd_metrics_kind kind;
    uint64_t step, fence;
    struct pd_step_result result;
    double loss_scale;      /* of the step */
    uint64_t skipped_steps; /* of the run */
    bool rolls_back;        /* the run goes back to the state of step rolled_back_to */
    uint64_t rolled_back_to;
    double seconds;               /* of the step */
    double validation_loss;       /* NaN: not measured at this step */
    uint64_t device_free_bytes;   /* of a GPU; 0: a CPU */
    uint64_t memory_bytes;        /* resident, of rank 0 */
    struct pd_tiers *tiers;       /* what lies in each, where there are several; may be NULL */
    uint64_t last_checkpoint;     /* newest committed step; 0: none */
    uint64_t save_failures;       /* in a row, of saves into every tier that was asked; 0: saves work */
    uint64_t save_failures_since; /* the step that was not saved first */
    uint32_t saves;               /* that ended since the line before */
    double save_seconds;          /* of these; 0: none */
    double stall_seconds;         /* of these training waited */
    uint32_t straggler_count;     /* ranks that are slow now; the first of them: */
    struct pd_straggler stragglers[PD_STRAGGLERS_SAID];
};

struct pd_metrics_options {
    const struct pd_config *config; /* borrowed; fp16: loss scale and skips are said */
    uint32_t ranks;
    uint64_t planned_bytes; /* of rank 0 */
    bool has_stages;        /* the bubble is said */
    double flops_per_token;
    double gemm_flops_per_second; /* of all ranks together, measured at start */
};

PD_MUST_USE pd_status pd_metrics_open(const struct pd_metrics_options *options, struct pd_metrics **ret_metrics,
                                      struct pd_error *err);
/* A sink that fails is logged; the run goes on. */
void pd_metrics_write(struct pd_metrics *metrics, const struct pd_metrics_step *step);
void pd_metrics_close(struct pd_metrics *metrics); /* NULL is fine; ends the progress line */

uint64_t pd_metrics_resident_bytes(void); /* of this process; 0 where /proc is absent */
