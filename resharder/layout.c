#include "resharder/layout.h"

#include "ckpt/base/checked.h"
#include "ckpt/store/index.h"
#include "ckpt/store/paths.h"

#include <stdlib.h>
#include <string.h>

uint32_t pd_layout_world(const struct pd_layout *layout)
{
    return layout->dp * layout->tp * layout->pp * layout->sp;
}

struct pd_rank_place pd_layout_place(const struct pd_layout *layout, uint32_t rank)
{
    struct pd_rank_place place;
    place.tp = rank % layout->tp;
    rank /= layout->tp;
    place.sp = rank % layout->sp;
    rank /= layout->sp;
    place.dp = rank % layout->dp;
    place.pp = rank / layout->dp;
    return place;
}

uint32_t pd_layout_rank(const struct pd_layout *layout, struct pd_rank_place place)
{
    return ((place.pp * layout->dp + place.dp) * layout->sp + place.sp) * layout->tp + place.tp;
}

void pd_layout_init_dp(struct pd_layout *ret_layout, uint32_t dp)
{
    *ret_layout = (struct pd_layout){.dp = dp,
                                     .tp = 1,
                                     .pp = 1,
                                     .sp = 1,
                                     .ep = 1,
                                     .virtual_tp = 1,
                                     .virtual_sp = 1,
                                     .zero_shard = dp,
                                     .zero_stage = 3,
                                     .interleave = 1,
                                     .small_bytes = PD_LAYOUT_SMALL_BYTES,
                                     .stage_count = 1};
}

uint32_t pd_layout_unit_pp(const struct pd_layout *layout, uint32_t unit)
{
    uint32_t low = 0, high = layout->stage_count; /* find the last stage that starts at or before the unit */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (layout->first_unit[middle] > unit)
            high = middle;
        else
            low = middle;
    }
    return low % layout->pp;
}

/* Indices along the TP dimension in a full tp chunk. */
static uint64_t chunk_extent(const struct pd_layout *layout, const struct pd_tensor *tensor)
{
    return pd_divide_up(pd_divide_up(tensor->shape[tensor->tp_dim], tensor->tp_unit), layout->virtual_tp) * tensor->tp_unit;
}

void pd_layout_chunk_columns(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t chunk,
                             uint64_t *ret_begin, uint64_t *ret_end)
{
    *ret_begin = 0;
    *ret_end = tensor->shape[1];
    if (tensor->tp_dim != 1) return;
    uint64_t extent = chunk_extent(layout, tensor);
    *ret_begin = pd_min_u64(chunk * extent, tensor->shape[1]);
    *ret_end = pd_min_u64((chunk + 1ull) * extent, tensor->shape[1]);
}

/* Bytes of one row of a tensor-parallel rank's part, with full tp chunks. */
static uint64_t row_bytes(const struct pd_layout *layout, const struct pd_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t i = 1; i < tensor->ndim; i++)
        elements *= tensor->shape[i];
    uint64_t columns = elements;
    if (tensor->tp_dim == 1) columns = pd_divide_up(columns, layout->tp);
    return columns * pd_dtype_bytes(tensor->dtype);
}

static void cut_rows(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                     struct pd_layout_cut *cut)
{
    const bool is_spread = pd_layout_is_spread(layout, tensor);
    const uint32_t stride = is_spread ? layout->ep : 1, shards = layout->zero_shard / stride;
    const uint64_t rows = cut->row_end - cut->row_begin, part = pd_divide_up(rows, shards);
    cut->q_first = is_spread ? (tensor->expert - 1) % stride : 0;
    cut->q_stride = stride;
    if (shards > 1 && part * row_bytes(layout, tensor) < layout->small_bytes) {
        cut->part_rows = rows;
        cut->part_count = 1;
        cut->q_first += tensor_index % shards * stride;
        return;
    }
    cut->part_rows = part;
    cut->part_count = (uint32_t)pd_divide_up(rows, part);
}

bool pd_layout_cut_of(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                      uint32_t tp_rank, struct pd_layout_cut *ret_cut)
{
    struct pd_layout_cut cut = {.row_end = tensor->shape[0], .chunk_end = 1};
    const uint32_t chunks = layout->virtual_tp / layout->tp;
    if (tensor->tp_dim < 0 && tp_rank != tensor_index % layout->tp) return false;
    if (tensor->tp_dim == 0) {
        const uint64_t extent = chunk_extent(layout, tensor) * chunks;
        cut.row_begin = pd_min_u64(tp_rank * extent, tensor->shape[0]);
        cut.row_end = pd_min_u64((tp_rank + 1) * extent, tensor->shape[0]);
    } else if (tensor->tp_dim == 1) {
        cut.chunk_begin = tp_rank * chunks;
        cut.chunk_end = (tp_rank + 1) * chunks;
    }
    if (cut.row_begin == cut.row_end) return false;
    cut_rows(layout, tensor, tensor_index, &cut);
    *ret_cut = cut;
    return true;
}

/* Returns the tensor-parallel ranks [*ret_begin, *ret_end) that hold some of the part. */
static void owners_tp(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                      const struct pd_box *part, uint32_t *ret_begin, uint32_t *ret_end)
{
    *ret_begin = tensor_index % layout->tp;
    *ret_end = *ret_begin + 1;
    if (tensor->tp_dim < 0) return;
    const uint64_t extent = chunk_extent(layout, tensor) * (layout->virtual_tp / layout->tp);
    const uint64_t start = part->start[tensor->tp_dim], end = start + part->count[tensor->tp_dim];
    *ret_begin = (uint32_t)(start / extent);
    *ret_end = (uint32_t)((end - 1) / extent) + 1;
}

