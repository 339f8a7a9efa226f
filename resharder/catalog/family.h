/* Model families are rows of one table, families.c, which trainer and formats read: what a family computes, the names of
 * its tensors here and in other programs, and the keys of its configuration there. To add a family, add a row; add an
 * operation to trainer/math only if it computes something new. To add a model shaped like an existing family, add a line
 * to its classes. tests/cli/family.py trains and converts a family that consists of a row alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum pd_norm_kind { PD_NORM_RMS, PD_NORM_LAYER };                /* layer norm has a mean, and a bias */
enum pd_positions { PD_POSITIONS_ROPE, PD_POSITIONS_LEARNED };   /* learned: a table with a row for each position */
enum pd_activation { PD_ACTIVATION_SWIGLU, PD_ACTIVATION_GELU }; /* of the MLP */
/* RMS norms of q and k: of each head, one weight for all heads, before RoPE; or one norm of all heads together.
 * OPTIONAL: of each head, if model.qk_norm says so. */
enum pd_qk_norm { PD_QK_NORM_NONE, PD_QK_NORM_HEADS, PD_QK_NORM_OPTIONAL, PD_QK_NORM_ALL };
/* What chooses a token's experts. SIGMOID also has a selection bias, groups, shared experts and dense first blocks. */
enum pd_router { PD_ROUTER_NONE, PD_ROUTER_SOFTMAX, PD_ROUTER_SIGMOID };

/* The role of a tensor in its model. A bias has the role of its weight. Records of checkpoints have numbers by role (FORMAT.md):
 * a new one goes to the end, and there is room for 32. */
enum pd_role {
    PD_ROLE_TOKENS,
    PD_ROLE_POSITIONS,
    PD_ROLE_NORM1,
    PD_ROLE_Q,
    PD_ROLE_K,
    PD_ROLE_V,
    PD_ROLE_Q_NORM,
    PD_ROLE_K_NORM,
    PD_ROLE_OUT,
    PD_ROLE_NORM2,
    PD_ROLE_GATE,
    PD_ROLE_UP,
    PD_ROLE_DOWN,
    PD_ROLE_ROUTER, /* its bias is the selection bias, which moves without a gradient */
    PD_ROLE_EXPERT_GATE,
    PD_ROLE_EXPERT_UP,
    PD_ROLE_EXPERT_DOWN,
    PD_ROLE_SHARED_GATE,
    PD_ROLE_SHARED_UP,
    PD_ROLE_SHARED_DOWN,
    PD_ROLE_FINAL_NORM,
    PD_ROLE_HEAD,
    PD_ROLE_COUNT
};

/* How a tensor of the model is stored in another program's tensor; some can be combined. */
enum {
    PD_ACROSS = 1,      /* the matrix is [in, out] */
    PD_THIRDS = 2,      /* rows of q, k, v in this order: k and v have no names of their own */
    PD_BY_KV_HEAD = 4,  /* for each key-value head the rows of its q heads, k and v; no names for k and v either */
    PD_HALVES = 8,      /* rows of gate, if there is one, then of up; of experts too */
    PD_NEIGHBOURS = 16, /* Meta's row order within a head, if the class has it */
    PD_LONGER = 32,     /* may have more rows: a vocabulary padded by its system */
    PD_OUTSIDE = 64,    /* outside the base model: lm_head */
    PD_BY_MLP = 128,    /* the first name is of blocks with experts, the other one of dense blocks */
};

/* Names of a tensor: %u is the layer, %e the expert, * is "weight" or "bias". The name of an expert's tensor without %e is that
 * of one tensor of all experts, which are its leading axis. */
struct pd_source {
    const char *name; /* NULL: our own name if the dialect has has_own_names; else the dialect lacks it */
    unsigned how;
    const char *other; /* of another version, or NULL: as the first */
    const char *fused; /* a third name, and its layout; written only for fused experts */
    unsigned fused_how;
    const char *last; /* a fourth one, only read */
    unsigned last_how;
};

/* Names of tensors in another program. */
struct pd_dialect {
    const char *name;
    const char *base;    /* written before names of the base model */
    const char *ends[2]; /* replacements for * in a weight, in a bias; NULL: "weight" and "bias" */
    bool has_own_names;  /* most names are ours */
    bool is_stacked;     /* it may stack layers on a leading axis, with no number in the name; we write it so */
    struct pd_source sources[PD_ROLE_COUNT];
    struct pd_source selection_bias; /* of a sigmoid router */
};

/* Numbers of a configuration, with their keys in config.json, GGUF (after the architecture) and Megatron's arguments.
 * Those before PD_NUMBER_EPSILON are integers. */
