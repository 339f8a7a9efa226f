#include "resharder/layout.h"
#include "trainer/config/check.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/plan/cost_model.h"

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

/* A head as heavy as several blocks leaves room on every other stage, which is not for the first ones to fill. */
Test(balance, stages_beside_a_heavy_head_are_even)
{
    struct pd_config c = parse("model: {layers: 24, vocab: 40000, hidden: 64, heads: 4, ffn: 200}\n");
    struct pd_model *model;
    struct pd_error err;
    uint16_t first[6];
    const uint16_t even[6] = {0, 5, 9, 14, 19, 24};
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_balance_stages(model, 32, 6, first, &err), PD_OK);
    for (int s = 0; s < 6; s++)
        cr_expect_eq(first[s], even[s], "stage %d begins with unit %u", s, first[s]);
    pd_model_free(model);
    pd_config_deinit(&c);
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

#define SMALL                                                                                                               \
    "model: {preset: gpt2-124m}\nbatch: {sequences: 64, micro_batch: 1}\nnumerics: {lanes: 64, virtual_tp: 4, virtual_sp: " \
    "4}\n"

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

static struct pd_step_cost cost_in(const char *name, const char *numerics)
{
    char text[300];
    struct pd_machine machine;
    struct pd_error err;
    snprintf(text, sizeof text,
             "model: {preset: gpt2-124m}\nbatch: {sequences: 64, micro_batch: 1}\nnumerics: {lanes: 64, %s}\n", numerics);
    cr_assert_eq(pd_machine_preset(name, &machine, &err), PD_OK);
    return cost_on(&machine, text, 1);
}

/* fp32 has no tensor cores; of eight bits are the linears of blocks alone; a CPU computes in fp32 whatever it stores. */
Test(cost, a_precision_has_its_rate)
{
    const double half = cost_in("h100-80g", "precision: bf16").compute_seconds;
    cr_expect_float_eq(cost_in("h100-80g", "precision: fp16").compute_seconds, half, 1e-12);
    cr_expect_float_eq(cost_in("h100-80g", "precision: fp32").compute_seconds, half * 450 / 33, 1e-6 * half);
    const double linears = 12.0 * 12 * 768 * 768, all = linears + 768.0 * 50257 + 768 + 2.0 * 12 * 768 * 1025 / 2;
    cr_expect_float_eq(cost_in("h100-80g", "precision: bf16, linears: fp8").compute_seconds, half * (1 - linears / all / 2),
                       1e-3 * half);
    cr_expect_float_eq(cost_in("cpu", "precision: bf16, linears: fp8").compute_seconds,
                       cost_in("cpu", "precision: fp32").compute_seconds, 1e-9);
}

/* Of the head's three products the first is made twice. */
Test(cost, logits_of_columns_are_multiplied_twice)
{
    const struct pd_step_cost rows = cost_in("h100-80g", "logits: rows"), columns = cost_in("h100-80g", "logits: columns");
    cr_expect_eq(rows.recompute_seconds, 0);
    cr_expect_eq(columns.compute_seconds, rows.compute_seconds);
    cr_expect_float_eq(columns.recompute_seconds, 64.0 * 1024 * 2 * 768 * 50257 / 450e12, 1e-3 * columns.recompute_seconds);
}

