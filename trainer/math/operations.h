/* Operands of the operations; letters and arithmetic are in trainer/math/math.h. All pointers are borrowed device memory. */
#pragma once

#include "ckpt/tensor/tensor.h"
#include "trainer/math/expert_operations.h"
#include "trainer/math/terms.h"
#include <stdbool.h>

/* to = from, for each piece, none of which overlaps another's `to`. */
struct pd_copy {
    void *to;
    const void *from;
    uint64_t bytes;
};
#define PD_COPIES_MAX 64u
struct pd_copies {
    uint32_t count;
    struct pd_copy pieces[PD_COPIES_MAX];
};

/* 8-bit formats (Micikevicius et al. 2022): trainer/math/fp8.h. */
enum pd_fp8 { PD_FP8_NONE, PD_FP8_E4M3, PD_FP8_E5M2 };

struct pd_matrix {
    void *data; /* row-major */
    enum pd_dtype dtype;
    uint64_t ld; /* elements between rows */
};

/* codes * *scale = x, rounded to the nearest code, ties to even. The scale is the power of two that puts the largest element
 * as high in the format as possible (fp8.h). Writes the codes, their transpose, or both. */
struct pd_quantize {
    uint64_t rows, columns;
    struct pd_matrix x; /* (rows, columns) */
    enum pd_fp8 format;
    uint8_t *codes;      /* (rows, columns), or NULL */
    uint8_t *transposed; /* (columns, rows), or NULL */
    uint64_t ld_codes, ld_transposed;
    uint64_t transposed_rows; /* of x, with zeros after its last, at most to a multiple of 16; 0: rows */
    float *scale;             /* (PD_FP8_SCALE_FLOATS): the scale, then scratch of the operation */
};
#define PD_FP8_SCALE_FLOATS 4u

/* The side of a product that data decides, such as rows of an expert: a GPU chooses the algorithm for the next power of two,
 * at least 16. Of codes with VARIES_K, rows are so far apart. */
enum pd_varying { PD_VARIES_NOT, PD_VARIES_M, PD_VARIES_K };

/* C (m,n) = op(A) (m,k) * op(B) (k,n) [+ old C] [+ bias (n)] [+ residual (m,n)] */
struct pd_gemm {
    uint64_t m, n, k;
    struct pd_matrix a, b, c; /* A is (m,k), or (k,m) if trans_a; B is (k,n), or (n,k) if trans_b */
    bool trans_a, trans_b;
    enum pd_varying varies;
    bool accumulate;  /* starts the chain from C, which is fp32 */
    const void *bias; /* (n) of bias_dtype, or NULL */
    enum pd_dtype bias_dtype;
    struct pd_matrix residual; /* data NULL: none. May be C, but then the chain does not start from C */
    /* Other than NONE: `data` are codes, multiplied by *scale (pd_quantize's, device memory), and dtype is ignored. A and B
     * are both codes or neither; one of them is E4M3. A is not transposed and B is, so k is contiguous in both. */
    enum pd_fp8 a_format, b_format;
    const float *a_scale, *b_scale;
};

/* Rows are contiguous, or are the heads of tokens (RMS norm only): row r is head r % heads of token r / heads. Tokens of x
 * and out in forward, and of dout and dx in backward, are ld apart; `kept` and rstd have kept_heads heads per token. Forward
 * may then overwrite x (out = x) and saves the original; backward reads it as x. With positions, heads are also rotated as
 * by pd_rope: after the norm in forward, and back, before the norm, in backward. The intermediate result is rounded as if it
 * were stored. */
