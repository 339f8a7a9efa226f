/* AdamW on the CPU over any range of elements.
 *
 *   source  Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2, with the schedule in `rate`:
 *     g = scale * grad
 *     m = beta1 * m + (1 - beta1) * g
 *     v = beta2 * v + ((1 - beta2) * g) * g
 *     p = (1 - rate * weight_decay) * p  -  (rate / (1 - beta1^t)) * (m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon))
 *   evaluated in fp32 in exactly this order, left to right, every operation rounded once and none fused. Factors shared by
 * all elements are computed in double and rounded once (struct pd_adam_step).
 *
 * Moments in bf16 are widened; p is computed from m and v in fp32 before they are rounded stochastically
 * (ckpt/base/random_bits.h), so on average they match fp32. Rounded to nearest, v would never change: an update changes
 * it by (1 - beta2) of itself or less, and half a unit of bf16 is 2^-9 to 2^-8. The random bits depend on (seed, t,
 * tensor, element); their low half rounds m, the high half v. README.md has the error.
 *
 *   invariant  bits depend on the element alone: not on instruction set, threads, or how a range is cut into calls
 */
#pragma once

#include "offload/update_rule.h"

struct pd_adam_step {
    float scale, beta1, beta1_rest, beta2, beta2_rest, epsilon;
    float root_correction; /* 1 / sqrt(1 - beta2^t) */
    float rate_corrected;  /* rate / (1 - beta1^t) */
    float decay_keep;      /* 1 - rate * weight_decay */
    uint64_t key;          /* of the step's random bits */
};

struct pd_adam_step pd_adam_step_make(const struct pd_update_config *config);

/* isa resolved; pool NULL: runs in the caller alone.   threads  one caller per pool */
void pd_cpu_adam(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_adam_step *step,
                 const struct pd_update_range *range);
