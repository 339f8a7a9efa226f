#include "resharder/convert/chunk_stream.h"

/* The part of a chunk stream in one shard. */
struct piece {
    uint32_t shard;
    uint64_t row_begin, row_end;
};

static struct piece piece_at(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t index, uint64_t row,
                             uint64_t column)
{
    struct pd_owner_run runs[PD_LAYOUT_CHUNKS_MAX];
    struct pd_layout_cut cut;
    struct pd_box probe = {.start = {row, column}, .count = {1, 1, 1, 1}};
    const uint32_t count = pd_layout_owners(layout, tensor, index, &probe, runs);
    PD_CHECK(count == 1 && runs[0].count == 1); /* an element has one owner */
    const bool is_cut = pd_layout_cut_of(layout, tensor, index, pd_layout_place(layout, runs[0].first).tp, &cut);
    PD_CHECK(is_cut);
    struct piece piece = {.shard = runs[0].first};
    piece.row_begin = cut.row_begin + (row - cut.row_begin) / cut.part_rows * cut.part_rows;
    piece.row_end = piece.row_begin + cut.part_rows < cut.row_end ? piece.row_begin + cut.part_rows : cut.row_end;
    return piece;
}

/* True if any target shard of the range may hold some of the tensor. */
static bool concerns(const struct pd_chunk_stream_cursor *c, const struct pd_tensor *tensor)
{
    const uint32_t stage = pd_layout_world(c->target) / c->target->pp;
    const uint32_t first = pd_layout_unit_pp(c->target, tensor->unit) * stage;
    return first < c->shard_end && first + stage > c->shard_begin;
}

static void next_tensor(struct pd_chunk_stream_cursor *c)
{
    c->tensor++;
    c->kind = c->chunk = 0;
    c->row = 0;
}

/* Advances to the next non-empty stream. */
static void next_stream(struct pd_chunk_stream_cursor *c, const struct pd_tensor *tensor)
{
    uint64_t begin, end;
    c->row = 0;
    c->chunk++;
    pd_layout_chunk_columns(c->source, tensor, c->chunk, &begin, &end);
    if (tensor->tp_dim == 1 && c->chunk < c->source->virtual_tp && begin < end) return;
    c->chunk = 0;
    if (++c->kind == PD_KIND_COUNT) next_tensor(c);
}

bool pd_chunk_stream_next(struct pd_chunk_stream_cursor *c, struct pd_chunk_range *ret_range)
{
    while (c->tensor < c->tensors->count) {
        const struct pd_tensor *tensor = &c->tensors->tensors[c->tensor];
        if (!concerns(c, tensor)) {
            next_tensor(c);
            continue;
        }
        uint64_t begin, end, width = pd_tensor_element_bytes(tensor, (enum pd_kind)c->kind);
        pd_layout_chunk_columns(c->source, tensor, c->chunk, &begin, &end);
        for (uint32_t d = 2; d < tensor->ndim; d++)
            width *= tensor->shape[d];
        width *= end - begin;
        const uint64_t row = c->row;
        const struct piece source = piece_at(c->source, tensor, c->tensor, row, begin),
                           target = piece_at(c->target, tensor, c->tensor, row, begin);
        const bool is_ours = target.shard >= c->shard_begin && target.shard < c->shard_end;
        c->row = !is_ours || target.row_end < source.row_end ? target.row_end : source.row_end;
        *ret_range = (struct pd_chunk_range){
            .tensor = c->tensor,
            .kind = (enum pd_kind)c->kind,
            .column = begin,
            .bytes = (c->row - row) * width,
            .source = {source.shard, (row - source.row_begin) * width, (source.row_end - source.row_begin) * width},
            .target = {target.shard, (row - target.row_begin) * width, (target.row_end - target.row_begin) * width}};
        if (c->row == tensor->shape[0]) next_stream(c, tensor);
        if (is_ours) return true;
    }
    return false;
}
