/* Groups of ranks with equal memory, found by arithmetic, against the engine's recipe run for every rank. That a rank takes
 * exactly what its recipe says is checked wherever engines run (engine_run.h). */
#include "ckpt/objects/vfs.h"
#include "trainer/plan/auto_layout.h"
#include "trainer/plan/memory_plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_ODD \
    "family: llama, vocab: 257, context: 64, layers: 5, hidden: 48, heads: 6, kv_heads: 3, head_size: 8, ffn: 40"
#define MODEL_TIED "family: gpt2, vocab: 257, context: 64, layers: 5, hidden: 48, heads: 6, tie_embeddings: true"
#define MODEL_LARGE \
    "family: llama, vocab: 5003, context: 64, layers: 9, hidden: 576, heads: 9, kv_heads: 3, head_size: 64, ffn: 1000"

static struct pd_config parse(const char *model, const char *overrides_text)
{
    char yaml[700], words[512];
    const char *overrides[24];
    uint32_t count = 0;
    struct pd_config c;
    struct pd_error err;
    snprintf(yaml, sizeof yaml,
             "run: {dir: r}\ndata: {train: a}\nmodel: {%s}\nbatch: {sequences: 22, micro_batch: 2, context: 62}\nnumerics: "
             "{lanes: 11}\n",
             model);
    snprintf(words, sizeof words, "%s", overrides_text);
    for (char *rest = words, *word; (word = strtok_r(rest, " ", &rest));)
        overrides[count++] = word;
    cr_assert_eq(pd_config_parse("test", yaml, overrides, count, &c, &err), PD_OK, "%s: %s", overrides_text, err.message);
    return c;
}

static const struct pd_memory_group *group_of(const struct pd_world_memory *m, const struct pd_memory_plan *plan)
{
    for (uint32_t g = 0; g < m->group_count; g++)
        if (!memcmp(&m->groups[g].plan, plan, sizeof *plan)) return &m->groups[g];
    return NULL;
}

/* A plan that reuses the states of earlier plans equals the same plan made alone. */
static void check_shared_states(const struct pd_config *c, const struct pd_model *model, struct pd_laid_out laid_out)
{
    static const struct {
        enum pd_recompute recompute;
        uint32_t layers;
    } all[] = {{PD_RECOMPUTE_FULL, PD_LAYERS_ALL},
               {PD_RECOMPUTE_NONE, PD_LAYERS_ALL},
               {PD_RECOMPUTE_FULL, 1},
               {PD_RECOMPUTE_SELECTIVE, 2},
               {PD_RECOMPUTE_FULL, 2},
               {PD_RECOMPUTE_SELECTIVE, PD_LAYERS_ALL}};
    struct pd_memory_states states = {0};
    struct pd_error err;
    uint32_t recipes = 0, shared_recipes = 0;
    for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
        struct pd_world_memory alone, shared;
        laid_out.recompute = all[i / 2].recompute;
        laid_out.recompute_layers = all[i / 2].layers;
        laid_out.by_lane = i % 2;
        cr_assert_eq(pd_world_memory_plan(c, model, 2, &laid_out, NULL, &alone, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_world_memory_plan(c, model, 2, &laid_out, &states, &shared, &err), PD_OK, "%s", err.message);
        cr_expect_eq(alone.worst_bytes, shared.worst_bytes, "recomputation %zu", i);
        cr_assert_eq(alone.group_count, shared.group_count);
        cr_expect_eq(memcmp(alone.groups, shared.groups, alone.group_count * sizeof *alone.groups), 0, "recomputation %zu",
                     i);
        recipes += alone.recipes;
        shared_recipes += shared.recipes;
        pd_world_memory_deinit(&alone);
        pd_world_memory_deinit(&shared);
    }
    pd_memory_states_deinit(&states);
    cr_expect_leq(shared_recipes, recipes);
}

