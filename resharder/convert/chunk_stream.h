/* A chunk stream is the bytes of one (tensor, kind, tp chunk), row after row. Two layouts with the same virtual_tp differ
 * only in the rows at which they cut a stream. A cursor walks all streams in file order and yields the ranges that
 * neither layout cuts. */
#pragma once

#include "resharder/layout.h"

/* Place of a range in one of the two layouts. */
struct pd_chunk_range_end {
    uint32_t shard;
    uint64_t offset, box_bytes; /* offset of the range in its box; size of the whole box */
};

struct pd_chunk_range {
    uint32_t tensor;
    enum pd_kind kind;
    uint64_t column; /* first column of the tp chunk: with shard, tensor and kind it identifies a box */
    uint64_t bytes;
    struct pd_chunk_range_end source, target;
};

struct pd_chunk_stream_cursor {
    const struct pd_tensor_table *tensors;
    const struct pd_layout *source, *target;
    uint32_t shard_begin, shard_end; /* restricts the walk to these target shards */
    uint32_t tensor, kind, chunk;
    uint64_t row;
};

/* Returns false at the end. */
bool pd_chunk_stream_next(struct pd_chunk_stream_cursor *cursor, struct pd_chunk_range *ret_range);
