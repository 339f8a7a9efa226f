/* Linear layers of a block with fp8 operands (linear_fp8.c). Only files of the transformer use this. */
#pragma once

#include "trainer/math/math.h"
#include "trainer/model/partition.h"

struct pd_transformer;
struct pd_qkv;

/* Rows of a weight that share a scale. They produce columns of y (R, ...) in forward, of y's gradient in backward. */
struct pd_linear_part {
    uint32_t chunk;                   /* of this rank; its sum includes the product with this gradient */
    uint64_t rows, row, gradient_row; /* row: in this rank's weight and bias, and in their gradients */
    char *y;
    uint64_t ld_y;
    uint8_t *across;     /* in backward: transposed codes of y, */
    const float *scales; /* and their scales, one per piece */
};

/* Linear layers of a block. */
enum pd_fp8_linear { PD_FP8_QKV, PD_FP8_OUT, PD_FP8_UP, PD_FP8_DOWN, PD_FP8_LINEARS };

/* Codes of a weight, kept for a whole step: in its own layout for forward, transposed for backward. */
struct pd_fp8_kept {
    uint8_t *codes, *across;
    float *scale;
    bool is_made; /* in this step */
};

/* Pieces of rows: each has a scale. */
struct pd_row_pieces {
    uint32_t count;
    const uint64_t *row, *rows; /* (count) */
};

/* Codes of rows (rows of each piece, columns), or transposed (columns, rows), ld apart. */
struct pd_fp8_operand {
    enum pd_fp8 format;
    const uint8_t *codes;
    const float *scales; /* one per piece, PD_FP8_SCALE_FLOATS apart */
    uint64_t columns;
    uint64_t rows, ld; /* if transposed; zeros follow the last row on a GPU */
};

/* A weight (rows, columns), or a part with its own scale. */
struct pd_fp8_weight {
    const void *w;
    uint64_t rows, columns;
    struct pd_fp8_kept *kept; /* NULL: each call makes codes */
};

struct pd_fp8_linears {
    bool is_on;
    uint32_t block;                             /* the block of the next calls */
    struct pd_fp8_kept (*kept)[PD_FP8_LINEARS]; /* (layers), or NULL: each call makes codes */
    struct pd_fp8_kept *kept_experts;           /* (layers, experts of this rank, up and down), likewise */
    struct pd_linear_part *parts;               /* of the current call */
    uint32_t part_count, part_capacity;
    struct pd_range *heads;  /* (part_capacity) */
    uint8_t *x;              /* codes of (R, inputs of a linear layer) */
    uint8_t *w;              /* of a weight */
    uint8_t *dy, *dy_across; /* codes of (R, outputs), and transposed */
    float *scales;           /* (scales_capacity, PD_FP8_SCALE_FLOATS), reused by each call */
    uint64_t *row, *rows;    /* (pieces) of an expert */
    uint32_t scales_used, scales_capacity;
};

/* A linear layer cut by columns of its weight; the weight is stored as one matrix per chunk. */
struct pd_row_linear {
    enum pd_fp8_linear linear;
    enum pd_role role;
    uint64_t units, unit, in; /* chunks hold whole units of `unit` elements; in: of this rank */
    const void *x, *w;        /* (R,in) */
};

/* Selects the block of the next calls. The first forward that multiplies by a weight with kept codes makes them. */
void pd_fp8_enter(struct pd_transformer *t, uint32_t block);
void pd_fp8_forget(struct pd_transformer *t); /* forgets all kept codes: weights may have changed */
/* Set the parts for the next two calls. `computed`: y is a gradient, of the heads that this rank computes. */
void pd_fp8_qkv_parts(struct pd_transformer *t, const struct pd_qkv *y, bool computed);
void pd_fp8_up_parts(struct pd_transformer *t, void *y);
/* y = x (R,C) W^T + bias */
PD_MUST_USE pd_status pd_fp8_columns_forward(struct pd_transformer *t, enum pd_fp8_linear linear, const void *x,
                                             const void *w, const void *bias, struct pd_error *err);
/* The terms of t->dnorm = dy W; then dW = dy^T x, and dbias unless NULL. */
PD_MUST_USE pd_status pd_fp8_columns_terms(struct pd_transformer *t, enum pd_fp8_linear linear, const void *w,
                                           struct pd_error *err);
PD_MUST_USE pd_status pd_fp8_columns_weights(struct pd_transformer *t, const void *x, float *dweight, float *dbias,
                                             struct pd_error *err);
/* The terms of x W^T. */
PD_MUST_USE pd_status pd_fp8_rows_terms(struct pd_transformer *t, const struct pd_row_linear *l, struct pd_error *err);
/* dx (R,in) = dy W, and dW in the layout of W. dy is t->dstream. */
PD_MUST_USE pd_status pd_fp8_rows_backward(struct pd_transformer *t, const struct pd_row_linear *l, void *dx, float *dweight,
                                           struct pd_error *err);

/* ---- for experts, step by step ---- */
/* Rows of an expert: piece i has [first[i], first[i + 1]), counted from first[0]. Until the next call. */
struct pd_row_pieces pd_fp8_pieces_of(struct pd_transformer *t, const int32_t *first);
/* `which`: PD_FP8_UP or PD_FP8_DOWN, of expert `number` of this rank. NULL if codes are not kept. */
struct pd_fp8_kept *pd_fp8_kept_expert(const struct pd_transformer *t, uint32_t number, enum pd_fp8_linear which);
struct pd_fp8_kept *pd_fp8_kept_linear(const struct pd_transformer *t, enum pd_fp8_linear linear);
/* Codes of x (rows of the pieces, columns), until the next call with that format. Replaces the scales of earlier calls. */
PD_MUST_USE pd_status pd_fp8_rows_codes(struct pd_transformer *t, enum pd_fp8 format, const struct pd_row_pieces *pieces,
                                        struct pd_matrix x, uint64_t columns, struct pd_fp8_operand *ret_operand,
                                        struct pd_error *err);
/* c = x W^T, or x W if `across`; added to c, which is fp32 then, if `adds`. */
PD_MUST_USE pd_status pd_fp8_rows_multiply(struct pd_transformer *t, const struct pd_row_pieces *pieces,
                                           const struct pd_fp8_operand *x, const struct pd_fp8_weight *w, bool across,
                                           struct pd_matrix c, bool adds, bool varies, struct pd_error *err);
/* Transposed codes of x (rows, columns), one piece, until the next call with that format. */
PD_MUST_USE pd_status pd_fp8_across_codes(struct pd_transformer *t, enum pd_fp8 format, uint64_t rows, struct pd_matrix x,
                                          uint64_t columns, struct pd_fp8_operand *ret_operand, struct pd_error *err);
/* dst (columns of dy, columns of x) = dy^T x, added to the gradient so far. */
PD_MUST_USE pd_status pd_fp8_rows_gradient(struct pd_transformer *t, const struct pd_fp8_operand *dy,
                                           const struct pd_fp8_operand *x, bool varies, float *dst, struct pd_error *err);
uint64_t pd_fp8_across_ld(const struct pd_transformer *t, uint64_t rows);
