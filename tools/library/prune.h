/* Retention by hand, in a directory or a bucket. */
#pragma once

#include "tools/library/place.h"

struct pd_ckpt_pruned {
    uint32_t before, after; /* checkpoints */
};
/* Deletes what retention would not keep in the selected tier of a place, whose store is then open for reading or closed.
 * Beside a launch that may live in a bucket, only what it has let go.
 *   errors  PD_BUSY: a run is using the directory */
PD_MUST_USE pd_status pd_ckpt_prune(struct pd_ckpt_place *place, uint32_t keep_last, uint64_t keep_every,
                                    struct pd_ckpt_pruned *ret_pruned, struct pd_error *err);
