/* What a family of models is: a row of properties. The table of tensors (model.c), what configurations may say
 * (model_config.c) and the operations of a step (block.c, norm.c, head.c) read the row and never ask which family it is.
 * Another family is a row here and in its tests, and an operation where it needs one that no row has. */
#pragma once

#include "trainer/model/model.h"

enum pd_norm_kind { PD_NORM_RMS, PD_NORM_LAYER };                /* layer norm has a mean, and a bias */
enum pd_positions { PD_POSITIONS_ROPE, PD_POSITIONS_LEARNED };   /* learned: a row of a table for each place */
enum pd_activation { PD_ACTIVATION_SWIGLU, PD_ACTIVATION_GELU }; /* of the MLP */

/* Names of Hugging Face, without the ending .weight or .bias. Those of a block come behind `block`. */
struct pd_family_names {
    const char *tokens, *positions, *block, *norm1, *attention, *out, *norm2, *gate, *up, *down, *final_norm;
    const char *q_norm, *k_norm;
};

struct pd_family_properties {
    const char *name; /* of model.family */
    enum pd_norm_kind norm;
    enum pd_positions positions;
    enum pd_activation activation;
    uint32_t up_matrices;   /* 2: a gate lies before what it gates */
    bool has_linear_biases; /* of every linear of a block; without, model.qkv_bias says it of q, k and v */
    bool has_head_norms;    /* an RMS norm of each head of q and k, in front of RoPE, one weight (head_size) for all heads */
    bool heads_make_hidden; /* heads * head_size is hidden, and each head has keys and values of its own */
    struct pd_family_names names;
};

/* NULL: there is no such family. */
const struct pd_family_properties *pd_family_properties(enum pd_family family);

/* Places of a block's tensors, counted from its first; -1: there is none. q, k, v follow one another, so do their biases,
 * so do
 * gate and up, and the weights of the norms of q and of k. */
struct pd_block_roles {
    int norm1, norm1_bias, qkv, qkv_bias, head_norms, out, out_bias, norm2, norm2_bias, up, up_bias, down, down_bias, count;
};
struct pd_block_roles pd_block_roles_of(const struct pd_model_config *config);
