/* Operands of the operations of experts, as in operations.h. */
#pragma once

#include "ckpt/tensor/tensor.h"
#include <stdbool.h>

#define PD_EXPERTS_MAX 512u

/* Chooses per_token experts for each row, by score plus bias; the lower of equal ones. With groups, from the experts of the
 * groups_kept groups whose two best have the largest sums. A chosen expert's weight is scale times its score, divided by the
 * sum of the chosen ones if `renormalise`. */
struct pd_route {
    uint64_t rows;
    uint32_t experts, per_token, groups, groups_kept;
    bool is_sigmoid; /* score: logistic function of the logit; false: softmax over all experts */
    bool renormalise;
    float scale;
    const float *logits; /* (R,E) fp32 */
    const float *bias;   /* (E) fp32, or NULL */
    float *scores;       /* (R,E) */
    int32_t *choice;     /* (R, per_token), best first */
    float *weights;      /* (R, per_token), forward only */
    float *lse;          /* (R) log of the sum of exponentials of the logits */
    /* backward: the gradient of the chosen weights and of two auxiliary losses */
    const float *dweights; /* (R, per_token) */
    const float *balance;  /* (E) gradient of every row's scores, or NULL */
    float z;               /* factor of lse^2 */
    float *dlogits;        /* (R,E); may be logits if the router is a softmax */
};

/* out (R,C) = sum over j, ascending, of parts[slots[r,j]]. parts NULL: 0 */
struct pd_combine {
    uint64_t rows, columns;
    uint32_t per_token;
    const void *parts;    /* (slots, C) of dtype */
    const int32_t *slots; /* (R, per_token) */
    float *out;
    enum pd_dtype dtype;
};

/* out = silu(gate) * up * weight of the row, rounded once. */
struct pd_weighted_swiglu {
    uint64_t rows, columns;
    enum pd_dtype dtype;
    const void *gate_up;  /* (R, 2F) */
    const float *weights; /* (R) */
    void *out;            /* (R,F) forward */
    /* backward */
    const void *dout; /* (R,F) */
    void *dgate_up;   /* (R, 2F) */
    uint32_t chunks;  /* of `chunk` columns each; the last ones may be short or empty */
    uint64_t chunk;
    float *dweights; /* (chunks, R): sum over a chunk's columns of dout * silu(gate) * up */
};

/* Orders slots (row, choice) by the rank of the expert, the expert, then the row. Expert e is number e / ranks of rank
 * e % ranks. */
struct pd_slot_order {
    uint64_t rows;
    uint32_t experts, per_token, ranks, pieces;
    const uint64_t *piece_rows; /* (pieces + 1) first row of each piece; host memory, read before the call returns */
    const int32_t *choice;      /* (R, per_token), a row's all different */
    const float *weights;       /* (R, per_token) */
    int32_t *slots;             /* (R, per_token) slot of each choice */
    int32_t *tokens;            /* (slots) row of each slot */
    float *slot_weights;        /* (slots) */
    int32_t *first;             /* (E * pieces + 1) first slot of each expert and piece, in the order of slots */
};
#define PD_SLOT_PIECES_MAX 512u

/* Auxiliary losses of one block and micro-batch: E * sum over experts of (share of rows that chose it) * (mean score), in
 * fp64; and sums of squares of lse, over the rows of the whole micro-batch. */
struct pd_router_losses {
    uint32_t experts, pieces; /* pieces of the whole micro-batch */
    double rows;              /* of the whole micro-batch */
    const float *scores;      /* (pieces, E) sums of scores over the rows of a piece */
    const int32_t *tokens;    /* (pieces, E) rows that chose each expert */
    double factor;
    float *balance;         /* (E) factor * share of rows that chose the expert, or NULL */
    double *balance_loss;   /* (1) */
    const float *lse;       /* (R) of some pieces */
    uint32_t z_pieces;      /* those */
    const uint64_t *z_rows; /* (z_pieces + 1) first row of each; host memory, read before the call returns */
    double *z_loss;         /* (z_pieces) sum of lse^2 / rows, a chain over rows on a CPU */
};
