/* Residual streams and their gradients between pipeline stages, in flight while the next micro-batch computes.
 *
 * Both ends of a link take the same micro-batches in the same order (schedule.h), so messages carry no tags. A receive is
 * started one message ahead of its use, on a device after its first passes, and a send is waited for only when its buffer is
 * needed again:
 *
 *   streams     one buffer that the next micro-batch's arrives in, two that are computed into and sent from
 *   gradients   one that is computed in place, one more that the next arrives in, one more that the last is sent from;
 *               a rank that only receives or only sends has one less, a single stage has one
 *
 *   usage       begin; then take/next/send in schedule order; end. A stream or gradient that was taken stays valid until the
 *               next of its kind is taken
 *   errors      PD_PEER_LOST
 *   threads     one caller
 */
#pragma once

#include "ckpt/base/arena.h"
#include "offload/device.h"
#include "trainer/math/math.h"
#include "trainer/parallel/grid.h"

struct pd_pipeline;

/* Memory from the arena: gradients with activations, streams with buffers. Grid and math are borrowed; math may be NULL on a
 * dry arena. dev, compute: what math computes on; NULL: the CPU. */
PD_MUST_USE pd_status pd_pipeline_new(const struct pd_grid *grid, uint64_t stream_bytes, struct pd_math *math,
                                      struct pd_dev *dev, struct pd_stream *compute, struct pd_arena *arena,
                                      struct pd_pipeline **ret_pipeline, struct pd_error *err);
void pd_pipeline_free(struct pd_pipeline *pipeline); /* NULL is fine */

/* How many streams and gradients will be received until end: the first of each are started, but in first passes. */
PD_MUST_USE pd_status pd_pipeline_begin(struct pd_pipeline *pipeline, uint64_t streams, uint64_t gradients,
                                        struct pd_error *err);
/* The next stream from the stage before, copied to `stream`. */
PD_MUST_USE pd_status pd_pipeline_take_stream(struct pd_pipeline *pipeline, void *stream, struct pd_error *err);
/* Where the stream of the stage after is to be computed; then send it. */
PD_MUST_USE pd_status pd_pipeline_next_stream(struct pd_pipeline *pipeline, void **ret_stream, struct pd_error *err);
PD_MUST_USE pd_status pd_pipeline_send_stream(struct pd_pipeline *pipeline, struct pd_error *err);
/* The next gradient from the stage after; or an empty buffer, where the head makes it. */
PD_MUST_USE pd_status pd_pipeline_take_gradient(struct pd_pipeline *pipeline, void **ret_gradient, struct pd_error *err);
PD_MUST_USE pd_status pd_pipeline_next_gradient(struct pd_pipeline *pipeline, void **ret_gradient, struct pd_error *err);
/* Sends the gradient that was taken last to the stage before. */
PD_MUST_USE pd_status pd_pipeline_send_gradient(struct pd_pipeline *pipeline, struct pd_error *err);
/* Waits for what was sent. ret_wait_ns: how long this rank stood still since begin, for receives and for buffers: the host,
 * or on a device its stream (offload/stalls.h). */
PD_MUST_USE pd_status pd_pipeline_end(struct pd_pipeline *pipeline, uint64_t *ret_wait_ns, struct pd_error *err);
/* Waits for every transfer in flight and forgets its outcome: the way out after a failure, once the communicators were
 * aborted. */
void pd_pipeline_sync(struct pd_pipeline *pipeline);
