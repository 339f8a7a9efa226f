/* Updates state in host memory on the host, for a device that computes the gradients and reads the working copies.
 *
 *   extent i + 1   gradients come out                     on copies_out
 *   extent i                          update              the caller and its pool
 *   extent i - 1                              copies go in    on copies_in
 *
 * Extents pass through the buffers in turn, so that copies run both ways while the host computes.
 *
 *   invariants  1. the result has the same bits as pd_update over the same elements
 *               2. copies wait for all earlier work on `compute`; later work there sees the new working copies
 *   errors      PD_DEVICE_LOST: some ranges are updated and others are not
 *   threads     one caller
 */
#pragma once

#include "offload/device_spans.h"
#include "offload/update_rule.h"

struct pd_host_update;

struct pd_host_update_options {
    struct pd_dev *dev;
    struct pd_stream *compute, *copies_in, *copies_out;
    struct pd_thread_pool *pool;
    enum pd_isa isa;
    enum pd_dtype copy_dtype;
    void *buffers; /* (buffer_bytes) host memory, pinned for speed; used while an update runs */
    uint64_t buffer_bytes;
    struct pd_device_spans *spans; /* NULL: do not measure times */
};

/* All pointers in `options` are borrowed for its life. */
PD_MUST_USE pd_status pd_host_update_new(const struct pd_host_update_options *options, struct pd_host_update **ret_update,
                                         struct pd_error *err);
void pd_host_update_free(struct pd_host_update *updates); /* NULL is fine */

/* ranges (count): state in host memory; grad, and copy of copy_dtype, in device memory. */
PD_MUST_USE pd_status pd_host_update_run(struct pd_host_update *updates, const struct pd_update_step *step,
                                         const struct pd_update_range *ranges, uint32_t count, struct pd_error *err);
