/* State and functions shared by the files of the transformer, one section per file. */
#pragma once

#include "ckpt/base/owner.h"
#include "offload/spill.h"
#include "resharder/catalog/family.h"
#include "trainer/model/experts.h"
#include "trainer/model/head_norms.h"
#include "trainer/model/linear_fp8.h"
#include "trainer/model/rows.h"
#include "trainer/model/sequence_parallel.h"
#include "trainer/model/transfers.h"
#include "trainer/model/transformer.h"

#define PD_NOT_HELD UINT32_MAX
#define PD_CHUNK_TERMS 5 /* q, k, v; in fp8 heads of k and v may come in two parts */

/* Activations that a block's backward reads again; act dtype unless noted. */
struct pd_block_activations {
    float *mean1, *rstd1; /* (R) fp32; means only for layer norm */
    void *norm1;          /* (R,C); if ranks share rows, both norms use pd_shared_rows' */
    void *qkv;            /* (R, H*D + 2*K*D) after RoPE; see struct pd_qkv */
    void *heads;          /* (R, H + K, D) q and k before their norms, if heads have norms and there is a backward */
    float *heads_rstd;    /* (R, H + K) fp32, if heads have norms */
    float *lse;           /* (sequences, H, T) fp32; with pieces, one piece after the other */
    void *attention;      /* (R, H*D) */
    void *middle;         /* (kept rows, C) residual stream between attention and MLP */
    float *mean2, *rstd2;
    void *norm2;                          /* (R,C) */
    void *up;                             /* (R, 2F) gate and up, or (R,F) before GELU */
    void *hidden;                         /* (R,F) */
    struct pd_expert_activations experts; /* instead of the last two */
};

/* Queries, keys and values of all rows, or their gradients. One matrix; with pieces two, so that keys and values of a piece
 * are contiguous and can be sent. */
struct pd_qkv {
    char *q, *k, *v;
    uint64_t ld_q, ld_kv;
};

/* What this tensor-parallel rank computes: its own H, K, F, V. `columns` count elements of a row. */
struct pd_share {
    struct pd_range heads, kv_needed, kv_computed, ffn, vocab;
    uint64_t q_columns, k_columns, dk_columns; /* dk: of heads whose gradient this rank computes */
    uint64_t up_columns, ffn_columns, vocab_columns;
    uint64_t expert_columns, shared_columns; /* of an expert, of the shared experts */
    bool kv_is_shared;                       /* some tp rank adds partial sums of a key-value head to another rank's */
};

/* One product of a chunk's chain: a (rows, k) times b (k, columns), or b^T with b (columns, k). k = 0: unused. */
struct pd_chunk_term {
    const void *a, *b;
    uint64_t lda, ldb, k;
    enum pd_fp8 a_format, b_format;  /* other than NONE: codes */
    const float *a_scales, *b_scale; /* a_scales: one per place, PD_FP8_SCALE_FLOATS apart */
};

/* out = round(tree over the chunks of all tp ranks of their chains + bias + residual). The chains are in t->tp.terms; chunk
 * i of this rank has [i * PD_CHUNK_TERMS, (i + 1) * PD_CHUNK_TERMS). */
struct pd_chunk_sum {
    uint64_t rows, columns;
    uint64_t units;      /* number cut into chunks: shows which ranks have none */
    const float *chains; /* (chunks, rows, columns) fp32, precomputed; or NULL */
    bool trans_b;
    bool is_wide;         /* out is fp32 */
    bool by_rows;         /* residual and out have only the rows this rank keeps; false: out is whole */
    const void *bias;     /* act, or NULL */
    const void *residual; /* (rows, columns) act, or NULL */
    void *out;            /* (rows, columns) act */
    const void *brings;   /* if out is whole: rows this rank keeps, gathered for pd_rows_whole meanwhile; or NULL */
    const struct pd_beside *beside; /* (2) run after the last window's terms, and after its rounded slices; or NULL */
};

struct pd_tensor_parallel {
    uint32_t chunks, first_chunk;      /* of this rank */
    struct pd_chunk_term *terms;       /* (chunks * PD_CHUNK_TERMS) */
    const float **parts;               /* (max(chunks, tp)) inputs of finish */
    float *chunk_parts;                /* (chunks, window_rows, C) */
    float *subtree[2];                 /* (window_rows, C), of this rank */
    float *arrived[2];                 /* (tp, own slice of a window, C) */
    struct pd_peer_transfer sums[2];   /* sends row slices of subtrees to their owners */
    struct pd_peer_transfer slices[2]; /* sends rounded slices to all ranks, and kept rows */
    /* key-value heads */
    uint32_t kv_owner;              /* tp rank that computes my first head; PD_NOT_HELD: this one */
    uint32_t kv_sharer_count;       /* ranks after this one that have a part of my last head; consecutive */
    float *dk_partial, *dv_partial; /* (R, k_columns) */
    float *kv_send, *kv_own;        /* (2, R, D): dk, dv of one head */
    float *kv_arrived;              /* (sharers, 2, R, D) */
    struct pd_peer_transfer kv;
    /* loss: (logits_rows) each, of every rank; also used on one rank if logits are held some columns at a time */
    float *max, *sum, *target;             /* of this rank, then of all */
    float *all_max, *all_sum, *all_target; /* (tp, logits_rows) */
    struct pd_peer_transfer loss;
    /* Embedding: rows of tokens this rank holds, by destination rank; and rows it keeps, by source rank. The exchange owns
     * both until its wait. */
    char *looked_up, *embedded; /* (R,C), (kept_rows, C) act */
    struct pd_peer_transfer embedding;
};

