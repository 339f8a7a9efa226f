/* Operands of the operations of trainer/math/math.h, whose words and rules of arithmetic hold here. All pointers are
 * borrowed device memory. */
#pragma once

#include "ckpt/tensor/tensor.h"
#include "trainer/math/terms.h"
#include <stdbool.h>

/* Formats of eight bits (Micikevicius et al. 2022): trainer/math/fp8.h. */
enum pd_fp8 { PD_FP8_NONE, PD_FP8_E4M3, PD_FP8_E5M2 };

struct pd_matrix {
    void *data; /* row-major */
    enum pd_dtype dtype;
    uint64_t ld; /* elements from row to row */
};

/* codes * *scale = x, rounded to the nearest code, to even. The scale is the power of two that puts the largest element as
 * high in the format as it goes (fp8.h). Of the codes, of their transposed, or of both. */
struct pd_quantize {
    uint64_t rows, columns;
    struct pd_matrix x; /* (rows, columns) */
    enum pd_fp8 format;
    uint8_t *codes;      /* (rows, columns), or NULL */
    uint8_t *transposed; /* (columns, rows), or NULL */
    uint64_t ld_codes, ld_transposed;
    float *scale; /* (PD_FP8_SCALE_FLOATS): the scale, then what the operation needs itself */
};
#define PD_FP8_SCALE_FLOATS 4u

/* C (m,n) = op(A) (m,k) * op(B) (k,n) [+ old C] [+ bias (n)] [+ residual (m,n)] */
struct pd_gemm {
    uint64_t m, n, k;
    struct pd_matrix a, b, c; /* A is (m,k), or (k,m) when trans_a; B is (k,n), or (n,k) when trans_b */
    bool trans_a, trans_b;
    bool accumulate;  /* the chain starts from C, which is fp32 */
    const void *bias; /* (n) of bias_dtype, or NULL */
    enum pd_dtype bias_dtype;
    struct pd_matrix residual; /* data NULL: none. It may be C, and then the chain does not start from it */
    /* Not NONE: `data` are codes, to be multiplied by *scale (pd_quantize's, device memory), whatever dtype says. A and B are
     * both codes or neither, one of them E4M3; A is not transposed and B is, so that k lies contiguous in both. */
    enum pd_fp8 a_format, b_format;
    const float *a_scale, *b_scale;
};

/* Rows lie one behind the other, or are the heads of tokens (RMS norm alone): row r is head r % heads of token r / heads. Of
 * x and out in forward, of dout and dx in backward, tokens lie ld apart; of `kept` and rstd they have kept_heads heads each.
 * Forward may then write over x (out = x) and keeps what was there; backward reads it as x. With positions heads are rotated
 * as by pd_rope: behind the norm in forward, and back, in front of it, in backward. What lies between the two is rounded as if
 * it were written. */
struct pd_norm {
    uint64_t rows, columns;
    uint32_t heads, kept_heads; /* 0: rows lie one behind the other */
    uint64_t ld;                /* elements */
    void *kept;                 /* heads: x as it was, for backward; or NULL */
    const int32_t *positions;   /* heads: (tokens), or NULL */
    const float *cos_sin;       /* (positions, C/2, 2) */
    const void *other_weight;   /* heads, forward: (C) of those from other_first on; NULL: they have `weight`, too */
    uint32_t other_first;
    enum pd_dtype dtype; /* act: x, out, dout, dx, residual; weight and bias too */
    float epsilon;
    const void *x;      /* (R,C); of heads, in backward: kept */
    const void *weight; /* (C) */
    const void *bias;   /* (C), layer norm; NULL for RMS norm */
    float *mean;        /* (R), layer norm; NULL for RMS norm */
    float *rstd;        /* (R) */
    void *out;          /* (R,C) forward */
    /* backward */
    const void *dout;       /* (R,C) */
    const void *dresidual;  /* (R,C) added to dx before its rounding, or NULL; may be dx itself */
    void *dx;               /* (R,C) */
    float *dweight, *dbias; /* (C) overwritten; dbias NULL for RMS norm */
};

/* Rotates pairs (x[i], x[i + D/2]) of each head (Su et al. 2021, the Hugging Face arrangement), in place or on the way from
 * elsewhere, which it does not overlap. */
struct pd_rope {
    uint64_t rows;
    uint32_t heads, head_size;
    enum pd_dtype dtype;
    void *x; /* (R, heads*D), ld between rows */
    uint64_t ld;
    const int32_t *positions; /* (R) */
    const float *cos_sin;     /* (positions, D/2, 2) */
    bool inverse;             /* backward: rotates the other way */
    const void *from;         /* (R, heads*D), ld_from between rows: what is rotated into x; NULL: x itself */
    uint64_t ld_from;
};

/* Causal grouped-query attention; never holds T x T (Dao et al. 2022). Query t sees keys first[t] .. t of its sequence.
 *
 * A key-value head's gradient is a tree over query heads inside each chunk of head_chunk, then the tree over chunks.
 *
 * Whole sequences: acc NULL; keys are the queries' own rows. Parts (sequence parallel): queries are positions
 * [query_start, query_start + length), keys [key_start, key_start + key_length) of the same sequences, and what is carried
 * from call to call is the caller's: forward runs over key parts in ascending order for one query part; backward_queries the
 * same; backward_keys over query parts in ascending order for one key part. Bits depend on where parts begin and end, and
 * not on who runs them. Key parts that begin after the last query of the call add nothing and are not to be given. */
