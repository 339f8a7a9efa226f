/* What is planned for GPUs, where no GPU is needed to count it. */
#include "trainer/launch/layout.h"
#include "trainer/plan/memory_plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char yaml[] =
    "run: {dir: r, device: gpu}\ndata: {train: a}\nmodel: {layers: 4, hidden: 64, heads: 4, vocab: 257}\n"
    "batch: {sequences: 8, micro_batch: 1, context: 32}\nlayout: {dp: 2, pp: 2}\n";

/* NCCL's buffers are in each group's plan, and in what the worst rank needs. */
Test(plan, holds_room_for_nccl)
{
    struct pd_config c;
    struct pd_model *model;
    struct pd_laid_out laid_out;
    struct pd_world_memory m;
    struct pd_error err;
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_lay_out(&c, model, 4, &laid_out, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_world_memory_plan(&c, model, 2, &laid_out, NULL, &m, &err), PD_OK, "%s", err.message);
    for (uint32_t g = 0; g < m.group_count; g++)
        cr_expect_eq(m.groups[g].plan.library_bytes,
                     pd_grid_memory(&laid_out.layout, m.groups[g].first_rank, true).nccl_bytes);
    const struct pd_memory_plan *worst = &m.groups[m.worst].plan;
    cr_expect_gt(worst->library_bytes, 0);
    cr_expect_eq(m.worst_bytes, pd_memory_plan_total(worst) - pd_memory_plan_host(worst) + worst->library_bytes);
    pd_world_memory_deinit(&m);
    pd_model_free(model);
    pd_config_deinit(&c);
}

static uint64_t device_bytes(const struct pd_engine_options *o)
{
    struct pd_memory_plan plan;
    struct pd_error err;
    cr_assert_eq(pd_engine_plan_of(o, &plan, &err), PD_OK, "%s", err.message);
    return pd_memory_plan_total(&plan) - pd_memory_plan_host(&plan);
}

