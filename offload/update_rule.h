/* An update rule: the table of functions by which an optimizer turns gradients into new state. AdamW is the only one.
 *
 * To add an optimizer, add a file beside adamw.c with its rule, a row in trainer/engine/state_device.c with a kernel of
 * the math table, and its kinds of state in ckpt/tensor (pd_kinds), which define the stored arrays and their initial
 * values. Code that moves state (host_update.c, optimizer_pass.c) knows only ranges of kinds and the rule.
 *
 *   invariant  bits depend on the element and the step alone: not on instruction set, threads, or how ranges are cut
 */
#pragma once

#include "ckpt/base/cpu.h"
#include "ckpt/base/thread_pool.h"
#include "ckpt/tensor/tensor.h"

/* Settings of one update, as configured. */
struct pd_update_config {
    double rate, beta1, beta2, epsilon, weight_decay;
    double scale;  /* factor on every gradient: clip factor, 1 / token count, 1 / loss scale */
    uint64_t step; /* t: 1 for the first update */
    uint64_t seed; /* for stochastic rounding of bf16 moments, together with t, tensor and element */
};

#define PD_UPDATE_FACTORS_MAX 16

struct pd_update_rule;

/* Values shared by all elements of an update, computed once. */
struct pd_update_step {
    const struct pd_update_rule *rule;
    float factors[PD_UPDATE_FACTORS_MAX]; /* defined by the rule */
};

/* Place of a range in its tensor, from which its random bits follow. */
struct pd_update_place {
    uint32_t tensor;          /* index in the model's table */
    uint64_t first;           /* element index in its box */
    uint64_t origin;          /* index in the tensor of the box's first element */
    uint64_t columns, stride; /* elements of a row of the box, and of the tensor */
};
struct pd_update_place pd_update_place_of(const struct pd_tensor *tensor, uint32_t number, const struct pd_box *box);

/* Elements 0 .. n of one range. Arrays do not overlap. */
struct pd_update_range {
    uint64_t n;
    bool decay;   /* apply weight decay to kinds that decay */
    bool by_sign; /* instead: parameter -= sign_step * sign(gradient); moments stay (pd_tensor) */
    float sign_step;
    union { /* (n) each, read and written: parameters in fp32, moments in `moments` */
        void *state[PD_KIND_COUNT];
        struct {
            float *param;
            void *exp_avg, *exp_avg_sq;
        };
    };
    const float *grad; /* (n) */
    void *copy;        /* (n) of copy_dtype: receives the new parameter rounded to nearest even; NULL: none */
    enum pd_dtype copy_dtype;
    enum pd_dtype moments;        /* PD_F32, PD_BF16 */
    struct pd_update_place place; /* used only if moments are bf16 */
};

struct pd_update_rule {
    const char *name, *title; /* title: name of its time in traces */
    struct pd_update_step (*prepare)(const struct pd_update_config *config);
    /* Host memory, any alignment; isa resolved; pool NULL: runs in the caller alone.   threads  one caller per pool */
    void (*update)(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_update_step *step,
                   const struct pd_update_range *range);
};

extern const struct pd_update_rule pd_adamw; /* offload/adamw.c */

/* Returns n elements of a range, from `first` on. */
struct pd_update_range pd_update_range_cut(const struct pd_update_range *range, uint64_t first, uint64_t n);

static inline void pd_update(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_update_step *step,
                             const struct pd_update_range *range)
{
    step->rule->update(pool, isa, step, range);
}
