/* Where the host updates state for a device: summed gradients come out of it, working copies go in, an extent at a time.
 *
 *   extent i + 1   gradients come out                     on copies_out
 *   extent i                          the caller works
 *   extent i - 1                              copies go in    on copies_in
 *
 * An extent is a few parts that are expected one after the other, before the extent before them is left. Parts are met in
 * the order in which they were expected; one that was not is brought alone, and left before anything else is met.
 *
 *   invariants  1. nothing of an extent is copied before what `compute` was given until it was expected has happened
 *               2. a part's memory is the caller's from meet until leave
 *   errors      PD_DEVICE_LOST
 *   threads     one caller
 */
#pragma once

#include "offload/device_spans.h"

#define PD_CROSSING_PARTS_MAX 96u
#define PD_CROSSING_ALONE_MAX 16384u /* elements of a part that was not expected */

struct pd_crossing;

struct pd_crossing_options {
    struct pd_dev *dev;
    struct pd_stream *compute, *copies_in, *copies_out;
    uint64_t extent_elements;      /* of an extent at most, each part rounded up to pages of gradients: a multiple of 1024 */
    uint64_t copy_bytes;           /* of an element of the copy: 2 or 4 */
    void *buffers;                 /* (pd_crossing_bytes) host memory, pinned where that matters */
    struct pd_device_spans *spans; /* NULL: nobody asks where the time goes */
};

uint64_t pd_crossing_bytes(uint64_t extent_elements, uint64_t copy_bytes);
/* The largest extents that fit into so many bytes. */
uint64_t pd_crossing_extent_elements(uint64_t buffer_bytes, uint64_t copy_bytes);

/* Everything is borrowed for its life. */
PD_MUST_USE pd_status pd_crossing_new(const struct pd_crossing_options *options, struct pd_crossing **ret_crossing,
                                      struct pd_error *err);
void pd_crossing_free(struct pd_crossing *crossing); /* NULL is fine */

/* Before the first part of an update; what one before it left undone is waited for and forgotten. */
PD_MUST_USE pd_status pd_crossing_begin(struct pd_crossing *crossing, struct pd_error *err);
/* gradient, copy (n): the device's. begins: the first part of an extent. */
PD_MUST_USE pd_status pd_crossing_expect(struct pd_crossing *crossing, const float *gradient, void *copy, uint64_t n,
                                         bool begins, struct pd_error *err);
/* The gradient is there, and where the copy is to be written. */
PD_MUST_USE pd_status pd_crossing_meet(struct pd_crossing *crossing, const float *gradient, void *copy, uint64_t n,
                                       const float **ret_gradient, void **ret_copy, struct pd_error *err);
/* Copies of the extent whose parts were met, or of the part that was met alone, set out for the device. */
PD_MUST_USE pd_status pd_crossing_leave(struct pd_crossing *crossing, struct pd_error *err);
/* All copies are in the device. */
PD_MUST_USE pd_status pd_crossing_end(struct pd_crossing *crossing, struct pd_error *err);
