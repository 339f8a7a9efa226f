/* perdure bench step on a GPU: whole steps of one rank, AdamW and loss included, in tokens a second and as a share of what
 * the card's data sheet says of dense bf16 products; each stage's share by events, in a step of its own: stages of compute,
 * what was waited for in its place (exchange, copies, an optimizer on the host), and what stood between them are the step.
 *
 * The micro-batch and what is recomputed are what the planner's recipe finds to fit: of none, selective and full
 * recomputation the first with which a micro-batch of LEAF_ENOUGH sequences fits, and the largest micro-batch then; of no
 * more blocks than that micro-batch needs, unless what is recomputed was asked for. A model that fits with none
 * micro-batches its optimizer's state to the host, then its parameters too, where no key says what is offloaded. */
#ifndef PD_TOOLS_BENCH_STEP_GPU_H
#define PD_TOOLS_BENCH_STEP_GPU_H

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

#endif
