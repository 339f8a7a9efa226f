#include "trainer/plan/device_room.h"

#include "trainer/config/check.h"
#include "trainer/plan/auto_layout.h"

#include <stdio.h>
#include <string.h>

/* ---- what to change ---- */

/* What costs least time comes first. */
enum change { ALL_LAYERS, SELECTIVE, CODES_AGAIN, ACTIVATIONS, ZERO_3, FULL, OPTIMIZER, GRADIENTS, PARAMETERS, CHANGES };
static const char *const words[CHANGES] = {
    "layout.recompute_layers=auto", "layout.recompute=selective",
    "layout.fp8_codes=micro_batch", "offload.activations=cpu",
    "layout.zero_stage=3",          "layout.recompute=full",
    "offload.optimizer=cpu",        "offload.gradients=cpu layout.order=breadth_first",
    "offload.parameters=cpu"};

static bool take_away(enum pd_place *place)
{
    const bool is_new = *place == PD_PLACE_DEVICE;
    *place = PD_PLACE_CPU;
    return is_new;
}

/* Of all blocks. */
static bool recompute(struct pd_config *c, enum pd_recompute how, bool is_new)
{
    c->layout.recompute = how;
    c->layout.recompute_layers = PD_LAYERS_ALL;
    return is_new;
}

/* False: it is so already. */
static bool apply(struct pd_config *c, uint32_t change)
{
    const enum pd_recompute now = c->layout.recompute;
    bool is_new = c->layout.zero_stage != 3;
    switch (change) {
    case ALL_LAYERS:
        return recompute(c, now, c->layout.recompute_layers < c->model.layers);
    case SELECTIVE:
        return recompute(c, PD_RECOMPUTE_SELECTIVE, now == PD_RECOMPUTE_NONE);
    case FULL:
        return recompute(c, PD_RECOMPUTE_FULL, now != PD_RECOMPUTE_FULL);
    case CODES_AGAIN:
        is_new = c->numerics.linears == PD_LINEARS_FP8 && c->layout.fp8_codes != PD_CODES_MICRO_BATCH;
        c->layout.fp8_codes = PD_CODES_MICRO_BATCH;
        return is_new;
    case ZERO_3:
        c->layout.zero_stage = 3;
        return is_new;
    case GRADIENTS:
        c->layout.order = PD_ORDER_BREADTH_FIRST; /* without it they cannot */
        return take_away(&c->offload.gradients);
    default:
        return take_away(change == ACTIVATIONS ? &c->offload.activations
                         : change == OPTIMIZER ? &c->offload.optimizer
                                               : &c->offload.parameters);
    }
}

static bool recomputes(uint32_t change)
{
    return change == ALL_LAYERS || change == SELECTIVE || change == FULL;
}

static uint64_t device_bytes(const struct pd_memory_plan *plan)
{
    return pd_memory_plan_total(plan) - pd_memory_plan_host(plan);
}

static bool plan_with(const struct pd_engine_options *o, const struct pd_config *config, uint64_t *ret_bytes)
{
    struct pd_engine_options changed = *o;
    struct pd_laid_out laid_out;
    struct pd_memory_plan plan;
    struct pd_error err;
    changed.config = config;
    changed.laid_out = &laid_out;
    changed.device = NULL;
    changed.is_gpu = true;
    if (pd_config_check(config, &err) || pd_lay_out(config, o->model, o->world, &laid_out, &err) ||
        pd_engine_plan_of(&changed, &plan, &err))
        return false;
    *ret_bytes = device_bytes(&plan);
    return true;
}

static void add(struct pd_device_remedy *r, const char *more)
{
    const size_t at = strlen(r->words);
    snprintf(r->words + at, sizeof r->words - at, "%s%s", at ? " " : "", more);
}

/* layers: that are recomputed, where one of the changes is to recompute. */
static bool try_changes(const struct pd_engine_options *o, uint32_t which, uint32_t layers, struct pd_device_remedy *ret)
{
    struct pd_config config = *o->config; /* borrows what it points to */
    struct pd_device_remedy r = {.bytes = 0};
    char number[48];
    for (uint32_t i = 0; i < CHANGES; i++) {
        if (!(which >> i & 1)) continue;
        if (!apply(&config, i)) return false;
        if (layers == PD_LAYERS_ALL || i != ALL_LAYERS) add(&r, words[i]);
        if (layers == PD_LAYERS_ALL || !recomputes(i)) continue;
        snprintf(number, sizeof number, "layout.recompute_layers=%u", layers);
        add(&r, number);
        config.layout.recompute_layers = layers;
    }
    if (!plan_with(o, &config, &r.bytes)) return false;
    if (config.layout.chosen) {
        /* What layout: auto chose would be chosen again: all of it is given. */
        char recompute[64];
        pd_recompute_text(config.layout.recompute, config.layout.recompute_layers, " layout.", recompute, sizeof recompute);
        snprintf(r.words, sizeof r.words,
                 "layout.auto=false layout.dp=%u layout.tp=%u layout.pp=%u layout.sp=%u layout.interleave=%u "
                 "layout.zero_stage=%u layout.zero_shard=%u layout.%s",
                 config.layout.dp, config.layout.tp, config.layout.pp, config.layout.sp, config.layout.interleave,
                 config.layout.zero_stage, config.layout.zero_shard, recompute);
    }
    for (uint32_t i = 0; i < CHANGES && config.layout.chosen; i++)
        if (which >> i & 1 && !recomputes(i) && i != ZERO_3) add(&r, words[i]); /* those are among give_layout's */
    *ret = r;
    return true;
}

