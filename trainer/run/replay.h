/* Past steps of a run computed again from the checkpoint before them, to see whether they come to what the run wrote down.
 * On one rank, with the state in memory, whatever layout computed them first. Reads, and changes nothing on disk. */
#pragma once

#include "ckpt/tiers/tiers.h"
#include "trainer/engine/engine.h"

struct pd_replay {
    const struct pd_config *config;       /* that the steps were computed with, of one rank; borrowed */
    const struct pd_tiers_options *tiers; /* where checkpoints lie; groups, read_only and shards are replay's to fill */
    uint64_t step, last;                  /* the first that matters, and the one to end with */
    uint32_t threads;
    /* After every step from the checkpoint on, those before `step` too. */
    pd_status (*stepped)(void *context, uint64_t step, const struct pd_step_result *result, struct pd_error *err);
    void *context;
};

struct pd_replayed {
    uint64_t from_step;    /* of the checkpoint; 0: the beginning of the run */
    uint64_t state_digest; /* of parameters and both moments behind `last` (ckpt/FORMAT.md) */
};

/*   errors  those of loading, of data and of steps */
PD_MUST_USE pd_status pd_replay(const struct pd_replay *replay, struct pd_replayed *ret_replayed, struct pd_error *err);
