/* Optimizer state of a rank that lives in files (offload.optimizer: nvme), as the engine uses it.
 *
 * Memory holds the working copy and the gradients; master and moments are boxes of a generation (offload/optimizer_store.h),
 * the same boxes that a rank's shard has. What is made or loaded passes through the memory of the gradients, one kind at a
 * time, since there are none yet.
 *
 * On a GPU gradients and working copies are the device's. An update is the host's: gradients come out and copies go in by
 * extents (offload/crossing.h). What is made or loaded passes set by set through memory of the host.
 *
 *   threads  one caller
 */
#ifndef PD_TRAINER_ENGINE_STATE_FILES_H
#define PD_TRAINER_ENGINE_STATE_FILES_H

#include "offload/optimizer_store.h"
#include "resharder/load/load.h"
#include "trainer/engine/engine.h"

struct pd_state_files;

/* Engine, VFS and store are borrowed for its life; engine->files is set. Nothing is in it until init or load. */
PD_MUST_USE pd_status pd_state_files_open(struct pd_engine *engine, struct pd_vfs *vfs, struct pd_store *store,
                                          struct pd_error *err);
void pd_state_files_close(struct pd_engine *engine);

/* Parameters from (seed, name, index), moments zero; the working copy is made. */
PD_MUST_USE pd_status pd_state_files_init(struct pd_engine *engine, const struct pd_identity *identity,
                                          struct pd_error *err);
/* All kinds of this rank's boxes from a checkpoint; kinds, tensor_wanted, destination and context of the request are set
 * here. Collective over the group. */
PD_MUST_USE pd_status pd_state_files_load(struct pd_engine *engine, struct pd_vfs *vfs, struct pd_group *group,
                                          struct pd_load_request *request, const struct pd_identity *identity,
                                          struct pd_load_report *ret_report, struct pd_error *err);
/* An update of all boxes from the summed gradients: begin starts to read the state while these are still on their way, or
 * their norm is made; update does it and refreshes the working copy. Between them nobody else uses engine->io_buffers.
 * Abandon, without an update or after one, leaves nothing in flight. */
PD_MUST_USE pd_status pd_state_files_update_begin(struct pd_engine *engine, struct pd_error *err);
PD_MUST_USE pd_status pd_state_files_update(struct pd_engine *engine, const struct pd_adam_step *adam, struct pd_error *err);
void pd_state_files_update_abandon(struct pd_engine *engine);

/* The current generation gets all data of a shard file of `identity`. A step that was skipped has the state of the one
 * before under its own identity. */
PD_MUST_USE pd_status pd_state_files_complete(struct pd_engine *engine, const struct pd_identity *identity,
                                              struct pd_error *err);
/* Makes it a whole shard file, synced: what pd_store_begin_generation links, of each stripe. After pd_state_files_complete
 * this may run in another thread, until the next update. */
PD_MUST_USE pd_status pd_state_files_finish(struct pd_engine *engine, struct pd_shard_summary *ret_summaries,
                                            uint32_t *ret_slots, struct pd_error *err);
/* One shard of a finished generation copied to `path`, verified and synced: for a tier that does not hold the pool. */
PD_MUST_USE pd_status pd_state_files_copy(const struct pd_engine *engine, uint32_t stripe, const char *path,
                                          const struct pd_identity *identity, struct pd_error *err);
/* Heap that all of this takes at most, by arithmetic, of an engine on any arena; 0 where the state is in memory. */
PD_MUST_USE pd_status pd_state_files_plan(const struct pd_engine *engine, uint64_t *ret_heap_bytes, struct pd_error *err);
/* What it takes of the arena: the part of its budget that it makes use of, and on a GPU what crosses. */
PD_MUST_USE pd_status pd_state_files_take(struct pd_engine *engine, struct pd_arena *arena, struct pd_error *err);
uint64_t pd_state_files_file_bytes(const struct pd_engine *engine, uint32_t stripe); /* of one generation */
/* Reads the state through, verified: box counts in pd_layout_rank_boxes of this rank. */
struct pd_optimizer_store *pd_state_files_store(struct pd_engine *engine);

#endif
