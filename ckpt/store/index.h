/* index.h5: for each tensor and kind a virtual dataset over the shard files beside it, with fill value NaN, so that h5ls,
 * h5dump and h5py see whole, unsharded tensors. It is for people and tools; perdure itself never reads through it.
 *
 * It stays the same for a launch: it depends on the layout and the datasets of the shard files, not on the step.
 */
#pragma once

#include "ckpt/shard/shard.h"

/* Boxes of one shard file, in the order passed to its writer. */
struct pd_index_source {
    const char *file_name; /* "shard-00003.h5" */
    const struct pd_shard_box *boxes;
    uint32_t box_count;
};

/* *ret_data is malloc'ed, the caller's. Dataset paths: "/<kind>/<tensor name>". */
PD_MUST_USE pd_status pd_index_build(const struct pd_tensor_table *tensors, const struct pd_index_source *sources,
                                     uint32_t source_count, void **ret_data, uint64_t *ret_bytes, struct pd_error *err);
