/* A decoder-only transformer as a sequence of pipeline units: embedding, L blocks, head. Forward, loss and backward of one
 * leaf.
 *
 * Words as in trainer/math/math.h: R = sequences * T rows, C hidden, H heads, K key-value heads, D head size, F ffn, V
 * vocabulary. Weights and gradients come as pointers in the order of the model's tensor table inside a unit
 * (trainer/model/model.h); q, k, v lie one behind the other, and so do their biases, and gate and up: (H*D + 2*K*D, C) and
 * (2F, C) are one matrix each.
 *
 * Gradients of parameters are those of the *sum* of token losses of the leaf, fp32, overwritten: the division by the number
 * of valid tokens of the whole batch is the optimizer's. What is kept between forward and backward follows pd_recompute:
 *   none  every input of an operation of every block
 *   full  the input of each block; the rest is computed again, with the same bits
 *
 * sources  GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023; recomputation: Chen et al. 2016
 * threads  one caller
 */
#ifndef PD_TRAINER_MODEL_TRANSFORMER_H
#define PD_TRAINER_MODEL_TRANSFORMER_H

#include "trainer/math/math.h"
#include "trainer/model/model.h"

struct pd_transformer_options {
    uint32_t sequences, length; /* of a leaf: m and T */
    enum pd_dtype dtype;        /* activations and weights */
    bool keep_all;              /* recompute none */
    bool separate_documents;    /* attention looks at `first` */
    bool backward;              /* false: forward only (validation, sampling), less memory */
};

/* Input of a leaf, filled by the caller before embed; (R) each. */
struct pd_leaf_input {
    int32_t *tokens, *targets, *positions, *first;
};

struct pd_transformer;

/* Takes all memory from the arena. On a dry arena nothing is touched and the object serves only to be freed. `math` may be
 * NULL there. Model and math are borrowed. */
PD_MUST_USE pd_status pd_transformer_new(const struct pd_model *model, struct pd_math *math,
                                         const struct pd_transformer_options *options, struct pd_arena *arena,
                                         struct pd_transformer **ret_transformer, struct pd_error *err);
void pd_transformer_free(struct pd_transformer *transformer);
struct pd_leaf_input *pd_transformer_input(struct pd_transformer *transformer);
const float *pd_transformer_losses(const struct pd_transformer *transformer); /* (R) after the head: 0 where target < 0 */

/* weights: unit 0. Writes the residual stream. */
PD_MUST_USE pd_status pd_transformer_embed(struct pd_transformer *transformer, void *const *weights, struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_block_forward(struct pd_transformer *transformer, uint32_t block, void *const *weights,
                                                   struct pd_error *err);
/* Final norm, logits, loss. weights: final norm tensors, then the output matrix (V,C) (the token table when tied).
 * gradients NULL: loss only; otherwise the gradient of the residual stream is ready for the last block. */
PD_MUST_USE pd_status pd_transformer_head(struct pd_transformer *transformer, void *const *weights, float *const *gradients,
                                          struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_block_backward(struct pd_transformer *transformer, uint32_t block, void *const *weights,
                                                    float *const *gradients, struct pd_error *err);
PD_MUST_USE pd_status pd_transformer_embed_backward(struct pd_transformer *transformer, float *const *gradients,
                                                    struct pd_error *err);
/* Logits of one row after all blocks ran forward (sampling).   ret_logits (V) fp32 */
PD_MUST_USE pd_status pd_transformer_row_logits(struct pd_transformer *transformer, void *const *head_weights, uint64_t row,
                                                float *ret_logits, struct pd_error *err);

#endif
