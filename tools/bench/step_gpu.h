/* perdure bench step on a GPU: whole steps of one rank, AdamW and loss included, in tokens a second and as a share of the
 * dense bf16 rate in the card's data sheet. A separate step measures each stage with events. The step is the sum of
 * compute stages, of waits (exchange, copies, an optimizer on the host), and of the idle time between them.
 *
 * The planner's recipe chooses micro-batch and recomputation: the first of none, selective and full recomputation that
 * fits a micro-batch of MICRO_BATCH_ENOUGH sequences, then the largest micro-batch, then the fewest recomputed blocks. A
 * model that fits with none of them keeps its optimizer state on the host, then its parameters too. The caller's keys
 * override these choices. */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_BENCH_KEYS_MAX 16
#define PD_BENCH_STEPS_MAX 99

struct pd_bench_step_gpu {
    const char *preset;                              /* a preset of the model, or 0.5B, 1.5B, 3B, 7B, 14B */
    const char *precision;                           /* NULL: bf16 */
    const char *mode;                                /* invariant or fast; NULL: both in turn */
    uint64_t context, sequences, micro_batch, steps; /* micro-batch 0: the planner's choice */
    uint32_t threads;                                /* of the host; they update state kept there */
    const char *recompute;                           /* NULL: the planner's choice */
    const char *keys[PD_BENCH_KEYS_MAX];             /* section.key=value, applied last */
    uint32_t key_count;
    bool json;
};

/* True for 0.5B etc.: names that only a GPU bench knows. */
bool pd_bench_step_is_size(const char *name);
PD_MUST_USE pd_status pd_bench_step_gpu(const struct pd_bench_step_gpu *bench, struct pd_error *err);
