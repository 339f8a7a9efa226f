/* Norms of the q and k heads, in families that have them (family.h), followed by RoPE. */
#pragma once

#include "trainer/model/transfers.h"

struct pd_transformer;
struct pd_block_activations;
struct pd_micro_batch_input;

/* Gradients of the two weights (q, then k; each (D)) while they are summed, for every piece. Arena. */
struct pd_head_norms {
    float *parts;   /* (chunks, pieces, 2, D) */
    float *sums;    /* (pieces, 2, D): of this rank, then of all. With one chunk, parts points here */
    float *arrived; /* (tp, pieces, 2, D) */
    struct pd_peer_transfer transfer;
};

void pd_head_norms_take(struct pd_transformer *transformer, struct pd_arena *arena);
/* Normalizes and rotates q and k of a block in place. Keeps the original in a->heads.
 *   input    in device memory;  weights  of the norms of q and k */
PD_MUST_USE pd_status pd_head_norms_forward(struct pd_transformer *transformer, const struct pd_micro_batch_input *input,
                                            struct pd_block_activations *a, void *const *weights, struct pd_error *err);
/* Turns dqkv from attention into the gradient of qkv before the norms. */
PD_MUST_USE pd_status pd_head_norms_backward(struct pd_transformer *transformer, const struct pd_micro_batch_input *input,
                                             const struct pd_block_activations *a, void *const *weights,
                                             float *const *gradients, struct pd_error *err);
