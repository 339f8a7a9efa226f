/* An engine with everything it needs, built from a configuration, for benchmarks and tests. Workers do not use it. */
#pragma once

#include "trainer/engine/engine.h"

struct pd_scratch;

struct pd_whole_engine {
    struct pd_model *model;
    struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_engine *engine;
    struct pd_scratch *scratch; /* host memory for offload.* on a GPU; NULL: none */
    struct pd_memory_plan plan; /* the arena's size came from this */
};

/* Borrows config, comm (NULL: one rank) and device (NULL, or its dev NULL: the CPU). The state is not initialised. The
 * caller opens what is on nvme. If opening fails, everything is closed. */
PD_MUST_USE pd_status pd_whole_engine_open(const struct pd_config *config, struct pd_comm *comm,
                                           struct pd_rank_device *device, uint32_t threads,
                                           struct pd_whole_engine *ret_whole, struct pd_error *err);
void pd_whole_engine_close(struct pd_whole_engine *whole);