/* Counts of each group, its first rank, the worst and the mean; recipes run. */
static uint32_t check(const char *model_text, const char *overrides)
{
    struct pd_config c = parse(model_text, overrides);
    struct pd_model *model;
    struct pd_laid_out laid_out;
    struct pd_world_memory m;
    struct pd_error err;
    const uint32_t world = pd_degrees_first_world(&c, 1);
    uint32_t seen = 0;
    double mean = 0;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    cr_assert_eq(pd_lay_out(&c, model, world, &laid_out, &err), PD_OK, "%s: %s", overrides, err.message);
    cr_assert_eq(pd_world_memory_plan(&c, model, 2, &laid_out, NULL, &m, &err), PD_OK, "%s: %s", overrides, err.message);
    uint32_t *counted = calloc(m.group_count, sizeof *counted);
    for (uint32_t rank = 0; rank < world; rank++) {
        struct pd_memory_plan plan = {0};
        const struct pd_engine_options options = {.config = &c, .model = model, .world = world, .rank = rank, .threads = 2};
        cr_assert_eq(pd_engine_plan_of(&options, &plan, &err), PD_OK, "%s", err.message);
        const struct pd_memory_group *group = group_of(&m, &plan);
        cr_assert(group, "%s: no group has what rank %u takes", overrides, rank);
        if (counted[group - m.groups]++ == 0) cr_expect_eq(group->first_rank, rank);
        cr_expect_leq(pd_memory_plan_total(&plan), m.worst_bytes);
        mean += (double)pd_memory_plan_total(&plan) / world;
    }
    for (uint32_t g = 0; g < m.group_count; g++) {
        cr_expect_eq(counted[g], m.groups[g].ranks, "%s: group %u has %u ranks, not %u", overrides, g, counted[g],
                     m.groups[g].ranks);
        seen += m.groups[g].ranks;
    }
    cr_expect_eq(seen, world);
    cr_expect_eq(pd_memory_plan_total(&m.groups[m.worst].plan), m.worst_bytes);
    cr_expect_float_eq(m.mean_bytes, mean, 1);
    const uint32_t recipes = m.recipes;
    cr_expect_leq(recipes, world);
    free(counted);
    pd_world_memory_deinit(&m);
    check_shared_states(&c, model, laid_out);
    pd_model_free(model);
    pd_config_deinit(&c);
    return recipes;
}

/* A host's ranks share the memory that uploads send from, and how many there are the launcher may know alone. */
Test(memory_plan, uploads_share_the_memory_of_their_host)
{
    pd_vfs_register_remote("s3://", pd_vfs_new_objects);
    struct pd_config c = parse(
        MODEL_ODD,
        "layout.dp=8 checkpoint.tiers=[{\"dir\":\"/dev/shm/r\"},{\"dir\":\"s3://bucket/r\",\"upload_memory\":\"8G\"}]");
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    uint64_t bytes[9] = {0};
    for (uint32_t here = 0; here <= 8; here += 4) {
        struct pd_memory_plan plan = {0};
        const struct pd_engine_options options = {
            .config = &c, .model = model, .world = 8, .threads = 2, .ranks_here = here};
        cr_assert_eq(pd_engine_plan_of(&options, &plan, &err), PD_OK, "%s", err.message);
        bytes[here] = pd_memory_plan_total(&plan);
    }
    cr_expect_eq(bytes[0], bytes[8], "unknown: one host");
    cr_expect_eq(bytes[4] - bytes[8], UINT64_C(1) << 30);
    pd_model_free(model);
    pd_config_deinit(&c);
}

Test(memory_plan, data_parallel)
{
    static const char *const models[] = {MODEL_ODD, MODEL_TIED, MODEL_LARGE};
    for (int m = 0; m < 3; m++) {
        check(models[m], "layout.dp=1");
        check(models[m], "layout.dp=1 numerics.precision=fp32 layout.recompute=full");
        check(models[m], "layout.dp=7");
        check(models[m], "layout.dp=11 numerics.precision=fp16 layout.recompute=selective");
    }
}

