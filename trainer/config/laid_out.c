#include "trainer/config/laid_out.h"

#include "ckpt/base/words.h"
#include "resharder/layout.h"
#include "trainer/config/degrees.h"
#include "trainer/parallel/grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- stages ---- */

/* How many stages it takes when none may cost over `limit`; blocks + 1 when a single block does. */
static uint32_t stages_needed(const double *costs, uint32_t blocks, double limit)
{
    uint32_t stages = 1;
    double load = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        if (costs[b] > limit) return blocks + 1;
        if (load + costs[b] > limit) {
            stages++;
            load = 0;
        }
        load += costs[b];
    }
    return stages;
}

/* The most even of the cuts whose stages cost `limit` at most: the sum of squared costs is the least, and of equal ones the
 * last stages have more, since the first keep activations of more micro-batches.   first (stages + 1, blocks + 1): where the
 * last of so many stages of the first so many blocks begins; sum (blocks + 1): of costs */
static void cut_evenly(const double *sum, uint32_t blocks, uint32_t stages, double limit, double *best, uint16_t *first)
{
    const uint32_t row = blocks + 1;
    for (uint32_t i = 0; i < (stages + 1) * row; i++)
        best[i] = INFINITY;
    best[0] = 0;
    for (uint32_t s = 1; s <= stages; s++)
        for (uint32_t b = s; b <= blocks; b++)
            for (uint32_t a = b; a-- > s - 1 && sum[b] - sum[a] <= limit;) {
                const double load = sum[b] - sum[a], squares = best[(s - 1) * row + a] + load * load;
                if (squares > best[s * row + b] * (1 + 1e-12)) continue;
                best[s * row + b] = squares;
                first[s * row + b] = (uint16_t)a;
            }
}

static pd_status fill_stages(const double *costs, uint32_t blocks, uint32_t stages, double limit, uint16_t *ret_first_unit,
                             struct pd_error *err)
{
    const uint32_t row = blocks + 1;
    double *sum = calloc(row, sizeof *sum), *best = calloc((size_t)(stages + 1) * row, sizeof *best);
    uint16_t *first = calloc((size_t)(stages + 1) * row, sizeof *first);
    pd_status st =
        sum && best && first ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "layout: no memory for stages");
    for (uint32_t b = 0; !st && b < blocks; b++)
        sum[b + 1] = sum[b] + costs[b];
    if (!st) cut_evenly(sum, blocks, stages, limit * (1 + 1e-12), best, first);
    for (uint32_t s = stages, b = blocks; !st && s > 0; s--) {
        PD_CHECK(isfinite(best[s * row + b]));
        b = first[s * row + b];
        ret_first_unit[s - 1] = (uint16_t)(s > 1 ? b + 1 : 0);
    }
    free(sum);
    free(best);
    free(first);
    return st;
}

/* The embedding stays with the first block and the head with the last. */
pd_status pd_balance_stages(const struct pd_model *model, uint32_t length, uint32_t stages, uint16_t *ret_first_unit,
                            struct pd_error *err)
{
    const uint32_t blocks = model->config.layers;
    if (stages > blocks)
        PD_FAIL(err, PD_INVALID,
                "layout: %u pipeline stages for %s; each stage needs one: lower pp or interleave to %s at most", stages,
                pd_counted(blocks, "block").text, pd_counted(blocks, "stage").text);
    double *costs = calloc(blocks, sizeof *costs), low = 0, high = 0;
    if (!costs) PD_FAIL(err, PD_NO_MEMORY, "layout: no memory for %u blocks", blocks);
    for (uint32_t b = 0; b < blocks; b++)
        costs[b] = pd_unit_flops(model, length, b + 1);
    costs[0] += pd_unit_flops(model, length, 0);
    costs[blocks - 1] += pd_unit_flops(model, length, model->unit_count - 1);
    for (uint32_t b = 0; b < blocks; b++)
        high += costs[b];
    for (int i = 0; i < 100 && low < high; i++) {
        const double middle = (low + high) / 2;
        if (stages_needed(costs, blocks, middle) <= stages)
            high = middle;
        else
            low = middle;
    }
    const pd_status st = fill_stages(costs, blocks, stages, high, ret_first_unit, err);
    free(costs);
    return st;
}