/* For a shared vocabulary: the tokens of a micro-batch that this rank holds; and, for each token whose residual row it
 * keeps, its row in pd_tensor_parallel's `embedded`. (R) each */
struct pd_token_order {
    int32_t *tokens, *positions, *row;
};

/* The input of a micro-batch. On a GPU, operations read a copy on the device, made asynchronously. The caller fills `host`
 * between input_begin and input_filled. Then "the copy to the device" owns it until `copied`; the next input_begin waits for
 * that. */
struct pd_input_slot {
    struct pd_micro_batch_input host, device;       /* the same memory if math runs on the host */
    struct pd_token_order host_order, device_order; /* likewise; for tensor parallelism with the embedding */
    uint64_t *first_row;   /* (4, tp + 1) start of each rank in looked_up, in embedded; and counters */
    struct pd_owner owner; /* of host and host_order */
    struct pd_math_mark copied;
    bool is_copying;
};

#define PD_ACTIVATION_REGIONS 3

/* Saved activations that go to files (activation_files.c). */
struct pd_activations_away {
    struct pd_spill *spill;               /* borrowed */
    bool learns;                          /* the current forward will have a backward */
    uint32_t away_places;                 /* places before this go to files; later ones stay, within the budget */
    uint64_t region_bytes;                /* of the largest place that goes to files */
    bool regions_are_whole;               /* they also hold what is recomputed, so `work` is unused */
    char **turns;                         /* inputs of blocks in forward, in turn */
    uint32_t *turn_place;                 /* place whose input is being written from each turn */
    char *regions[PD_ACTIVATION_REGIONS]; /* an input, then the saved activations */
    uint32_t region_place[PD_ACTIVATION_REGIONS], next_region;
    bool is_back[PD_ACTIVATION_REGIONS]; /* read, or being read */
};

struct pd_held {
    uint32_t chunk, depth, base; /* slot s has place base + s % depth */
    enum pd_recompute recompute; /* of this block; full if there is no backward */
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
    struct pd_expert_work experts;
    struct pd_expert_counts expert_counts;
    float scale; /* of gradients: pd_transformer_begin */
    bool rehearses;
    const struct pd_family *family;
    bool has_embedding, has_head, has_blocks;
    uint64_t rows, element_bytes, logits_rows, ld_logits;
    uint32_t input_count, place_count;
    struct pd_activations_away away;
    struct pd_input_slot *inputs;        /* (input_count) */
    float *cos_sin;                      /* (T, D/2, 2); only for RoPE */
    struct pd_held *held;                /* (layers + 1), the last is the head */
    void **stream;                       /* (places) of (kept rows, C): inputs of blocks and of the head */
    struct pd_block_activations *blocks; /* (places): what is not kept is in `work` */
    struct pd_block_activations work;    /* for recomputed activations */
    float *head_mean, *head_rstd;
    void *head_norm; /* (R,C) */
    void *logits;    /* (logits_rows, V or the columns held at once) logits_dtype, rows ld_logits apart */
    /* If only some columns are held. Per chunk of this rank: the maximum, the sum relative to it, and the chain of dnorm. */
    float *head_chunk_max, *head_chunk_sum; /* (chunks, logits_rows) */
    float *head_terms;                      /* (chunks, logits_rows, C) */
    float *losses;                          /* (R) */
    /* backward */
    void *dstream; /* (R,C) of the running backward, the caller's */
    void *dnorm;   /* (R,C) */
    void *dup, *dhidden, *dqkv, *dattention;
    float *delta;  /* same shape as lse */
    bool adds;     /* parameter gradients are added to the destination */
    float *vector; /* (2,C), or a bias: gradient of vectors, one micro-batch */
    float *matrix; /* (V,C) head gradient of one micro-batch, where runs of logits are summed before it is added; or NULL */
};

/* Whether norms have a mean and a bias. */
static inline bool pd_norm_is_layer(const struct pd_transformer *t)
{
    return t->family->norm == PD_NORM_LAYER;
}

/* ---- transformer.c ---- */
struct pd_micro_batch_input *pd_transformer_device_input(struct pd_transformer *t, uint32_t slot);
/* From now on backward reads and writes the residual stream's gradient at dstream. */
void pd_transformer_set_dstream(struct pd_transformer *t, void *dstream);

