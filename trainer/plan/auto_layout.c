#include "trainer/plan/auto_layout.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/words.h"
#include "trainer/config/check.h"
#include "trainer/plan/cost_model.h"
#include "trainer/plan/memory_plan.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pd_status pd_fit_fewest(pd_fit_probe probe, void *context, uint32_t enough, uint32_t *ret_fewest, struct pd_error *err)
{
    uint32_t too_few = 0;
    while (enough > too_few + 1) {
        const uint32_t middle = too_few + (enough - too_few) / 2;
        bool fits;
        PD_TRY(probe(context, middle, &fits, err));
        *(fits ? &enough : &too_few) = middle;
    }
    *ret_fewest = enough;
    return PD_OK;
}

/* ---- finding a fit ---- */

/* If more ranks are allowed at all, one of the degrees can grow. */
static bool can_be_more(const struct pd_config *config, uint32_t world)
{
    const struct pd_degrees any = {0};
    for (uint32_t more = world + 1; more <= 2 * world; more++)
        if (pd_degrees_list(config, more, &any, NULL, 0)) return true;
    return false;
}

/* Ranks share what is cut into chunks; a chunk has a head. */
static bool can_have_chunks(const struct pd_config *config, uint32_t world)
{
    struct pd_config changed = *config; /* shares what it points to */
    struct pd_error ignored;
    changed.numerics.virtual_tp *= 2;
    return world > 1 && changed.numerics.virtual_tp <= config->model.heads && !pd_config_check(&changed, &ignored);
}

/* Whatever a rank has of the vocabulary. */
static bool columns_take_less(const struct pd_config *c)
{
    const uint64_t chunk = c->model.vocab / c->numerics.virtual_tp;
    return c->numerics.logits == PD_LOGITS_OF_ROWS && chunk > PD_LOGITS_COLUMNS + (uint64_t)c->model.hidden;
}

static bool sums_can_be_rounded(const struct pd_config *c, uint32_t world)
{
    return world == 1 && c->run.device == PD_DEVICE_GPU && c->numerics.lanes == 1 && c->numerics.gradients == PD_F32 &&
           c->numerics.virtual_tp == 1 && c->numerics.virtual_sp == 1 && c->offload.gradients == PD_PLACE_DEVICE &&
           c->offload.optimizer != PD_PLACE_NVME;
}

/* Breadth first, which is the default order if parameters are on drives. */
static bool keeps_all_micro_batches(const struct pd_config *c)
{
    const struct pd_layout one = {.pp = 1};
    return c->layout.order == PD_ORDER_AUTO && c->offload.gradients == PD_PLACE_DEVICE && pd_is_breadth_first(c, &one);
}

void pd_less_memory_text(const struct pd_config *c, uint32_t world, bool places, bool state_alone, char *ret, size_t bytes)
{
    const bool stage_given = c->layout.automatic && c->layout.zero_stage_given,
               recompute_given = c->layout.automatic && c->layout.recompute_given;
    char lanes[64];
    snprintf(lanes, sizeof lanes, "numerics.lanes=%u (other bits)", world);
    const struct {
        const char *words;
        bool can;
    } all[] = {{lanes, c->numerics.lanes > world && (world > 1 || !c->guard.replay_every)},
               {c->run.device == PD_DEVICE_GPU ? "more GPUs" : "more ranks", can_be_more(c, world)},
               {"layout.order=depth_first", keeps_all_micro_batches(c) && !state_alone},
               {"layout.zero_stage=auto", stage_given && c->layout.zero_stage < 3 && world > 1},
               {"layout.recompute=auto", recompute_given && c->layout.recompute != PD_RECOMPUTE_FULL && !state_alone},
               {"layout.recompute=full", !c->layout.automatic && c->layout.recompute != PD_RECOMPUTE_FULL && !state_alone},
               {"layout.fp8_codes=micro_batch",
                c->numerics.linears == PD_LINEARS_FP8 && c->layout.fp8_codes != PD_CODES_MICRO_BATCH && !state_alone},
               {"layout.recompute_layers=auto",
                c->layout.automatic && c->layout.recompute_layers < c->model.layers && !state_alone},
               {"offload.optimizer=cpu", places && c->offload.optimizer == PD_PLACE_DEVICE},
               {"offload.activations=cpu", places && !state_alone && c->offload.activations == PD_PLACE_DEVICE},
               {"a smaller batch.micro_batch (other bits)", !state_alone && c->batch.micro_batch > 1},
               {"numerics.gradients=bf16 (other bits)", sums_can_be_rounded(c, world)},
               {"numerics.logits=columns (other bits)", !state_alone && columns_take_less(c)},
               {"a larger numerics.virtual_tp (other bits)", !state_alone && can_have_chunks(c, world)},
               {"a shorter batch.context (other bits)", !state_alone && c->batch.context > 1}};
    const int count = sizeof all / sizeof *all;
    int last = count - 1;
    size_t at = (size_t)snprintf(ret, bytes, "take ");
    while (last > 0 && !all[last].can)
        last--;
    if (!all[last].can) snprintf(ret, bytes, "take a smaller model");
    for (int i = 0, named = 0; i <= last && at < bytes; i++)
        if (all[i].can)
            at += (size_t)snprintf(ret + at, bytes - at, "%s%s", !named++ ? "" : i == last ? " or " : ", ", all[i].words);
}

