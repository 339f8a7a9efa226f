/* Where the optimizer state of a rank lives (master parameters and moments): one table of
 * functions, with a row each in state_device.c, state_host.c, state_streamed.c and state_files.c.
 *
 *   new -> open -> init or load -> [begin -> update -> end | save_begin -> save_wait]* -> close -> free
 *
 * Gradients and working copies are pd_zero's, wherever the state is.
 *
 *   invariants  1. bits do not depend on the placement
 *               2. an update that fails before it changed anything leaves the state as it was; files always do
 *   threads     one caller; save_wait and box from the saver's thread too
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

/* Returns once nobody reads the state that an update is about to change. call may be NULL. */
struct pd_before_update {
    void (*call)(void *context);
    void *context;
};

/* Chosen by offload.optimizer and offload.update; takes its memory from the arena. engine: borrowed, its math and zero are
 * there. staging_bytes: of one buffer between the host and a drive or a device, for a state of this size. */
PD_MUST_USE pd_status pd_state_new(struct pd_engine *engine, uint64_t staging_bytes, struct pd_arena *arena,
                                   struct pd_state **ret_state, struct pd_error *err);
void pd_state_free(struct pd_state *state); /* closes; NULL is fine */
const struct pd_update_rule *pd_state_rule(const struct pd_state *state);
bool pd_state_is_in_files(const struct pd_state *state); /* a checkpoint links the newest generation; others write boxes */
bool pd_state_is_streamed(const struct pd_state *state); /* the host's, and passes through the GPU that updates it */
bool pd_state_is_mirrored(const struct pd_state *state); /* an update may go on while boxes are read */

/* Files are opened in the store's pool; without files neither vfs nor store is looked at. Nothing is in it until init or
 * load. */
PD_MUST_USE pd_status pd_state_open(struct pd_state *state, struct pd_vfs *vfs, struct pd_store *store,
                                    struct pd_error *err);
void pd_state_close(struct pd_state *state);

/* Kinds of state as the update rule says they begin; the working copy is made. identity: of the first generation, NULL
 * where there are no files. */
PD_MUST_USE pd_status pd_state_init(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
/* All kinds of this rank's boxes from a checkpoint, and what follows from them; the request's kinds, destination and context
 * are set here, and its buffers where the placement has larger ones. Collective over the group. */
PD_MUST_USE pd_status pd_state_load(struct pd_state *state, struct pd_vfs *vfs, struct pd_group *group,
                                    struct pd_load_request *request, const struct pd_identity *identity,
                                    struct pd_load_report *ret_report, struct pd_error *err);

/* An update of all that is held, from the summed gradients. begin: these may still be on their way, and their norm unknown;
 * files begin to be read. update: applies the step and refreshes the working copy. end: after an update, or in its place
 * where there is to be none; nothing is in flight. `next`: identity of the state that the update makes. */
PD_MUST_USE pd_status pd_state_begin(struct pd_state *state, const struct pd_identity *next,
                                     const struct pd_before_update *before, struct pd_error *err);
PD_MUST_USE pd_status pd_state_update(struct pd_state *state, const struct pd_update_step *step,
                                      const struct pd_before_update *before, struct pd_error *err);
void pd_state_end(struct pd_state *state);

/* Data of a box this rank owns, `number` as pd_layout_owned_boxes counts: what saves write. NULL: the state is in files. */
void *pd_state_box(struct pd_state *state, uint32_t tensor, enum pd_kind kind, uint32_t number);

/* A save of what the state is now. begin: from the caller's thread; what is saved stays as it is until the next update has
 * passed pd_before_update (a mirror: until the next save_begin). wait: from any one thread; boxes can be read, or the newest
 * generation is a whole file, synced, and the caller gets its summary and slot. */
PD_MUST_USE pd_status pd_state_save_begin(struct pd_state *state, const struct pd_identity *identity, struct pd_error *err);
PD_MUST_USE pd_status pd_state_save_wait(struct pd_state *state, struct pd_shard_summary *ret_summary, uint32_t *ret_slot,
                                         struct pd_error *err);
