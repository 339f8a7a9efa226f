#include "trainer/plan/device_memory.h"

#include "trainer/plan/auto_layout.h"

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* Checks the plan before any allocation. */
static pd_status check(const struct pd_engine_options *o, const struct pd_memory_plan *plan, struct pd_error *err)
{
    struct pd_dev_memory memory;
    char advice[PD_LAYOUT_ADVICE_BYTES];
    const uint64_t need = pd_memory_plan_total(plan) - pd_memory_plan_host(plan);
    PD_TRY(pd_dev_memory(o->device->dev, &memory, err));
    if (need <= memory.free_bytes) return PD_OK;
    struct pd_config config = *o->config; /* shares what it points to */
    config.run.device = PD_DEVICE_GPU;
    pd_less_memory_text(&config, o->world, true, false, advice, sizeof advice);
    PD_FAIL(err, PD_INVALID,
            "GPU %u: this rank needs %.1f MiB of device memory, and %.1f of %.1f are free%s; %s. What it is made of: "
            "perdure plan CONFIG --world=%u run.device=gpu",
            o->device->dev->index, mib(need), mib(memory.free_bytes), mib(memory.total_bytes),
            need <= memory.total_bytes ? ", others hold the rest" : "", advice, o->world);
}

/* The status of allocating: turns PD_NO_MEMORY into PD_INVALID, and on a GPU names who else may use the memory. */
static pd_status taken(const struct pd_engine_options *o, pd_status status, struct pd_error *err)
{
    if (status != PD_NO_MEMORY) return status;
    pd_error_change(err, PD_INVALID);
    if (!o->device) return PD_INVALID;
    return pd_error_context(
        err, PD_INVALID,
        "GPU %u: this rank does not fit into what other processes leave free; with more ranks each needs less",
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