/* ---- the planner ---- */

struct planner {
    const struct pd_config *config;
    const struct pd_model *model;
    uint32_t world, threads;
    const struct pd_machine *machine;
    struct pd_memory_states *states;
    struct pd_layout_choice *list; /* candidates, owned; fastest first */
    uint32_t count;
    double measured, least;              /* bytes of the smallest candidate: measured, or a lower bound */
    char advice[PD_LAYOUT_ADVICE_BYTES]; /* if none fits */
};

static pd_status add_candidate(struct planner *p, const struct pd_laid_out *laid_out, struct pd_error *err)
{
    struct pd_step_cost cost;
    if (!pd_grow(&p->list, p->count, sizeof *p->list)) PD_FAIL(err, PD_NO_MEMORY, "no memory for layouts to choose from");
    struct pd_layout_choice *added = &p->list[p->count++];
    *added = (struct pd_layout_choice){.laid_out = *laid_out};
    pd_lay_out_update(p->config, p->model, p->machine, &added->laid_out);
    pd_step_cost(p->config, p->model, &added->laid_out, p->machine, &cost);
    added->step_seconds = cost.step_seconds;
    return PD_OK;
}

/* The planner chooses the number of recomputed blocks, unless it or the kind is given. */
static bool chooses_layers(const struct pd_config *config)
{
    return !config->layout.recompute_given && config->layout.recompute_layers == PD_LAYERS_ALL;
}

/* Both exchanges, if not given. */
static pd_status add_exchanges(struct planner *p, struct pd_laid_out laid_out, struct pd_error *err)
{
    const struct pd_layout *l = &laid_out.layout;
    if (p->config->layout.exchange == PD_EXCHANGE_AUTO) laid_out.by_lane = false;
    PD_TRY(add_candidate(p, &laid_out, err));
    if (p->config->layout.exchange != PD_EXCHANGE_AUTO || l->dp * l->sp == 1) return PD_OK;
    laid_out.by_lane = true;
    return add_candidate(p, &laid_out, err);
}

/* Every number of ranks that may spread the experts, if not given. */
static pd_status add_experts(struct planner *p, struct pd_laid_out laid_out, struct pd_error *err)
{
    struct pd_layout *l = &laid_out.layout;
    const uint32_t experts = p->model->config.experts;
    if (p->config->layout.ep || !experts) return add_exchanges(p, laid_out, err);
    for (l->ep = 1; l->ep <= experts && l->ep <= PD_LAYOUT_EP_MAX; l->ep++)
        if (experts % l->ep == 0 && l->zero_shard % l->ep == 0) PD_TRY(add_exchanges(p, laid_out, err));
    return PD_OK;
}

/* Adds every ZeRO stage and recomputation for some degrees; of equal times, less memory comes first. If the number of
 * recomputed blocks is open, a candidate stands for one block, the fastest (decide_layers). */
