/* Memory of every rank of a world, by groups of ranks with the same bytes in every category.
 *
 * A rank's memory is the sum of its pipeline place (chunks, kept micro-batches, heads and tokens it computes) and its share
 * of the state. A few ranks are planned by a dry run of the engine (trainer/engine/engine.h); a rank whose two parts were
 * both seen follows by addition. Time grows with tensors plus ranks, not with their product. */
#pragma once

#include "trainer/engine/engine.h"

struct pd_memory_group {
    uint32_t first_rank; /* the lowest rank; the others need not be consecutive */
    uint32_t ranks;
    struct pd_memory_plan plan;
};

struct pd_world_memory {
    struct pd_memory_group *groups; /* (group_count), owned; by first rank */
    uint32_t group_count, worst;    /* worst: the group with most bytes */
    uint64_t worst_bytes;           /* this and the mean as pd_memory_of_device */
    double mean_bytes;
    uint32_t recipes; /* dry runs of the engine that were needed */
};

/* The part of a plan that must fit in the rank's device. With run.device gpu: all except pinned host memory, plus what
 * libraries use; else all. */
uint64_t pd_memory_of_device(const struct pd_config *config, const struct pd_memory_plan *plan);

/* What a rank's share of the state adds, in layouts that were planned: plans that differ in recomputation alone share it.
 * Zeros at first; belongs to one configuration, model and number of threads. */
struct pd_memory_states {
    void *tree;
};
void pd_memory_states_deinit(struct pd_memory_states *states);

/* states  from plans before, and for plans to come; NULL: none */
PD_MUST_USE pd_status pd_world_memory_plan(const struct pd_config *config, const struct pd_model *model, uint32_t threads,
                                           const struct pd_laid_out *laid_out, struct pd_memory_states *states,
                                           struct pd_world_memory *ret_memory, struct pd_error *err);
void pd_world_memory_deinit(struct pd_world_memory *memory);
