/* What one rank computes of a micro-batch: the arithmetic of tensor and sequence parallelism, shared by the model, ZeRO and
 * the plan. Pure functions of (model, numerics, place).
 *
 * Tensor parallel. Query heads, ffn columns and vocabulary rows are cut into virtual_tp chunks of ceil(units / virtual_tp)
 * units; the last chunks may be short or empty. A tp rank computes virtual_tp / tp consecutive chunks. A sum over chunks is
 * a binary tree over the virtual_tp places; an empty chunk adds no term (its sibling goes up alone). The chunks of a rank
 * are whole subtrees.
 *
 * Key-value heads follow the query heads that use them. A rank *needs* every key-value head that one of its query heads
 * reads; several ranks may need the same one. The chunk of a key-value head's first query head *computes its gradient*: it
 * adds the dK and dV of other chunks, first in a tree over query heads inside a chunk, then in the tree over chunks. Another
 * rank's files may own those rows (resharder/layout.h cuts key-value heads independently).
 *
 * Sequence parallel. With virtual_sp = n > 1 the tokens of every sequence are cut into 2n pieces. Piece p has positions
 * [p*T/2n, (p+1)*T/2n). Pieces are ordered 0, 2n-1, 1, 2n-2, ... (folded), and an sp rank holds 2n/sp consecutive places of
 * that order: whole subtrees of every sum over tokens, and equal shares of causal attention. A micro-batch stores its rows
 * piece by piece in that order, and sequence by sequence inside a piece. With virtual_sp = 1 it is uncut: one piece, rows
 * sequence by sequence, and a sum over tokens is one chain. */
#pragma once

#include "trainer/model/model.h"

struct pd_partition {
    uint32_t tp, tp_rank, virtual_tp; /* tp divides virtual_tp, a power of two */
    uint32_t sp, sp_rank, virtual_sp;
};

struct pd_range {
    uint64_t begin, end;
};

/* All ones: one rank, no cuts. */
struct pd_partition pd_partition_whole(void);

/* Units [begin, end) of `units` in chunk `chunk` of virtual_tp. */
struct pd_range pd_partition_chunk(const struct pd_partition *p, uint64_t units, uint32_t chunk);
/* Units of this rank: all its chunks. */
struct pd_range pd_partition_units(const struct pd_partition *p, uint64_t units);
uint32_t pd_partition_first_chunk(const struct pd_partition *p);
uint32_t pd_partition_chunk_count(const struct pd_partition *p); /* virtual_tp / tp */

/* Key-value heads that these query heads read; and those whose first query head is among them. */
struct pd_range pd_partition_kv_needed(const struct pd_model_config *config, struct pd_range query_heads);
struct pd_range pd_partition_kv_computed(const struct pd_model_config *config, struct pd_range query_heads);
/* Whether more than one tp rank needs some key-value head. */
bool pd_partition_kv_is_shared(const struct pd_model_config *config, const struct pd_partition *p);
/* Whether some tp rank computes gradients of key-value heads that the layout assigns to another. */
bool pd_partition_kv_is_apart(const struct pd_model_config *config, const struct pd_partition *p);

/* Whether sequence-parallel ranks swap heads for rows around attention instead of passing keys and values around: each then
 * has equally many rows and key-value heads, all their queries, and no sum over query heads crosses ranks. */
bool pd_partition_exchanges_heads(const struct pd_model_config *config, const struct pd_partition *p, uint32_t length);

/* A model chunk: consecutive units that one rank computes. */
struct pd_stage {
    uint32_t first_block, block_count;
    bool has_embedding, has_head;
};

/* Boxes of a tensor that this rank reads in forward and backward: one, or one per chunk if the tensor is split on dimension
 * 1. Ascending, without empty ones. Returns the count; writes at most `capacity`. */
uint32_t pd_partition_needed(const struct pd_model *model, const struct pd_partition *p, uint32_t tensor,
                             struct pd_box *ret_boxes, uint32_t capacity);
/* Boxes of a tensor whose gradient this rank computes: as needed, except key-value heads. Every tp rank has the gradient of
 * an unsplit tensor, with equal bits. */
uint32_t pd_partition_computed(const struct pd_model *model, const struct pd_partition *p, uint32_t tensor,
                               struct pd_box *ret_boxes, uint32_t capacity);

/* Pieces of a sequence of `length` tokens. */
uint32_t pd_partition_piece_total(const struct pd_partition *p);                 /* 1, or 2 * virtual_sp */
uint32_t pd_partition_piece_count(const struct pd_partition *p);                 /* of this rank */
uint32_t pd_partition_piece_at(const struct pd_partition *p, uint32_t place);    /* the piece at a place of this rank */
uint32_t pd_partition_piece_owner(const struct pd_partition *p, uint32_t piece); /* sp rank */
struct pd_range pd_partition_piece(const struct pd_partition *p, uint32_t length, uint32_t piece); /* positions */
uint32_t pd_partition_tokens(const struct pd_partition *p, uint32_t length); /* tokens of a sequence on this rank */