Test(memory_plan, other_layouts)
{
    static const char *const overrides[] = {
        "layout.dp=3 layout.tp=2 numerics.virtual_tp=4 layout.zero_stage=0",
        "layout.dp=4 layout.zero_shard=2 layout.zero_stage=1",
        "layout.dp=6 layout.zero_shard=3 layout.zero_stage=2 numerics.precision=fp32",
        "layout.dp=2 layout.tp=4 numerics.virtual_tp=4 layout.recompute=full",
        "layout.dp=2 layout.recompute=full layout.recompute_layers=3",
        "layout.dp=2 layout.pp=2 layout.recompute=selective layout.recompute_layers=2",
        "layout.dp=1 layout.pp=2 layout.interleave=2 layout.recompute=full layout.recompute_layers=2",
        "layout.dp=2 layout.tp=8 numerics.virtual_tp=8",
        "layout.dp=1 layout.pp=5 layout.recompute=selective",
        "layout.dp=3 layout.pp=2 layout.interleave=2",
        "layout.dp=2 layout.pp=3 layout.zero_stage=1",
        "layout.dp=2 layout.pp=2 layout.tp=2 numerics.virtual_tp=2 layout.zero_stage=2",
        "layout.dp=2 layout.sp=2 numerics.virtual_sp=4",
        "layout.dp=1 layout.sp=4 numerics.virtual_sp=4 layout.recompute=full numerics.precision=fp32",
        "layout.dp=1 layout.tp=2 layout.sp=2 numerics.virtual_tp=4 numerics.virtual_sp=4 numerics.linears=fp8",
        "layout.dp=2 layout.sp=2 layout.tp=2 layout.pp=2 numerics.virtual_sp=2 numerics.virtual_tp=4 layout.zero_stage=2",
        "layout.dp=2 layout.sp=2 layout.pp=4 numerics.virtual_sp=2 layout.zero_shard=2 numerics.precision=fp16",
        "layout.dp=2 layout.tp=2 numerics.virtual_tp=4 numerics.logits=columns",
        "layout.dp=1 layout.sp=2 layout.pp=2 numerics.virtual_sp=2 numerics.logits=columns",
    };
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
        check(MODEL_ODD, overrides[i]);
        check(MODEL_TIED, overrides[i]);
        check(MODEL_LARGE, overrides[i]);
    }
}

/* Heap of what streams is a part of every plan. */
/* Two sizes, so that experts are cut and whole; in glm4_moe the first block is dense. */
Test(memory_plan, spread_experts)
{
    static const char *const overrides[] = {
        "layout.dp=4 layout.ep=2 layout.zero_stage=0",
        "layout.dp=10 layout.ep=2 layout.zero_stage=1",
        "layout.dp=8 layout.ep=2 layout.zero_shard=4 layout.zero_stage=2 layout.exchange=lane",
        "layout.dp=4 layout.ep=2 layout.pp=2 layout.recompute=full",
        "layout.dp=4 layout.ep=4 layout.tp=2 numerics.virtual_tp=4 layout.recompute=selective",
        "layout.dp=4 layout.ep=2 numerics.linears=fp8 layout.fp8_codes=step",
        "layout.dp=6 layout.ep=2 layout.zero_stage=1",
        "layout.dp=8 layout.ep=2 layout.zero_stage=2 model.experts=6",
        "layout.dp=7 layout.sp=2 layout.ep=2 layout.zero_stage=3 numerics.virtual_sp=2",
        "layout.dp=4 layout.ep=2 layout.tp=2 numerics.virtual_tp=4 numerics.linears=fp8",
        "layout.dp=4 layout.ep=2 offload.optimizer=nvme offload.parameters=nvme offload.gradients=nvme "
        "offload.activations=nvme"};
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
        check("preset: mixtral-1m, layers: 4", overrides[i]);
        check("preset: glm4-moe-1m, layers: 4, hidden: 256, expert_ffn: 300", overrides[i]);
    }
}

