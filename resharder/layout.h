/* The layout function: (tensor, degrees, rank) -> boxes. Pure arithmetic, no state, the same on every rank and in every
 * tool.
 *
 * The TP dimension is cut into virtual_tp tp chunks of whole units (ceil; the last may be short or empty); a rank owns a
 * contiguous run of them. A tensor split on dimension 1 is stored as one box a tp chunk, so any tp reads whole boxes.
 * Dimension 0 of the rest is cut into zero_shard shards of ceil(rows / zero_shard) rows. If those would be under
 * small_bytes, the tensor is not cut: one rank owns it, chosen round robin. Replicas have one owner.
 * With ep > 1 expert e belongs to the data ranks q of which q % ep = e % ep, and only these cut it.
 *
 * rank = ((pp_index * dp + dp_index) * sp + sp_index) * tp + tp_index.
 */
#pragma once

#include "ckpt/store/commit.h"

#define PD_LAYOUT_SMALL_BYTES 65536u
#define PD_LAYOUT_CHUNKS_MAX 256u /* bounds virtual_tp, and so the boxes of one tensor and kind in a shard */

struct pd_rank_place {
    uint32_t dp, tp, pp, sp;
};

uint32_t pd_layout_world(const struct pd_layout *layout);
static inline uint32_t pd_layout_ep(const struct pd_layout *layout)
{
    return layout->ep ? layout->ep : 1;
}
/* Whether the tensor is spread over ep ranks. */
static inline bool pd_layout_is_spread(const struct pd_layout *layout, const struct pd_tensor *tensor)
{
    return tensor->expert && layout->ep > 1;
}
struct pd_rank_place pd_layout_place(const struct pd_layout *layout, uint32_t rank);
uint32_t pd_layout_rank(const struct pd_layout *layout, struct pd_rank_place place);
/* dp ranks, all other degrees 1, ZeRO-3 over all of dp. */
void pd_layout_init_dp(struct pd_layout *ret_layout, uint32_t dp);

/* Returns the pipeline rank that holds a unit: stages go round the pp ranks when interleaved. */
uint32_t pd_layout_unit_pp(const struct pd_layout *layout, uint32_t unit);

/* The part of a tensor that one tensor-parallel rank of its stage holds, and how its dimension 0 is cut: part i has
 * part_rows rows (the last one the rest) and belongs to the data rank q = dp index * sp + sp index = q_first + i * q_stride.
 * q_stride is ep for a tensor of an expert, else 1. */
struct pd_layout_cut {
    uint64_t row_begin, row_end, part_rows;
    uint32_t q_first, q_stride, part_count;
    uint32_t chunk_begin, chunk_end; /* tp chunks of dimension 1, some may be empty; one dummy chunk if it is not split */
};
#define PD_LAYOUT_NO_PART UINT32_MAX
/* Returns the part of the data rank q, or PD_LAYOUT_NO_PART. */
static inline uint32_t pd_layout_part_of(const struct pd_layout_cut *cut, uint32_t q)
{
    if (q < cut->q_first || (q - cut->q_first) % cut->q_stride) return PD_LAYOUT_NO_PART;
    const uint32_t part = (q - cut->q_first) / cut->q_stride;
    return part < cut->part_count ? part : PD_LAYOUT_NO_PART;
}
/* False if the tensor-parallel rank holds nothing of it. */
bool pd_layout_cut_of(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                      uint32_t tp_rank, struct pd_layout_cut *ret_cut);
/* Returns columns [*ret_begin, *ret_end) of a tp chunk of a cut; empty when equal. */
void pd_layout_chunk_columns(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t chunk,
                             uint64_t *ret_begin, uint64_t *ret_end);

/* Ranks first, first + stride, ...: `count` of them. */
struct pd_owner_run {
    uint32_t first, stride, count;
};
/* Computes the ranks that own something of `part`: a run for each tensor-parallel rank involved. Returns the number of
 * runs, at most PD_LAYOUT_CHUNKS_MAX. */
uint32_t pd_layout_owners(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                          const struct pd_box *part, struct pd_owner_run ret_runs[PD_LAYOUT_CHUNKS_MAX]);

/* Returns the boxes of `tensor` that `rank` owns, ascending. `tensor_index` is its table index, which selects the owner
 * of a small tensor. Returns the count and writes at most `capacity`; capacity 0 only counts. */
uint32_t pd_layout_owned_boxes(const struct pd_layout *layout, const struct pd_tensor *tensor, uint32_t tensor_index,
                               uint32_t rank, struct pd_box *ret_boxes, uint32_t capacity);
/* Returns the boxes in a rank's shard, in table order: for tensor, for kind, for box. malloc'ed. */
PD_MUST_USE pd_status pd_layout_shard_boxes(const struct pd_layout *layout, const struct pd_tensor_table *tensors,
                                            uint32_t rank, struct pd_shard_box **ret_boxes, uint32_t *ret_count,
                                            struct pd_error *err);
/* Builds index.h5 over the shards of all ranks. *ret_index stays NULL above `boxes_max` boxes. malloc'ed. */
PD_MUST_USE pd_status pd_layout_build_index(const struct pd_layout *layout, const struct pd_tensor_table *tensors,
                                            uint64_t boxes_max, void **ret_index, uint64_t *ret_bytes, struct pd_error *err);
