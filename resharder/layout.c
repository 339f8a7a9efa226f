#include "resharder/layout.h"

#include <stdlib.h>
#include <string.h>

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

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
                                     .virtual_tp = 1,
                                     .virtual_sp = 1,
                                     .zero_shard = dp,
                                     .zero_stage = 3,
                                     .interleave = 1,
                                     .small_bytes = PD_LAYOUT_SMALL_BYTES,
                                     .stage_count = 1};
}

static bool is_power_of_two(uint32_t x)
{
    return x && !(x & (x - 1));
}

static pd_status check_degrees(const struct pd_layout *layout, struct pd_error *err)
{
    const struct {
        const char *name;
        uint32_t value;
    } degrees[] = {{"dp", layout->dp}, {"tp", layout->tp}, {"pp", layout->pp}, {"sp", layout->sp}};
    uint64_t world = 1;
    for (unsigned i = 0; i < 4; i++) {
        if (degrees[i].value < 1 || degrees[i].value > 65536)
            PD_FAIL(err, PD_INVALID, "layout: %s is %u and must be between 1 and 65536", degrees[i].name, degrees[i].value);
        world *= degrees[i].value;
        if (world > 1u << 20) PD_FAIL(err, PD_INVALID, "layout: more than 1048576 ranks; lower %s", degrees[i].name);
    }
    return PD_OK;
}

pd_status pd_layout_check(const struct pd_layout *layout, struct pd_error *err)
{
    PD_TRY(check_degrees(layout, err));
    if (!is_power_of_two(layout->virtual_tp) || layout->virtual_tp > 256)
        PD_FAIL(err, PD_INVALID, "layout: virtual_tp is %u and must be a power of two up to 256", layout->virtual_tp);
    if (!is_power_of_two(layout->virtual_sp) || layout->virtual_sp > 256)
        PD_FAIL(err, PD_INVALID, "layout: virtual_sp is %u and must be a power of two up to 256", layout->virtual_sp);
    if (layout->virtual_tp % layout->tp)
        PD_FAIL(err, PD_INVALID, "layout: tp %u does not divide virtual_tp %u; the nearest admitted tp is %u", layout->tp,
                layout->virtual_tp, (uint32_t)least(layout->virtual_tp, 1u << (31 - __builtin_clz(layout->tp))));
    if (layout->virtual_sp % layout->sp)
        PD_FAIL(err, PD_INVALID, "layout: sp %u does not divide virtual_sp %u; the nearest admitted sp is %u", layout->sp,
                layout->virtual_sp, (uint32_t)least(layout->virtual_sp, 1u << (31 - __builtin_clz(layout->sp))));
    if (layout->zero_shard < 1 || layout->zero_shard > layout->dp * layout->sp)
        PD_FAIL(err, PD_INVALID, "layout: zero_shard is %u and must be between 1 and dp*sp = %u", layout->zero_shard,
                layout->dp * layout->sp);
    if (layout->interleave < 1 || layout->stage_count != layout->pp * layout->interleave || layout->stage_count > 256)
        PD_FAIL(err, PD_INVALID, "layout: pp %u x interleave %u gives %u stages and must give between 1 and 256", layout->pp,
                layout->interleave, layout->stage_count);
    for (uint32_t s = 0; s < layout->stage_count; s++)
        if (s == 0 ? layout->first_unit[0] != 0 : layout->first_unit[s] <= layout->first_unit[s - 1])
            PD_FAIL(err, PD_INVALID, "layout: stage %u starts at unit %u; stages start at 0 and ascend", s,
                    layout->first_unit[s]);
    return PD_OK;
}

/* Pipeline rank that holds a unit: stages go round the pp ranks when interleaved. */
static uint32_t unit_pp(const struct pd_layout *layout, uint32_t unit)
{
    uint32_t stage = layout->stage_count - 1;
    while (stage > 0 && layout->first_unit[stage] > unit)
        stage--;
    return stage % layout->pp;
}

/* Half-open range of indices along the TP dimension that chunk `chunk` of `virtual_tp` covers. */
static void chunk_range(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t chunk, uint64_t *ret_begin,
                        uint64_t *ret_end)
{
    uint64_t extent = tensor->shape[tensor->tp_dim];
    uint64_t chunk_extent = ceil_div(ceil_div(extent, tensor->tp_unit), layout->virtual_tp) * tensor->tp_unit;
    *ret_begin = least(chunk * chunk_extent, extent);
    *ret_end = least((chunk + 1ull) * chunk_extent, extent);
}

