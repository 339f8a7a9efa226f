#include "trainer/whole_engine.h"

pd_status pd_whole_engine_open(const struct pd_config *config, struct pd_comm *comm, struct pd_rank_device *device,
                               uint32_t threads, struct pd_whole_engine *w, struct pd_error *err)
{
    const struct pd_data_options data = pd_config_data(config);
    struct pd_rank_device *const gpu = device && device->dev ? device : NULL;
    *w = (struct pd_whole_engine){0};
    PD_TRY(pd_model_new(&config->model, &w->model, err));
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
    return pd_engine_new(&options, comm, w->data, w->pool, w->arena, &w->engine, err);
}

void pd_whole_engine_close(struct pd_whole_engine *w)
{
    pd_engine_free(w->engine);
    pd_arena_free(w->arena);
    pd_thread_pool_free(w->pool);
    pd_data_close(w->data);
    pd_model_free(w->model);
    *w = (struct pd_whole_engine){0};
}
