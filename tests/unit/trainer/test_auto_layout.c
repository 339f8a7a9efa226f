#include "resharder/layout.h"
#include "trainer/auto_layout.h"
#include "trainer/cost_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct pd_config parse(const char *rest)
{
    char yaml[700];
    struct pd_config c;
    struct pd_error err;
    snprintf(yaml, sizeof yaml, "run: {dir: r}\ndata: {train: a}\n%s", rest);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    return c;
}

static double unit_or_end(const struct pd_model *m, uint32_t length, uint32_t block)
{
    double cost = pd_unit_flops(m, length, block + 1);
    if (block == 0) cost += pd_unit_flops(m, length, 0);
    if (block + 1 == m->config.layers) cost += pd_unit_flops(m, length, m->unit_count - 1);
    return cost;
}

/* The least possible largest stage: every way to cut blocks [from, layers) into `stages`. */
static double best_cut(const struct pd_model *m, uint32_t length, uint32_t from, uint32_t stages)
{
    double load = 0, best = 1e300;
    for (uint32_t end = from + 1; end + stages - 1 <= m->config.layers; end++) {
        load += unit_or_end(m, length, end - 1);
        if (stages == 1 && end < m->config.layers) continue;
        const double rest = stages > 1 ? best_cut(m, length, end, stages - 1) : 0;
        if ((load > rest ? load : rest) < best) best = load > rest ? load : rest;
    }
    return best;
}

static void check_balance(const struct pd_model *m, uint32_t stages)
{
    uint16_t first[256];
    struct pd_error err;
    double worst = 0;
    const uint32_t length = 32;
    cr_assert_eq(pd_balance_stages(m, length, stages, first, &err), PD_OK, "%s", err.message);
    cr_expect_eq(first[0], 0);
    for (uint32_t s = 0; s < stages; s++) {
        const uint32_t begin = s ? first[s] : 1, end = s + 1 < stages ? first[s + 1] : m->config.layers + 1;
        double load = 0;
        cr_assert_lt(begin, end, "stage %u of %u has no block", s, stages);
        for (uint32_t unit = begin; unit < end; unit++)
            load += unit_or_end(m, length, unit - 1);
        if (load > worst) worst = load;
    }
    cr_expect_float_eq(worst, best_cut(m, length, 0, stages), 1e-9 * worst, "%u blocks, %u stages: %g, not %g",
                       m->config.layers, stages, worst, best_cut(m, length, 0, stages));
}

/* Blocks from one to nine, heads from nothing to heavier than several blocks, every number of stages. */
Test(balance, no_cut_is_better)
{
    static const uint32_t vocabs[] = {16, 3000, 40000};
    for (int v = 0; v < 3; v++) {
        for (uint32_t layers = 1; layers <= 9; layers++) {
            char text[200];
            struct pd_model *model;
            struct pd_error err;
            uint16_t unused[256];
            snprintf(text, sizeof text, "model: {layers: %u, vocab: %u, hidden: 64, heads: 4, ffn: 200}\n", layers,
                     vocabs[v]);
            struct pd_config c = parse(text);
            cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
            for (uint32_t stages = 1; stages <= layers; stages++)
                check_balance(model, stages);
            cr_expect_eq(pd_balance_stages(model, 32, layers + 1, unused, &err), PD_INVALID);
            pd_model_free(model);
            pd_config_deinit(&c);
        }
    }
}

static struct pd_step_cost cost_on(const struct pd_machine *machine, const char *text, uint32_t world)
{
    struct pd_config c = parse(text);
    struct pd_model *model;
    struct pd_laid_out laid_out;
    struct pd_step_cost cost;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_lay_out(&c, model, world, &laid_out, &err), PD_OK, "%s", err.message);
    pd_step_cost(&c, model, &laid_out, machine, &cost);
    pd_model_free(model);
    pd_config_deinit(&c);
    return cost;
}

static struct pd_step_cost cost_of(const char *text, uint32_t world)
{
    struct pd_machine machine;
    struct pd_error err;
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    return cost_on(&machine, text, world);
}

#define SMALL "model: {preset: gpt2-124m}\nbatch: {sequences: 64, leaf: 1}\nnumerics: {virtual_tp: 4, virtual_sp: 4}\n"

/* Against figures by hand. */
Test(cost, one_rank_is_operations_over_rate)
{
    struct pd_config c = parse(SMALL);
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    const struct pd_step_cost cost = cost_of(SMALL, 1);
    const double flops = pd_model_flops_per_token(model, c.batch.context) * 64.0 * c.batch.context;
    cr_expect_float_eq(cost.compute_seconds, flops / 156e12, 0.001 * cost.compute_seconds);
    cr_expect_eq(cost.parameter_bytes + cost.gradient_bytes + cost.tensor_bytes + cost.sequence_bytes + cost.pipeline_bytes,
                 0);
    cr_expect_eq(cost.bubble, 0);
    cr_expect_eq(cost.slots, 64);
    pd_model_free(model);
    pd_config_deinit(&c);
}

