/* Pieces of sequences on this rank, and those that travel between sequence-parallel ranks. */
#ifndef PD_TRAINER_MODEL_SEQUENCE_PARALLEL_H
#define PD_TRAINER_MODEL_SEQUENCE_PARALLEL_H

#include "trainer/model/transfers.h"

struct pd_sequence_parallel {
    uint32_t pieces, total; /* places of this rank; pieces of a sequence */
    uint64_t *row;          /* (pieces + 1) first row of each place */
    uint64_t *rows;         /* (pieces) */
    uint32_t *place;        /* (total) of a piece on this rank, or PD_NOT_HELD */
    uint32_t *first, *last; /* (sp) least and greatest piece of a rank */
    bool by_parts;          /* virtual_sp > 1 */
    uint64_t largest;       /* rows of the largest piece */
    float *sums;            /* (log2 pieces, sums_stride) */
    uint64_t sums_stride;
    float *acc, *acc2, *max, *sum; /* attention: (R, H*D) twice, (R, H) twice */
    /* Keys and values, or what belongs to queries, of one piece. Piece p arrives in arrived[p % 2] by transfer[p % 2], whose
     * owner guards it: "the exchange" has it until `arrive` has waited, then "attention" until `leave`. */
    char *arrived[2];
    struct pd_peer_transfer transfer[2];
};

#endif
