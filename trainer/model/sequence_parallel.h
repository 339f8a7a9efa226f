/* Pieces of sequences: those on this rank, and those sent between sequence-parallel ranks. */
#pragma once

#include "trainer/model/transfers.h"
#include "trainer/model/transformer.h"

struct pd_sequence_parallel {
    uint32_t pieces, total;        /* places of this rank; pieces of a sequence */
    uint64_t *row;                 /* (pieces + 1) first row of each place */
    uint64_t *rows;                /* (pieces) */
    uint32_t *place;               /* (total) place of each piece on this rank, or PD_NOT_HELD */
    uint32_t *first, *last;        /* (sp) lowest and highest piece of each rank */
    bool by_parts;                 /* virtual_sp > 1 */
    bool by_heads;                 /* attention gets all rows of this rank's share of heads (heads_exchange.c) */
    uint64_t largest;              /* rows of the largest piece */
    float *acc, *acc2, *max, *sum; /* attention: (R, H*D) twice, (R, H) twice; if by_heads: own heads of a piece */
    /* If by_heads. Between exchanges attention owns these; during one (transfer[0]) the exchange owns what it sends and
     * receives of packed, passing and all_first. */
    char *packed, *passing; /* (R, H*D + 2*K*D) act */
    int32_t *all_first;     /* (rows of all ranks) */
    /* Keys and values, or data of queries, of one piece. Piece p arrives in arrived[p % 2] by transfer[p % 2], whose owner
     * guards it: "the exchange" has it until `arrive` has waited, then "attention" until `leave`. */
    char *arrived[2];
    struct pd_peer_transfer transfer[2];
};

/* Passes the gradient (n) of a piece to the transformer's caller. Does nothing if sequences are whole. */
PD_MUST_USE pd_status pd_take_piece(struct pd_transformer *t, const float *gradient, uint64_t n, struct pd_error *err);
/* The same for experts, of the micro-batch of one of the ep ranks. */
PD_MUST_USE pd_status pd_take_piece_of(struct pd_transformer *t, uint32_t source, const float *gradient, uint64_t n,
                                       struct pd_error *err);
/* Parameter gradients: `piece` writes dst (n) for each piece of this rank, consumed before the next is written. */
typedef pd_status pd_piece_gradient(struct pd_transformer *t, void *context, uint32_t place, float *dst,
                                    struct pd_error *err);
PD_MUST_USE pd_status pd_piece_gradients(struct pd_transformer *t, uint64_t n, pd_piece_gradient *piece, void *context,
                                         float *dst, struct pd_error *err);
/* The same for a vector of parameters: overwritten or accumulated. */
PD_MUST_USE pd_status pd_vector_gradient(struct pd_transformer *t, uint64_t n, pd_piece_gradient *piece, void *context,
                                         float *dst, struct pd_error *err);

struct pd_block_activations;
/* The matrix that a product adds to: the gradient so far, or none (rows ld apart). */
struct pd_matrix pd_gradient_so_far(const struct pd_transformer *t, float *gradient, uint64_t ld);
PD_MUST_USE pd_status pd_parts_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                       struct pd_block_activations *a, struct pd_error *err);
PD_MUST_USE pd_status pd_parts_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                        struct pd_block_activations *a, const struct pd_attention *gradient,
                                        struct pd_error *err);

/* ---- heads_exchange.c ---- */
PD_MUST_USE pd_status pd_heads_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                       struct pd_block_activations *a, struct pd_error *err);
/* Computes dqkv from dattention and delta. */
PD_MUST_USE pd_status pd_heads_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                        struct pd_block_activations *a, struct pd_error *err);
