/* What one rank computes of a micro-batch: the arithmetic of tensor and sequence parallelism, shared by the model, ZeRO and
 * the plan. Pure functions of (model, numerics, place).
 *
 * Tensor parallel. Query heads, ffn columns and vocabulary rows are cut into virtual_tp chunks of ceil(units / virtual_tp)
 * units; the last chunks may be short or empty. A rank of tp computes a run of virtual_tp / tp chunks. A sum over chunks is
 * a binary tree over the virtual_tp places; a chunk that is empty is no term of it (its sibling goes up alone). Runs are
 * whole subtrees.
 *
 * Key-value heads follow the query heads that use them: a rank *needs* every key-value head one of its query heads reads,
 * and several ranks may need the same. The chunk of the first query head of a key-value head *computes its gradient*: what
 * other chunks contribute to dK and dV is added there, a tree over query heads inside a chunk, then the tree over chunks.
 * This need not be the rank whose files own those rows (resharder/layout.h cuts key-value heads by themselves).
 *
 * Sequence parallel. With virtual_sp = n > 1 the tokens of every sequence are cut into 2n pieces, piece p being positions
 * [p*T/2n, (p+1)*T/2n), taken in folded order 0, 2n-1, 1, 2n-2, ... A rank of sp holds a run of 2n/sp consecutive places of
 * that order: whole subtrees of every sum over tokens, and equal shares of causal attention. Rows of a micro-batch are
 * stored piece after piece in that order, sequence after sequence inside a piece. virtual_sp = 1 micro-batches a micro-batch
 * uncut: one piece, rows sequence after sequence, sums over tokens are one chain.
 */
#pragma once

#include "trainer/model/model.h"

struct pd_partition {
    uint32_t tp, tp_rank, virtual_tp; /* tp divides virtual_tp, a power of two */
    uint32_t sp, sp_rank, virtual_sp;
};

struct pd_range {
    uint64_t begin, end;
};

/* All ones: one rank, nothing cut. */
struct pd_partition pd_partition_whole(void);

/* Units [begin, end) of `units` in chunk `chunk` of virtual_tp. */
struct pd_range pd_partition_chunk(const struct pd_partition *p, uint64_t units, uint32_t chunk);
/* Units of this rank: its chunks together. */
struct pd_range pd_partition_units(const struct pd_partition *p, uint64_t units);
uint32_t pd_partition_first_chunk(const struct pd_partition *p);
uint32_t pd_partition_chunk_count(const struct pd_partition *p); /* virtual_tp / tp */

/* Key-value heads that query heads [q.begin, q.end) read; and those of which the run of query heads holds the first. */
struct pd_range pd_partition_kv_needed(const struct pd_model_config *config, struct pd_range query_heads);
struct pd_range pd_partition_kv_computed(const struct pd_model_config *config, struct pd_range query_heads);
/* Some key-value head is needed by more than one of the tp ranks. */
bool pd_partition_kv_is_shared(const struct pd_model_config *config, const struct pd_partition *p);
/* Some tp rank computes gradients of key-value heads that the layout gives to another. */
bool pd_partition_kv_is_apart(const struct pd_model_config *config, const struct pd_partition *p);

/* Sequence-parallel ranks exchange heads for rows around attention, and not keys and values piece by piece: each gets as many
 * key-value heads as the others, all queries of them, and as many rows, and no sum over query heads crosses to another rank. */
bool pd_partition_exchanges_heads(const struct pd_model_config *config, const struct pd_partition *p, uint32_t length);

/* A pipeline chunk: consecutive units that one rank computes. */
struct pd_stage {
    uint32_t first_block, block_count;
    bool has_embedding, has_head;
};

/* Boxes of a tensor that this rank reads in forward and backward: one, or one a chunk for a tensor that is split on
 * dimension 1; ascending, empty ones left out. Returns the count; writes at most `capacity`. */
uint32_t pd_partition_needed(const struct pd_model *model, const struct pd_partition *p, uint32_t tensor,
                             struct pd_box *ret_boxes, uint32_t capacity);
/* Boxes of a tensor whose gradient this rank computes: as needed, except key-value heads. A tensor that is not split has its
 * gradient on every tp rank, with equal bits. */
uint32_t pd_partition_computed(const struct pd_model *model, const struct pd_partition *p, uint32_t tensor,
                               struct pd_box *ret_boxes, uint32_t capacity);

/* Pieces of a sequence of `length` tokens. */
uint32_t pd_partition_piece_total(const struct pd_partition *p);                 /* 1, or 2 * virtual_sp */
uint32_t pd_partition_piece_count(const struct pd_partition *p);                 /* of this rank */
uint32_t pd_partition_piece_at(const struct pd_partition *p, uint32_t place);    /* piece at a place of this rank's run */
uint32_t pd_partition_piece_owner(const struct pd_partition *p, uint32_t piece); /* sp rank */
struct pd_range pd_partition_piece(const struct pd_partition *p, uint32_t length, uint32_t piece); /* positions */
uint32_t pd_partition_tokens(const struct pd_partition *p, uint32_t length); /* of a sequence on this rank */
