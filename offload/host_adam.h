/* AdamW on the host over state in the host's memory, for a device that makes the gradients and reads the working copies.
 *
 *   extent i + 1   gradients come out                     on copies_out
 *   extent i                          AdamW               the caller and its pool
 *   extent i - 1                              copies go in    on copies_in
 *
 * Extents are cut from the buffers and pass through them in turn, so that copies both ways go on while the host computes.
 *
 *   invariants  1. bits are those of pd_cpu_adam over the same elements
 *               2. nothing is copied before what `compute` was given until then has happened; what it is given afterwards
 *                  finds the new copies
 *   errors      PD_DEVICE_LOST: some ranges are updated and others are not
 *   threads     one caller
 */
#ifndef PD_OFFLOAD_HOST_ADAM_H
#define PD_OFFLOAD_HOST_ADAM_H

#include "offload/cpu_adam.h"
#include "offload/device_spans.h"

struct pd_host_adam;

struct pd_host_adam_options {
    struct pd_dev *dev;
    struct pd_stream *compute, *copies_in, *copies_out;
    struct pd_thread_pool *pool;
    enum pd_isa isa;
    enum pd_dtype copy_dtype;
    void *buffers; /* (buffer_bytes) host memory, pinned where that matters; used while an update runs */
    uint64_t buffer_bytes;
    struct pd_device_spans *spans; /* NULL: nobody asks where the time goes */
};

/* Everything is borrowed for its life. */
PD_MUST_USE pd_status pd_host_adam_new(const struct pd_host_adam_options *options, struct pd_host_adam **ret_adam,
                                       struct pd_error *err);
void pd_host_adam_free(struct pd_host_adam *adam); /* NULL is fine */

/* ranges (count): param and moments are the host's; grad and copy, of copy_dtype, the device's. */
PD_MUST_USE pd_status pd_host_adam_update(struct pd_host_adam *adam, const struct pd_adam_step *step,
                                          const struct pd_adam_range *ranges, uint32_t count, struct pd_error *err);

#endif
