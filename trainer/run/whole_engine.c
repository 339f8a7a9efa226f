#include "trainer/run/whole_engine.h"

#include "trainer/engine/scratch.h"
#include "trainer/plan/device_memory.h"

static bool needs_files(const struct pd_config *c)
{
    return c->offload.parameters == PD_PLACE_NVME || c->offload.gradients == PD_PLACE_NVME ||
           c->offload.activations == PD_PLACE_NVME;
}

pd_status pd_whole_engine_open(const struct pd_config *config, struct pd_comm *comm, struct pd_rank_device *device,
                               uint32_t threads, struct pd_whole_engine *w, struct pd_error *err)
{
    const struct pd_data_options data = pd_config_data(config);
    struct pd_rank_device *const gpu = device && device->dev ? device : NULL;
    *w = (struct pd_whole_engine){0};
    PD_TRY(pd_config_model(config, &w->model, err));
    PD_TRY(pd_data_open(&data, &w->data, err));
    PD_TRY(pd_thread_pool_new(threads, &w->pool, err));
    const struct pd_engine_options options = {.config = config,
                                              .model = w->model,
                                              .world = comm ? comm->size : 1,
                                              .rank = comm ? comm->rank : 0,
                                              .threads = threads,
                                              .is_gpu = gpu != NULL,
                                              .device = gpu};
    PD_TRY(pd_engine_arena(&options, &w->plan, &w->arena, err));
    PD_TRY(pd_engine_new(&options, comm, w->data, w->pool, w->arena, &w->engine, err));
    return gpu && !needs_files(config) ? pd_scratch_open(w->engine, NULL, NULL, &w->scratch, err) : PD_OK;
}

void pd_whole_engine_close(struct pd_whole_engine *w)
{
    if (w->engine && w->engine->options.device) pd_rank_device_quiet(w->engine->options.device);
    pd_scratch_close(w->scratch);
    pd_engine_free(w->engine);
    pd_arena_free(w->arena);
    pd_thread_pool_free(w->pool);
    pd_data_close(w->data);
    pd_model_free(w->model);
    *w = (struct pd_whole_engine){0};
}