/* The same configuration with some words on its command line. */
static uint64_t bytes_with(const char *given)
{
    char words[384];
    const char *overrides[16];
    uint32_t count = 0;
    struct pd_config c;
    struct pd_model *model;
    struct pd_error err;
    snprintf(words, sizeof words, "%s", given);
    for (char *rest = words, *word; (word = strtok_r(rest, " ", &rest));)
        overrides[count++] = word;
    cr_assert_eq(pd_config_parse("test", yaml, overrides, count, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK, "%s", err.message);
    const struct pd_engine_options o = {.config = &c, .model = model, .world = 4, .threads = 1, .is_gpu = true};
    const uint64_t bytes = device_bytes(&o);
    pd_model_free(model);
    pd_config_deinit(&c);
    return bytes;
}

/* What two ranks choose by themselves on a GPU of so many KiB, of which others hold some; the status, and what is said. */
static pd_status choose_with(uint64_t kib, uint64_t taken_kib, struct pd_launch_layout *ret_layout, struct pd_error *err)
{
    static const char *const overrides[] = {"layout=auto"};
    char text[32];
    struct pd_config c;
    struct pd_launch_chooser chooser;
    snprintf(text, sizeof text, "%lluK", (unsigned long long)kib);
    setenv("PERDURE_SIMT_MEMORY", text, 1);
    snprintf(text, sizeof text, "%lluK", (unsigned long long)taken_kib);
    setenv("PERDURE_SIMT_TAKEN", text, 1); /* both are read once a process: a test is one */
    cr_assert_eq(pd_config_parse("test", yaml, overrides, 1, &c, err), PD_OK, "%s", err->message);
    c.layout.dp = c.layout.pp = 0;
    cr_assert_eq(pd_launch_chooser_init(&c, &chooser, err), PD_OK, "%s", err->message);
    const pd_status st = pd_launch_choose(&chooser, 2, false, ret_layout, err);
    pd_launch_chooser_deinit(&chooser);
    pd_config_deinit(&c);
    return st;
}

#define ALL_KIB (1024u * 1024u)

/* What others hold is no room, nor is the driver's share; ranks that share a GPU have a part of it each. */
Test(plan, layouts_are_chosen_by_what_is_free)
{
    struct pd_launch_layout layout;
    struct pd_error err;
    cr_assert_eq(choose_with(ALL_KIB, ALL_KIB - 70 * 1024, &layout, &err), PD_INVALID);
    cr_expect_not_null(strstr(err.message, "GPU 0: 70.0 MiB of 1.00 GiB are free"), "%s", err.message);
    cr_expect_not_null(strstr(err.message, "fits 9.40 MiB a rank"), "%s", err.message);
    cr_expect_not_null(strstr(err.message, "offload.optimizer=cpu"), "%s", err.message);
}

Test(plan, layouts_have_all_of_a_gpu_that_is_free)
{
    struct pd_launch_layout layout;
    struct pd_error err;
    cr_expect_eq(choose_with(ALL_KIB, 0, &layout, &err), PD_OK, "%s", err.message);
    cr_expect_not_null(strstr(layout.settings, "recompute=none"), "%s", layout.settings);
}

/* Three windows of all kinds are the device's; they are no larger than offload.buffer_bytes. */
Test(plan, windows_that_state_streams_through_are_counted)
{
    const uint64_t by_host = bytes_with("offload.optimizer=cpu offload.update=host"),
                   windows = (1u << 20) / 36 / 1024 * 1024 * 36;
    cr_expect_eq(bytes_with("offload.optimizer=cpu offload.update=auto"), by_host, "a rank chooses nothing");
    cr_expect_eq(bytes_with("offload.optimizer=cpu offload.update=device offload.buffer_bytes=1M"), by_host + windows);
    cr_expect_eq(bytes_with("offload.optimizer=device offload.update=device"), bytes_with("offload.optimizer=device"));
}

static void expect_told(const char *gpus, enum pd_updates update)
{
    static const char *const overrides[] = {"offload.optimizer=cpu"};
    struct pd_launch_chooser chooser;
    struct pd_launch_layout layout;
    struct pd_config c;
    struct pd_error err;
    setenv("PERDURE_SIMT_GPUS", gpus, 1); /* read once a process */
    cr_assert_eq(pd_config_parse("test", yaml, overrides, 1, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_launch_chooser_init(&c, &chooser, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_launch_choose(&chooser, 4, false, &layout, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_launch_layout_apply(&c, layout.settings, 4, &err), PD_OK, "%s", err.message);
    cr_expect_eq(c.offload.update, update, "%s", layout.settings);
    pd_launch_chooser_deinit(&chooser);
    pd_config_deinit(&c);
}

Test(plan, ranks_of_four_gpus_are_told_to_update_on_them)
{
    expect_told("4", PD_UPDATES_DEVICE);
}

Test(plan, ranks_that_share_a_gpu_and_its_bus_are_not)
{
    expect_told("1", PD_UPDATES_AUTO);
}

static bool is_planned(const struct pd_world_memory *m, const struct pd_memory_plan *plan)
{
    for (uint32_t g = 0; g < m->group_count; g++)
        if (!memcmp(&m->groups[g].plan, plan, sizeof *plan)) return true;
    return false;
}

/* For saves the host mirrors what a rank owns, and no replicas: all ranks together have the state once, and the rounding to
 * pages. */
Test(plan, mirrors_hold_the_state_once)
{
    static const char *const overrides[][4] = {
        {"layout.dp=8", "layout.pp=1", "layout.zero_stage=0", "model.hidden=512"},
        {"layout.dp=8", "layout.pp=1", "layout.zero_shard=2", "model.hidden=512"},
        {"layout.dp=4", "layout.pp=2", "layout.zero_stage=0", "model.hidden=512"},
        {"layout.dp=8", "layout.pp=1", "layout.zero_stage=3", "model.hidden=512"},
    };
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
        struct pd_config c;
        struct pd_model *model;
        struct pd_laid_out laid_out;
        struct pd_world_memory m;
        struct pd_error err;
        uint64_t mirrored = 0, state = 0;
        cr_assert_eq(pd_config_parse("test", yaml, overrides[i], 4, &c, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_lay_out(&c, model, 8, &laid_out, &err), PD_OK, "%s", err.message);
        cr_assert_eq(pd_world_memory_plan(&c, model, 1, &laid_out, NULL, &m, &err), PD_OK, "%s", err.message);
        for (uint32_t t = 0; t < model->tensors.count; t++)
            state += PD_KIND_COUNT * sizeof(float) * pd_tensor_elements(&model->tensors.tensors[t]);
        for (uint32_t rank = 0; rank < 8; rank++) {
            struct pd_memory_plan plan;
            const struct pd_engine_options o = {
                .config = &c, .model = model, .world = 8, .rank = rank, .threads = 1, .is_gpu = true};
            cr_assert_eq(pd_engine_plan_of(&o, &plan, &err), PD_OK, "%s", err.message);
            cr_expect(is_planned(&m, &plan), "%s %s: no group has what rank %u takes", overrides[i][0], overrides[i][2],
                      rank);
            mirrored += plan.host_bytes[PD_MEMORY_OPTIMIZER];
        }
        cr_expect_geq(mirrored, state);
        cr_expect_lt((double)mirrored, 1.05 * (double)state, "%s %s", overrides[i][0], overrides[i][2]);
        pd_world_memory_deinit(&m);
        pd_model_free(model);
        pd_config_deinit(&c);
    }
}

/* ---- logits and sums ---- */

/* Bytes of one kind, and elements of a block. */
static uint64_t planned_bytes(enum pd_memory_category kind, const char *numerics, uint64_t *ret_block)
{
    static const char text[] =
        "run: {dir: r, device: gpu}\ndata: {train: a}\nbatch: {sequences: 8, micro_batch: 1, context: 8192}\n"
        "model: {layers: 3, hidden: 896, heads: 14, head_size: 64, ffn: 4864, vocab: 151936, context: 8192}\n";
    const char *overrides[] = {"numerics.lanes=1", numerics};
    struct pd_memory_plan plan;
    struct pd_config c;
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_config_parse("test", text, overrides, 2, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK, "%s", err.message);
    const struct pd_engine_options o = {.config = &c, .model = model, .world = 1, .threads = 1, .is_gpu = true};
    cr_assert_eq(pd_engine_plan_of(&o, &plan, &err), PD_OK, "%s", err.message);
    *ret_block = 0;
    for (uint32_t t = model->unit_first[1]; t < model->unit_first[2]; t++)
        *ret_block += pd_tensor_elements(&model->tensors.tensors[t]);
    pd_model_free(model);
    pd_config_deinit(&c);
    return plan.bytes[kind];
}

static uint64_t activation_bytes(const char *numerics)
{
    uint64_t ignored;
    return planned_bytes(PD_MEMORY_ACTIVATIONS, numerics, &ignored);
}

/* Of 8,192 rows of 151,936 words: 3,520 rows of logits and the sum of several runs' gradients; or all rows of 8,192 columns, a
 * chain, and five numbers a row. */
Test(plan, logits_of_columns_take_less_than_those_of_rows)
{
    const uint64_t vocab = 151936, of_rows = 3520 * vocab * 4 + vocab * 896 * 4, of_columns = 8192ull * (8192 + 896 + 5) * 4;
    cr_expect_eq(activation_bytes("numerics.logits=rows") - activation_bytes("numerics.logits=columns"),
                 of_rows - of_columns);
}

/* Logits of 16 bits, and no sum, since all rows are one run. */
Test(plan, logits_of_16_bits_are_one_run)
{
    const uint64_t vocab = 151936, of_fp32 = 3520 * vocab * 4 + vocab * 896 * 4, of_bf16 = 8192 * vocab * 2;
    cr_expect_eq(activation_bytes("numerics.logits_type=fp32") - activation_bytes("numerics.logits_type=precision"),
                 of_fp32 - of_bf16);
}

/* Two bytes for four in every block, and one block in fp32. */
Test(plan, sums_in_bf16_take_half)
{
    uint64_t block;
    const uint64_t fp32 = planned_bytes(PD_MEMORY_GRADIENTS, "numerics.gradients=fp32", &block),
                   bf16 = planned_bytes(PD_MEMORY_GRADIENTS, "numerics.gradients=bf16", &block);
    cr_expect_float_eq((double)(fp32 - bf16), 3 * 2.0 * (double)block - 4.0 * (double)block, 3 * 4096, "%.0f of %.0f",
                       (double)(fp32 - bf16), 2.0 * (double)block);
}
