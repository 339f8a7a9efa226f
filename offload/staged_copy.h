/* Copies gradients out of the device and working copies in, an extent at a time, for an update on the host.
 *
 *   extent i + 1   gradients come out                     on copies_out
 *   extent i                          the caller works
 *   extent i - 1                              copies go in    on copies_in
 *
 * An extent is a few parts. Expect all of them before you leave the extent before it, and meet them in the same order. A
 * part that was not expected is copied alone; leave it before you meet another.
 *
 *   invariants  1. an extent is copied only after all work given to `compute` before it was expected
 *               2. a part's memory belongs to the caller from meet until leave
 *   errors      PD_DEVICE_LOST
 *   threads     one caller
 */
#pragma once

#include "offload/device_spans.h"

#define PD_STAGED_COPY_PARTS_MAX 96u
#define PD_STAGED_COPY_ALONE_MAX 16384u /* most elements of a part that was not expected */

struct pd_staged_copy;

struct pd_staged_copy_options {
    struct pd_dev *dev;
    struct pd_stream *compute, *copies_in, *copies_out;
    uint64_t extent_elements;      /* most elements of an extent, each part rounded up to pages of gradients; 1024 * n */
    uint64_t copy_bytes;           /* bytes of one element of the copy: 2 or 4 */
    void *buffers;                 /* (pd_staged_copy_bytes) host memory, pinned for speed */
    struct pd_device_spans *spans; /* NULL: do not measure times */
};

uint64_t pd_staged_copy_bytes(uint64_t extent_elements, uint64_t copy_bytes);
/* Largest extents that fit into `buffer_bytes`. */
uint64_t pd_staged_copy_extent_elements(uint64_t buffer_bytes, uint64_t copy_bytes);

/* All pointers in `options` are borrowed for its life. */
PD_MUST_USE pd_status pd_staged_copy_new(const struct pd_staged_copy_options *options, struct pd_staged_copy **ret_staged,
                                         struct pd_error *err);
void pd_staged_copy_free(struct pd_staged_copy *staged); /* NULL is fine */

/* Call before the first part of an update. Waits for whatever an earlier, unfinished update left, and drops it. */
PD_MUST_USE pd_status pd_staged_copy_begin(struct pd_staged_copy *staged, struct pd_error *err);
/* gradient, copy (n): device memory. begins: first part of an extent. */
PD_MUST_USE pd_status pd_staged_copy_expect(struct pd_staged_copy *staged, const float *gradient, void *copy, uint64_t n,
                                            bool begins, struct pd_error *err);
/* Waits for the gradient and returns it, with the buffer to write the copy to. */
PD_MUST_USE pd_status pd_staged_copy_meet(struct pd_staged_copy *staged, const float *gradient, void *copy, uint64_t n,
                                          const float **ret_gradient, void **ret_copy, struct pd_error *err);
/* Starts the copies to the device of the extent whose parts were met, or of the part met alone. */
PD_MUST_USE pd_status pd_staged_copy_leave(struct pd_staged_copy *staged, struct pd_error *err);
/* Waits until all copies are on the device. */
PD_MUST_USE pd_status pd_staged_copy_end(struct pd_staged_copy *staged, struct pd_error *err);