struct pd_norm {
    uint64_t rows, columns;
    uint32_t heads, kept_heads; /* 0: rows are contiguous */
    uint64_t ld;                /* elements */
    void *kept;                 /* heads: copy of the original x, for backward; or NULL */
    const int32_t *positions;   /* heads: (tokens), or NULL */
    const float *cos_sin;       /* (positions, C/2, 2); C: of `rotated` */
    uint32_t rotated;           /* first elements of a head that are rotated; 0: all. In backward dout is then dx */
    const void *other_weight;   /* heads, forward: (C) for heads from other_first on; NULL: all use `weight` */
    uint32_t other_first;
    enum pd_dtype dtype; /* act: x, out, dout, dx, residual, weight and bias */
    float epsilon;
    const void *x;      /* (R,C); heads, in backward: kept */
    const void *weight; /* (C) */
    const void *bias;   /* (C), layer norm; NULL for RMS norm */
    float *mean;        /* (R), layer norm; NULL for RMS norm */
    float *rstd;        /* (R) */
    void *out;          /* (R,C) forward */
    /* backward */
    const void *dout;       /* (R,C) */
    const void *dresidual;  /* (R,C) added to dx before its rounding, or NULL; may be dx */
    void *dx;               /* (R,C) */
    float *dweight, *dbias; /* (C) overwritten; dbias NULL for RMS norm */
};

/* Rotates pairs (x[i], x[i + D/2]) of each head (Su et al. 2021, Hugging Face layout), in place or from another buffer,
 * which must not overlap. */
struct pd_rope {
    uint64_t rows;
    uint32_t heads, head_size;
    enum pd_dtype dtype;
    void *x; /* (R, heads*D), ld between rows */
    uint64_t ld;
    const int32_t *positions; /* (R) */
    const float *cos_sin;     /* (positions, D/2, 2); D: of `rotated` */
    bool inverse;             /* for backward: rotates the other way */
    const void *from;         /* (R, heads*D), ld_from between rows: source of the rotation; NULL: x itself */
    uint64_t ld_from;
    uint32_t rotated; /* first elements of a head that are rotated, in place; 0: all */
};

/* Causal grouped-query attention; never stores T x T (Dao et al. 2022). Query t sees keys first[t] .. t of its sequence.
 *
 * A key-value head's gradient is a tree over query heads inside each chunk of head_chunk, then the tree over chunks.
 *
 * Whole sequences: acc NULL; keys are the queries' own rows. Parts (sequence parallel): queries are positions [query_start,
 * query_start + length), keys [key_start, key_start + key_length) of the same sequences, and the caller keeps the running
 * values between calls. forward and backward_queries go over key parts in ascending order for one query part; backward_keys
 * over query parts in ascending order for one key part. Bits depend on where parts begin and end, but not on which rank runs
 * them. Do not pass key parts that begin after the call's last query: they add nothing. */
struct pd_attention {
    uint32_t sequences, length; /* R = sequences * length query rows */
    uint32_t heads, kv_heads, head_size;
    uint32_t group;        /* query heads per key-value head; 0: heads / kv_heads */
    uint32_t group_offset; /* query heads of key-value head 0 that are on earlier ranks */
    uint32_t head_chunk;   /* 0: all in one chunk */
    enum pd_dtype dtype;
    float scale;            /* 1/sqrt(D) */
    const void *q, *k, *v;  /* (R, H*D); (keys, K*D) each */
    uint64_t ld_qkv, ld_kv; /* elements between rows of q; of k and v (0: ld_qkv) */
    const int32_t *first;   /* (R) first visible key position in the sequence, ascending; NULL: 0 */
    void *out;              /* (R, H*D) dense */
    float *lse;             /* (sequences, H, length) log of the sum of exponentials of scaled scores */
    /* parts */
    uint32_t query_start, key_start, key_length;
    bool first_part, last_part;
    float *acc, *max, *sum; /* forward: (R, H*D), (R, H), (R, H) */
    float *dq_acc;          /* backward_queries: (R, H*D) */
    float *dk_acc, *dv_acc; /* backward_keys: (keys, H*D) each, one chain per query head */
    /* backward */
    const void *dout;       /* (R, H*D) */
    float *delta;           /* (sequences, H, length): scratch for whole sequences; for parts, from attention_delta */
    void *dq, *dk, *dv;     /* rows ld_dq, and ld_dkv, apart; parts write them only if last_part */
    uint64_t ld_dq, ld_dkv; /* 0: ld_qkv, ld_kv */
    bool kv_partial;        /* dk, dv are fp32 sums of this rank's query heads, neither scaled nor rounded */
};

