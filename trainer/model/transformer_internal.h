/* State shared by the files of the transformer, and what they call of each other: a section a file. */
#pragma once

#include "ckpt/base/owner.h"
#include "offload/spill.h"
#include "resharder/catalog/family.h"
#include "trainer/model/head_norms.h"
#include "trainer/model/linear_fp8.h"
#include "trainer/model/rows.h"
#include "trainer/model/sequence_parallel.h"
#include "trainer/model/transfers.h"
#include "trainer/model/transformer.h"

#define PD_NOT_HELD UINT32_MAX
#define PD_CHUNK_TERMS 5 /* q, k, v; in fp8 heads of k and v may come in two parts */

/* What the operations of one block read again in backward; act dtype unless said otherwise. */
struct pd_block_activations {
    float *mean1, *rstd1; /* (R) fp32; means only for layer norm */
    void *norm1;          /* (R,C); where ranks share rows what norms make is pd_shared_rows', of both */
    void *qkv;            /* (R, H*D + 2*K*D) after RoPE; see struct pd_qkv */
    void *heads;          /* (R, H + K, D) q and k in front of their norms, where heads have norms and there is a backward */
    float *heads_rstd;    /* (R, H + K) fp32, where heads have norms */
    float *lse;           /* (sequences, H, T) fp32; with pieces that of each, one after the other */
    void *attention;      /* (R, H*D) */
    void *middle;         /* (kept rows, C) residual stream between attention and MLP */
    float *mean2, *rstd2;
    void *norm2;  /* (R,C) */
    void *up;     /* (R, 2F) gate and up, or (R,F) before GELU */
    void *hidden; /* (R,F) */
};

/* Queries, keys and values of all rows, or their gradients. One matrix; with pieces two, so that the keys and values of a
 * piece lie in one run and can be sent. */
struct pd_qkv {
    char *q, *k, *v;
    uint64_t ld_q, ld_kv;
};

/* What this tensor-parallel rank computes. H, K, F, V of its own: `columns` count elements of a row. */
struct pd_share {
    struct pd_range heads, kv_needed, kv_computed, ffn, vocab;
    uint64_t q_columns, k_columns, dk_columns; /* dk: of the heads whose gradient is computed here */
    uint64_t up_columns, ffn_columns, vocab_columns;
    bool kv_is_shared; /* some tp rank adds partial sums of a key-value head to another's */
};

/* One product of a chunk's chain: a (rows, k) times b (k, columns), or b^T where b is (columns, k). k 0: none. */
struct pd_chunk_term {
    const void *a, *b;
    uint64_t lda, ldb, k;
    enum pd_fp8 a_format, b_format;  /* not NONE: codes */
    const float *a_scales, *b_scale; /* of a one a place, PD_FP8_SCALE_FLOATS apart */
};

/* out = round(tree over the chunks of all tp ranks of their chains + bias + residual). The chains are t->tp.terms, of which
 * chunk i of this rank has [i * PD_CHUNK_TERMS, (i + 1) * PD_CHUNK_TERMS). */
struct pd_chunk_sum {
    uint64_t rows, columns;
    uint64_t units;      /* what the chunks cut: tells which ranks have none */
    const float *chains; /* (chunks, rows, columns) fp32, made already; or NULL */
    bool trans_b;
    bool by_rows;         /* of all rows: residual and out are the rows that this rank keeps; false: out is whole */
    const void *bias;     /* act, or NULL */
    const void *residual; /* (rows, columns) act, or NULL */
    void *out;            /* (rows, columns) act */
    const void *brings;   /* out is whole: rows that this rank keeps, of which pd_rows_whole is made meanwhile; or NULL */
    const struct pd_beside *beside; /* (2) behind the last window's terms, and its rounded slices; or NULL */
};

struct pd_tensor_parallel {
    uint32_t chunks, first_chunk;      /* of this rank */
    struct pd_chunk_term *terms;       /* (chunks * PD_CHUNK_TERMS) */
    const float **parts;               /* (max(chunks, tp)) operands of finish */
    float *chunk_parts;                /* (chunks, window_rows, C) */
    float *subtree[2];                 /* (window_rows, C): of this rank */
    float *arrived[2];                 /* (tp, own slice of a window, C) */
    struct pd_peer_transfer sums[2];   /* row slices of subtrees to their owners */
    struct pd_peer_transfer slices[2]; /* rounded slices to everybody, and rows that were kept */
    /* key-value heads */
    uint32_t kv_owner;              /* tp rank that computes my first head; PD_NOT_HELD: this one */
    uint32_t kv_sharer_count;       /* ranks after this one that have a part of my last head: consecutive ones */
    float *dk_partial, *dv_partial; /* (R, k_columns) */
    float *kv_send, *kv_own;        /* (2, R, D): dk, dv of one head */
    float *kv_arrived;              /* (sharers, 2, R, D) */
    struct pd_peer_transfer kv;
    /* loss: (logits_rows) each, of every rank; where logits exist for some columns at a time, of one rank too */
    float *max, *sum, *target;             /* of this rank, then of all */
    float *all_max, *all_sum, *all_target; /* (tp, logits_rows) */
    struct pd_peer_transfer loss;
    /* Embedding: rows of tokens that this rank holds, those for rank 0 first; and rows that it keeps, those from rank 0
     * first. The exchange has both until its wait. */
    char *looked_up, *embedded; /* (R,C), (kept_rows, C) act */
    struct pd_peer_transfer embedding;
};

