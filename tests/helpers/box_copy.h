/* Copies a part of one dense box into its place in another. */
#pragma once

#include "ckpt/tensor/tensor.h"

#include <string.h>

static inline bool is_within(const struct pd_box *inner, const struct pd_box *outer)
{
    for (int d = 0; d < PD_TENSOR_DIMS_MAX; d++) {
        if (inner->start[d] < outer->start[d]) return false;
        if (inner->start[d] + inner->count[d] > outer->start[d] + outer->count[d]) return false;
    }
    return true;
}

/* Dimensions from the innermost on that `part` fills in both boxes are one run of memory. */
static inline void pd_box_copy(void *dst, const struct pd_box *dst_box, const void *src, const struct pd_box *src_box,
                               const struct pd_box *part, uint32_t element_bytes)
{
    if (pd_box_elements(part) == 0) return;
    PD_CHECK(is_within(part, dst_box) && is_within(part, src_box));
    uint64_t run = element_bytes;
    int outer = PD_TENSOR_DIMS_MAX; /* dimensions [0, outer) are walked */
    while (outer > 0) {
        outer--;
        run *= part->count[outer];
        if (part->count[outer] != dst_box->count[outer] || part->count[outer] != src_box->count[outer]) break;
    }
    struct pd_box at = *part;
    for (;;) {
        memcpy((char *)dst + pd_box_offset(dst_box, &at) * element_bytes,
               (const char *)src + pd_box_offset(src_box, &at) * element_bytes, run);
        int d = outer;
        while (d-- > 0) {
            if (++at.start[d] < part->start[d] + part->count[d]) break;
            at.start[d] = part->start[d];
        }
        if (d < 0) return;
    }
}
