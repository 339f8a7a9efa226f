/* What is planned for GPUs, where no GPU is needed to count it. */
#include "trainer/device_room.h"
#include "trainer/memory_plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char yaml[] =
    "run: {dir: r, device: gpu}\ndata: {train: a}\nmodel: {layers: 4, hidden: 64, heads: 4, vocab: 257}\n"
    "batch: {sequences: 8, leaf: 1, context: 32}\nlayout: {dp: 2, pp: 2}\n";

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
    cr_assert_eq(pd_world_memory_plan(&c, model, 2, &laid_out, &m, &err), PD_OK, "%s", err.message);
    for (uint32_t g = 0; g < m.group_count; g++)
        cr_expect_eq(m.groups[g].plan.library_bytes, pd_grid_nccl_bytes(&laid_out.layout, m.groups[g].first_rank));
    const struct pd_memory_plan *worst = &m.groups[m.worst].plan;
    cr_expect_gt(worst->library_bytes, 0);
    cr_expect_eq(m.worst_bytes, pd_memory_plan_total(worst) - pd_memory_plan_host(worst) + worst->library_bytes);
    pd_world_memory_deinit(&m);
    pd_model_free(model);
    pd_config_deinit(&c);
}

static struct pd_engine_options options_of(struct pd_config *c, struct pd_model **model)
{
    struct pd_error err;
    cr_assert_eq(pd_config_parse("test", yaml, NULL, 0, c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&c->model, model, &err), PD_OK, "%s", err.message);
    return (struct pd_engine_options){.config = c, .model = *model, .world = 4, .threads = 1, .is_gpu = true};
}

static uint64_t device_bytes(const struct pd_engine_options *o)
{
    struct pd_memory_plan plan;
    struct pd_error err;
    cr_assert_eq(pd_engine_plan_of(o, &plan, &err), PD_OK, "%s", err.message);
    return pd_memory_plan_total(&plan) - pd_memory_plan_host(&plan);
}

/* The same configuration with the words of a remedy on its command line. */
static uint64_t bytes_with(const char *given)
{
    char words[192];
    const char *overrides[8];
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

/* What a rank is told to change does what is said, with fewer changes where fewer do. */
Test(plan, remedies_are_what_they_say)
{
    struct pd_config c;
    struct pd_model *model;
    static const char *const alone[] = {"layout.recompute=full", "offload.activations=cpu", "offload.optimizer=cpu"};
    struct pd_device_remedy r = {.bytes = 0};
    const struct pd_engine_options o = options_of(&c, &model);
    uint64_t most = device_bytes(&o);
    cr_expect(!pd_device_room_remedy(&o, 1, &r));
    while (pd_device_room_remedy(&o, most - 1, &r)) {
        cr_expect_lt(r.bytes, most);
        for (size_t i = 0; strchr(r.words, ' ') && i < sizeof alone / sizeof *alone; i++)
            cr_expect_geq(bytes_with(alone[i]), most, "%s, where %s is enough", r.words, alone[i]);
        most = r.bytes;
        cr_expect_eq(bytes_with(r.words), most, "%s", r.words);
    }
    cr_expect(strchr(r.words, ' '), "for the least of all several are needed, not %s", r.words);
    pd_model_free(model);
    pd_config_deinit(&c);
}

/* Gradients leave layer by layer alone: whoever is told the one is told the other. */
Test(plan, gradients_leave_with_their_order)
{
    static const char *const overrides[] = {"model.layers=12", "layout.dp=1", "layout.pp=1"};
    struct pd_config c;
    struct pd_model *model;
    struct pd_error err;
    struct pd_device_remedy r = {.bytes = 0};
    cr_assert_eq(pd_config_parse("test", yaml, overrides, 3, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_model_new(&c.model, &model, &err), PD_OK, "%s", err.message);
    const struct pd_engine_options o = {.config = &c, .model = model, .world = 1, .threads = 1, .is_gpu = true};
    uint64_t most = device_bytes(&o);
    while (pd_device_room_remedy(&o, most - 1, &r))
        most = r.bytes;
    cr_expect(strstr(r.words, "offload.gradients=cpu layout.order=layers"), "not %s", r.words);
    pd_model_free(model);
    pd_config_deinit(&c);
}