/* Where a vocabulary is shared: the tokens of a micro-batch that this rank holds, and at which row of pd_tensor_parallel's
 * `embedded` each token is whose row of the residual stream it keeps.   (R) each */
struct pd_token_order {
    int32_t *tokens, *positions, *row;
};

/* The input of a micro-batch. Where the math is a GPU's its operations read a copy on the device, and the copy reads the
 * host's pages at some time after it was asked for: the caller fills `host` between input_begin and input_filled, then
 * "the copy to the device" has it until `copied` is reached, which the next input_begin waits for. */
struct pd_input_slot {
    struct pd_micro_batch_input host, device;       /* the same memory where the math is the host's */
    struct pd_token_order host_order, device_order; /* likewise; with tensor parallelism, where the embedding is */
    uint64_t *first_row;                            /* (4, tp + 1) in looked_up, in embedded: of each rank; and counters */
    struct pd_owner owner;                          /* of host and host_order */
    struct pd_math_mark copied;
    bool is_copying;
};

#define PD_ACTIVATION_REGIONS 3

/* Saved activations in files: activation_files.c. */
struct pd_activations_away {
    struct pd_spill *spill;               /* borrowed */
    bool learns;                          /* what runs forward now goes backward later */
    uint32_t away_places;                 /* those before go to files, those of blocks from it on stay: a budget's */
    uint64_t region_bytes;                /* of the largest place that goes */
    bool regions_are_whole;               /* they have room for what is computed again, too: nobody needs `work` */
    char **turns;                         /* inputs of blocks in forward */
    uint32_t *turn_place;                 /* whose input is on its way out from there */
    char *regions[PD_ACTIVATION_REGIONS]; /* an input, then what is kept */
    uint32_t region_place[PD_ACTIVATION_REGIONS], next_region;
    bool is_back[PD_ACTIVATION_REGIONS]; /* read, or on its way in */
};

struct pd_held {
    uint32_t chunk, depth, base; /* place of slot s: base + s % depth */
    enum pd_recompute recompute; /* of this block; full where there is no backward */
};

struct pd_transformer {
    const struct pd_model *model;
    struct pd_math *math;
    struct pd_transformer_options options;
    struct pd_partition partition;
    struct pd_share share;
    struct pd_tensor_parallel tp;
    struct pd_shared_rows shared;
    struct pd_sequence_parallel sp;
    struct pd_fp8_linears fp8;
    struct pd_head_norms head_norms;
    const struct pd_family *family;
    bool has_embedding, has_head, has_blocks;
    uint64_t rows, element_bytes, logits_rows, ld_logits;
    uint32_t input_count, place_count;
    struct pd_activations_away away;
    struct pd_input_slot *inputs;        /* (input_count) */
    float *cos_sin;                      /* (T, D/2, 2); RoPE alone */
    struct pd_held *held;                /* (layers + 1), the last is the head */
    void **stream;                       /* (places) of (kept rows, C): inputs of blocks and of the head */
    struct pd_block_activations *blocks; /* (places): what is not kept aliases `work` */
    struct pd_block_activations work;    /* of what is computed again */
    float *head_mean, *head_rstd;
    void *head_norm; /* (R,C) */
    float *logits;   /* (logits_rows, V or the columns that exist at once), rows ld_logits apart */
    /* Where these are some: of this rank's chunks, the maximum, the sum relative to it, and the chain of dnorm. */
    float *head_chunk_max, *head_chunk_sum; /* (chunks, logits_rows) */
    float *head_terms;                      /* (chunks, logits_rows, C) */
    float *losses;                          /* (R) */
    /* backward */
    void *dstream; /* (R,C) of the backward being run, the caller's */
    void *dnorm;   /* (R,C) */
    void *dup, *dhidden, *dqkv, *dattention;
    float *delta;  /* as lse */
    bool adds;     /* gradients of parameters go to those that are there */
    float *vector; /* (2,C), or a bias: a micro-batch's gradient of vectors */
    float *matrix; /* (V,C) of the head, a micro-batch's, where runs of logits are added up before it is added; or NULL */
};

/* Norms have a mean and a bias. */
static inline bool pd_norm_is_layer(const struct pd_transformer *t)
{
    return t->family->norm == PD_NORM_LAYER;
}

/* ---- transformer.c ---- */
struct pd_micro_batch_input *pd_transformer_device_input(struct pd_transformer *t, uint32_t slot);
/* The backward from now on reads the gradient of the residual stream from dstream and writes it there. */
void pd_transformer_set_dstream(struct pd_transformer *t, void *dstream);