/* Fills in every default. parts false: a whole sequence, which is its own first and last part. */
struct pd_attention pd_attention_resolve(const struct pd_attention *attention, bool parts);

/* A point in the order of operations (pd_math_mark). Zero: already reached. */
struct pd_math_mark {
    void *event; /* on a GPU; its table frees it */
};

/* out = round(scale * tree of parts + bias + residual): combines partial sums of chunks or ranks. */
struct pd_finish {
    uint64_t rows, columns;
    uint32_t part_count;       /* places of the tree, a power of two */
    const float *const *parts; /* (rows, columns) each; NULL: absent */
    uint64_t ld_parts;         /* elements between rows of every part; 0: columns */
    float scale;               /* 1: not multiplied */
    const void *bias;          /* (columns) of bias_dtype, or NULL */
    enum pd_dtype bias_dtype;
    struct pd_matrix residual; /* data NULL: none */
    struct pd_matrix out;      /* fp32 or act; may be one of the parts if fp32 */
};

/* Loss and its gradient for rows of logits. With a cut vocabulary a rank holds columns [first_column, first_column + vocab)
 * and runs three operations with exchanges between them: logits_max, logits_sum, then cross_entropy with given max and sum.
 * If only some columns of logits exist at a time, logits_part replaces the first two: it carries the maximum and the sum
 * relative to it from one part of the columns to the next, and logits_rescale converts a sum to a larger maximum. */
struct pd_cross_entropy {
    uint64_t rows, vocab, ld;   /* logits (rows, vocab), ld apart */
    uint64_t first_column;      /* token of column 0 */
    uint64_t chunk;             /* columns per chunk; 0: ceil(vocab / chunks) */
    uint32_t chunks;            /* places of the tree over chunks, a power of two: virtual_tp, or a rank's share */
    void *logits;               /* of logits_dtype */
    enum pd_dtype logits_dtype; /* PD_F32 or dtype */
    const int32_t *targets;     /* (rows) tokens; negative: ignored, with loss and gradient 0 */
    float *losses;              /* (rows) -log p[target] */
    void *dlogits; /* (rows, vocab) act, ld_dlogits apart: (p - onehot) * scale; may overlay logits row by row; or NULL */
    uint64_t ld_dlogits;
    enum pd_dtype dtype;
    float scale;
    /* for the whole vocabulary, (rows) each; max NULL: these are all columns */
    float *max, *sum;    /* logits_max writes max; logits_sum reads it and writes sum, the tree over these chunks */
    float *target_logit; /* logits_sum and logits_part write it if the target is in these columns */
    bool goes_on;        /* logits_part: continues from max and sum of earlier columns */
};

/* Combines the results of ranks with a cut vocabulary: maxima after logits_max, target logits after logits_sum (sums use
 * pd_finish). The array of rank r begins r * ld floats after the first. */
struct pd_logits_join {
    uint64_t rows, ld;
    uint32_t ranks; /* that have columns: the first ranks */
    const float *all_max;
    float *max; /* (rows); NULL: no maxima */
    const float *all_targets;
    float *target_logit;    /* (rows), written for rows with a target; NULL: none */
    const int32_t *targets; /* (rows) */
    uint64_t rank_columns;  /* columns per rank, except the last */
};

struct pd_embedding {
    uint64_t rows, columns, vocab; /* vocab: rows of token_table */
    enum pd_dtype dtype;
    int32_t first_token;               /* of row 0; rows of tokens outside the table are not written and get no gradient */
    const int32_t *tokens, *positions; /* (R) */
    const void *token_table;           /* (V,C) */
    const void *position_table;        /* (context, C) or NULL */
    uint64_t context;
    void *out;              /* (R,C) forward */
    const void *dout;       /* (R,C) backward */
    float *dtoken_table;    /* (V,C) overwritten with chains over rows, ascending; NULL: skip */
    float *dposition_table; /* (context,C) overwritten, likewise; NULL: none */
    bool adds;              /* backward adds to the tables; rows without tokens stay unchanged */
};
