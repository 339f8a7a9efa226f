#include "trainer/auto_layout.h"

#include "ckpt/base/words.h"
#include "resharder/layout.h"
#include "trainer/cost_model.h"
#include "trainer/memory_plan.h"
#include "trainer/stripes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Fills one stage after the other up to `limit`, leaving a block for each that follows. */
static void fill_stages(const double *costs, uint32_t blocks, uint32_t stages, double limit, uint16_t *ret_first_unit)
{
    uint32_t stage = 0;
    double load = 0;
    ret_first_unit[0] = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        const bool must = b > 0 && blocks - b == stages - 1 - stage;
        if (must || load + costs[b] > limit) {
            PD_CHECK(stage + 1 < stages);
            ret_first_unit[++stage] = (uint16_t)(b + 1);
            load = 0;
        }
        load += costs[b];
    }
    PD_CHECK(stage + 1 == stages);
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
    fill_stages(costs, blocks, stages, high, ret_first_unit);
    free(costs);
    return PD_OK;
}

/* ---- a layout of given degrees ---- */

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
    pd_stripes_apply(config, &l);
    if (l.stage_count > 1) PD_TRY(pd_balance_stages(model, config->batch.context, l.stage_count, l.first_unit, err));
    PD_TRY(pd_layout_check(&l, err));
    *ret_laid_out = (struct pd_laid_out){.layout = l, .recompute = config->layout.recompute};
    return PD_OK;
}

/* ---- the planner ---- */

struct candidates {
    struct pd_layout_choice *list; /* owned */
    uint32_t count, capacity;
};

static pd_status add_candidate(struct candidates *all, const struct pd_laid_out *laid_out, double seconds,
                               struct pd_error *err)
{
    if (all->count == all->capacity) {
        const uint32_t capacity = all->capacity ? 2 * all->capacity : 64;
        struct pd_layout_choice *grown = realloc(all->list, capacity * sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for layouts to choose from");
        all->list = grown;
        all->capacity = capacity;
    }
    all->list[all->count++] = (struct pd_layout_choice){.laid_out = *laid_out, .step_seconds = seconds};
    return PD_OK;
}

/* Every ZeRO stage and recomputation of some degrees; what takes less memory in the same time comes first. */
static pd_status add_degrees(struct candidates *all, const struct pd_config *config, const struct pd_model *model,
                             const struct pd_degrees *degrees, const struct pd_machine *machine, struct pd_error *err)
{
    struct pd_laid_out laid_out;
    PD_TRY(pd_lay_out_degrees(config, model, degrees, &laid_out, err));
    const uint32_t least_stage = degrees->dp * degrees->sp == 1 ? 3 : config->offload.optimizer == PD_PLACE_NVME ? 1 : 0;
    for (uint32_t up = 0; up <= 3 - least_stage; up++) {
        laid_out.layout.zero_stage = 3 - up;
        for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++) {
            struct pd_step_cost cost;
            laid_out.recompute = (enum pd_recompute)recompute;
            pd_step_cost(config, model, &laid_out, machine, &cost);
            PD_TRY(add_candidate(all, &laid_out, cost.step_seconds, err));
        }
    }
    return PD_OK;
}

static pd_status list_candidates(struct candidates *all, const struct pd_config *config, const struct pd_model *model,
                                 uint32_t world, const struct pd_machine *machine, struct pd_error *err)
{
    const struct pd_degrees held = {config->layout.dp, config->layout.tp, config->layout.pp, config->layout.sp, 0};
    const uint32_t count = pd_degrees_list(config, world, &held, NULL, 0);
    if (!count) {
        struct pd_degrees unused;
        PD_TRY(pd_degrees_of(config, world, &unused, err)); /* says what is wrong with what is given */
        PD_FAIL(err, PD_INVALID, "layout: no layout of %s is admitted", pd_counted(world, "rank").text);
    }
    struct pd_degrees *degrees = calloc(count, sizeof *degrees);
    if (!degrees) PD_FAIL(err, PD_NO_MEMORY, "no memory for layouts to choose from");
    pd_degrees_list(config, world, &held, degrees, count);
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < count && !st; i++)
        st = add_degrees(all, config, model, &degrees[i], machine, err);
    free(degrees);
    return st;
}

static int compare(uint32_t a, uint32_t b)
{
    return (a > b) - (a < b);
}

static int by_seconds(const void *a, const void *b)
{
    const struct pd_layout_choice *x = a, *y = b;
    const struct pd_layout *k = &x->laid_out.layout, *l = &y->laid_out.layout;
    if (x->step_seconds != y->step_seconds) return x->step_seconds < y->step_seconds ? -1 : 1;
    if (k->zero_stage != l->zero_stage) return compare(l->zero_stage, k->zero_stage);
    if (k->tp != l->tp) return compare(k->tp, l->tp);
    if (k->pp != l->pp) return compare(k->pp, l->pp);
    if (k->sp != l->sp) return compare(k->sp, l->sp);
    return compare(x->laid_out.recompute, y->laid_out.recompute);
}