Test(cost, bytes_and_ghosts)
{
    const double n = 124439808, rows = 1024, hidden = 768, blocks = 12;
    struct pd_step_cost cost = cost_of(SMALL "layout: {dp: 8, zero_stage: 1}\n", 8);
    cr_expect_float_eq((double)cost.parameter_bytes, n * 2 * 7 / 8, 0.001 * n);
    cr_expect_float_eq((double)cost.gradient_bytes, n / 8 * 4 * 64 * 7 / 8, 0.001 * n);
    cr_expect_eq(cost.ghosts, 0);
    cost = cost_of(SMALL "layout: {dp: 5}\n", 5);
    cr_expect_eq(cost.slots, 13);
    cr_expect_eq(cost.ghosts, 1);
    cr_expect_gt(cost.ghost_bytes, 0);
    cost = cost_of(SMALL "layout: {tp: 4}\n", 4);
    cr_expect_float_eq((double)cost.tensor_bytes, 64 * (blocks * 4 + 2) * rows * hidden * 4 * 2 * 3 / 4, 1e4);
    cost = cost_of(SMALL "layout: {pp: 4}\n", 4);
    cr_expect_float_eq((double)cost.pipeline_bytes, 64 * 2 * rows * hidden * 2, 1e4);
    cr_expect_float_eq(cost.bubble, 3.0 / 67, 1e-12);
    cost = cost_of(SMALL "layout: {pp: 4, interleave: 3}\n", 4);
    cr_expect_float_eq(cost.bubble, 3.0 / (3 * 64 + 3), 1e-12);
}

/* By layers parameters travel twice a step, not twice a leaf; drives run beside computation, and the update waits for them.
 */
Test(cost, layers_and_drives)
{
    const double n = 124439808, rate = 3e9;
    struct pd_step_cost leaves = cost_of(SMALL "layout: {dp: 8, order: leaves}\n", 8),
                        layers = cost_of(SMALL "layout: {dp: 8, order: layers}\n", 8);
    cr_expect_eq(leaves.slots, 8);
    cr_expect_float_eq((double)leaves.parameter_bytes, 8.0 * (double)layers.parameter_bytes, 16);
    cr_expect_eq(leaves.nvme_seconds, 0);
    struct pd_step_cost state = cost_of(SMALL "offload: {optimizer: nvme}\n", 1);
    cr_expect_float_eq(state.nvme_seconds, 24 * n / rate, 1e-3);
    cr_expect_float_eq(state.optimizer_seconds, 24 * n / rate, 1e-3);
    struct pd_step_cost all =
        cost_of(SMALL "offload: {optimizer: nvme, parameters: nvme, gradients: nvme, activations: nvme}\n", 1);
    cr_expect_gt(all.nvme_seconds, state.nvme_seconds);
    cr_expect_lt(all.step_seconds, state.step_seconds + all.nvme_seconds); /* beside */
    cr_expect_geq(all.step_seconds, all.nvme_seconds);
}

/* State away from a GPU is updated by its host: by memory that all ranks of a host share, or by the bus. */
Test(cost, an_optimizer_on_the_host)
{
    const double n = 124439808, host = 200e9;
    const struct pd_step_cost device = cost_of(SMALL, 1);
    cr_expect_float_eq(device.optimizer_seconds, 28 * n / 1.5e12, 1e-6);
    struct pd_step_cost c = cost_of(SMALL "offload: {optimizer: cpu}\n", 1);
    cr_expect_float_eq(c.optimizer_seconds, (24 + 2 * 6) * n / host, 1e-6, "%g", c.optimizer_seconds);
    cr_expect_float_eq(c.step_seconds - device.step_seconds, c.optimizer_seconds - device.optimizer_seconds, 1e-6);
    c = cost_of("model: {preset: gpt2-124m}\nbatch: {sequences: 64, leaf: 1}\nnumerics: {precision: fp32}\n"
                "offload: {optimizer: cpu}\n",
                1);
    cr_expect_float_eq(c.optimizer_seconds, 40 * n / host, 1e-6, "%g", c.optimizer_seconds);
    const struct pd_step_cost few = cost_of(SMALL "offload: {optimizer: cpu}\nlayout: {tp: 4}\n", 4),
                              many = cost_of(SMALL "offload: {optimizer: cpu}\nlayout: {dp: 16, zero_stage: 1}\n", 16),
                              none = cost_of(SMALL "layout: {dp: 16, zero_stage: 1}\n", 16);
    cr_expect_float_eq(few.optimizer_seconds, 36 * n / host, 0.02 * c.optimizer_seconds, "four share what one had: %g",
                       few.optimizer_seconds);
    cr_expect_float_eq(many.optimizer_seconds - none.optimizer_seconds, n / 16 * (36 * 8 / host - 28 / 1.5e12), 1e-6);
}