static pd_status add_degrees(struct planner *p, const struct pd_degrees *degrees, struct pd_error *err)
{
    const struct pd_config *config = p->config;
    struct pd_laid_out laid_out;
    PD_TRY(pd_lay_out_degrees(config, p->model, degrees, &laid_out, err));
    const bool is_shared = degrees->dp * degrees->sp > 1;
    /* A given stage was checked with the degrees; otherwise nvme excludes 0, which keeps copies. */
    const uint32_t least_stage = is_shared && config->offload.optimizer == PD_PLACE_NVME ? 1 : 0;
    for (uint32_t up = 0; up <= 3 - least_stage; up++) {
        laid_out.layout.zero_stage = 3 - up;
        if (config->layout.zero_stage_given ? up != 3 - config->layout.zero_stage : up && !is_shared) continue;
        for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++) {
            if (config->layout.recompute_given && recompute != (int)config->layout.recompute) continue;
            if (recompute == PD_RECOMPUTE_NONE && config->layout.recompute_layers != PD_LAYERS_ALL) continue;
            laid_out.recompute = (enum pd_recompute)recompute;
            if (chooses_layers(config)) laid_out.recompute_layers = recompute ? 1 : PD_LAYERS_ALL;
            PD_TRY(add_experts(p, laid_out, err));
        }
    }
    return PD_OK;
}

static pd_status list_candidates(struct planner *p, struct pd_error *err)
{
    const struct pd_config *config = p->config;
    const struct pd_degrees held = {config->layout.dp, config->layout.tp, config->layout.pp, config->layout.sp, 0};
    const uint32_t count = pd_degrees_list(config, p->world, &held, NULL, 0);
    if (!count) {
        struct pd_degrees unused;
        PD_TRY(pd_degrees_of(config, p->world, &unused, err)); /* reports errors in given values */
        PD_FAIL(err, PD_INVALID, "layout: no layout of %s is admitted", pd_counted(p->world, "rank").text);
    }
    struct pd_degrees *degrees = calloc(count, sizeof *degrees);
    if (!degrees) PD_FAIL(err, PD_NO_MEMORY, "no memory for layouts to choose from");
    pd_degrees_list(config, p->world, &held, degrees, count);
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < count && !st; i++)
        st = add_degrees(p, &degrees[i], err);
    free(degrees);
    return st;
}

static int auto_layout_compare(uint32_t a, uint32_t b)
{
    return (a > b) - (a < b);
}

static int by_seconds(const void *a, const void *b)
{
    const struct pd_layout_choice *x = a, *y = b;
    const struct pd_layout *k = &x->laid_out.layout, *l = &y->laid_out.layout;
    if (x->step_seconds != y->step_seconds) return x->step_seconds < y->step_seconds ? -1 : 1;
    if (k->zero_stage != l->zero_stage) return auto_layout_compare(l->zero_stage, k->zero_stage);
    if (k->tp != l->tp) return auto_layout_compare(k->tp, l->tp);
    if (k->pp != l->pp) return auto_layout_compare(k->pp, l->pp);
    if (k->sp != l->sp) return auto_layout_compare(k->sp, l->sp);
    if (k->ep != l->ep) return auto_layout_compare(k->ep, l->ep);
    if (x->laid_out.recompute != y->laid_out.recompute)
        return auto_layout_compare(x->laid_out.recompute, y->laid_out.recompute);
    if (x->laid_out.by_lane != y->laid_out.by_lane) return x->laid_out.by_lane ? 1 : -1;
    return auto_layout_compare(x->laid_out.recompute_layers, y->laid_out.recompute_layers);
}

/* State only, so that most unsuitable candidates are cheap to reject. */
static double least_bytes(const struct pd_config *config, const struct pd_model *model, const struct pd_layout *l)
{
    const double elements = (double)model->parameter_count / l->tp / l->pp, parts = l->zero_stage ? l->zero_shard : 1;
    const double copy = config->numerics.precision == PD_F32 ? 0 : pd_dtype_bytes(config->numerics.precision);
    const struct pd_engine_options o = {.config = config, .is_gpu = config->run.device == PD_DEVICE_GPU};
    const double state = pd_leaves_device(&o, config->offload.optimizer) ? 0 : pd_kinds_bytes(config->optimizer.moments),
                 gradients =
                     pd_leaves_device(&o, config->offload.gradients) ? 0 : pd_dtype_bytes(config->numerics.gradients);
    const bool holds_all = l->zero_stage < 3 && !pd_leaves_device(&o, config->offload.parameters);
    return elements * (state + gradients) / parts + (holds_all ? elements * copy : 0);
}

static bool fits(const struct planner *p, const struct pd_layout_choice *c)
{
    return p->machine->device_bytes <= 0 || (double)c->worst_bytes <= p->machine->device_bytes;
}

