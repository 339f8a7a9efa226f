/* Bytes on drives and bytes of a step, against sums over blocks that are alike. That a run moves these bytes is the kernel's
 * to count: tests/e2e/memory_cap.py asks it. */
#include "trainer/plan/auto_layout.h"
#include "trainer/plan/offload_plan.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define LAYERS 7u
#define HIDDEN 256u
#define FFN 512u
#define ROWS 64u
#define MICRO_BATCHES 4u
/* q, k, v, o, gate, up and down; and two norms, which are never in files of their own */
#define MATRICES (4.0 * HIDDEN * HIDDEN + 3.0 * HIDDEN * FFN)
#define ENDS (1.0 * 300 * HIDDEN) /* tied */
#define BLOCK (MATRICES + 2.0 * HIDDEN)

static struct pd_offload_plan plan_of(const char *offload)
{
    char yaml[900];
    struct pd_config c;
    struct pd_model *model;
    struct pd_laid_out laid_out;
    struct pd_offload_plan plan;
    struct pd_error err;
    snprintf(
        yaml, sizeof yaml,
        "run: {dir: r}\ndata: {train: a}\nmodel: {family: llama, vocab: 300, context: 64, layers: %u, hidden: %u, heads: 4, "
        "kv_heads: 4, head_size: 64, ffn: %u}\nbatch: {sequences: %u, micro_batch: 1, context: %u}\ncheckpoint:\n  "
        "keep_last: "
        "2\n%s",
        LAYERS, HIDDEN, FFN, MICRO_BATCHES, ROWS, offload);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_lay_out(&c, model, 1, &laid_out, &err), PD_OK, "%s", err.message);
    const struct pd_engine_options options = {.config = &c, .model = model, .world = 1, .threads = 1, .laid_out = &laid_out};
    cr_assert_eq(pd_offload_plan_of(&options, &plan, &err), PD_OK, "%s", err.message);
    pd_model_free(model);
    pd_config_deinit(&c);
    return plan;
}

Test(offload_plan, nothing_is_away)
{
    const struct pd_offload_plan p = plan_of("offload: {optimizer: cpu, parameters: cpu, activations: cpu}\n");
    cr_expect_eq(p.nvme_bytes + p.step_bytes, 0);
}

Test(offload_plan, state)
{
    const struct pd_offload_plan p = plan_of("offload: {optimizer: nvme}\n");
    const double streamed = LAYERS * MATRICES + ENDS, all = streamed + (2 * LAYERS + 1) * HIDDEN;
    cr_expect_float_eq((double)p.state_traffic, 24 * streamed, 1);
    cr_expect_eq(p.step_bytes, p.state_traffic);
    cr_expect_gt((double)p.generation_bytes, 12 * all);
    cr_expect_lt((double)p.generation_bytes, 12.1 * all);
    cr_expect_eq(p.generations, 4); /* read, written, two kept */
    cr_expect_eq(p.nvme_bytes, 4 * p.generation_bytes);
}

/* A tier that is copied from holds one file more for each that is later. */
Test(offload_plan, files_that_later_tiers_copy_from)
{
    const struct pd_offload_plan p =
        plan_of("  tiers: [{dir: a, keep_last: 2}, {dir: b, every: 2}, {dir: c, every: 4}]\noffload: {optimizer: nvme}\n");
    cr_expect_eq(p.generations, 6);
    cr_expect_eq(p.nvme_bytes, 6 * p.generation_bytes);
}

#define ALL "offload: {optimizer: nvme, parameters: nvme, gradients: nvme, activations: nvme}\nlayout: {recompute: full}\n"

/* Forward reads every block, backward all but the two that are still there, the update writes them. */
Test(offload_plan, everything_by_layers)
{
    const struct pd_offload_plan p = plan_of(ALL);
    cr_expect_float_eq((double)p.parameter_traffic, 2 * MATRICES * (3 * LAYERS - 2), 1);
    cr_expect_float_eq((double)p.gradient_traffic, 8 * BLOCK * (LAYERS - 2), 2 * 4096 * LAYERS);
    cr_expect_float_eq((double)p.activation_traffic, 2.0 * MICRO_BATCHES * LAYERS * ROWS * HIDDEN * 2, 1);
    cr_expect_geq((double)p.scratch_bytes, LAYERS * (2 * MATRICES + 4 * BLOCK + 2.0 * MICRO_BATCHES * ROWS * HIDDEN));
    cr_expect_eq(p.nvme_bytes, p.generations * p.generation_bytes + p.scratch_bytes);
    cr_expect_eq(p.step_bytes, p.state_traffic + p.parameter_traffic + p.gradient_traffic + p.activation_traffic);
}

/* Two blocks of copies, three of sums (eight bytes an element while they are added up), ten places of activations (an input each: all is computed again). */
Test(offload_plan, budgets)
{
    const struct pd_offload_plan all = plan_of(ALL);
    char keys[500];
    snprintf(keys, sizeof keys,
             "offload: {optimizer: nvme, parameters: nvme, gradients: nvme, activations: nvme, parameters_budget: %.0f, "
             "gradients_budget: %.0f, activations_budget: %u, optimizer_budget: %.0f}\nlayout: {recompute: full}\n",
             2 * 2 * MATRICES, 3 * (8 * BLOCK + 64), 10 * ROWS * HIDDEN * 2, 12 * MATRICES);
    const struct pd_offload_plan p = plan_of(keys);
    cr_expect_float_eq((double)(all.parameter_traffic - p.parameter_traffic), 2 * MATRICES * 2 * 3, 1);
    cr_expect_float_eq((double)p.gradient_traffic, 8 * BLOCK * (LAYERS - 3 - 2), 2 * 4096 * LAYERS);
    cr_expect_float_eq((double)(all.activation_traffic - p.activation_traffic), 2.0 * 10 * ROWS * HIDDEN * 2, 1);
    cr_expect_eq(all.state_traffic - p.state_traffic, (uint64_t)(12 * MATRICES), "a block's state is not read");
    cr_expect_eq(p.generation_bytes, all.generation_bytes);
    cr_expect_lt(p.scratch_bytes, all.scratch_bytes);
}

/* Each further micro-batch begins with the two blocks that backward ended with. */
Test(offload_plan, parameters_by_micro_batches)
{
    const struct pd_offload_plan p =
        plan_of("offload: {optimizer: nvme, parameters: nvme}\nlayout: {order: depth_first, recompute: full}\n");
    const double reads = 2.0 * MICRO_BATCHES * LAYERS - 2 * (2 * MICRO_BATCHES - 1);
    cr_expect_float_eq((double)p.parameter_traffic, 2 * MATRICES * (reads + LAYERS), 1);
    cr_expect_eq(p.gradient_traffic + p.activation_traffic, 0);
}