Test(cost, bytes_and_padding)
{
    const double n = 124439808, rows = 1024, hidden = 768, blocks = 12;
    struct pd_step_cost cost = cost_of(SMALL "layout: {dp: 8, zero_stage: 1}\n", 8);
    cr_expect_float_eq((double)cost.parameter_bytes, n * 2 * 7 / 8, 0.001 * n);
    cr_expect_float_eq((double)cost.gradient_bytes, n * 8 * 7 / 8, 0.001 * n, "whatever the number of micro-batches");
    cost = cost_of(SMALL "layout: {dp: 8, zero_stage: 1, exchange: lane}\n", 8);
    cr_expect_gt((double)cost.gradient_bytes, 5 * n * 8 * 7 / 8, "blocks of 8 lanes");
    cost = cost_of(SMALL "layout: {dp: 8, zero_stage: 1}\n", 8);
    cr_expect_eq(cost.padding, 0);
    cost = cost_of(SMALL "layout: {dp: 5}\n", 5);
    cr_expect_eq(cost.slots, 13);
    cr_expect_eq(cost.padding, 1);
    cr_expect_gt(cost.padding_bytes, 0);
    cost = cost_of(SMALL "layout: {tp: 4}\n", 4);
    cr_expect_float_eq((double)cost.tensor_bytes,
                       64 * rows * (hidden * 3 / 4 * ((blocks * 4 + 1) * 4 + (blocks * 6 + 2.25) * 2) + 3 * 4 * 3), 1e4);
    cost = cost_of(SMALL "layout: {pp: 4}\n", 4);
    cr_expect_float_eq((double)cost.pipeline_bytes, 64 * 2 * rows * hidden * 2, 1e4);
    cr_expect_float_eq(cost.bubble, 3.0 / 67, 1e-12);
    cost = cost_of(SMALL "layout: {pp: 4, interleave: 3}\n", 4);
    cr_expect_float_eq(cost.bubble, 3.0 / (3 * 64 + 3), 1e-12);
}

/* 50 GiB of terms of a rank travel as lanes end, but breadth first, where two blocks' are there at a time, once a step. */
Test(cost, terms_of_a_large_model_travel_once_where_it_costs_nothing)
{
    static const char large[] =
        "model: {preset: llama2-7b}\nbatch: {sequences: 512, micro_batch: 1}\nnumerics: {lanes: 512}\n";
    char text[200];
    snprintf(text, sizeof text, "%slayout: {dp: 64, zero_stage: 1}\n", large);
    struct pd_step_cost cost = cost_of(text, 64);
    cr_expect_eq(cost.gradient_bytes, cost.gradient_bytes_lane);
    snprintf(text, sizeof text, "%slayout: {dp: 64, zero_stage: 1, order: breadth_first}\n", large);
    cost = cost_of(text, 64);
    cr_expect_eq(cost.gradient_bytes, cost.gradient_bytes_step);
    cr_expect_lt(5 * cost.gradient_bytes_step, cost.gradient_bytes_lane);
}

/* A block of four makes 2 sums of fp32 terms and 2 gathers of rows in forward, and in backward 2 sums and 2 exchanges of twice the
 * rows. Of backward all but the MLP's rounded rows goes beside gradients of weights. */
Test(cost, tensor_exchanges_beside_compute)
{
    const double rows = 1024, hidden = 768, blocks = 12, kept = rows * hidden * 3 / 4 * 2, terms = 2 * kept;
    const struct pd_step_cost whole = cost_of(SMALL "layout: {tp: 4}\n", 4);
    cr_expect_float_eq((double)whole.tensor_beside_bytes, 64 * blocks * (2 * terms + 2 * kept), 64);
}

/* Two hosts of eight GPUs: what leaves one is half of what is summed and gathered, whoever has the parts. */
Test(cost, bytes_between_hosts)
{
    const double n = 124439808;
    struct pd_step_cost cost = cost_of(SMALL "layout: {dp: 16, zero_stage: 1}\n", 16);
    cr_expect_float_eq((double)cost.parameter_bytes_host, n * 2 / 2, 0.001 * n);
    cr_expect_float_eq((double)cost.gradient_bytes_host, n * 8 / 2, 0.001 * n);
    cr_expect_gt(cost.gradient_bytes_lane_host, 3 * cost.gradient_bytes_step_host, "four lanes a rank");
    const struct pd_step_cost whole = cost_of(SMALL "layout: {dp: 16, zero_stage: 0}\n", 16);
    cr_expect_eq(whole.parameter_bytes_host, 0);
    cr_expect_float_eq((double)whole.gradient_bytes_host, 2 * n * 8 / 2, 0.001 * n, "there and back");
    const struct pd_step_cost inside = cost_of(SMALL "layout: {dp: 8, zero_stage: 1}\n", 8),
                              copies = cost_of(SMALL "layout: {dp: 16, zero_stage: 1, zero_shard: 8}\n", 16);
    cr_expect_eq(inside.parameter_bytes_host + inside.gradient_bytes_host, 0);
    cr_expect_eq(copies.parameter_bytes_host, 0, "a copy a host");
    cr_expect_float_eq((double)copies.gradient_bytes_host, 2 * n * 8 / 2, 0.001 * n, "its sums, there and back");
}

