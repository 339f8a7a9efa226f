/* An engine and all that it stands on, made from a configuration: for benches and tests. A worker's has a life of its own.
 */
#pragma once

#include "trainer/engine/engine.h"

struct pd_scratch;

struct pd_whole_engine {
    struct pd_model *model;
    struct pd_data *data;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_engine *engine;
    struct pd_scratch *scratch; /* on a GPU, what offload.* puts on the host; NULL: nothing */
    struct pd_memory_plan plan; /* what the arena was made from */
};

/* config, comm (NULL: alone) and device (its dev NULL, or NULL: the CPU) are borrowed. There is no state yet. What is
 * on nvme the caller opens. What could not be opened is closed all the same. */
PD_MUST_USE pd_status pd_whole_engine_open(const struct pd_config *config, struct pd_comm *comm,
                                           struct pd_rank_device *device, uint32_t threads,
                                           struct pd_whole_engine *ret_whole, struct pd_error *err);
void pd_whole_engine_close(struct pd_whole_engine *whole);
