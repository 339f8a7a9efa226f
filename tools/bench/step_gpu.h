/* perdure bench step on a GPU: whole steps of one rank, AdamW and loss included, in tokens a second and as a share of the
 * dense bf16 rate of the card's data sheet. Each stage's share is measured by events in a step of its own: stages of compute,
 * what was waited for in their place (exchange, copies, an optimizer on the host), and what stood between them are the step.
 *
 * The planner's recipe chooses the micro-batch and what is recomputed: the first of none, selective and full recomputation
 * with which a micro-batch of MICRO_BATCH_ENOUGH sequences fits, the largest micro-batch then, and the fewest blocks that it
 * needs recomputed. A model that fits with none leaves its optimizer's state to the host, then its parameters too. Keys of
 * the caller decide instead where they are given. */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_BENCH_KEYS_MAX 16
#define PD_BENCH_STEPS_MAX 99

struct pd_bench_step_gpu {
    const char *preset;                              /* a preset of the model, or 0.5B, 1.5B, 3B, 7B, 14B */
    const char *precision;                           /* NULL: bf16 */
    const char *mode;                                /* invariant or fast; NULL: one after the other */
    uint64_t context, sequences, micro_batch, steps; /* micro-batch 0: the planner's */
    uint32_t threads;                                /* of the host: they update state that is there */
    const char *recompute;                           /* NULL: the planner's */
    const char *keys[PD_BENCH_KEYS_MAX];             /* section.key=value, last */
    uint32_t key_count;
    bool json;
};

/* 0.5B and its like: names that only a bench on a GPU knows. */
bool pd_bench_step_is_size(const char *name);
PD_MUST_USE pd_status pd_bench_step_gpu(const struct pd_bench_step_gpu *bench, struct pd_error *err);