/* Breadth first parameters travel twice a step, not twice a micro-batch; drives run beside computation, and the update waits for
 * them.
 */
Test(cost, layers_and_drives)
{
    const double n = 124439808, rate = 3e9;
    struct pd_step_cost micro_batches = cost_of(SMALL "layout: {dp: 8, order: depth_first}\n", 8),
                        layers = cost_of(SMALL "layout: {dp: 8, order: breadth_first}\n", 8);
    cr_expect_eq(micro_batches.slots, 8);
    cr_expect_float_eq((double)micro_batches.parameter_bytes, 8.0 * (double)layers.parameter_bytes, 16);
    cr_expect_eq(micro_batches.nvme_seconds, 0);
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
    c = cost_of(
        "model: {preset: gpt2-124m}\nbatch: {sequences: 64, micro_batch: 1}\nnumerics: {lanes: 64, precision: fp32}\n"
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

/* State that streams through its GPUs takes the bus both ways, each its own, and of the memory that they share only itself. */
Test(cost, an_optimizer_that_streams)
{
    const double n = 124439808, host = 200e9, bus = 25e9;
    const char *text = SMALL "offload: {optimizer: cpu, update: device}\n";
    struct pd_step_cost c = cost_of(text, 1);
    cr_expect_float_eq(c.optimizer_seconds, 12 * n / bus, 1e-6, "%g", c.optimizer_seconds);
    cr_expect_float_eq(c.bus_seconds, 12 * n / bus, 1e-6);
    c = cost_of(SMALL "offload: {optimizer: cpu, update: device}\noptimizer: {moments: bf16}\n", 1);
    cr_expect_float_eq(c.optimizer_seconds, 8 * n / bus, 1e-6, "%g", c.optimizer_seconds);
    const struct pd_step_cost many = cost_of(
                                  SMALL "offload: {optimizer: cpu, update: device}\nlayout: {dp: 16, zero_stage: 1}\n", 16),
                              none = cost_of(SMALL "layout: {dp: 16, zero_stage: 1}\n", 16);
    cr_expect_float_eq(many.optimizer_seconds - none.optimizer_seconds, n / 16 * (24 * 8 / host - 28 / 1.5e12), 1e-6);
}

/* offload.update auto: by the host, until three GPUs share its memory; what is given stays. */
Test(cost, who_updates_is_chosen)
{
    struct pd_machine machine;
    struct pd_error err;
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    const struct {
        const char *text;
        uint32_t world, ranks_per_host;
        bool on_device;
    } cases[] = {{"offload: {optimizer: cpu}", 1, 8, false},
                 {"offload: {optimizer: cpu}\nlayout: {zero_stage: 1}", 2, 8, false},
                 {"offload: {optimizer: cpu}\nlayout: {zero_stage: 1}", 4, 8, true},
                 {"offload: {optimizer: cpu}\nlayout: {zero_stage: 1}", 8, 2, false},
                 {"offload: {optimizer: cpu, update: host}\nlayout: {zero_stage: 1}", 4, 8, false},
                 {"offload: {optimizer: cpu, update: device}", 1, 8, true},
                 {"offload: {optimizer: device}\nlayout: {zero_stage: 1}", 4, 8, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        struct pd_model *model;
        struct pd_laid_out laid_out;
        snprintf(text, sizeof text, SMALL "%s\n", cases[i].text);
        struct pd_config c = parse(text);
        machine.ranks_per_host = cases[i].ranks_per_host;
        cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
        cr_assert_eq(pd_lay_out(&c, model, cases[i].world, &laid_out, &err), PD_OK, "%s", err.message);
        pd_lay_out_update(&c, model, &machine, &laid_out);
        cr_expect_eq(laid_out.updates_on_device, cases[i].on_device, "%s, %u ranks, %u a host", cases[i].text,
                     cases[i].world, cases[i].ranks_per_host);
        pd_model_free(model);
        pd_config_deinit(&c);
    }
}

/* What offload moves over the bus runs beside computation; on a CPU nothing moves. */
Test(cost, the_bus_is_busy)
{
    const char *away =
        "offload: {optimizer: cpu, parameters: cpu, gradients: cpu, activations: cpu}\nlayout: {order: breadth_first}\n";
    const double n = 124439808, blocks = 12 * 7087872.0;
    struct pd_machine machine;
    struct pd_error err;
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    char text[400];
    snprintf(text, sizeof text, SMALL "%s", away);
    cr_expect_eq(cost_of(SMALL, 1).bus_seconds, 0);
    cr_expect_float_eq(cost_of(SMALL "offload: {optimizer: cpu}\n", 1).bus_seconds, 4 * n / machine.bus, 1e-6);
    const struct pd_step_cost fast = cost_on(&machine, text, 1);
    cr_expect_gt(fast.bus_seconds, (4 * n + 4 * blocks) / machine.bus);
    machine.bus /= 1000;
    const struct pd_step_cost slow = cost_on(&machine, text, 1);
    cr_expect_float_eq(slow.bus_seconds, 1000 * fast.bus_seconds, 1e-6 * slow.bus_seconds);
    cr_expect_geq(slow.step_seconds, slow.bus_seconds, "the bus is waited for");
    cr_assert_eq(pd_machine_preset("cpu", &machine, &err), PD_OK);
    cr_expect_eq(cost_on(&machine, text, 1).bus_seconds, 0);
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

#define AUTO "model: {preset: gpt2-124m}\nbatch: {sequences: 8, micro_batch: 1}\nlayout: auto\n"

Test(choose, less_memory_costs_time_and_fits)
{
    double seconds = 0;
    uint64_t bytes = UINT64_MAX;
    for (double limit = 40e9; limit > 2e9; limit /= 1.5) {
        const struct pd_layout_choice c = choose(AUTO, 4, limit, PD_OK);
        cr_expect_leq((double)c.worst_bytes, limit);
        cr_expect_geq(c.step_seconds, seconds, "less memory and faster");
        if (bytes > limit) cr_expect(c.step_seconds > seconds || c.laid_out.by_lane, "in the same time and as often");
        seconds = c.step_seconds;
        bytes = c.worst_bytes;
        cr_expect_eq(pd_layout_world(&c.laid_out.layout), 4);
    }
    choose(AUTO, 4, 1e6, PD_INVALID);
}

Test(choose, what_is_given_holds)
{
    const struct pd_layout_choice c = choose(AUTO "numerics: {virtual_tp: 2}\n", 4, 0, PD_OK),
                                  d = choose("model: {preset: gpt2-124m}\nbatch: {sequences: 8, micro_batch: 1}\n"
                                             "numerics: {virtual_tp: 2}\nlayout: {auto: true, tp: 2, pp: 2}\n",
                                             4, 0, PD_OK);
    cr_expect_eq(pd_layout_world(&c.laid_out.layout), 4);
    cr_expect_eq(d.laid_out.layout.tp, 2);
    cr_expect_eq(d.laid_out.layout.pp, 2);
    cr_expect_eq(d.laid_out.layout.dp, 1);
    cr_expect_geq(d.step_seconds, c.step_seconds);
}

#define GIVEN "model: {preset: gpt2-124m}\nbatch: {sequences: 8, micro_batch: 1}\nlayout: {auto: true, "

/* What is given holds, auto and what is left out do not; where it holds too much, that is said. */
Test(choose, recomputation_and_zero_stage_that_are_given_hold)
{
    for (uint32_t stage = 0; stage <= 3; stage++) {
        char text[200];
        snprintf(text, sizeof text, GIVEN "recompute: full, zero_stage: %u}\n", stage);
        for (uint32_t world = 1; world <= 4; world *= 4) {
            const struct pd_layout_choice c = choose(text, world, 0, PD_OK);
            cr_expect_eq(c.laid_out.layout.zero_stage, stage);
            cr_expect_eq(c.laid_out.recompute, PD_RECOMPUTE_FULL);
        }
    }
    const struct pd_layout_choice c = choose(GIVEN "recompute: auto, zero_stage: auto}\n", 4, 0, PD_OK),
                                  d = choose(AUTO, 4, 0, PD_OK);
    cr_expect_eq(c.laid_out.layout.zero_stage, d.laid_out.layout.zero_stage);
    cr_expect_eq(c.laid_out.recompute, PD_RECOMPUTE_NONE);
    const double most =
        (double)choose(GIVEN "dp: 4, exchange: step, recompute: full, zero_stage: 3}\n", 4, 0, PD_OK).worst_bytes;
    choose(GIVEN "dp: 4}\n", 4, most, PD_OK);
    choose(GIVEN "dp: 4, exchange: step, recompute: none}\n", 4, most, PD_INVALID);
    choose(GIVEN "dp: 4, exchange: step, zero_stage: 0}\n", 4, most, PD_INVALID);
    choose(GIVEN "dp: 4, zero_stage: 0}\noffload: {optimizer: nvme}\n", 4, 0, PD_INVALID);
}

static double bytes_of(const char *recompute)
{
    char text[200];
    snprintf(text, sizeof text, GIVEN "dp: 1, zero_stage: 3, recompute: %s}\n", recompute);
    return (double)choose(text, 1, 0, PD_OK).worst_bytes;
}

/* Memory for less than none keeps and for more than all that are recomputed keep. */
Test(choose, no_more_blocks_are_recomputed_than_must_be)
{
    const double none = bytes_of("none"), selective = bytes_of("selective"), full = bytes_of("full");
    struct pd_layout_choice before = {.step_seconds = 0};
    for (int tenths = 1; tenths < 10; tenths++) {
        const double limit = none - (none - full) * tenths / 10;
        const struct pd_layout_choice c = choose(GIVEN "dp: 1, zero_stage: 3}\n", 1, limit, PD_OK);
        const uint32_t layers = c.laid_out.recompute_layers;
        char one_less[64];
        cr_assert(layers > 0 && layers < 12, "%d tenths: %u blocks", tenths, layers);
        cr_expect_leq((double)c.worst_bytes, limit);
        cr_expect_eq(c.laid_out.recompute, limit < selective ? PD_RECOMPUTE_FULL : PD_RECOMPUTE_SELECTIVE, "%d", tenths);
        cr_expect_geq(c.step_seconds, before.step_seconds, "less memory takes no less time");
        snprintf(one_less, sizeof one_less, "%s, recompute_layers: %u", limit < selective ? "full" : "selective",
                 layers - 1);
        cr_expect_gt(bytes_of(one_less), limit, "%u would have done", layers - 1);
        before = c;
    }
    cr_expect_eq(choose(GIVEN "dp: 1, zero_stage: 3}\n", 1, none, PD_OK).laid_out.recompute, PD_RECOMPUTE_NONE);
}

/* How many are given holds, with whichever way to recompute is left; how is given, and all are. */
Test(choose, blocks_that_are_given_hold)
{
    const struct pd_layout_choice c = choose(GIVEN "recompute_layers: 5}\n", 1, 0, PD_OK),
                                  d = choose(GIVEN "recompute: full, recompute_layers: 5}\n", 1, 0, PD_OK),
                                  e = choose(GIVEN "recompute: full}\n", 1, 0, PD_OK);
    cr_expect_eq(c.laid_out.recompute, PD_RECOMPUTE_SELECTIVE);
    cr_expect_eq(c.laid_out.recompute_layers, 5);
    cr_expect_eq(d.laid_out.recompute, PD_RECOMPUTE_FULL);
    cr_expect_eq(d.laid_out.recompute_layers, 5);
    cr_expect_eq(e.laid_out.recompute_layers, PD_LAYERS_ALL);
    choose(GIVEN "dp: 1, recompute: full, recompute_layers: 5}\n", 1, (double)d.worst_bytes - 1, PD_INVALID);
}

Test(cost, recomputation_is_in_proportion_to_blocks)
{
    struct pd_machine machine;
    struct pd_error err;
    char text[200];
    cr_assert_eq(pd_machine_preset("h100-80g", &machine, &err), PD_OK);
    const double all = cost_on(&machine, "model: {preset: gpt2-124m}\nlayout: {recompute: full}\n", 1).recompute_seconds;
    cr_assert_gt(all, 0);
    for (uint32_t layers = 0; layers <= 12; layers++) {
        snprintf(text, sizeof text, "model: {preset: gpt2-124m}\nlayout: {recompute: full, recompute_layers: %u}\n", layers);
        cr_expect_float_eq(cost_on(&machine, text, 1).recompute_seconds, all * layers / 12, 1e-9 * all, "%u", layers);
    }
}

/* Blocks of gpt2-124m: 8 times to bf16, and back 7 times, for the norm and for the update. */
Test(cost, sums_in_bf16_are_converted)
{
#define EIGHT "model: {preset: gpt2-124m}\nbatch: {sequences: 8, micro_batch: 1}\nnumerics: {lanes: 1, gradients: "
    struct pd_machine machine;
    struct pd_error err;
    cr_assert_eq(pd_machine_preset("h100-80g", &machine, &err), PD_OK);
    const double seconds = 17 * 6 * 85054464.0 / machine.memory_rate;
    const struct pd_step_cost fp32 = cost_on(&machine, EIGHT "fp32}\n", 1), bf16 = cost_on(&machine, EIGHT "bf16}\n", 1);
    cr_expect_eq(fp32.terms_seconds, 0);
    cr_expect_float_eq(bf16.terms_seconds, seconds, 1e-9 * seconds);
    cr_expect_float_eq(bf16.step_seconds - fp32.step_seconds, seconds, 1e-6 * seconds);
}

static void expect_less(const char *text, uint32_t world, bool places, bool state_alone, const char *expected)
{
    char said[256];
    struct pd_config c = parse(text);
    if (places) c.run.device = PD_DEVICE_GPU;
    pd_less_memory_text(&c, world, places, state_alone, said, sizeof said);
    cr_expect_str_eq(said, expected);
    pd_config_deinit(&c);
}

#define TINY "model: {layers: 1, hidden: 64, heads: 4}\n"

/* Nothing is advised that is so already, or that nothing admits. */
Test(choose, advice_is_what_can_be_done)
{
    expect_less(
        TINY "batch: {sequences: 8, micro_batch: 2, context: 16}\n", 1, false, false,
        "take numerics.lanes=1 (other bits), more ranks, layout.recompute=full, a smaller batch.micro_batch (other bits) or "
        "a shorter batch.context (other bits)");
    expect_less(
        TINY "batch: {sequences: 8, micro_batch: 1, context: 16}\n", 8, false, false,
        "take layout.recompute=full, a larger numerics.virtual_tp (other bits) or a shorter batch.context (other bits)");
    expect_less(TINY "batch: {sequences: 1, micro_batch: 1, context: 16}\n", 1, false, false,
                "take layout.recompute=full or a shorter batch.context (other bits)");
    expect_less(TINY "batch: {sequences: 8, micro_batch: 1, context: 16}\nnumerics: {virtual_tp: 4}\n", 8, false, false,
                "take more ranks, layout.recompute=full or a shorter batch.context (other bits)");
    expect_less(TINY "batch: {sequences: 1, micro_batch: 1, context: 16}\n", 1, true, false,
                "take layout.recompute=full, offload.optimizer=cpu, offload.activations=cpu, numerics.gradients=bf16 (other "
                "bits) or a shorter batch.context (other bits)");
}

Test(choose, advice_about_logits_is_about_large_vocabularies)
{
#define WORDS(vocab) "model: {layers: 1, hidden: 64, heads: 4, vocab: " #vocab "}\n"
#define ALONE "batch: {sequences: 1, micro_batch: 1, context: 16}\n"
    static const char *const columns =
        "take layout.recompute=full, numerics.logits=columns (other bits) or a shorter batch.context (other bits)";
    expect_less(WORDS(50257) ALONE, 1, false, false, columns);
    expect_less(WORDS(50257) ALONE "numerics: {virtual_tp: 4}\n", 4, false, false, columns);
    expect_less(WORDS(50257) ALONE "numerics: {virtual_tp: 8}\n", 8, false, false,
                "take layout.recompute=full or a shorter batch.context (other bits)");
    expect_less(WORDS(50257) ALONE "numerics: {logits: columns}\n", 1, false, false,
                "take layout.recompute=full or a shorter batch.context (other bits)");
    expect_less(WORDS(8000) ALONE, 1, false, false, "take layout.recompute=full or a shorter batch.context (other bits)");
}

Test(choose, advice_sets_free_what_was_given)
{
    expect_less(
        TINY "batch: {sequences: 1, micro_batch: 1, context: 1}\nlayout: {auto: true, recompute: none, zero_stage: 1}\n", 2,
        false, false, "take layout.zero_stage=auto, layout.recompute=auto or a larger numerics.virtual_tp (other bits)");
    expect_less(TINY
                "batch: {sequences: 1, micro_batch: 1, context: 1}\nlayout: {auto: true, recompute: full, zero_stage: 3}\n",
                2, false, false, "take a larger numerics.virtual_tp (other bits)");
}

/* Where state alone is too large, fewer tokens at once are no help. */
Test(choose, advice_about_state_is_about_state)
{
    expect_less(TINY "batch: {sequences: 8, micro_batch: 2, context: 16}\n", 1, true, true,
                "take numerics.lanes=1 (other bits), more GPUs or offload.optimizer=cpu");
    expect_less(TINY "batch: {sequences: 8, micro_batch: 2, context: 16}\noffload: {optimizer: cpu}\n", 1, true, true,
                "take numerics.lanes=1 (other bits) or more GPUs");
    expect_less(TINY "batch: {sequences: 1, micro_batch: 1, context: 16}\noffload: {optimizer: cpu}\n", 1, true, true,
                "take numerics.gradients=bf16 (other bits)");
    expect_less(TINY "batch: {sequences: 1, micro_batch: 1, context: 16}\noffload: {optimizer: cpu}\n"
                     "numerics: {gradients: bf16}\n",
                1, true, true, "take a smaller model");
}

/* The smallest of all layouts fits into what it takes: the quick refusal is below every one. */
static bool smallest_fits(const struct pd_config *c, const struct pd_model *model, uint32_t world)
{
    struct pd_machine machine;
    struct pd_layout_choice choices[256];
    struct pd_error err;
    uint32_t count = 0;
    uint64_t least = UINT64_MAX;
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    machine.device_bytes = 0;
    if (pd_choose_layouts(c, model, world, 1, &machine, 256, choices, &count, &err)) return false;
    cr_assert_lt(count, 256);
    for (uint32_t i = 0; i < count; i++)
        if (choices[i].worst_bytes < least) least = choices[i].worst_bytes;
    machine.device_bytes = (double)least;
    const pd_status st = pd_choose_layouts(c, model, world, 1, &machine, 1, choices, &count, &err);
    cr_expect_eq(st, PD_OK, "optimizer %d, parameters %d, gradients %d on device %d, %u ranks, %d: %s", c->offload.optimizer,
                 c->offload.parameters, c->offload.gradients, c->run.device, world, c->numerics.precision,
                 st ? err.message : "");
    return true;
}

Test(choose, what_fits_is_not_refused)
{
    struct pd_config c =
        parse("model: {layers: 6, hidden: 1024, heads: 8, vocab: 97}\nbatch: {sequences: 4, micro_batch: 1, "
              "context: 8}\nlayout: auto\nnumerics: {virtual_tp: 2}\n");
    struct pd_model *model;
    struct pd_error err;
    uint32_t tried = 0;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    for (uint32_t which = 0; which < 27 * 2 * 3 * 2; which++) {
        const uint32_t worlds[] = {1, 2, 4};
        struct pd_config changed = c; /* borrows what it points to */
        changed.offload.optimizer = (enum pd_place)(which % 3);
        changed.offload.parameters = (enum pd_place)(which / 3 % 3);
        changed.offload.gradients = (enum pd_place)(which / 9 % 3);
        changed.run.device = which / 27 % 2 ? PD_DEVICE_GPU : PD_DEVICE_CPU;
        changed.numerics.precision = which / 162 ? PD_F32 : PD_BF16;
        if (!pd_config_check(&changed, &err)) tried += smallest_fits(&changed, model, worlds[which / 54 % 3]);
    }
    cr_expect_gt(tried, 50, "%u", tried); /* without CUDA those of CPUs alone */
    pd_model_free(model);
    pd_config_deinit(&c);
}

/* Breadth first the activations of all micro-batches are there at once; depth first those of one. */
Test(choose, another_order_that_fits_is_named)
{
    const char *text = "model: {preset: gpt2-124m}\nbatch: {sequences: 64, micro_batch: 1}\nnumerics: {lanes: 64}\nlayout: "
                       "{auto: true, order: %s}\n"
                       "offload: {optimizer: nvme, parameters: nvme}\n";
    char micro_batches[300], itself[300];
    snprintf(micro_batches, sizeof micro_batches, text, "depth_first");
    snprintf(itself, sizeof itself, text, "auto");
    const double least = (double)choose(micro_batches, 1, 0, PD_OK).worst_bytes;
    struct pd_config c = parse(itself);
    struct pd_model *model;
    struct pd_machine machine;
    struct pd_layout_choice best;
    struct pd_error err;
    uint32_t count;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    machine.device_bytes = least;
    cr_assert_eq(pd_choose_layouts(&c, model, 1, 1, &machine, 1, &best, &count, &err), PD_INVALID);
    cr_expect(strstr(err.message, "layout.order=depth_first"), "%s", err.message);
    machine.device_bytes = 200e6;
    cr_assert_eq(pd_choose_layouts(&c, model, 1, 1, &machine, 1, &best, &count, &err), PD_INVALID);
    cr_expect(!strstr(err.message, "order"), "%s", err.message);
    pd_model_free(model);
    pd_config_deinit(&c);
}

Test(choose, what_does_not_fit_is_told_what_can_be_done)
{
    struct pd_config c = parse(AUTO);
    struct pd_model *model;
    struct pd_machine machine;
    struct pd_layout_choice best;
    struct pd_error err;
    uint32_t count;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_machine_preset("a100-40g", &machine, &err), PD_OK);
    machine.device_bytes = 1 << 20;
    cr_assert_eq(pd_choose_layouts(&c, model, 1, 1, &machine, 1, &best, &count, &err), PD_INVALID);
    cr_expect_str_eq(err.message,
                     "layout: no layout of 1 rank fits 1.00 MiB a rank; the smallest needs more than 1.85 GiB: take "
                     "numerics.lanes=1 (other bits) or more ranks");
    pd_model_free(model);
    pd_config_deinit(&c);
}