struct remedies {
    const struct pd_engine_options *options;
    uint64_t bytes; /* that it may take */
    uint32_t which; /* changes, by bit */
    struct pd_device_remedy *found;
};

static bool is_remedy(const struct remedies *s, uint32_t which, struct pd_device_remedy *ret)
{
    struct pd_device_remedy r;
    if (!try_changes(s->options, which, PD_LAYERS_ALL, &r) || r.bytes > s->bytes) return false;
    *ret = r;
    return true;
}

static pd_status is_enough(void *context, uint32_t layers, bool *ret_fits, struct pd_error *err)
{
    const struct remedies *s = context;
    struct pd_device_remedy some;
    (void)err;
    *ret_fits = try_changes(s->options, s->which, layers, &some) && some.bytes <= s->bytes;
    if (*ret_fits) *s->found = some;
    return PD_OK;
}

/* Of the blocks that a remedy recomputes, the fewest with which it is one. */
static void fewest_layers(struct remedies *s)
{
    uint32_t unused;
    bool is_one = false;
    for (uint32_t i = 0; i < CHANGES; i++)
        is_one |= (s->which >> i & 1) && recomputes(i);
    if (is_one) (void)!pd_fit_fewest(is_enough, s, s->options->model->config.layers, &unused, NULL);
}

/* Every change that takes bytes away and goes with those before it, the cheapest first, until it fits. */
static bool gather(struct remedies *s)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < CHANGES; i++) {
        struct pd_device_remedy r;
        if (!try_changes(s->options, s->which | 1u << i, PD_LAYERS_ALL, &r) || r.bytes >= least) continue;
        s->which |= 1u << i;
        least = r.bytes;
        *s->found = r;
        if (r.bytes <= s->bytes) return true;
    }
    return false;
}

bool pd_device_room_remedy(const struct pd_engine_options *o, uint64_t bytes, struct pd_device_remedy *ret_remedy)
{
    struct pd_device_remedy r;
    struct remedies s = {.options = o, .bytes = bytes, .found = &r};
    for (uint32_t i = 0; i < CHANGES && !s.which; i++)
        if (is_remedy(&s, 1u << i, &r)) s.which = 1u << i;
    if (!s.which) {
        if (!gather(&s)) return false;
        for (uint32_t i = 0; i < CHANGES; i++) /* without what is not needed beside the rest */
            if (s.which >> i & 1 && is_remedy(&s, s.which & ~(1u << i), &r)) s.which &= ~(1u << i);
    }
    fewest_layers(&s);
    *ret_remedy = r;
    return true;
}

/* ---- what is said ---- */

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* Before a byte of it is taken. */
static pd_status check(const struct pd_engine_options *o, const struct pd_memory_plan *plan, struct pd_error *err)
{
    struct pd_dev_memory memory;
    struct pd_device_remedy r;
    char advice[512];
    const uint64_t need = device_bytes(plan);
    PD_TRY(pd_dev_memory(o->device->dev, &memory, err));
    if (need <= memory.free_bytes) return PD_OK;
    struct pd_config config = *o->config; /* borrows what it points to */
    config.run.device = PD_DEVICE_GPU;
    if (pd_device_room_remedy(o, memory.free_bytes, &r))
        snprintf(advice, sizeof advice, "with %s it takes %.1f MiB, and the bits stay the same", r.words, mib(r.bytes));
    else
        pd_less_memory_text(&config, o->world, false, false, advice, sizeof advice);
    PD_FAIL(err, PD_INVALID,
            "GPU %u: this rank needs %.1f MiB of device memory, and %.1f of %.1f are free%s; %s. What it is made of: "
            "perdure plan CONFIG --world=%u run.device=gpu",
            o->device->dev->index, mib(need), mib(memory.free_bytes), mib(memory.total_bytes),
            need <= memory.total_bytes ? ", others hold the rest" : "", advice, o->world);
}

/* The status of taking it: of PD_NO_MEMORY, PD_INVALID, and on a GPU who else may have taken what was free. */
static pd_status taken(const struct pd_engine_options *o, pd_status status, struct pd_error *err)
{
    if (status != PD_NO_MEMORY) return status;
    pd_error_change(err, PD_INVALID);
    if (!o->device) return PD_INVALID;
    return pd_error_context(
        err, PD_INVALID, "GPU %u: what this rank needs does not fit beside what others hold; of more ranks each needs less",
        o->device->dev->index);
}

pd_status pd_engine_arena(const struct pd_engine_options *options, struct pd_memory_plan *ret_plan,
                          struct pd_arena **ret_arena, struct pd_error *err)
{
    PD_TRY(pd_engine_plan_of(options, ret_plan, err));
    if (!options->device) return taken(options, pd_arena_new(ret_plan, ret_arena, err), err);
    const struct pd_arena_source source = pd_rank_device_source(options->device);
    PD_TRY(check(options, ret_plan, err));
    return taken(options, pd_arena_new_on(ret_plan, &source, ret_arena, err), err);
}