/* What a tensor-parallel rank holds of a tensor before dimension 0 is cut: rows, and the chunks of dimension 1. */
struct tp_piece {
    uint64_t row_begin, row_end;
    uint32_t chunk_begin, chunk_end; /* of dimension 1; one pretended chunk when it is not split */
};

static struct tp_piece tp_piece_of(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tp_rank)
{
    struct tp_piece piece = {0, tensor->shape[0], 0, 1};
    uint32_t chunks = layout->virtual_tp / layout->tp;
    uint64_t unused;
    if (tensor->tp_dim == 0) {
        chunk_range(layout, tensor, tp_rank * chunks, &piece.row_begin, &unused);
        chunk_range(layout, tensor, (tp_rank + 1) * chunks - 1, &unused, &piece.row_end);
    } else if (tensor->tp_dim == 1) {
        piece.chunk_begin = tp_rank * chunks;
        piece.chunk_end = (tp_rank + 1) * chunks;
    }
    return piece;
}

static uint64_t row_elements(const struct pd_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t i = 1; i < tensor->ndim; i++)
        elements *= tensor->shape[i];
    return elements;
}

/* Rows of the piece that data rank `q` (of dp*sp) owns; false when none. */
static bool owned_rows(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index, uint32_t q,
                       uint64_t *row_begin, uint64_t *row_end)
{
    uint64_t rows = *row_end - *row_begin;
    if (q >= layout->zero_shard || rows == 0) return false;
    uint64_t part = ceil_div(rows, layout->zero_shard);
    uint64_t columns = row_elements(tensor);
    if (tensor->tp_dim == 1) columns = ceil_div(columns, layout->tp);
    if (layout->zero_shard > 1 && part * columns * pd_dtype_bytes(tensor->dtype) < layout->small_bytes)
        return q == tensor_index % layout->zero_shard;
    uint64_t begin = least(q * part, rows), end = least((q + 1ull) * part, rows);
    if (begin == end) return false;
    *row_end = *row_begin + end;
    *row_begin += begin;
    return true;
}

uint32_t pd_layout_owned_boxes(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                               uint32_t rank, struct pd_box *ret_boxes, uint32_t capacity)
{
    struct pd_rank_place place = pd_layout_place(layout, rank);
    if (unit_pp(layout, tensor->unit) != place.pp) return 0;
    if (tensor->tp_dim < 0 && place.tp != tensor_index % layout->tp) return 0;
    struct tp_piece piece = tp_piece_of(layout, tensor, place.tp);
    uint64_t row_begin = piece.row_begin, row_end = piece.row_end;
    if (!owned_rows(layout, tensor, tensor_index, place.dp * layout->sp + place.sp, &row_begin, &row_end)) return 0;
    uint32_t count = 0;
    for (uint32_t chunk = piece.chunk_begin; chunk < piece.chunk_end; chunk++) {
        struct pd_box box = pd_box_whole(tensor);
        box.start[0] = row_begin;
        box.count[0] = row_end - row_begin;
        if (tensor->tp_dim == 1) {
            uint64_t begin, end;
            chunk_range(layout, tensor, chunk, &begin, &end);
            if (begin == end) continue;
            box.start[1] = begin;
            box.count[1] = end - begin;
        }
        if (count < capacity) ret_boxes[count] = box;
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
        PD_FAIL(err, PD_NO_MEMORY, "layout: no memory for %llu boxes of rank %u", (unsigned long long)total, rank);
    }
    uint32_t used = 0;
    for (uint32_t t = 0; t < tensors->count; t++) {
        struct pd_box owned[256];
        uint32_t count = pd_layout_owned_boxes(layout, &tensors->tensors[t], t, rank, owned, 256);
        for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++)
            for (uint32_t b = 0; b < count; b++)
                boxes[used++] = (struct pd_shard_box){.tensor = t, .kind = (enum pd_kind)kind, .box = owned[b]};
    }
    *ret_boxes = boxes;
    *ret_count = used;
    return PD_OK;
}
