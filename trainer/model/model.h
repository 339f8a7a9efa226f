/* A model is a table of tensors: their shapes, how each may be cut, how it is initialised. transformer.c and block.c use
 * them in a step; trainer/parallel/zero places them in memory. */
#pragma once

#include "ckpt/tensor/tensor.h"
#include "resharder/catalog/family.h"

enum pd_rope_scaling { PD_ROPE_SCALING_NONE, PD_ROPE_SCALING_LLAMA3, PD_ROPE_SCALING_LINEAR };

struct pd_model_config {
    uint32_t family;         /* its row in pd_families */
    uint32_t vocab, context; /* context: longest sequence with positions */
    uint32_t layers, hidden, heads, kv_heads, head_size, ffn;
    bool qkv_bias;       /* only for families without linear biases */
    bool tie_embeddings; /* always true for GPT-2 as published */
    float norm_epsilon;
    float rope_theta;
    enum pd_rope_scaling rope_scaling;
    float rope_factor;                                           /* Llama 3.1: 8 */
    float rope_low_frequency_factor, rope_high_frequency_factor; /* Llama 3.1 only: 1, 4 */
    uint32_t rope_original_context;                              /* Llama 3.1 only: 8192 */
    float init_std;   /* 0.02; output projections are scaled by 1/sqrt(2*layers) */
    bool qk_norm;     /* whether q and k have norms; families decide, but for PD_QK_NORM_OPTIONAL */
    uint32_t rotated; /* elements of a head that RoPE rotates, from the first; 0: head_size */
    /* Experts (experts.c). experts 0: none; only for families with a router */
    uint32_t experts, experts_per_token, expert_ffn;
    uint32_t shared_experts, dense_blocks;      /* shared: one MLP of that many times expert_ffn; dense: the first blocks */
    uint32_t router_groups, router_groups_kept; /* a token chooses from the experts of the best groups */
    bool renormalise;                           /* weights of a token's experts add up to routed_scale */
    float routed_scale;
    float balance_loss, z_loss; /* coefficients of auxiliary losses */
    float bias_step;            /* by which an update moves a selection bias */
};

#define PD_EXPERT_TENSORS 3u /* gate, up, down */

enum pd_recompute { PD_RECOMPUTE_NONE, PD_RECOMPUTE_SELECTIVE, PD_RECOMPUTE_FULL };
#define PD_LAYERS_ALL UINT32_MAX /* recompute every block */

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
    /* Position of a block's weights and biases, relative to its first tensor; -1: none. These are consecutive: q, k, v;
     * their biases; gate and up; the weights of the norms of q and k. Dense blocks and blocks with experts have the
     * same places for what both have. For experts the place of expert 0; each has PD_EXPERT_TENSORS, one after the other. */
    int places[PD_ROLE_COUNT][2];
    uint64_t parameter_count, active_count; /* active: for one token */
};

/* Whether a block's MLP is experts. */
static inline bool pd_model_has_experts(const struct pd_model_config *config, uint32_t block)
{
    return config->experts && block >= config->dense_blocks;
}
/* Width of the MLP of shared experts. */
static inline uint64_t pd_model_shared_ffn(const struct pd_model_config *config)
{
    return (uint64_t)config->shared_experts * config->expert_ffn;
}

/* Class of a tensor's gradients (trainer/math/terms.h); checkpoints store a number for each, so it does not change. */
static inline uint32_t pd_gradient_class(const struct pd_model *model, uint32_t tensor)
{
    return 2 * (uint32_t)model->init[tensor].role + model->init[tensor].is_bias;
}

/* Fills fields that are 0: kv_heads, head_size, ffn, norm_epsilon, rope_theta, Llama 3.1 factors, init_std. */
void pd_model_config_resolve(struct pd_model_config *config);
/* Checks ranges; kv_heads divides heads; even head_size under RoPE; heads * head_size = hidden for GPT-2; ...
 *   errors  PD_INVALID names the key and a valid value */
PD_MUST_USE pd_status pd_model_config_check(const struct pd_model_config *config, struct pd_error *err);
/* Resolves, checks, builds the table. Weight decay: matrices and embeddings, not norms and biases (as in GPT-2). */
PD_MUST_USE pd_status pd_model_new(const struct pd_model_config *config, struct pd_model **ret_model, struct pd_error *err);
void pd_model_free(struct pd_model *model);
/* Sets the type of the optimizer state: PD_F32 (the default) or PD_BF16. */
void pd_model_set_moments(struct pd_model *model, enum pd_dtype moments);

/* Named models, from "byte-1m" to "gpt3-175b". PD_INVALID lists the nearest names. */
PD_MUST_USE pd_status pd_model_preset(const char *name, struct pd_model_config *ret_config, struct pd_error *err);
const char *const *pd_model_preset_names(void); /* NULL-terminated, static */

/* Initial values of a box: a counter-based function of (seed, tensor name, global element index), so they do not depend on
 * how a tensor is cut (Philox 4x32-10, Salmon et al. 2011; Box-Muller in fp64 with our own polynomials).
 *   dst (box elements) fp32, host */
void pd_model_init_box(const struct pd_model *model, uint32_t tensor, const struct pd_box *box, uint64_t seed, float *dst);

/* Floating-point operations of forward and backward per token at sequence length `length`: 6 per element of each multiplied
 * matrix (not of embeddings that are only looked up), plus the causal half of attention, 6 * layers * heads * head_size *
 * (length + 1). Excludes recomputation. */
double pd_model_flops_per_token(const struct pd_model *model, uint32_t length);

/* cos and sin of every position and frequency, scaling included.   ret (positions, D/2, 2) */
void pd_model_rope_table(const struct pd_model_config *config, uint32_t positions, float *ret);

/* Forward floating-point operations of a unit per token. */
double pd_unit_flops(const struct pd_model *model, uint32_t length, uint32_t unit);
/* The part of it that is attention of one block. */
double pd_attention_flops(const struct pd_model_config *config, uint32_t length);
