/* Which rank has which part of a tensor: pure arithmetic, the same on every rank. */
#include "ckpt/base/checked.h"
#include "trainer/parallel/zero_internal.h"

static const struct pd_tensor *tensor_of(const struct pd_zero *zero, uint32_t tensor)
{
    return &zero->model->tensors.tensors[tensor];
}

/* ---- slabs ---- */

static struct pd_range columns_of(const struct pd_zero *zero, uint32_t tensor, uint32_t chunk)
{
    struct pd_range columns;
    pd_layout_chunk_columns(&zero->grid->layout, tensor_of(zero, tensor), chunk, &columns.begin, &columns.end);
    return columns;
}

uint64_t pd_zero_slab_elements(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab)
{
    if (slab->row_begin >= slab->row_end || slab->chunk_begin >= slab->chunk_end) return 0;
    return (slab->row_end - slab->row_begin) *
           (columns_of(zero, tensor, slab->chunk_end - 1).end - columns_of(zero, tensor, slab->chunk_begin).begin);
}

uint64_t pd_zero_slab_offset(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *slab, uint32_t chunk,
                             uint64_t row)
{
    const struct pd_range columns = columns_of(zero, tensor, chunk);
    return (slab->row_end - slab->row_begin) * (columns.begin - columns_of(zero, tensor, slab->chunk_begin).begin) +
           (row - slab->row_begin) * (columns.end - columns.begin);
}

/* Joins runs that are adjacent on both sides. */
uint32_t pd_zero_runs(const struct pd_zero *zero, uint32_t tensor, const struct pd_zero_slab *a,
                      const struct pd_zero_slab *b, struct pd_zero_run ret_runs[PD_LAYOUT_CHUNKS_MAX])
{
    const uint64_t begin = pd_max_u64(a->row_begin, b->row_begin), end = pd_min_u64(a->row_end, b->row_end);
    uint32_t count = 0, chunk = (uint32_t)pd_max_u64(a->chunk_begin, b->chunk_begin);
    if (begin >= end) return 0;
    for (; chunk < a->chunk_end && chunk < b->chunk_end; chunk++) {
        const struct pd_range columns = columns_of(zero, tensor, chunk);
        struct pd_zero_run *last = count ? &ret_runs[count - 1] : NULL;
        if (columns.begin == columns.end) break; /* and the later ones too */
        const struct pd_zero_run run = {pd_zero_slab_offset(zero, tensor, a, chunk, begin),
                                        pd_zero_slab_offset(zero, tensor, b, chunk, begin),
                                        (end - begin) * (columns.end - columns.begin)};
        if (last && last->at_a + last->elements == run.at_a && last->at_b + last->elements == run.at_b)
            last->elements += run.elements;
        else
            ret_runs[count++] = run;
    }
    return count;
}

/* ---- places ---- */

static struct pd_zero_slab used_slab(const struct pd_zero *zero, const struct pd_partition *p, uint32_t index, bool computed)
{
    const struct pd_tensor *tensor = tensor_of(zero, index);
    struct pd_zero_slab slab = {.row_end = tensor->shape[0], .chunk_end = 1};
    struct pd_box box;
    if (tensor->tp_dim == 1) {
        slab.chunk_begin = pd_partition_first_chunk(p);
        slab.chunk_end = slab.chunk_begin + pd_partition_chunk_count(p);
    } else if (tensor->tp_dim == 0) {
        if (!(computed ? pd_partition_computed : pd_partition_needed)(zero->model, p, index, &box, 1))
            return (struct pd_zero_slab){0};
        slab.row_begin = box.start[0];
        slab.row_end = box.start[0] + box.count[0];
    }
    return slab;
}

struct pd_zero_place pd_zero_place_of(const struct pd_zero *zero, uint32_t tensor, uint32_t t)
{
    struct pd_partition p = zero->grid->partition;
    struct pd_zero_place place = {0};
    p.tp_rank = t;
    place.needed = used_slab(zero, &p, tensor, false);
    place.computed = used_slab(zero, &p, tensor, true);
    (void)pd_layout_cut_of(&zero->grid->layout, tensor_of(zero, tensor), tensor, t, &place.cut);
    return place;
}

struct pd_zero_slab pd_zero_owned_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q)
{
    const struct pd_layout_cut *cut = &place->cut;
    if (q >= zero->grid->layout.zero_shard || q < cut->q_first || q - cut->q_first >= cut->part_count)
        return (struct pd_zero_slab){0};
    const uint64_t begin = cut->row_begin + (uint64_t)(q - cut->q_first) * cut->part_rows;
    return (struct pd_zero_slab){begin, pd_min_u64(begin + cut->part_rows, cut->row_end), cut->chunk_begin, cut->chunk_end};
}

struct pd_zero_slab pd_zero_held_slab(const struct pd_zero *zero, const struct pd_zero_place *place, uint32_t q)
{
    const struct pd_layout_cut *cut = &place->cut;
    if (zero->grid->layout.zero_stage > 0) return pd_zero_owned_slab(zero, place, q % zero->parts);
    return (struct pd_zero_slab){cut->row_begin, cut->row_end, cut->chunk_begin, cut->chunk_end};
}

uint64_t pd_zero_held_elements(const struct pd_zero *zero, uint32_t tensor)
{
    const struct pd_zero_place place = pd_zero_place_of(zero, tensor, zero->grid->place.tp);
    const struct pd_zero_slab held = pd_zero_held_slab(zero, &place, zero->q);
    return pd_zero_slab_elements(zero, tensor, &held);
}
