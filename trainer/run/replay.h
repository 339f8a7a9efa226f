/* Recomputes past steps of a run from the checkpoint before them and compares them with the run's record. Uses one rank with
 * the state in memory, whatever layout computed the steps. Changes nothing on disk. */
#pragma once

#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"

struct pd_replay {
    const struct pd_config *config;       /* the one-rank configuration of the steps; borrowed */
    const struct pd_tiers_options *tiers; /* where checkpoints are; replay sets groups, read_only and shards */
    uint64_t step, last;                  /* first step of interest, and last step */
    uint32_t threads;
    /* Called after every step since the checkpoint, including those before `step`. */
    pd_status (*stepped)(void *context, uint64_t step, const struct pd_step_result *result, struct pd_error *err);
    void *context;
};

struct pd_replayed {
    uint64_t from_step;    /* of the checkpoint; 0: the start of the run */
    uint64_t state_digest; /* of parameters and both moments after `last` (ckpt/FORMAT.md) */
};

/*   errors  from loading, data and steps */
PD_MUST_USE pd_status pd_replay(const struct pd_replay *replay, struct pd_replayed *ret_replayed, struct pd_error *err);
