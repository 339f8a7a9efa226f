/* Optimizer state in the host's memory beside a GPU (offload.optimizer: cpu), as the engine uses it.
 *
 * Master and moments are pinned memory of the host, which saves and loads read and write in place: there is no mirror.
 * Gradients and working copies are the GPU's, and cross in extents (offload/host_adam.h) through the engine's I/O buffers,
 * which nobody else uses while an update runs (engine->before_update).
 *
 *   threads  one caller
 */
#ifndef PD_TRAINER_ENGINE_HOST_STATE_H
#define PD_TRAINER_ENGINE_HOST_STATE_H

#include "offload/host_adam.h"
#include "trainer/engine/engine.h"

struct pd_host_state;

bool pd_host_state_is_wanted(const struct pd_engine_options *options);
/* Once zero and the I/O buffers are there. Takes its table from the arena; on a dry one only counts. */
PD_MUST_USE pd_status pd_host_state_new(struct pd_engine *engine, struct pd_arena *arena, struct pd_host_state **ret_state,
                                        struct pd_error *err);
void pd_host_state_free(struct pd_host_state *state); /* NULL is fine */
/* AdamW over all boxes that are held, and their working copies; then pd_zero_updated. */
PD_MUST_USE pd_status pd_host_state_update(struct pd_host_state *state, const struct pd_adam_step *adam,
                                           struct pd_error *err);

#endif