uint32_t pd_layout_owners(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                          const struct pd_box *part, struct pd_owner_run ret_runs[PD_LAYOUT_CHUNKS_MAX])
{
    const uint32_t group = pd_layout_unit_pp(layout, tensor->unit) * layout->dp * layout->sp;
    uint32_t count = 0, tp_begin, tp_end;
    owners_tp(layout, tensor, tensor_index, part, &tp_begin, &tp_end);
    for (uint32_t tp = tp_begin; tp < tp_end; tp++) {
        struct pd_layout_cut cut;
        if (!pd_layout_cut_of(layout, tensor, tensor_index, tp, &cut)) continue;
        uint64_t begin = part->start[0], end = begin + part->count[0];
        if (begin < cut.row_begin) begin = cut.row_begin;
        if (end > cut.row_end) end = cut.row_end;
        if (begin >= end) continue;
        const uint32_t first = (uint32_t)((begin - cut.row_begin) / cut.part_rows),
                       last = (uint32_t)((end - 1 - cut.row_begin) / cut.part_rows);
        ret_runs[count++] = (struct pd_owner_run){.first = (group + cut.q_first + first * cut.q_stride) * layout->tp + tp,
                                                  .stride = layout->tp * cut.q_stride,
                                                  .count = last - first + 1};
    }
    return count;
}

uint32_t pd_layout_owned_boxes(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                               uint32_t rank, struct pd_box *ret_boxes, uint32_t capacity)
{
    const struct pd_rank_place place = pd_layout_place(layout, rank);
    const uint32_t q = place.dp * layout->sp + place.sp;
    struct pd_layout_cut cut;
    if (pd_layout_unit_pp(layout, tensor->unit) != place.pp) return 0;
    if (!pd_layout_cut_of(layout, tensor, tensor_index, place.tp, &cut)) return 0;
    const uint32_t part = pd_layout_part_of(&cut, q);
    if (part == PD_LAYOUT_NO_PART) return 0;
    uint64_t row_begin = cut.row_begin + part * cut.part_rows;
    uint64_t row_end = pd_min_u64(row_begin + cut.part_rows, cut.row_end);
    if (row_begin == row_end) return 0;
    uint32_t count = 0;
    for (uint32_t chunk = cut.chunk_begin; chunk < cut.chunk_end; chunk++) {
        uint64_t begin, end;
        pd_layout_chunk_columns(layout, tensor, chunk, &begin, &end);
        if (begin == end) break; /* all later ones are empty too */
        if (count < capacity) ret_boxes[count] = pd_box_part(tensor, row_begin, row_end, begin, end);
        count++;
    }
    return count;
}

pd_status pd_layout_shard_boxes(const struct pd_layout *layout, const struct pd_tensor_table *tensors, uint32_t rank,
                                struct pd_shard_box **ret_boxes, uint32_t *ret_count, struct pd_error *err)
{
    uint64_t total = 0;
    for (uint32_t t = 0; t < tensors->count; t++)
        total += (uint64_t)PD_KIND_COUNT * pd_layout_owned_boxes(layout, &tensors->tensors[t], t, rank, NULL, 0);
    struct pd_shard_box *boxes = calloc(total ? total : 1, sizeof *boxes);
    if (!boxes || total > UINT32_MAX) {
        free(boxes);
        PD_FAIL(err, PD_NO_MEMORY, "layout: no memory for %llu boxes of shard %u", (unsigned long long)total, rank);
    }
    uint32_t used = 0;
    for (uint32_t t = 0; t < tensors->count; t++) {
        struct pd_box owned[PD_LAYOUT_CHUNKS_MAX];
        uint32_t count = pd_layout_owned_boxes(layout, &tensors->tensors[t], t, rank, owned, PD_LAYOUT_CHUNKS_MAX);
        for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++)
            for (uint32_t b = 0; b < count; b++)
                boxes[used++] = (struct pd_shard_box){.tensor = t, .kind = (enum pd_kind)kind, .box = owned[b]};
    }
    *ret_boxes = boxes;
    *ret_count = used;
    return PD_OK;
}

static pd_status list_boxes(const struct pd_layout *layout, const struct pd_tensor_table *tensors, uint64_t boxes_max,
                            struct pd_index_source *sources, struct pd_store_name *names, bool *ret_fits,
                            struct pd_error *err)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < pd_layout_world(layout) && total <= boxes_max; r++) {
        struct pd_shard_box *boxes = NULL;
        PD_TRY(pd_layout_shard_boxes(layout, tensors, r, &boxes, &sources[r].box_count, err));
        names[r] = pd_shard_name(r);
        sources[r].file_name = names[r].text;
        sources[r].boxes = boxes;
        total += sources[r].box_count;
    }
    *ret_fits = total <= boxes_max;
    return PD_OK;
}

pd_status pd_layout_build_index(const struct pd_layout *layout, const struct pd_tensor_table *tensors, uint64_t boxes_max,
                                void **ret_index, uint64_t *ret_bytes, struct pd_error *err)
{
    const uint32_t shards = pd_layout_world(layout);
    struct pd_index_source *sources = calloc(shards, sizeof *sources);
    struct pd_store_name *names = calloc(shards, sizeof *names);
    bool fits = false;
    pd_status st = PD_ALLOCATED(sources && names, err, "index: no memory for %u shards", shards);
    if (!st) st = list_boxes(layout, tensors, boxes_max, sources, names, &fits, err);
    if (!st && fits) st = pd_index_build(tensors, sources, shards, ret_index, ret_bytes, err);
    for (uint32_t r = 0; sources && r < shards; r++)
        free((void *)(uintptr_t)sources[r].boxes);
    free(sources);
    free(names);
    return st;
}