/* The first rank's bytes, and if those fit the worst rank's. */
static pd_status auto_layout_measure(const struct planner *p, struct pd_layout_choice *choice, struct pd_error *err)
{
    struct pd_world_memory memory;
    struct pd_memory_plan first;
    const struct pd_engine_options options = {.config = p->config,
                                              .model = p->model,
                                              .world = p->world,
                                              .threads = p->threads,
                                              .laid_out = &choice->laid_out,
                                              .is_gpu = p->config->run.device == PD_DEVICE_GPU};
    PD_TRY(pd_engine_plan_of(&options, &first, err));
    choice->worst_bytes = pd_memory_of_device(p->config, &first);
    if (!fits(p, choice)) return PD_OK;
    PD_TRY(pd_world_memory_plan(p->config, p->model, p->threads, &choice->laid_out, p->states, &memory, err));
    choice->worst_bytes = memory.worst_bytes;
    pd_world_memory_deinit(&memory);
    return PD_OK;
}

static pd_status nothing_fits(struct planner *p, struct pd_error *err)
{
    const bool is_measured = p->measured <= p->least;
    pd_less_memory_text(p->config, p->world, p->config->run.device == PD_DEVICE_GPU, !isfinite(p->measured), p->advice,
                        sizeof p->advice);
    PD_FAIL(err, PD_INVALID, "layout: no layout of %s fits %s a rank; the smallest needs %s%s: %s",
            pd_counted(p->world, "rank").text, pd_bytes_text(p->machine->device_bytes).text, is_measured ? "" : "more than ",
            pd_bytes_text(is_measured ? p->measured : p->least).text, p->advice);
}

struct some_layers {
    const struct planner *planner;
    struct pd_layout_choice *choice;
};

static pd_status fits_with(void *context, uint32_t layers, bool *ret_fits, struct pd_error *err)
{
    const struct some_layers *s = context;
    struct pd_layout_choice some = *s->choice;
    some.laid_out.recompute_layers = layers;
    PD_TRY(auto_layout_measure(s->planner, &some, err));
    *ret_fits = fits(s->planner, &some);
    if (*ret_fits) *s->choice = some;
    return PD_OK;
}

/* The fewest blocks that fit; one more never needs more memory. All, if none needs to be recomputed (another candidate), or
 * if even all do not fit. */
static pd_status decide_layers(const struct planner *p, struct pd_layout_choice *choice, struct pd_error *err)
{
    const uint32_t blocks = pd_laid_out_blocks(&choice->laid_out, p->model);
    struct pd_layout_choice none = *choice;
    struct some_layers context = {p, choice};
    struct pd_step_cost cost;
    uint32_t unused;
    none.laid_out.recompute = PD_RECOMPUTE_NONE;
    none.laid_out.recompute_layers = choice->laid_out.recompute_layers = PD_LAYERS_ALL;
    PD_TRY(auto_layout_measure(p, choice, err));
    if (fits(p, choice)) {
        PD_TRY(auto_layout_measure(p, &none, err));
        if (!fits(p, &none)) PD_TRY(pd_fit_fewest(fits_with, &context, blocks, &unused, err));
    }
    pd_step_cost(p->config, p->model, &choice->laid_out, p->machine, &cost);
    choice->step_seconds = cost.step_seconds;
    return PD_OK;
}

/* Moves the first entry down to its place by time. */
static void sink(struct pd_layout_choice *list, uint32_t count)
{
    const struct pd_layout_choice later = list[0];
    uint32_t i = 0;
    for (; i + 1 < count && by_seconds(&later, &list[i + 1]) > 0; i++)
        list[i] = list[i + 1];
    list[i] = later;
}

enum verdict { TOO_LARGE, FITS, DECIDED };

/* DECIDED: how many blocks it recomputes, which made it slower than it stood for. */
static pd_status auto_layout_look_at(struct planner *p, struct pd_layout_choice *c, enum verdict *ret_verdict,
                                     struct pd_error *err)
{
    const double limit = p->machine->device_bytes, least = least_bytes(p->config, p->model, &c->laid_out.layout);
    *ret_verdict = TOO_LARGE;
    if (limit > 0 && least > limit) {
        p->least = fmin(p->least, least);
        return PD_OK;
    }
    if (!c->worst_bytes && c->laid_out.recompute && chooses_layers(p->config)) {
        *ret_verdict = DECIDED;
        return decide_layers(p, c, err);
    }
    if (!c->worst_bytes) PD_TRY(auto_layout_measure(p, c, err));
    p->measured = fmin(p->measured, (double)c->worst_bytes);
    if (fits(p, c)) *ret_verdict = FITS;
    return PD_OK;
}

