/* A stored checkpoint for loads and rewrites: its record and its shards, checked against the layout.
 *   threads  any; a shard by one at a time */
#pragma once

#include "ckpt/shard/shard.h"
#include "ckpt/store/commit.h"
#include "resharder/layout.h"

/* Opens one shard of the checkpoint in `directory`. errors: as pd_shard_open */
PD_MUST_USE pd_status pd_stored_open_shard(struct pd_vfs *vfs, const char *directory, const struct pd_commit *commit,
                                           uint32_t number, struct pd_shard **ret_shard, struct pd_error *err);
/* True if the shard's table matches the layout: `boxes` (count) of `model`. */
bool pd_stored_has_boxes(const struct pd_shard *shard, const struct pd_tensor_table *model, const struct pd_shard_box *boxes,
                         uint32_t count);
/* Verifies a block at `data`. If it mismatches, reads it once more; only a second mismatch is PD_CORRUPT. */
PD_MUST_USE pd_status pd_stored_verify_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *data,
                                             struct pd_error *err);
