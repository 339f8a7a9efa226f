/* Where a rank's optimizer state lives (master parameters and moments): one table of functions, implemented by
 * state_device.c, state_host.c, state_streamed.c and state_files.c.
 *
 *   new -> open -> init or load -> [begin -> update -> end | save_begin -> save_wait]* -> close -> free
 *
 * Gradients and working copies belong to pd_zero, wherever the state is.
 *
 *   invariants  1. the placement does not affect any bit
 *               2. an update that fails before its first change leaves the state as it was; files always stay so
 *   threads     one caller; save_wait and box also from the saver's thread
 */
#pragma once

#include "offload/update_rule.h"
#include "resharder/load/load.h"
#include "trainer/config/config.h"
#include "trainer/engine/rank_device.h"
#include "trainer/parallel/zero.h"

struct pd_engine;
struct pd_state;
struct pd_store;

/* Returns once no thread reads the state that an update will change. call may be NULL. */
struct pd_before_update {
    void (*call)(void *context);
    void *context;
};

/* offload.optimizer and offload.update choose the placement. Allocates from the arena. Borrows engine, whose math and zero
 * must exist. staging_bytes: one buffer between the host and a drive or device, for a state of this size. */
PD_MUST_USE pd_status pd_state_new(struct pd_engine *engine, uint64_t staging_bytes, struct pd_arena *arena,
                                   struct pd_state **ret_state, struct pd_error *err);
void pd_state_free(struct pd_state *state); /* closes; NULL is fine */
const struct pd_update_rule *pd_state_rule(const struct pd_state *state);
bool pd_state_is_in_files(const struct pd_state *state); /* a checkpoint links the newest generation; others write boxes */
bool pd_state_is_streamed(const struct pd_state *state); /* in host memory, streamed through the GPU that updates it */
bool pd_state_is_mirrored(const struct pd_state *state); /* an update may run while boxes are read */

/* Opens files in the store's pool; without files, vfs and store are unused. The state is undefined until init or load. */
PD_MUST_USE pd_status pd_state_open(struct pd_state *state, struct pd_vfs *vfs, struct pd_store *store,
                                    struct pd_error *err);
void pd_state_close(struct pd_state *state);

/* Sets every kind to the update rule's initial value and makes the working copy. identity: of the first generation; NULL
 * without files. */
PD_MUST_USE pd_status pd_state_init(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
/* Loads all kinds of this rank's boxes from a checkpoint and derives the rest. Sets the request's kinds, destination and
 * context, and its buffers if the placement has larger ones. Collective over the group. */
PD_MUST_USE pd_status pd_state_load(struct pd_state *state, struct pd_vfs *vfs, struct pd_group *group,
                                    struct pd_load_request *request, const struct pd_identity *identity,
                                    struct pd_load_report *ret_report, struct pd_error *err);

/* One update of everything this rank holds, from the summed gradients. begin: starts reading files; gradients may still
 * arrive and the norm may be unknown. update: applies the step and refreshes the working copy. end: call after an update or
 * instead of it; nothing is then in flight. `next`: identity of the resulting state. */
PD_MUST_USE pd_status pd_state_begin(struct pd_state *state, const struct pd_identity *next,
                                     const struct pd_before_update *before, struct pd_error *err);
PD_MUST_USE pd_status pd_state_update(struct pd_state *state, const struct pd_update_step *step,
                                      const struct pd_before_update *before, struct pd_error *err);
void pd_state_end(struct pd_state *state);

/* Data of a box this rank owns, for saves; `number` as in pd_layout_owned_boxes. NULL: the state is in files. */
void *pd_state_box(struct pd_state *state, uint32_t tensor, enum pd_kind kind, uint32_t number);

/* Saves the present state. begin: from the caller's thread. The saved data does not change until the next update has passed
 * pd_before_update (with a mirror: until the next save_begin). wait: from any one thread. Afterwards boxes can be read, or
 * the newest generation is a complete, synced file; returns its summary and slot. */
PD_MUST_USE pd_status pd_state_save_begin(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
PD_MUST_USE pd_status pd_state_save_wait(struct pd_state *state, struct pd_shard_summary *ret_summary, uint32_t *ret_slot,
                                         struct pd_error *err);