/* Goes down the list until enough fit. A decided candidate moves to its place by time, and is visited again. */
static pd_status auto_layout_choose(struct planner *p, uint32_t capacity, struct pd_layout_choice *ret_choices,
                                    uint32_t *ret_count, struct pd_error *err)
{
    uint32_t count = 0, i = 0;
    while (i < p->count && count < capacity) {
        enum verdict verdict;
        PD_TRY(auto_layout_look_at(p, &p->list[i], &verdict, err));
        if (verdict == DECIDED) {
            sink(&p->list[i], p->count - i);
            continue;
        }
        if (verdict == FITS) ret_choices[count++] = p->list[i];
        i++;
    }
    if (!count) return nothing_fits(p, err);
    *ret_count = count;
    return PD_OK;
}

static pd_status search(struct planner *p, uint32_t capacity, struct pd_layout_choice *ret_choices, uint32_t *ret_count,
                        struct pd_error *err)
{
    struct pd_memory_states states = {0};
    p->states = &states;
    pd_status st = list_candidates(p, err);
    if (!st) qsort(p->list, p->count, sizeof *p->list, by_seconds);
    if (!st) st = auto_layout_choose(p, capacity, ret_choices, ret_count, err);
    free(p->list);
    pd_memory_states_deinit(&states);
    return st;
}

pd_status pd_choose_layouts(const struct pd_config *config, const struct pd_model *model, uint32_t world, uint32_t threads,
                            const struct pd_machine *machine, uint32_t capacity, struct pd_layout_choice *ret_choices,
                            uint32_t *ret_count, struct pd_error *err)
{
    struct planner p = {config, model, world, threads, machine, NULL, .measured = INFINITY, .least = INFINITY};
    return search(&p, capacity, ret_choices, ret_count, err);
}

bool pd_layouts_fit(const struct pd_config *config, const struct pd_model *model, uint32_t world, uint32_t threads,
                    const struct pd_machine *machine, char ret_advice[PD_LAYOUT_ADVICE_BYTES])
{
    struct planner p = {config, model, world, threads, machine, NULL, .measured = INFINITY, .least = INFINITY};
    struct pd_layout_choice best;
    struct pd_error ignored;
    uint32_t count;
    const pd_status st = search(&p, 1, &best, &count, &ignored);
    memcpy(ret_advice, p.advice, sizeof p.advice);
    return !st;
}

pd_status pd_plan_fewer_lanes(const struct pd_config *config, const struct pd_model *model, uint32_t threads,
                              const struct pd_laid_out *laid_out, const struct pd_machine *machine,
                              struct pd_fewer_lanes *ret_fewer, struct pd_error *err)
{
    struct pd_config fewer = *config; /* shares what it points to */
    struct pd_world_memory memory;
    struct pd_step_cost cost;
    *ret_fewer = (struct pd_fewer_lanes){0};
    if (config->numerics.lanes <= laid_out->layout.dp) return PD_OK;
    fewer.numerics.lanes = laid_out->layout.dp;
    PD_TRY(pd_world_memory_plan(&fewer, model, threads, laid_out, NULL, &memory, err));
    pd_step_cost(&fewer, model, laid_out, machine, &cost);
    *ret_fewer = (struct pd_fewer_lanes){fewer.numerics.lanes, memory.worst_bytes, cost.step_seconds};
    pd_world_memory_deinit(&memory);
    return PD_OK;
}

pd_status pd_lay_out(const struct pd_config *config, const struct pd_model *model, uint32_t world,
                     struct pd_laid_out *ret_laid_out, struct pd_error *err)
{
    if (!config->layout.automatic) return pd_lay_out_given(config, model, world, ret_laid_out, err);
    struct pd_machine machine;
    struct pd_layout_choice best;
    uint32_t count;
    PD_TRY(pd_machine_preset("cpu", &machine, err));
    PD_TRY(pd_choose_layouts(config, model, world, 1, &machine, 1, &best, &count, err));
    *ret_laid_out = best.laid_out;
    return PD_OK;
}