/* State alone, so that most of what cannot fit costs nothing to refuse. */
static double least_bytes(const struct pd_config *config, const struct pd_model *model, const struct pd_layout *l)
{
    const double elements = (double)model->parameter_count / l->tp / l->pp, parts = l->zero_stage ? l->zero_shard : 1;
    const double copy = config->numerics.precision == PD_F32 ? 0 : pd_dtype_bytes(config->numerics.precision);
    const double state = config->offload.optimizer == PD_PLACE_NVME ? 0 : 12,
                 gradients = config->offload.gradients == PD_PLACE_NVME ? 0 : 4;
    const bool holds_all = l->zero_stage < 3 && config->offload.parameters != PD_PLACE_NVME;
    return elements * (state + gradients) / parts + (holds_all ? elements * copy : 0);
}

static pd_status measure(const struct pd_config *config, const struct pd_model *model, uint32_t threads, double limit,
                         struct pd_layout_choice *choice, struct pd_error *err)
{
    struct pd_world_memory memory;
    struct pd_memory_plan first;
    const struct pd_engine_options options = {.config = config,
                                              .model = model,
                                              .world = pd_layout_world(&choice->laid_out.layout),
                                              .threads = threads,
                                              .laid_out = &choice->laid_out,
                                              .is_gpu = config->run.device == PD_DEVICE_GPU};
    PD_TRY(pd_engine_plan_of(&options, &first, err));
    choice->worst_bytes = pd_memory_of_device(config, &first);
    if (limit > 0 && (double)choice->worst_bytes > limit) return PD_OK;
    PD_TRY(pd_world_memory_plan(config, model, threads, &choice->laid_out, &memory, err));
    choice->worst_bytes = memory.worst_bytes;
    pd_world_memory_deinit(&memory);
    return PD_OK;
}

static pd_status choose(const struct candidates *all, const struct pd_config *config, const struct pd_model *model,
                        uint32_t threads, const struct pd_machine *machine, uint32_t capacity,
                        struct pd_layout_choice *ret_choices, uint32_t *ret_count, struct pd_error *err)
{
    const double limit = machine->device_bytes;
    double smallest = INFINITY;
    uint32_t count = 0;
    for (uint32_t i = 0; i < all->count && count < capacity; i++) {
        struct pd_layout_choice *c = &all->list[i];
        const double least = least_bytes(config, model, &c->laid_out.layout);
        if (limit > 0 && least > limit) {
            smallest = fmin(smallest, least);
            continue;
        }
        PD_TRY(measure(config, model, threads, limit, c, err));
        smallest = fmin(smallest, (double)c->worst_bytes);
        if (limit <= 0 || (double)c->worst_bytes <= limit) ret_choices[count++] = *c;
    }
    if (!count)
        PD_FAIL(err, PD_INVALID,
                "layout: no layout of %s fits %.3g GB a rank; the smallest needs %.3g GB: take more ranks, a smaller "
                "batch.leaf, or a larger numerics.virtual_tp (both start a new lineage)",
                pd_counted(pd_layout_world(&all->list[0].laid_out.layout), "rank").text, limit / 1e9, smallest / 1e9);
    *ret_count = count;
    return PD_OK;
}

pd_status pd_choose_layouts(const struct pd_config *config, const struct pd_model *model, uint32_t world, uint32_t threads,
                            const struct pd_machine *machine, uint32_t capacity, struct pd_layout_choice *ret_choices,
                            uint32_t *ret_count, struct pd_error *err)
{
    struct candidates all = {0};
    pd_status st = list_candidates(&all, config, model, world, machine, err);
    if (!st) qsort(all.list, all.count, sizeof *all.list, by_seconds);
    if (!st) st = choose(&all, config, model, threads, machine, capacity, ret_choices, ret_count, err);
    free(all.list);
    return st;
}

pd_status pd_lay_out(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                     struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    if (config->layout.automatic) {
        struct pd_machine machine;
        struct pd_layout_choice best;
        uint32_t count;
        PD_TRY(pd_machine_preset("cpu", &machine, err));
        PD_TRY(pd_choose_layouts(config, model, world, 1, &machine, 1, &best, &count, err));
        *ret_laid_out = best.laid_out;
        return PD_OK;
    }
    struct pd_degrees degrees;
    PD_TRY(pd_degrees_of(config, world, &degrees, err));
    return pd_lay_out_degrees(config, model, &degrees, ret_laid_out, err);
}