enum pd_number {
    PD_NUMBER_VOCAB,
    PD_NUMBER_CONTEXT,
    PD_NUMBER_LAYERS,
    PD_NUMBER_HIDDEN,
    PD_NUMBER_HEADS,
    PD_NUMBER_KV_HEADS,
    PD_NUMBER_HEAD_SIZE,
    PD_NUMBER_FFN,
    PD_NUMBER_EXPERTS,
    PD_NUMBER_EXPERTS_PER_TOKEN,
    PD_NUMBER_EXPERT_FFN,
    PD_NUMBER_SHARED_EXPERTS, /* may be 0, as the next */
    PD_NUMBER_DENSE_BLOCKS,
    PD_NUMBER_ROUTER_GROUPS,
    PD_NUMBER_ROUTER_GROUPS_KEPT,
    PD_NUMBER_EPSILON,
    PD_NUMBER_THETA,
    PD_NUMBER_COUNT
};
struct pd_number_keys {
    const char *config, *gguf, *megatron; /* NULL: no such key */
    bool is_required;                     /* in config.json */
};

/* A class of transformers. We write the first one that fits the configuration. */
struct pd_model_class {
    const char *name, *type; /* `architectures` and `model_type` of config.json */
    const char *gguf;        /* general.architecture */
    bool qkv_bias;
    bool has_meta_order;     /* uses Meta's row order in a dialect that rotates neighbours (links.h) */
    bool has_attention_bias; /* has the key attention_bias, which means q, k, v and o */
    bool has_qkv_bias_key;   /* there it means q, k and v, so qkv_bias above is only its default */
    /* Defaults of config.json. */
    double epsilon;
    uint32_t context, kv_heads, head_size;
    bool is_tied;
    double theta;                           /* rope_theta; 0: 10000 */
    bool renormalises, has_renormalise_key; /* norm_topk_prob */
    int gguf_renormalises;                  /* llama.cpp: 1 always, -1 never, 0 by expert_weights_norm */
    double balance_loss;                    /* router_aux_loss_coef */
    double rotated_part;                    /* partial_rotary_factor; 0: 1 */
    uint32_t window;                        /* sliding_window; 0: none */
    uint32_t window_layers; /* max_window_layers; 0: every block uses the window, without use_sliding_window */
};

struct pd_family {
    enum pd_norm_kind norm;
    enum pd_positions positions;
    enum pd_activation activation;
    enum pd_qk_norm qk_norm;
    enum pd_router router;            /* other than NONE: blocks from model.dense_blocks on have experts */
    uint32_t up_matrices;             /* 2: a gate comes before what it gates */
    bool has_linear_biases;           /* every linear of a block has one; if false, model.qkv_bias decides for q, k and v */
    bool heads_make_hidden;           /* heads * head_size equals hidden, and each head has its own keys and values */
    const char *block;                /* prefix of a block's tensor names; %u: its number */
    const char *names[PD_ROLE_COUNT]; /* as in transformers, without .weight or .bias; %u: the expert. NULL: not in it */
    const char *selection_bias;       /* with a sigmoid router */
    const struct pd_dialect *dialects[8]; /* NULL-terminated */
    const struct pd_number_keys *keys;
    const char *activation_key;           /* key in config.json */
    const char *other_keys;               /* other keys that are read, each with a blank before and after */
    const char *zero_keys[4];             /* numbers written as 0: dropout rates; NULL-terminated */
    const struct pd_model_class *classes; /* ends with one without a name */
};

static inline bool pd_role_is_expert(enum pd_role role)
{
    return role >= PD_ROLE_EXPERT_GATE && role <= PD_ROLE_EXPERT_DOWN;
}

static inline bool pd_role_is_up(enum pd_role role)
{
    return role == PD_ROLE_UP || role == PD_ROLE_EXPERT_UP || role == PD_ROLE_SHARED_UP;
}

static inline enum pd_role pd_up_role(const struct pd_family *family)
{
    return family->up_matrices == 2 ? PD_ROLE_GATE : PD_ROLE_UP;
}

/* The words of model.family and their rows, in the same order; both end with NULL. A configuration holds the place of its row. */
extern const char *const pd_family_names[];
extern const char pd_family_about[]; /* the words, as --print-config explains them */
extern const struct pd_family *const pd_families[];

/* NULL: there is no such row. */
const struct pd_family *pd_family_at(uint32_t family);
/* The first class with that name, type and GGUF architecture; NULL stands for any. Returns NULL if there is none.
 *   ret_family  may be NULL */
const struct pd_model_class *pd_model_class_find(const char *name, const char *type, const char *gguf, uint32_t *ret_family);

/* As pd_model_class_find for a GGUF architecture: several families share one, and the one that has
 * experts or not is preferred. */
const struct pd_model_class *pd_model_class_of_gguf(const char *gguf, bool has_experts, uint32_t *ret_family);

/* The first family with names in a dialect. For a format that holds only one family. */
const struct pd_family *pd_family_of_dialect(const char *dialect);

struct pd_json_writer;
/* The two keys of a config.json that say the class. */
void pd_model_class_write(const struct pd_model_class *class, struct pd_json_writer *writer);
/* Its rope_scaling: as in Llama 3.1, or linear by the factor. */
struct pd_rope_factors {
    bool is_llama3;
    double factor, low, high;
    uint64_t original;
};
void pd_rope_factors_write(const struct pd_rope_factors *scaling, struct pd_json_writer *writer);