Test(memory_plan, offloaded)
{
    static const char *const overrides[] = {
        "layout.dp=1 offload.optimizer=nvme",
        "layout.dp=7 offload.optimizer=nvme layout.zero_stage=1",
        "layout.dp=1 offload.optimizer=nvme offload.parameters=nvme offload.gradients=nvme offload.activations=nvme",
        "layout.dp=11 offload.optimizer=nvme offload.parameters=nvme offload.gradients=nvme offload.activations=nvme",
        "layout.dp=3 layout.tp=2 numerics.virtual_tp=4 offload.optimizer=nvme offload.parameters=nvme "
        "layout.order=depth_first",
        "layout.dp=2 layout.tp=2 layout.sp=2 numerics.virtual_tp=2 numerics.virtual_sp=2 offload.optimizer=nvme "
        "offload.gradients=nvme",
        "layout.dp=2 layout.pp=3 offload.optimizer=nvme offload.activations=nvme layout.recompute=full",
        "layout.dp=3 layout.pp=2 layout.interleave=2 offload.activations=nvme",
        "layout.dp=1 offload.optimizer=nvme offload.parameters=nvme offload.gradients=nvme offload.activations=nvme "
        "offload.optimizer_budget=3M offload.parameters_budget=200k offload.gradients_budget=1M "
        "offload.activations_budget=400k",
        "layout.dp=11 offload.optimizer=nvme offload.parameters=nvme offload.gradients=nvme offload.optimizer_budget=2M "
        "offload.parameters_budget=100k offload.gradients_budget=40k",
        "layout.dp=3 layout.pp=2 layout.interleave=2 offload.activations=nvme offload.activations_budget=300k",
        "layout.dp=2 layout.pp=3 offload.optimizer=nvme offload.parameters=nvme offload.parameters_budget=300k "
        "offload.optimizer_budget=1M",
        "layout.dp=2 layout.pp=2 offload.activations=nvme offload.activations_budget=300k layout.recompute=full "
        "layout.recompute_layers=2",
        "layout.dp=4 offload.optimizer=cpu offload.parameters=cpu offload.gradients=cpu offload.activations=cpu",
    };
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
        check(MODEL_ODD, overrides[i]);
        check(MODEL_TIED, overrides[i]);
        check(MODEL_LARGE, overrides[i]);
    }
}

/* One block more that is recomputed never takes more memory, on any rank; the last leaves the least. */
Test(memory_plan, blocks_that_are_recomputed)
{
    static const char *const layouts[] = {"layout.dp=1",
                                          "layout.dp=2 layout.order=breadth_first",
                                          "layout.dp=1 layout.pp=2",
                                          "layout.dp=1 layout.pp=2 layout.interleave=2",
                                          "layout.dp=1 layout.pp=3",
                                          "layout.dp=2 layout.tp=2 layout.sp=2 numerics.virtual_tp=2 numerics.virtual_sp=2",
                                          "layout.dp=1 offload.activations=nvme",
                                          "layout.dp=1 layout.pp=2 offload.activations=nvme"};
    for (size_t i = 0; i < 2 * sizeof layouts / sizeof *layouts; i++) {
        uint64_t before[8], first = 0, last = 0;
        memset(before, 0xff, sizeof before);
        for (uint32_t layers = 0; layers <= 9; layers++) {
            char overrides[300];
            struct pd_model *model;
            struct pd_error err;
            snprintf(overrides, sizeof overrides, "%s layout.recompute=%s layout.recompute_layers=%u", layouts[i / 2],
                     i % 2 ? "full" : "selective", layers);
            struct pd_config c = parse(MODEL_LARGE, overrides);
            cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
            const uint32_t world = pd_degrees_first_world(&c, 1);
            last = 0;
            for (uint32_t rank = 0; rank < world; rank++) {
                struct pd_memory_plan plan = {0};
                const struct pd_engine_options options = {
                    .config = &c, .model = model, .world = world, .rank = rank, .threads = 1};
                cr_assert_eq(pd_engine_plan_of(&options, &plan, &err), PD_OK, "%s: %s", overrides, err.message);
                cr_expect_leq(pd_memory_plan_total(&plan), before[rank], "%s: rank %u", overrides, rank);
                before[rank] = pd_memory_plan_total(&plan);
                last += before[rank];
            }
            if (!layers) first = last;
            pd_model_free(model);
            pd_config_deinit(&c);
        }
        cr_expect_lt(last, first, "%s", layouts[i / 2]);
    }
}

static uint64_t activation_bytes(const char *overrides)
{
    struct pd_config c =
        parse("family: llama, vocab: 151936, context: 1024, layers: 1, hidden: 896, heads: 14, head_size: 64, ffn: 4864",
              overrides);
    struct pd_memory_plan plan = {0};
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    const struct pd_engine_options options = {.config = &c, .model = model, .world = 1, .threads = 1};
    cr_assert_eq(pd_engine_plan_of(&options, &plan, &err), PD_OK, "%s", err.message);
    pd_model_free(model);
    pd_config_deinit(&c);
    return plan.bytes[PD_MEMORY_ACTIVATIONS];
}

