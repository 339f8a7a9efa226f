/* What only optimizer state in files has (offload.optimizer: nvme): generations, as saves and plans see them. All else is
 * trainer/engine/state.h; pd_state_is_in_files says whether a state is one. */
#pragma once

#include "offload/optimizer_store.h"
#include "trainer/engine/state.h"

/* Known once it is made, on a dry arena too: bytes of the ring, and of what the budget keeps in memory. */
uint64_t pd_state_files_ring_bytes(const struct pd_state *state);
uint64_t pd_state_files_kept_bytes(const struct pd_state *state);
/* While it is open. */
uint64_t pd_state_files_file_bytes(const struct pd_state *state); /* of one generation */
/* Reads the state through, verified: box counts in pd_layout_shard_boxes of this rank. */
struct pd_optimizer_store *pd_state_files_store(struct pd_state *state);
/* A generation that is a whole file (pd_state_save_wait) copied to `path` through buffers, verified and synced:
 * for a tier that does not hold the pool. */
PD_MUST_USE pd_status pd_state_files_copy(const struct pd_state *state, const char *path, const struct pd_identity *identity,
                                          void *buffers, uint64_t buffer_bytes, struct pd_error *err);