Test(cost, a_slow_bus_to_the_host)
{
    const double n = 124439808;
    struct pd_machine machine;
    struct pd_error err;
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    machine.bus = 5e9;
    cr_expect_float_eq(cost_on(&machine, SMALL "offload: {optimizer: cpu}\n", 1).optimizer_seconds, 4 * n / 5e9, 1e-6);
    cr_expect_float_eq(cost_on(&machine, SMALL, 1).optimizer_seconds, 28 * n / 1.5e12, 1e-6);
    cr_assert_eq(pd_machine_preset("cpu", &machine, &err), PD_OK);
    cr_expect_float_eq(cost_on(&machine, SMALL "offload: {optimizer: cpu}\n", 1).optimizer_seconds, 28 * n / 20e9, 1e-6);
}

static double cost_of_budgets(const char *places, const char *const *keys, int count)
{
    char text[700];
    int at = snprintf(text, sizeof text, SMALL "%.*s", (int)strlen(places) - 2, places);
    for (int i = 0; i < count; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, ", %s_budget: 900G", keys[i]);
    snprintf(text + at, sizeof text - (size_t)at, "}\n");
    return cost_of(text, 1).nvme_seconds;
}

/* What budgets keep in memory no drive is waited for; of state, only its reading is saved. */
Test(cost, budgets_take_from_drives)
{
    const double n = 124439808, rate = 3e9, written = 12 * n;
    const char *all = "offload: {optimizer: nvme, parameters: nvme, gradients: nvme, activations: nvme}\n";
    const char *keys[] = {"optimizer", "parameters", "gradients", "activations"};
    struct pd_step_cost cost = cost_of(SMALL "offload: {optimizer: nvme, optimizer_budget: 300M}\n", 1);
    cr_expect_float_eq(cost.nvme_seconds, (2 * written - 300 * 1048576.0) / rate, 1e-3);
    cost = cost_of(SMALL "offload: {optimizer: nvme, optimizer_budget: 900G}\n", 1);
    cr_expect_float_eq(cost.nvme_seconds, written / rate, 1e-3);
    const double none = cost_of_budgets(all, keys, 0), every = cost_of_budgets(all, keys, 4);
    cr_expect_float_eq(every, written / rate, 1e-3);
    for (int i = 0; i < 4; i++)
        cr_expect_lt(cost_of_budgets(all, keys + i, 1), none, "%s_budget", keys[i]);
}

static struct pd_layout_choice choose(const char *text, uint32_t world, double device_bytes, pd_status expected)
{
    struct pd_config c = parse(text);
    struct pd_model *model;
    struct pd_machine machine;
    struct pd_layout_choice best = {0};
    struct pd_error err;
    uint32_t count = 0;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    machine.device_bytes = device_bytes;
    const pd_status st = pd_choose_layouts(&c, model, world, 1, &machine, 1, &best, &count, &err);
    cr_expect_eq(st, expected, "%s", st ? err.message : "chosen");
    cr_expect_eq(count, expected == PD_OK);
    pd_model_free(model);
    pd_config_deinit(&c);
    return best;
}

#define AUTO "model: {preset: gpt2-124m}\nbatch: {sequences: 8, leaf: 1}\nlayout: auto\n"

Test(choose, less_memory_costs_time_and_fits)
{
    double seconds = 0;
    uint64_t bytes = UINT64_MAX;
    for (double limit = 40e9; limit > 1.3e9; limit /= 1.5) {
        const struct pd_layout_choice c = choose(AUTO, 4, limit, PD_OK);
        cr_expect_leq((double)c.worst_bytes, limit);
        cr_expect_geq(c.step_seconds, seconds, "less memory and faster");
        if (bytes > limit) cr_expect_gt(c.step_seconds, seconds);
        seconds = c.step_seconds;
        bytes = c.worst_bytes;
        cr_expect_eq(pd_layout_world(&c.laid_out.layout), 4);
    }
    choose(AUTO, 4, 1e6, PD_INVALID);
}

Test(choose, what_is_given_holds)
{
    const struct pd_layout_choice c = choose(AUTO "numerics: {virtual_tp: 2}\n", 4, 0, PD_OK),
                                  d = choose("model: {preset: gpt2-124m}\nbatch: {sequences: 8, leaf: 1}\n"
                                             "numerics: {virtual_tp: 2}\nlayout: {auto: true, tp: 2, pp: 2}\n",
                                             4, 0, PD_OK);
    cr_expect_eq(pd_layout_world(&c.laid_out.layout), 4);
    cr_expect_eq(d.laid_out.layout.tp, 2);
    cr_expect_eq(d.laid_out.layout.pp, 2);
    cr_expect_eq(d.laid_out.layout.dp, 1);
    cr_expect_geq(d.step_seconds, c.step_seconds);
}
