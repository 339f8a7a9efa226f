/* Sums of gradients on their way: a message that is damaged is noticed where it is added up, and the step is computed again. */
#include "tests/unit/engine/engine_run.h"

#include "ckpt/base/fault.h"
#include "trainer/plan/cost_model.h"

enum { STEPS = 3, SETS = 5 };

static void configure(struct pd_config *c, const char *layout)
{
    char yaml[1000];
    struct pd_error err;
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: %d, seed: 5}\n"
             "model: {family: llama, vocab: 1024, context: 24, layers: %d, hidden: 48, heads: 3, head_size: 16, ffn: 112, "
             "tie_embeddings: false}\n"
             "data: {train: [{path: %s}], validation_fraction: 0.1}\n"
             "batch: {sequences: 4, micro_batch: 1, context: 24}\n"
             "layout: {%s}\n",
             STEPS, SETS - 2, data_path(), layout);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, c, &err), PD_OK, "%s", err.message);
}

static pd_status run(struct job *job, const char *layout, uint32_t world, const char *faults, struct pd_error *err)
{
    struct pd_config c;
    struct pd_error wrong;
    configure(&c, layout);
    job->steps = STEPS;
    cr_assert_eq(pd_fault_configure(faults, NULL, &wrong), PD_OK, "%s", wrong.message);
    const pd_status st = try_run(job, &c, world, 1, err);
    cr_assert_eq(pd_fault_configure(NULL, NULL, &wrong), PD_OK);
    pd_config_deinit(&c);
    return st;
}

TestSuite(exchange, .fini = remove_data);

/* In both exchanges, in every set, and in the second step. */
Test(exchange, a_damaged_message_costs_a_step)
{
    static struct job whole, damaged;
    static const char *const layouts[] = {"zero_stage: 2, exchange: step", "zero_stage: 3, exchange: lane", "zero_stage: 0"};
    struct pd_error err;
    cr_assert_eq(run(&whole, "zero_stage: 3", 2, NULL, &err), PD_OK, "%s", err.message);
    cr_assert_eq(whole.recomputed, 0);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t passage = 1; passage <= 2 * SETS; passage += 3) {
            char faults[64];
            snprintf(faults, sizeof faults, "comm.reduce_scatter.flip@1:%u", passage);
            cr_assert_eq(run(&damaged, layouts[i], 2, faults, &err), PD_OK, "%s: %s", faults, err.message);
            cr_assert_eq(damaged.recomputed, 1, "%s, %s: computed again %u times", layouts[i], faults, damaged.recomputed);
            expect_same(&whole, &damaged, faults);
        }
}

/* Half of the terms and of the parameters of a step, and what pads their parts; alone a rank sends nothing. */
Test(exchange, what_a_rank_sends_is_counted)
{
    enum { MATRICES = 48 * 48 * 4 + 3 * 48 * 112, NORMS = 48 * (2 * (SETS - 2) + 1) };
    const double parameters = 2.0 * 1024 * 48 + (SETS - 2.0) * MATRICES + NORMS, least = STEPS * parameters * (8 + 2) / 2;
    static struct job two, one;
    struct pd_error err;
    cr_assert_eq(run(&two, "zero_stage: 1, exchange: step", 2, NULL, &err), PD_OK, "%s", err.message);
    cr_expect_geq((double)two.sent, least);
    cr_expect_leq((double)two.sent, 1.2 * least);
    cr_assert_eq(run(&one, "", 1, NULL, &err), PD_OK, "%s", err.message);
    cr_expect_eq(one.sent, 0);
}

/* Between ranks that share a micro-batch, of which planned(cost) says the bytes. */
static void check_bytes(const char *layout, uint32_t world, const char *numerics, uint32_t kv_heads,
                        uint64_t (*planned)(const struct pd_step_cost *))
{
    static struct job job;
    char yaml[900];
    struct pd_config c;
    struct pd_model *model;
    struct pd_laid_out laid_out;
    struct pd_machine machine;
    struct pd_step_cost cost;
    struct pd_error err;
    snprintf(
        yaml, sizeof yaml,
        "run: {dir: unused, steps: %d, seed: 5}\n"
        "model: {family: llama, vocab: 257, context: 32, layers: 4, hidden: 128, heads: 8, kv_heads: %u, head_size: 16, "
        "ffn: 96, tie_embeddings: false}\n"
        "data: {train: [{path: %s}], validation_fraction: 0.1}\n"
        "batch: {sequences: 8, micro_batch: 4, context: 32}\n"
        "numerics: {%s, precision: bf16}\n"
        "layout: {%s}\n",
        STEPS, kv_heads, data_path(), numerics, layout);
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    job.steps = STEPS;
    cr_assert_eq(try_run(&job, &c, world, 1, &err), PD_OK, "%s: %s", layout, err.message);
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_lay_out(&c, model, world, &laid_out, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_machine_preset("cpu", &machine, &err), PD_OK);
    pd_step_cost(&c, model, &laid_out, &machine, &cost);
    const double ratio = (double)job.sent / STEPS / (double)planned(&cost);
    printf("%s: %.3f of the planned %lu bytes a step\n", layout, ratio, planned(&cost));
    cr_expect_float_eq(ratio, 1, 0.03, "%s: %lu bytes, %lu planned a step", layout, job.sent, planned(&cost));
    pd_model_free(model);
    pd_config_deinit(&c);
}

static uint64_t tensor_bytes(const struct pd_step_cost *cost)
{
    return cost->tensor_bytes;
}

Test(exchange, tensor_ranks_send_what_is_planned)
{
    check_bytes("tp: 2, recompute: none", 2, "virtual_tp: 8", 8, tensor_bytes);
    check_bytes("tp: 4, recompute: selective", 4, "virtual_tp: 8", 8, tensor_bytes);
    check_bytes("tp: 8, recompute: full", 8, "virtual_tp: 8", 8, tensor_bytes);
}

/* They share gradients and parameters besides, as data ranks do. */
static uint64_t sequence_bytes(const struct pd_step_cost *cost)
{
    return cost->sequence_bytes + cost->gradient_bytes + cost->parameter_bytes;
}

Test(exchange, sequence_ranks_send_what_is_planned)
{
    check_bytes("sp: 2, zero_stage: 0, recompute: none", 2, "virtual_sp: 8", 4, sequence_bytes);
    check_bytes("sp: 4, zero_stage: 0, recompute: selective", 4, "virtual_sp: 8", 4, sequence_bytes);
    check_bytes("sp: 8, zero_stage: 0, recompute: full", 8, "virtual_sp: 8", 8, sequence_bytes);
}

/* The head is the first of the sets that travel, and comes in three messages as the embedding does; block 1 is the fifth of nine. */
Test(exchange, damage_at_the_same_place_ends_the_run)
{
    enum { MESSAGES = 9 };
    static struct job job;
    struct pd_error err;
    char faults[128];
    snprintf(faults, sizeof faults, "comm.reduce_scatter.flip@1:5,comm.reduce_scatter.flip@1:%d", MESSAGES + 5);
    cr_assert_neq(run(&job, "exchange: step", 2, faults, &err), PD_OK);
    cr_assert_not_null(strstr(err.message, "gradients of block 1 arrived damaged twice"), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "at rank 1,"), "%s", err.message);
    snprintf(faults, sizeof faults, "comm.reduce_scatter.flip@1:5,comm.reduce_scatter.flip@1:%d", MESSAGES + 6);
    cr_assert_eq(run(&job, "exchange: step", 2, faults, &err), PD_OK, "%s", err.message);
    cr_assert_eq(job.recomputed, 2);
}
