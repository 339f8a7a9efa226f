/* Functions only for optimizer state in files (offload.optimizer: nvme): generations, as saves and plans see them. Check
 * pd_state_is_in_files first; the rest is in trainer/engine/state.h. */
#pragma once

#include "offload/optimizer_store.h"
#include "trainer/engine/state.h"

/* Bytes the budget keeps in memory: known after pd_state_new, also on a dry arena. */
uint64_t pd_state_files_kept_bytes(const struct pd_state *state);
/* Valid while it is open. */
uint64_t pd_state_files_file_bytes(const struct pd_state *state); /* of one generation */
/* For reading the state back, verified: box counts in pd_layout_shard_boxes of this rank. */
struct pd_optimizer_store *pd_state_files_store(struct pd_state *state);
/* Copies a complete generation (pd_state_save_wait) to `path` through buffers, verified and synced. For tiers that do not
 * hold the pool. */
PD_MUST_USE pd_status pd_state_files_copy(const struct pd_state *state, const char *path, const struct pd_identity *identity,
                                          void *buffers, uint64_t buffer_bytes, struct pd_error *err);