/* ---- a layout of given degrees ---- */

bool pd_is_breadth_first(const struct pd_config *c, const struct pd_layout *layout)
{
    const bool by_itself = c->offload.parameters == PD_PLACE_NVME || c->offload.gradients == PD_PLACE_NVME;
    return layout->pp == 1 && (c->layout.order == PD_ORDER_BREADTH_FIRST || (c->layout.order == PD_ORDER_AUTO && by_itself));
}

#define STEP_BYTES_MAX (8.0 * 1024 * 1024 * 1024)

/* Once a step takes 8 bytes for every element that a rank computes: not unasked where these are many. Breadth first it takes two
 * blocks', as the other exchange does. */
static bool is_by_lane(const struct pd_config *config, const struct pd_model *model, const struct pd_layout *l)
{
    const double bytes = 8.0 * (double)model->parameter_count / l->tp / l->pp;
    if (l->dp * l->sp == 1 || (config->layout.exchange == PD_EXCHANGE_AUTO && pd_is_breadth_first(config, l))) return false;
    return config->layout.exchange == PD_EXCHANGE_LANE ||
           (config->layout.exchange == PD_EXCHANGE_AUTO && bytes > STEP_BYTES_MAX);
}

pd_status pd_lay_out_degrees(const struct pd_config *config, const struct pd_model *model, const struct pd_degrees *degrees,
                             struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_layout l;
    pd_layout_init_dp(&l, degrees->dp);
    l.tp = degrees->tp, l.pp = degrees->pp, l.sp = degrees->sp;
    l.virtual_tp = config->numerics.virtual_tp;
    l.virtual_sp = config->numerics.virtual_sp;
    l.interleave = degrees->interleave;
    l.zero_stage = config->layout.zero_stage;
    l.zero_shard = l.dp * l.sp;
    if (config->layout.zero_shard && l.zero_shard % config->layout.zero_shard == 0) l.zero_shard = config->layout.zero_shard;
    l.stage_count = l.pp * l.interleave;
    if (l.stage_count > 1) PD_TRY(pd_balance_stages(model, config->batch.context, l.stage_count, l.first_unit, err));
    PD_TRY(pd_layout_check(&l, err));
    *ret_laid_out = (struct pd_laid_out){.layout = l,
                                         .recompute = config->layout.recompute,
                                         .recompute_layers = config->layout.recompute_layers,
                                         .by_lane = is_by_lane(config, model, &l),
                                         .updates_on_device = config->offload.update == PD_UPDATES_DEVICE};
    return PD_OK;
}

uint32_t pd_laid_out_blocks(const struct pd_laid_out *laid_out, const struct pd_model *model)
{
    const struct pd_layout *l = &laid_out->layout;
    uint32_t most = 0;
    if (l->pp == 1) return model->config.layers;
    for (uint32_t pp = 0; pp < l->pp; pp++) {
        uint32_t blocks = 0;
        for (uint32_t chunk = 0; chunk < l->interleave; chunk++)
            blocks += pd_grid_stage(l, model, pp, chunk).block_count;
        if (blocks > most) most = blocks;
    }
    return most;
}

void pd_recompute_text(enum pd_recompute recompute, uint32_t layers, const char *between, char *ret, size_t bytes)
{
    static const char *const names[] = {"none", "selective", "full"};
    const size_t used = (size_t)snprintf(ret, bytes, "recompute=%s", names[recompute]);
    if (recompute == PD_RECOMPUTE_NONE || layers == PD_LAYERS_ALL || used >= bytes) return;
    snprintf(ret + used, bytes - used, "%srecompute_layers=%u", between, layers);
}

pd_status pd_lay_out_given(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                           struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    struct pd_degrees degrees;
    PD_CHECK(!config->layout.automatic);
    PD_TRY(pd_degrees_of(config, world, &degrees, err));
    return pd_lay_out_degrees(config, model, &degrees, ret_laid_out, err);
}
