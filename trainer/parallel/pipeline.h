/* Sends residual streams and their gradients between pipeline stages while the next micro-batch computes.
 *
 * Both ends of a link process the same micro-batches in the same order (schedule.h), so messages need no tags. A receive
 * starts one message ahead of its use (on a device: after its first passes). A send is waited for only when its buffer is
 * needed again:
 *
 *   streams     one buffer to receive the next micro-batch's, two to compute into and send from
 *   gradients   one computed in place, one to receive the next, one to send the last; a rank that only receives or only
 *               sends has one less, a single stage has one
 *
 *   usage       begin; then take/next/send in schedule order; end. A taken stream or gradient stays valid until the next of
 *               its kind is taken
 *   errors      PD_PEER_LOST
 *   threads     one caller
 */
#pragma once

#include "ckpt/base/arena.h"
#include "offload/device.h"
#include "trainer/math/math.h"
#include "trainer/parallel/grid.h"

struct pd_pipeline;

/* Allocates from the arena: gradients with activations, streams with buffers. Borrows grid and math; math may be NULL on a
 * dry arena. dev, compute: where math runs; NULL: the CPU. */
PD_MUST_USE pd_status pd_pipeline_new(const struct pd_grid *grid, uint64_t stream_bytes, struct pd_math *math,
                                      struct pd_dev *dev, struct pd_stream *compute, struct pd_arena *arena,
                                      struct pd_pipeline **ret_pipeline, struct pd_error *err);
void pd_pipeline_free(struct pd_pipeline *pipeline); /* NULL is fine */

/* Announces how many streams and gradients arrive until end. Starts the first receive of each, except in first passes. */
PD_MUST_USE pd_status pd_pipeline_begin(struct pd_pipeline *pipeline, uint64_t streams, uint64_t gradients,
                                        struct pd_error *err);
/* Waits for the next stream from the stage before and copies it to `stream`. */
PD_MUST_USE pd_status pd_pipeline_take_stream(struct pd_pipeline *pipeline, void *stream, struct pd_error *err);
/* next: the buffer to compute the outgoing stream in. send: sends it to the stage after. */
PD_MUST_USE pd_status pd_pipeline_next_stream(struct pd_pipeline *pipeline, void **ret_stream, struct pd_error *err);
PD_MUST_USE pd_status pd_pipeline_send_stream(struct pd_pipeline *pipeline, struct pd_error *err);
/* The next gradient from the stage after; or an empty buffer, if the head computes it. */
PD_MUST_USE pd_status pd_pipeline_take_gradient(struct pd_pipeline *pipeline, void **ret_gradient, struct pd_error *err);
PD_MUST_USE pd_status pd_pipeline_next_gradient(struct pd_pipeline *pipeline, void **ret_gradient, struct pd_error *err);
/* Sends the last taken gradient to the stage before. */
PD_MUST_USE pd_status pd_pipeline_send_gradient(struct pd_pipeline *pipeline, struct pd_error *err);
/* Waits for all sends. ret_wait_ns: time this rank waited since begin for receives and buffers: the host, or on a device its
 * stream (offload/stalls.h). */
PD_MUST_USE pd_status pd_pipeline_end(struct pd_pipeline *pipeline, uint64_t *ret_wait_ns, struct pd_error *err);
/* Waits for every transfer in flight and ignores its result. Call after a failure, once the communicators are aborted. */
void pd_pipeline_sync(struct pd_pipeline *pipeline);
