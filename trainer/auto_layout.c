#include "trainer/auto_layout.h"

#include "resharder/layout.h"

/* Floating-point operations of a unit for one token, forward. */
static double unit_cost(const struct pd_model *model, uint32_t length, uint32_t unit)
{
    const struct pd_model_config *c = &model->config;
    if (unit == 0) return 2.0 * c->hidden;
    if (unit == model->unit_count - 1) return 2.0 * c->hidden * c->vocab;
    double multiplied = 0;
    for (uint32_t t = model->unit_first[unit]; t < model->unit_first[unit + 1]; t++)
        if (model->tensors.tensors[t].ndim == 2) multiplied += (double)pd_tensor_elements(&model->tensors.tensors[t]);
    return 2.0 * multiplied + 4.0 * c->heads * c->head_size * (length + 1.0) / 2.0;
}

/* Stages filled one after the other up to `limit`, each with a block at least where blocks are left. Returns how many it
 * takes. */
static uint32_t fill_stages(const struct pd_model *model, uint32_t length, uint32_t stages, double limit,
                            uint16_t *ret_first_unit)
{
    uint32_t stage = 0, units = model->unit_count;
    double load = 0;
    ret_first_unit[0] = 0;
    for (uint32_t unit = 0; unit < units; unit++) {
        double cost = unit_cost(model, length, unit);
        uint32_t stages_left = stages - 1 - stage, blocks_left = unit + 1 < units ? units - 1 - unit : 0;
        bool must = unit > 1 && stages_left > 0 && blocks_left <= stages_left && unit + 1 < units;
        bool may = unit > 1 && unit + 1 < units; /* the embedding stays with the first block, the head with the last */
        if (may && (must || load + cost > limit)) {
            if (++stage == stages) return stages + 1;
            ret_first_unit[stage] = (uint16_t)unit;
            load = 0;
        }
        load += cost;
        if (load > limit && ret_first_unit[stage] != unit && may) return stages + 1;
    }
    return stage + 1;
}

pd_status pd_balance_stages(const struct pd_model *model, uint32_t length, uint32_t stages, uint16_t *ret_first_unit,
                            struct pd_error *err)
{
    if (stages > model->config.layers)
        PD_FAIL(
            err, PD_INVALID,
            "layout: %u pipeline stages for %u blocks; each stage needs one: lower pp or interleave to %u stages at most",
            stages, model->config.layers, model->config.layers);
    double low = 0, high = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        high += unit_cost(model, length, unit);
    for (int i = 0; i < 64; i++) {
        double middle = (low + high) / 2;
        if (fill_stages(model, length, stages, middle, ret_first_unit) <= stages)
            high = middle;
        else
            low = middle;
    }
    uint32_t used = fill_stages(model, length, stages, high * (1 + 1e-9), ret_first_unit);
    if (used != stages) PD_FAIL(err, PD_BUG, "layout: %u stages came out of %u", used, stages);
    return PD_OK;
}

pd_status pd_lay_out(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                     struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_layout l;
    const uint32_t tp = config->layout.tp ? config->layout.tp : 1, pp = config->layout.pp ? config->layout.pp : 1,
                   sp = config->layout.sp ? config->layout.sp : 1, rest = tp * pp * sp;
    if (world % rest) PD_FAIL(err, PD_INVALID, "layout: tp %u x pp %u x sp %u do not divide %u ranks", tp, pp, sp, world);
    pd_layout_init_dp(&l, world / rest);
    l.tp = tp, l.pp = pp, l.sp = sp;
    l.virtual_tp = config->numerics.virtual_tp;
    l.virtual_sp = config->numerics.virtual_sp;
    l.interleave = config->layout.interleave;
    l.zero_stage = config->layout.zero_stage;
    l.zero_shard = config->layout.zero_shard ? config->layout.zero_shard : l.dp * sp;
    l.stage_count = pp * l.interleave;
    if (l.stage_count > 1) PD_TRY(pd_balance_stages(model, config->batch.context, l.stage_count, l.first_unit, err));
    PD_TRY(pd_layout_check(&l, err));
    *ret_laid_out = (struct pd_laid_out){.layout = l, .recompute = config->layout.recompute};
    return PD_OK;
}