/* ---- storage.c ---- */
bool pd_activations_are_away(const struct pd_transformer *t);
uint32_t pd_transformer_place(const struct pd_transformer *t, uint32_t slot, uint32_t block);
PD_MUST_USE pd_status pd_transformer_take(struct pd_transformer *t, struct pd_arena *arena, struct pd_error *err);

/* Lays out a block's saved activations at `base`, then recomputed ones if regions are whole. Returns bytes of the saved
 * ones. base NULL: only counts. */
uint64_t pd_activations_carve(const struct pd_transformer *t, uint32_t block, struct pd_block_activations *a, char *base);

/* ---- activation_files.c: no effect if activations stay in memory ---- */
PD_MUST_USE pd_status pd_activations_new(struct pd_transformer *t, struct pd_error *err);
void pd_activations_free(struct pd_transformer *t);
void pd_activations_take(struct pd_transformer *t, struct pd_arena *arena);
/* Where to write the input of a block or of the head. */
PD_MUST_USE pd_status pd_activations_input(struct pd_transformer *t, uint32_t slot, uint32_t block, void **ret_stream,
                                           struct pd_error *err);
/* Call before and after a block's forward. */
PD_MUST_USE pd_status pd_activations_open(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err);
PD_MUST_USE pd_status pd_activations_close(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err);
/* Call before a block's backward. Input and saved activations stay in memory until two others are loaded. */
PD_MUST_USE pd_status pd_activations_ensure(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err);

/* ---- norm.c ---- */
struct pd_norm pd_norm_of(const struct pd_transformer *t, const void *x, const void *weight, const void *bias, float *mean,
                          float *rstd, void *out);
/* dstream = gradient through the norm of dnorm, + dresidual if given. Sums over tokens go piece by piece. */
PD_MUST_USE pd_status pd_norm_gradient(struct pd_transformer *t, const struct pd_norm *n, const void *dresidual,
                                       float *dweight, float *dbias, struct pd_error *err);

/* ---- block_attention.c ---- */
PD_MUST_USE pd_status pd_block_attention_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                                 struct pd_block_activations *a, struct pd_error *err);
/* From dattention to dqkv, before RoPE; after RoPE if heads have norms. */
PD_MUST_USE pd_status pd_block_attention_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                                  struct pd_block_activations *a, struct pd_error *err);

/* ---- tensor_parallel.c ---- */
struct pd_qkv pd_qkv_of(const struct pd_transformer *t, void *base, uint64_t k_columns);
struct pd_attention pd_attention_of(const struct pd_transformer *t);
/* Whether each head of q and k has a norm, which also rotates it; whether all heads together have one, which does not. */
bool pd_has_head_norms(const struct pd_transformer *t);
bool pd_has_wide_norms(const struct pd_transformer *t);
/* Whether attention applies RoPE, rather than the norms of its heads. */
bool pd_attention_rotates(const struct pd_transformer *t);
/* Terms of chunk i of this rank, all reset to unused. */
struct pd_chunk_term *pd_chunk_terms(struct pd_transformer *t, uint32_t i);
PD_MUST_USE pd_status pd_chunk_sum_run(struct pd_transformer *t, const struct pd_chunk_sum *sum, struct pd_error *err);
/* Columns [begin, end) of chunk i of this rank, counted from the rank's first, for `units` units of `unit` elements. */
struct pd_range pd_chunk_columns(const struct pd_transformer *t, uint64_t units, uint64_t unit, uint32_t i);
/* Combines dk_partial and dv_partial of all ranks into dk, dv of the heads computed here. */
PD_MUST_USE pd_status pd_kv_combine(struct pd_transformer *t, const struct pd_qkv *d, struct pd_error *err);
/* The units of `units` that a tp rank has. */
struct pd_range pd_tp_units(const struct pd_transformer *t, uint32_t rank, uint64_t units);
bool pd_tp_has_units(const struct pd_transformer *t, uint32_t rank, uint64_t units);

/* ---- vocabulary_parallel.c ---- */
/* Maximum; then sum and target logit. Combine every rank's columns into values for the whole vocabulary. */
PD_MUST_USE pd_status pd_loss_max(struct pd_transformer *t, uint64_t rows, struct pd_error *err);
PD_MUST_USE pd_status pd_loss_sum(struct pd_transformer *t, uint64_t rows, const int32_t *targets, struct pd_error *err);
PD_MUST_USE pd_status pd_logits_fetch(struct pd_transformer *t, float *logits, struct pd_error *err);
/* Builds the slot's token order from its input. */
void pd_embedding_order(struct pd_transformer *t, uint32_t slot);
/* Gathers `whole` from the ranks that hold its tokens, in the slot's order. */
PD_MUST_USE pd_status pd_embedding_gather(struct pd_transformer *t, uint32_t slot, const struct pd_embedding *whole,
                                          struct pd_error *err);
