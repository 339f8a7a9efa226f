/* Which rank has which part of a tensor: pure arithmetic, the same on every rank. */
#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

static const struct pd_tensor *tensor_of(const struct pd_zero *zero, uint32_t tensor)
{
    return &zero->model->tensors.tensors[tensor];
}

/* ---- slices ---- */

static struct pd_range columns_of(const struct pd_zero *zero, uint32_t tensor, uint32_t chunk)
{
    struct pd_range columns;
    pd_layout_chunk_columns(&zero->grid->layout, tensor_of(zero, tensor), chunk, &columns.begin, &columns.end);
    return columns;
}

uint64_t pd_zero_slice_elements(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slice *slice)
{
    if (slice->row_begin >= slice->row_end || slice->chunk_begin >= slice->chunk_end) return 0;
    return (slice->row_end - slice->row_begin) *
           (columns_of(zero, tensor, slice->chunk_end - 1).end - columns_of(zero, tensor, slice->chunk_begin).begin);
}

uint64_t pd_zero_slice_offset(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slice *slice, uint32_t chunk,
                              uint64_t row)
{
    const struct pd_range columns = columns_of(zero, tensor, chunk);
    return (slice->row_end - slice->row_begin) * (columns.begin - columns_of(zero, tensor, slice->chunk_begin).begin) +
           (row - slice->row_begin) * (columns.end - columns.begin);
}

/* Joins runs that are adjacent on both sides. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slice *a,
                      const struct pd_zero_slice *b, struct pd_zero_run ret_runs[PD_LAYOUT_CHUNKS_MAX])
{
    const uint64_t begin = pd_max_u64(a->row_begin, b->row_begin), end = pd_min_u64(a->row_end, b->row_end);
    uint32_t count = 0, chunk = (uint32_t)pd_max_u64(a->chunk_begin, b->chunk_begin);
    if (begin >= end) return 0;
    for (; chunk < a->chunk_end && chunk < b->chunk_end; chunk++) {
        const struct pd_range columns = columns_of(zero, tensor, chunk);
        struct pd_zero_run *last = count ? &ret_runs[count - 1] : NULL;
        if (columns.begin == columns.end) break; /* and the later ones too */
        const struct pd_zero_run run = {pd_zero_slice_offset(zero, tensor, a, chunk, begin),
                                        pd_zero_slice_offset(zero, tensor, b, chunk, begin),
                                        (end - begin) * (columns.end - columns.begin)};
        if (last && last->at_a + last->elements == run.at_a && last->at_b + last->elements == run.at_b)
            last->elements += run.elements;
        else
            ret_runs[count++] = run;
    }
    return count;
}

/* ---- places ---- */

static struct pd_zero_slice zero_used_slice(const struct pd_zero *zero, const struct pd_partition *p, uint32_t index,
                                            bool computed)
{
    const struct pd_tensor *tensor = tensor_of(zero, index);
    struct pd_zero_slice slice = {.row_end = tensor->shape[0], .chunk_end = 1};
    struct pd_box box;
    if (tensor->tp_dim == 1) {
        slice.chunk_begin = pd_partition_first_chunk(p);
        slice.chunk_end = slice.chunk_begin + pd_partition_chunk_count(p);
    } else if (tensor->tp_dim == 0 && p->tp > 1) {
        if (!(computed ? pd_partition_computed : pd_partition_needed)(zero->model, p, index, &box, 1))
            return (struct pd_zero_slice){0};
        slice.row_begin = box.start[0];
        slice.row_end = box.start[0] + box.count[0];
    }
    return slice;
}

struct pd_zero_place pd_zero_place_of(const struct pd_zero *zero, uint32_t tensor, uint32_t t)
{
    struct pd_zero_place place = {0};
    if (pd_zero_is_elsewhere(zero, tensor)) return place;
    struct pd_partition p = zero->grid->partition;
    p.tp_rank = t;
    place.needed = zero_used_slice(zero, &p, tensor, false);
    place.computed = zero_used_slice(zero, &p, tensor, true);
    (void)pd_layout_cut_of(&zero->grid->layout, tensor_of(zero, tensor), tensor, t, &place.cut);
    return place;
}

struct pd_zero_slice pd_zero_owned_slice(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q)
{
    const struct pd_layout_cut *cut = &place->cut;
    if (!cut->part_count || q >= zero->grid->layout.zero_shard || q < cut->q_first || (q - cut->q_first) % cut->q_stride ||
        (q - cut->q_first) / cut->q_stride >= cut->part_count)
        return (struct pd_zero_slice){0};
    const uint64_t begin = cut->row_begin + (uint64_t)((q - cut->q_first) / cut->q_stride) * cut->part_rows;
    return (struct pd_zero_slice){begin, pd_min_u64(begin + cut->part_rows, cut->row_end), cut->chunk_begin, cut->chunk_end};
}

struct pd_zero_slice pd_zero_held_slice(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q)
{
    const struct pd_layout_cut *cut = &place->cut;
    if (zero->grid->layout.zero_stage > 0) return pd_zero_owned_slice(zero, place, q % zero->parts);
    if (cut->q_stride > 1 && q % cut->q_stride != cut->q_first % cut->q_stride) return (struct pd_zero_slice){0};
    return (struct pd_zero_slice){cut->row_begin, cut->row_end, cut->chunk_begin, cut->chunk_end};
}

struct pd_layout_cut pd_zero_cut_of(const struct pd_zero *zero, uint32_t tensor)
{
    struct pd_layout_cut cut = {0};
    if (!pd_zero_is_elsewhere(zero, tensor))
        (void)pd_layout_cut_of(&zero->grid->layout, tensor_of(zero, tensor), tensor, zero->grid->place.tp, &cut);
    return cut;
}

uint64_t pd_zero_held_elements(const struct pd_zero *zero, uint32_t tensor)
{
    const struct pd_zero_place place = {.cut = pd_zero_cut_of(zero, tensor)};
    const struct pd_zero_slice held = pd_zero_held_slice(zero, &place, zero->q);
    return pd_zero_slice_elements(zero, tensor, &held);
}
