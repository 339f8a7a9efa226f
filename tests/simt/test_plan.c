/* What is planned for GPUs, where no GPU is needed to count it. */
#include "trainer/memory_plan.h"

#include <criterion/criterion.h>

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
