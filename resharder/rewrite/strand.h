/* Strands: the bytes of (tensor, kind, chunk), row after row. Two layouts with the same virtual_tp cut a strand at different
 * rows and nowhere else. A cursor walks all strands in file order and yields the stretches that neither layout cuts. */
#ifndef PD_RESHARDER_REWRITE_STRAND_H
#define PD_RESHARDER_REWRITE_STRAND_H

#include "resharder/layout.h"

/* A stretch as one of the two layouts sees it. */
struct pd_strand_end {
    uint32_t shard;
    uint64_t offset, box_bytes; /* of the stretch in its box; of the whole box */
};

struct pd_stretch {
    uint32_t tensor;
    enum pd_kind kind;
    uint64_t column; /* where the chunk begins: with shard, tensor and kind it names a box */
    uint64_t bytes;
    struct pd_strand_end source, target;
};

struct pd_strand_cursor {
    const struct pd_tensor_table *tensors;
    const struct pd_layout *source, *target;
    uint32_t shard_begin, shard_end; /* only what these target shards hold */
    uint32_t tensor, kind, chunk;
    uint64_t row;
};

/* False at the end. */
bool pd_strand_next(struct pd_strand_cursor *cursor, struct pd_stretch *ret_stretch);

#endif
