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

/* The role of a tensor in its model. A bias has the role of its weight. */
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
    PD_ROLE_FINAL_NORM,
    PD_ROLE_HEAD,
    PD_ROLE_COUNT
};

/* How a tensor of the model is stored in another program's tensor; some can be combined. */
enum {
    PD_ACROSS = 1,      /* the matrix is [in, out] */
    PD_THIRDS = 2,      /* rows of q, k, v in this order: k and v have no names of their own */
    PD_BY_KV_HEAD = 4,  /* for each key-value head the rows of its q heads, k and v; no names for k and v either */
    PD_HALVES = 8,      /* rows of gate, if there is one, then of up */
    PD_NEIGHBOURS = 16, /* Meta's row order within a head, if the class has it */
    PD_LONGER = 32,     /* may have more rows: a vocabulary padded by its system */
    PD_OUTSIDE = 64,    /* outside the base model: lm_head */
};

/* Names of a tensor: %u is the layer, a final * is "weight" or "bias". */
struct pd_source {
    const char *name; /* NULL: our own name if the dialect has has_own_names; else the dialect lacks it */
    unsigned how;
    const char *other; /* of another version, or NULL */
    const char *fused; /* a third name, and its layout; only read */
    unsigned fused_how;
};

/* Names of tensors in another program. */
struct pd_dialect {
    const char *name;
    const char *base;    /* written before names of the base model */
    const char *ends[2]; /* replacements for * in a weight, in a bias; NULL: "weight" and "bias" */
    bool has_own_names;  /* most names are ours */
    bool is_stacked;     /* it may stack layers on a leading axis, with no number in the name; we write it so */
    struct pd_source sources[PD_ROLE_COUNT];
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
    /* Defaults of config.json. */
    double epsilon;
    uint32_t context, kv_heads, head_size;
    bool is_tied;
    uint32_t window;        /* sliding_window; 0: none */
    uint32_t window_layers; /* max_window_layers; 0: every block uses the window, without use_sliding_window */
};

struct pd_family {
    enum pd_norm_kind norm;
    enum pd_positions positions;
    enum pd_activation activation;
    uint32_t up_matrices;             /* 2: a gate lies before what it gates */
    bool has_linear_biases;           /* 2: a gate comes before what it gates */
    bool has_head_norms;              /* every linear of a block has one; if false, model.qkv_bias decides for q, k and v */
    bool heads_make_hidden;           /* an RMS norm of each head of q and k before RoPE, one weight for all heads */
    const char *block;                /* heads * head_size equals hidden, and each head has its own keys and values */
    const char *names[PD_ROLE_COUNT]; /* prefix of a block's tensor names; %u: its number */
    const struct pd_dialect *dialects[8]; /* as in transformers, without .weight or .bias; NULL: not in this family */
    const struct pd_number_keys *keys;    /* NULL-terminated */
    const char *activation_key;           /* of config.json */
    const char *other_keys;               /* key in config.json */
    const char *zero_keys[4];             /* other keys that are read, each with a blank before and after */
    const struct pd_model_class *classes; /* numbers written as 0: dropout rates; NULL-terminated */
};

/* ends with one without a name */
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
