/* Memory of every rank of a world, by groups of ranks that need the same bytes in every category.
 *
 * A rank takes what its pipeline place takes (chunks, micro-batches kept, heads and tokens it computes) plus what its share of
 * the state takes. Few ranks are planned by the engine's recipe (trainer/engine/engine.h); a rank whose two parts were each
 * seen elsewhere follows by addition. Time grows with tensors plus ranks, not with their product. */
#pragma once

#include "trainer/engine/engine.h"

struct pd_memory_group {
    uint32_t first_rank; /* the lowest of them; they need not follow each other */
    uint32_t ranks;
    struct pd_memory_plan plan;
};

struct pd_world_memory {
    struct pd_memory_group *groups; /* (group_count), owned; by first rank */
    uint32_t group_count, worst;    /* worst: the group that takes most */
    uint64_t worst_bytes;           /* this and the mean: of pd_memory_of_device */
    double mean_bytes;
    uint32_t recipes; /* runs of the engine's recipe that it took */
};

/* Of a plan's bytes those that must find room in the rank's device: with run.device gpu all but pinned memory of the
 * host, and what libraries take beside it; else all. */
uint64_t pd_memory_of_device(const struct pd_config *config, const struct pd_memory_plan *plan);

PD_MUST_USE pd_status pd_world_memory_plan(const struct pd_config *config, const struct pd_model *model, uint32_t threads,
                                           const struct pd_laid_out *laid_out, struct pd_world_memory *ret_memory,
                                           struct pd_error *err);
void pd_world_memory_deinit(struct pd_world_memory *memory);
