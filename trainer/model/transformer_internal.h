/* State shared by transformer.c (embedding, head) and block.c. */
#ifndef PD_TRAINER_MODEL_TRANSFORMER_INTERNAL_H
#define PD_TRAINER_MODEL_TRANSFORMER_INTERNAL_H

#include "trainer/model/transformer.h"

/* What the operations of one block read again in backward; act dtype unless said otherwise. */
struct pd_block_activations {
    float *mean1, *rstd1; /* (R) fp32; means only for layer norm */
    void *norm1;          /* (R,C) */
    void *qkv;            /* (R, H*D + 2*K*D) after RoPE */
    float *lse;           /* (sequences, H, T) fp32 */
    void *attention;      /* (R, H*D) */
    void *middle;         /* (R,C) residual stream between attention and MLP */
    float *mean2, *rstd2;
    void *norm2;  /* (R,C) */
    void *up;     /* (R, 2F) gate and up, or (R,F) before GELU */
    void *hidden; /* (R,F) */
};

struct pd_transformer {
    const struct pd_model *model;
    struct pd_math *math;
    struct pd_transformer_options options;
    bool is_llama;
    uint64_t rows, element_bytes;
    uint64_t query_columns, qkv_columns, up_columns, logits_rows;
    struct pd_leaf_input input;
    float *cos_sin;                      /* (T, D/2, 2), llama */
    void **stream;                       /* (layers + 1) of (R,C): input of block i; the last is the head's */
    struct pd_block_activations *blocks; /* (layers); all alias one another unless everything is kept */
    float *head_mean, *head_rstd;
    void *head_norm; /* (R,C) */
    float *logits;   /* (logits_rows, V) */
    float *losses;   /* (R) */
    /* backward */
    void *dstream; /* (R,C) of the backward being run, the caller's */
    void *dnorm;   /* (R,C) */
    void *dup, *dhidden, *dqkv, *dattention;
    float *delta; /* (sequences, H, T) */
};

#endif
