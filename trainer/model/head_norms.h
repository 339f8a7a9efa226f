/* Norms of the heads of q and k, of families that have them (family.h), and RoPE of what they make. */
#pragma once

#include "trainer/model/transfers.h"

struct pd_transformer;
struct pd_block_activations;
struct pd_micro_batch_input;

/* Gradients of the two weights while they are added up: of q, then of k, each (D), of every piece. Arena. */
struct pd_head_norms {
    float *parts;   /* (chunks, pieces, 2, D) */
    float *sums;    /* (pieces, 2, D): of this rank, then of all; of one chunk these are its parts */
    float *arrived; /* (tp, pieces, 2, D) */
    struct pd_peer_transfer transfer;
};

void pd_head_norms_take(struct pd_transformer *transformer, struct pd_arena *arena);
/* q and k of a block are normed and rotated where they lie; what was there is kept in a->heads.
 *   input    the device's;  weights  of the norm of q, of k */
PD_MUST_USE pd_status pd_head_norms_forward(struct pd_transformer *transformer, const struct pd_micro_batch_input *input,
                                            struct pd_block_activations *a, void *const *weights, struct pd_error *err);
/* dqkv, attention's, becomes the gradient of what qkv was in front of the norms. */
PD_MUST_USE pd_status pd_head_norms_backward(struct pd_transformer *transformer, const struct pd_micro_batch_input *input,
                                             const struct pd_block_activations *a, void *const *weights,
                                             float *const *gradients, struct pd_error *err);