/* On a CPU 208 rows of 151,936 words, or 912 of 8,192 columns and a chain. On a GPU: simt.plan. */
Test(memory_plan, logits_of_columns)
{
#define CONTEXT "batch.context=1024 batch.micro_batch=1"
    const double less = 208.0 * 151936 * 4 - 912.0 * (8192 + 896 + 5) * 4;
    const uint64_t rows = activation_bytes(CONTEXT), columns = activation_bytes(CONTEXT " numerics.logits=columns");
    cr_expect_float_eq((double)rows - (double)columns, less, 4096, "%.0f instead of %.0f: arrays begin on lines of a cache",
                       (double)rows - (double)columns, less);
}

/* Libraries' own memory is the device's, beside what the plan adds up; pinned memory is not. */
Test(memory_plan, what_a_device_must_hold)
{
    struct pd_config c = parse(MODEL_ODD, "layout.dp=1");
    struct pd_memory_plan plan = {.library_bytes = 7};
    plan.bytes[PD_MEMORY_BUFFERS] = 1000;
    plan.host_bytes[PD_MEMORY_BUFFERS] = 300;
    c.run.device = PD_DEVICE_CPU;
    cr_expect_eq(pd_memory_of_device(&c, &plan), 1000);
    c.run.device = PD_DEVICE_GPU;
    cr_expect_eq(pd_memory_of_device(&c, &plan), 707);
    pd_config_deinit(&c);
}

/* What makes plans of large worlds cheap. */
Test(memory_plan, many_ranks_take_few_recipes)
{
    cr_expect_leq(check(MODEL_LARGE, "batch.sequences=512 numerics.lanes=256 layout.dp=256"), 64);
}

/* One rank in fp32: 4 bytes of parameters, 8 of moments and 4 of summed gradients for each parameter, and no copy. */
Test(memory_plan, sixteen_bytes_a_parameter)
{
    struct pd_config c = parse(MODEL_LARGE, "numerics.precision=fp32 layout.dp=1");
    struct pd_model *model;
    struct pd_memory_plan plan = {0};
    struct pd_error err;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    const struct pd_engine_options options = {.config = &c, .model = model, .world = 1, .threads = 1};
    cr_assert_eq(pd_engine_plan_of(&options, &plan, &err), PD_OK);
    const double n = (double)model->parameter_count;
    cr_expect_float_eq((double)plan.bytes[PD_MEMORY_OPTIMIZER], 12 * n, 0.01 * n);
    cr_expect_eq(plan.bytes[PD_MEMORY_PARAMETERS], 0);
    cr_expect_geq((double)plan.bytes[PD_MEMORY_GRADIENTS], 4 * n);
    pd_model_free(model);
    pd_config_deinit(&c);
}

static double activations(const char *layers)
{
    char overrides[128];
    snprintf(overrides, sizeof overrides, "numerics.virtual_tp=8 layout.tp=8 layout.recompute=none %s", layers);
    struct pd_config c = parse("family: llama, vocab: 128256, context: 64, layers: 2, hidden: 8192, heads: 64, kv_heads: 8, "
                               "head_size: 128, ffn: 28672",
                               overrides);
    struct pd_model *model;
    struct pd_memory_plan plan = {0};
    struct pd_error err;
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK);
    const struct pd_engine_options options = {.config = &c, .model = model, .world = 8, .threads = 1};
    cr_assert_eq(pd_engine_plan_of(&options, &plan, &err), PD_OK, "%s", err.message);
    pd_model_free(model);
    pd_config_deinit(&c);
    return (double)plan.bytes[PD_MEMORY_ACTIVATIONS];
}

/* Residual streams and what norms read are shared by rows over tensor ranks, what norms make is not kept: of 91.6 KB that a
 * rank of 8 would keep of a token and a block of 70B parameters otherwise. */
Test(memory_plan, tensor_ranks_share_the_rows_of_the_residual_stream)
{
    const double kept = (activations("model.layers=3") - activations("model.layers=2")) / (2 * 62);
    cr_expect_leq(kept, 40e3, "%g bytes a token and block", kept);
    cr_expect_geq(kept, 2 * 8192 * 2 / 8 + (1280 + 1024 + 3 * 3584) * 2, "less than a block's matrix products read again");
}