struct pd_attention {
    uint32_t sequences, length; /* R = sequences * length query rows */
    uint32_t heads, kv_heads, head_size;
    uint32_t group;        /* query heads a key-value head; 0: heads / kv_heads */
    uint32_t group_offset; /* query heads of key-value head 0 that lie on a rank before this one */
    uint32_t head_chunk;   /* 0: all in one chunk */
    enum pd_dtype dtype;
    float scale;            /* 1/sqrt(D) */
    const void *q, *k, *v;  /* (R, H*D); (keys, K*D) each */
    uint64_t ld_qkv, ld_kv; /* elements from row to row of q; of k and v, 0: ld_qkv */
    const int32_t *first;   /* (R) first visible key position in the sequence, ascending; NULL: 0 */
    void *out;              /* (R, H*D) dense */
    float *lse;             /* (sequences, H, length) log of the sum of exponentials of scaled scores */
    /* parts */
    uint32_t query_start, key_start, key_length;
    bool first_part, last_part;
    float *acc, *max, *sum; /* forward: (R, H*D), (R, H), (R, H) */
    float *dq_acc;          /* backward_queries: (R, H*D) */
    float *dk_acc, *dv_acc; /* backward_keys: (keys, H*D) each, a chain a query head */
    /* backward */
    const void *dout;       /* (R, H*D) */
    float *delta;           /* (sequences, H, length): scratch of whole sequences; of parts, made by attention_delta */
    void *dq, *dk, *dv;     /* rows ld_dq, and ld_dkv, apart; with parts written when last_part is set */
    uint64_t ld_dq, ld_dkv; /* 0: ld_qkv, ld_kv */
    bool kv_partial;        /* dk, dv are fp32 sums of this rank's query heads: not yet scaled, not rounded */
};

/* With every default filled in. parts false: a whole sequence, which is its own first and last part. */
struct pd_attention pd_attention_resolve(const struct pd_attention *attention, bool parts);

/* A point in the order of operations (pd_math_mark). Zero: it has been reached. */
struct pd_math_mark {
    void *event; /* of a GPU's table, which frees it */
};

/* out = round(scale * tree of parts + bias + residual): partial sums of chunks or ranks become one. */
struct pd_finish {
    uint64_t rows, columns;
    uint32_t part_count;       /* places of the tree, a power of two */
    const float *const *parts; /* (rows, columns) each; NULL: no term */
    uint64_t ld_parts;         /* elements from row to row of every part; 0: columns */
    float scale;               /* 1: not multiplied */
    const void *bias;          /* (columns) of bias_dtype, or NULL */
    enum pd_dtype bias_dtype;
    struct pd_matrix residual; /* data NULL: none */
    struct pd_matrix out;      /* fp32 or act; may be one of the parts when fp32 */
};

/* Loss and its gradient for rows of logits. A rank of a cut vocabulary holds columns [first_column, first_column + vocab)
 * and runs three operations with exchanges between them: logits_max, logits_sum, cross_entropy with max and sum given.
 * Where logits exist for some columns at a time, logits_part takes the place of the first two: the maximum and the sum
 * relative to it go from one part of the columns to the next, and logits_rescale brings a sum to a larger maximum. */
struct pd_cross_entropy {
    uint64_t rows, vocab, ld; /* logits (rows, vocab), ld apart */
    uint64_t first_column;    /* token of column 0 */
    uint64_t chunk;           /* columns a chunk; 0: ceil(vocab / chunks) */
    uint32_t chunks;          /* places of the tree over chunks, a power of two: virtual_tp, or a rank's share of it */
    float *logits;            /* fp32 */
    const int32_t *targets;   /* (rows) tokens; negative: not counted, loss 0, gradient 0 */
    float *losses;            /* (rows) -log p[target] */
    void *dlogits; /* (rows, vocab) of act, ld_dlogits apart: (p - onehot) * scale; may overlay logits row by row; or NULL */
    uint64_t ld_dlogits;
    enum pd_dtype dtype;
    float scale;
    /* of the whole vocabulary, (rows) each; max NULL: these columns are all there are */
    float *max, *sum;    /* logits_max writes max; logits_sum reads it, writes sum: the tree over these chunks */
    float *target_logit; /* logits_sum and logits_part write it where the target is among these columns */
    bool goes_on;        /* logits_part: from the max and sum of columns before, which are there */
};

/* What ranks of a cut vocabulary made of their columns becomes that of all: maxima after logits_max, logits of targets after
 * logits_sum (sums are a pd_finish). An array of rank r begins r * ld floats behind the first. */
struct pd_logits_join {
    uint64_t rows, ld;
    uint32_t ranks; /* that have columns: the first ones */
    const float *all_max;
    float *max; /* (rows); NULL: no maxima */
    const float *all_targets;
    float *target_logit;    /* (rows), written where a target is; NULL: none */
    const int32_t *targets; /* (rows) */
    uint64_t rank_columns;  /* columns of every rank but the last */
};

struct pd_embedding {
    uint64_t rows, columns, vocab; /* vocab: rows of token_table */
    enum pd_dtype dtype;
    int32_t first_token;               /* of row 0; rows of tokens outside the table are left, and make no gradient */
    const int32_t *tokens, *positions; /* (R) */
    const void *token_table;           /* (V,C) */
    const void *position_table;        /* (context, C) or NULL */
    uint64_t context;
    void *out;              /* (R,C) forward */
    const void *dout;       /* (R,C) backward */
    float *dtoken_table;    /* (V,C) overwritten with chains over rows, ascending; NULL: skip */
    float *dposition_table; /* (context,C) overwritten, likewise; NULL: none */
    bool adds;              /* backward adds to what is in the tables; rows of no token stay as they are */
};
