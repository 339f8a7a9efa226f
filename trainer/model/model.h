/* A model family is a table of tensors: what there is, how it may be cut, how it starts. How they are used in a step is in
 * transformer.c and block.c; how they lie in memory is decided by trainer/parallel/zero. */
#pragma once

#include "ckpt/tensor/tensor.h"
#include "resharder/catalog/family.h"

enum pd_rope_scaling { PD_ROPE_SCALING_NONE, PD_ROPE_SCALING_LLAMA3, PD_ROPE_SCALING_LINEAR };

struct pd_model_config {
    uint32_t family;         /* its row of pd_families */
    uint32_t vocab, context; /* context: the longest sequence positions exist for */
    uint32_t layers, hidden, heads, kv_heads, head_size, ffn;
    bool qkv_bias;       /* in a family without linear biases */
    bool tie_embeddings; /* always true for GPT-2 as published */
    float norm_epsilon;
    float rope_theta;
    enum pd_rope_scaling rope_scaling;
    float rope_factor;                                           /* Llama 3.1: 8 */
    float rope_low_frequency_factor, rope_high_frequency_factor; /* Llama 3.1 alone: 1, 4 */
    uint32_t rope_original_context;                              /* likewise: 8192 */
    float init_std; /* 0.02; output projections are scaled by 1/sqrt(2*layers) */
};

enum pd_recompute { PD_RECOMPUTE_NONE, PD_RECOMPUTE_SELECTIVE, PD_RECOMPUTE_FULL };
#define PD_LAYERS_ALL UINT32_MAX /* blocks that are recomputed: every one */

enum pd_init { PD_INIT_ZEROS, PD_INIT_ONES, PD_INIT_NORMAL };
struct pd_tensor_init {
    enum pd_init init;
    float std;
    enum pd_role role;
    bool is_bias;
};

struct pd_model {
    struct pd_model_config config;
    struct pd_tensor_table tensors; /* in pipeline-unit order; q, k, v and gate, up of a block are consecutive */
    struct pd_tensor_init *init;    /* (tensors.count), owned */
    uint32_t unit_count;  /* layers + 2: embedding, blocks, head (final norm and, unless tied, the output matrix) */
    uint32_t *unit_first; /* (unit_count + 1) first tensor of each unit, owned */
    /* Of a block's weights and biases, counted from its first tensor; -1: there is none. q, k, v follow one another, so do their
     * biases, so do gate and up, and the weights of the norms of q and of k. */
    int places[PD_ROLE_COUNT][2];
    uint64_t parameter_count;
};

/* Fills what is 0 from the rest: kv_heads, head_size, ffn, norm_epsilon, rope_theta, the Llama 3.1 factors, init_std. */
void pd_model_config_resolve(struct pd_model_config *config);
/* Ranges; kv_heads divides heads; even head_size under RoPE; heads * head_size = hidden for GPT-2; ...
 *   errors  PD_INVALID names the key and an admitted value */
PD_MUST_USE pd_status pd_model_config_check(const struct pd_model_config *config, struct pd_error *err);
/* Resolves, checks and builds the table. Matrices decay, embeddings included; norms and biases do not (GPT-2 practice). */
PD_MUST_USE pd_status pd_model_new(const struct pd_model_config *config, struct pd_model **ret_model, struct pd_error *err);
void pd_model_free(struct pd_model *model);
/* How optimizer state of its tensors is kept: PD_F32, as new has it, or PD_BF16. */
void pd_model_set_moments(struct pd_model *model, enum pd_dtype moments);

/* Named sizes, from "byte-1m" to "gpt3-175b". PD_INVALID lists the nearest names. */
PD_MUST_USE pd_status pd_model_preset(const char *name, struct pd_model_config *ret_config, struct pd_error *err);
const char *const *pd_model_preset_names(void); /* NULL-terminated, static */

/* Initial values of a box: a counter-based function of (seed, tensor name, global element index), so any cut of a tensor
 * starts with the same bits (Philox 4x32-10, Salmon et al. 2011; Box-Muller in fp64 with our own polynomials).
 *   dst (box elements) fp32, host */
void pd_model_init_box(const struct pd_model *model, uint32_t tensor, const struct pd_box *box, uint64_t seed, float *dst);

/* Floating-point operations of forward and backward for one token at sequence length `length`: 6 for each element of a
 * matrix that is multiplied (embeddings that are only looked up are not), and the causal half of attention, 6 * layers *
 * heads * head_size * (length + 1). Recomputation is not counted. */
double pd_model_flops_per_token(const struct pd_model *model, uint32_t length);

/* cos and sin of every position and frequency, scaling included.   ret (positions, D/2, 2) */
void pd_model_rope_table(const struct pd_model_config *config, uint32_t positions, float *ret);

/* Floating-point operations of a unit for one token, forward. */
double pd_unit_flops(const struct pd_model *model, uint32_t length, uint32_t unit);
/* Of that, the attention of one block of a sequence. */
double pd_attention_flops(const struct pd_model_config *config, uint32_t length);