/* ---- storage.c ---- */
bool pd_activations_are_away(const struct pd_transformer *t);
uint32_t pd_transformer_place(const struct pd_transformer *t, uint32_t slot, uint32_t block);
PD_MUST_USE pd_status pd_transformer_take(struct pd_transformer *t, struct pd_arena *arena, struct pd_error *err);

/* What a block keeps, at `base`, and behind it what is computed again where regions are whole; returns the bytes of what is
 * kept. base NULL: only counts. */
uint64_t pd_activations_carve(const struct pd_transformer *t, uint32_t block, struct pd_block_activations *a, char *base);

/* ---- activation_files.c: nothing happens where activations stay in memory ---- */
PD_MUST_USE pd_status pd_activations_new(struct pd_transformer *t, struct pd_error *err);
void pd_activations_free(struct pd_transformer *t);
void pd_activations_take(struct pd_transformer *t, struct pd_arena *arena);
/* Where the input of a block, or of the head, is to be written. */
PD_MUST_USE pd_status pd_activations_input(struct pd_transformer *t, uint32_t slot, uint32_t block, void **ret_stream,
                                           struct pd_error *err);
/* Around the forward of a block. */
PD_MUST_USE pd_status pd_activations_open(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err);
PD_MUST_USE pd_status pd_activations_close(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err);
/* Before its backward: input and what was kept are in memory until two others were brought or prefetched. */
PD_MUST_USE pd_status pd_activations_ensure(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err);

/* ---- norm.c ---- */
struct pd_norm pd_norm_of(const struct pd_transformer *t, const void *x, const void *weight, const void *bias, float *mean,
                          float *rstd, void *out);
/* dstream = gradient through the norm of dnorm + dresidual, where there is one; sums over tokens piece by piece. */
PD_MUST_USE pd_status pd_norm_gradient(struct pd_transformer *t, const struct pd_norm *n, const void *dresidual,
                                       float *dweight, float *dbias, struct pd_error *err);

/* ---- block_attention.c ---- */
PD_MUST_USE pd_status pd_block_attention_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                                 struct pd_block_activations *a, struct pd_error *err);
/* From dattention to dqkv, before RoPE; of families whose heads have norms, behind it. */
PD_MUST_USE pd_status pd_block_attention_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                                  struct pd_block_activations *a, struct pd_error *err);

/* ---- tensor_parallel.c ---- */
struct pd_qkv pd_qkv_of(const struct pd_transformer *t, void *base, uint64_t k_columns);
struct pd_attention pd_attention_of(const struct pd_transformer *t);
/* RoPE is of attention's and not of its heads' norms'. */
bool pd_attention_rotates(const struct pd_transformer *t);
/* Terms of chunk i of this rank, none of which is any yet. */
struct pd_chunk_term *pd_chunk_terms(struct pd_transformer *t, uint32_t i);
PD_MUST_USE pd_status pd_chunk_sum_run(struct pd_transformer *t, const struct pd_chunk_sum *sum, struct pd_error *err);
/* Columns [begin, end) of chunk i of this rank, counted from the rank's first, for `units` units of `unit` elements. */
struct pd_range pd_chunk_columns(const struct pd_transformer *t, uint64_t units, uint64_t unit, uint32_t i);
/* dk_partial and dv_partial of all ranks become dk, dv of the heads computed here. */
PD_MUST_USE pd_status pd_kv_combine(struct pd_transformer *t, const struct pd_qkv *d, struct pd_error *err);
/* Units that a tp rank has of so many. */
struct pd_range pd_tp_units(const struct pd_transformer *t, uint32_t rank, uint64_t units);
bool pd_tp_has_units(const struct pd_transformer *t, uint32_t rank, uint64_t units);

/* ---- vocabulary_parallel.c ---- */
/* Max, then sum and target logit, of the whole vocabulary from those of every rank's columns. */
PD_MUST_USE pd_status pd_loss_max(struct pd_transformer *t, uint64_t rows, struct pd_error *err);
PD_MUST_USE pd_status pd_loss_sum(struct pd_transformer *t, uint64_t rows, const int32_t *targets, struct pd_error *err);
PD_MUST_USE pd_status pd_logits_fetch(struct pd_transformer *t, float *logits, struct pd_error *err);
/* Makes the slot's order of tokens from its input. */
void pd_embedding_order(struct pd_transformer *t, uint32_t slot);
/* `whole` from the ranks that hold its tokens, by the slot's order. */
PD_MUST_USE pd_status pd_embedding_gather(struct pd_transformer *t, uint32_t slot, const struct pd_embedding *whole,
                                          struct pd_error *err);

/* ---- sequence_parallel.c ---- */
/* What a product adds to its result, the gradient of a matrix (rows ld apart). */
struct pd_matrix pd_gradient_so_far(const struct pd_transformer *t, float *gradient, uint64_t ld);
PD_MUST_USE pd_status pd_parts_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                       struct pd_block_activations *a, struct pd_error *err);
PD_MUST_USE pd_status pd_parts_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                        struct pd_block_activations *a, const struct pd_attention *gradient,
                                        struct pd_error *err);
