/* Linears of a block whose operands are fp8: linear_fp8.c. State and calls, for files of the transformer alone. */
#pragma once

#include "trainer/math/math.h"
#include "trainer/model/partition.h"

struct pd_transformer;
struct pd_qkv;

/* Rows of a weight that share a scale, and what they make: columns of y (R, ...) in forward, of its gradient in backward. */
struct pd_linear_part {
    uint32_t chunk;                   /* of this rank: whose sum the product with the gradient is a term of */
    uint64_t rows, row, gradient_row; /* row: in this rank's weight and bias, and in their gradients */
    char *y;
    uint64_t ld_y;
    uint8_t *across;     /* in backward: transposed codes of y, */
    const float *scales; /* and their scales, a piece */
};

/* Linears of a block. */
enum pd_fp8_linear { PD_FP8_QKV, PD_FP8_OUT, PD_FP8_UP, PD_FP8_DOWN, PD_FP8_LINEARS };

/* Codes of a weight for the whole of a step: as it lies for forward, transposed for backward. */
struct pd_fp8_kept {
    uint8_t *codes, *across;
    float *scale;
};

struct pd_fp8_linears {
    bool is_on;
    uint32_t block;                             /* that calls are about */
    struct pd_fp8_kept (*kept)[PD_FP8_LINEARS]; /* (layers), or NULL: made by each call */
    bool *is_made;                              /* (layers) what is kept of the block is this step's */
    struct pd_linear_part *parts;               /* of the call */
    uint32_t part_count, part_capacity;
    struct pd_range *heads;  /* (part_capacity) */
    uint8_t *x;              /* codes of (R, inputs of a linear) */
    uint8_t *w;              /* of a weight */
    uint8_t *dy, *dy_across; /* of (R, outputs), and of their transposed */
    float *scales;           /* (scales_capacity, PD_FP8_SCALE_FLOATS), taken anew by each call */
    uint32_t scales_used, scales_capacity;
};

/* A linear that is cut by columns of its weight, which lies as a matrix a chunk. */
struct pd_fp8_rows {
    enum pd_fp8_linear linear;
    uint64_t units, unit, in; /* unit elements make one that chunks cut; in: of this rank */
    const void *x, *w;        /* (R,in) */
};

/* Of which block the next calls are; a forward of a block whose codes are kept makes them once. */
void pd_fp8_enter(struct pd_transformer *t, uint32_t block);
bool pd_fp8_makes_codes(const struct pd_transformer *t);
void pd_fp8_made(struct pd_transformer *t);
void pd_fp8_forget(struct pd_transformer *t); /* all of them: weights may have changed */
/* Sets the parts of the next two calls. `computed`: y is a gradient, of the heads that are computed here. */
void pd_fp8_qkv_parts(struct pd_transformer *t, const struct pd_qkv *y, bool computed);
void pd_fp8_up_parts(struct pd_transformer *t, void *y);
/* y = x (R,C) W^T + bias */
PD_MUST_USE pd_status pd_fp8_columns_forward(struct pd_transformer *t, enum pd_fp8_linear linear, const void *x,
                                             const void *w, const void *bias, struct pd_error *err);
/* t->dnorm = dy W, and the rows of pd_chunk_sum's `brings`; then dW = dy^T x, and dbias unless it is NULL. */
PD_MUST_USE pd_status pd_fp8_columns_input(struct pd_transformer *t, enum pd_fp8_linear linear, const void *w,
                                           uint64_t units, const void *brings, struct pd_error *err);
PD_MUST_USE pd_status pd_fp8_columns_weights(struct pd_transformer *t, const void *x, float *dweight, float *dbias,
                                             struct pd_error *err);
/* y = x W^T + bias + residual: the rows that this rank keeps */
PD_MUST_USE pd_status pd_fp8_rows_forward(struct pd_transformer *t, const struct pd_fp8_rows *l, const void *bias,
                                          const void *residual, void *y, struct pd_error *err);
/* dx (R,in) = dy W and dW as W, where dy is t->dstream. */
PD_MUST_USE pd_status pd_fp8_rows_backward(struct pd_transformer *t, const struct pd_fp8_rows *l, void *dx, float *dweight,
                                           struct pd_error *err);
