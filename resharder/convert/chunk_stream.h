/* Chunk streams: a stream is the bytes of (tensor, kind, chunk), row after row. Two layouts with the same virtual_tp cut a
 * stream at different rows and nowhere else. A cursor walks all streams in file order and yields the stretches that neither
 * layout cuts. */
#pragma once

#include "resharder/layout.h"

/* A stretch as one of the two layouts sees it. */
struct pd_stretch_end {
    uint32_t shard;
    uint64_t offset, box_bytes; /* of the stretch in its box; of the whole box */
};

struct pd_stretch {
    uint32_t tensor;
    enum pd_kind kind;
    uint64_t column; /* where the chunk begins: with shard, tensor and kind it names a box */
    uint64_t bytes;
    struct pd_stretch_end source, target;
};

struct pd_chunk_stream_cursor {
    const struct pd_tensor_table *tensors;
    const struct pd_layout *source, *target;
    uint32_t shard_begin, shard_end; /* only what these target shards hold */
    uint32_t tensor, kind, chunk;
    uint64_t row;
};

/* False at the end. */
bool pd_chunk_stream_next(struct pd_chunk_stream_cursor *cursor, struct pd_stretch *ret_stretch);
