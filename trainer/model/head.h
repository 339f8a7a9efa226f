/* Between head.c and head_columns.c: the logits of a run of rows, and what becomes of them. */
#pragma once

#include "trainer/model/transformer_internal.h"

/* One call of pd_transformer_head. */
struct pd_head {
    const struct pd_micro_batch_input *input;
    void *matrix; /* (V,C) of this rank */
    bool backward;
    float scale;
};

/* Rows of one piece of the sequences, and what they add to the gradient of the output matrix. */
struct pd_head_run {
    uint64_t row, rows;
    float *dmatrix; /* (V,C) of the piece, fp32 */
    bool goes_on;   /* dmatrix is of the runs before */
    bool adds;      /* else: it takes what other micro-batches left there, where these are added up */
};

/* What several ranks exchange of the loss lies in t->tp. */
struct pd_cross_entropy pd_head_loss(const struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r);
/* t->logits of some columns of this rank. */
PD_MUST_USE pd_status pd_head_logits(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                                     struct pd_range columns, struct pd_error *err);
/* The gradient of t->logits, of such columns, lies over them: in rows so many elements apart. */
uint64_t pd_head_ld_dlogits(const struct pd_transformer *t);
/* From it rows of the matrix' gradient. */
struct pd_gemm pd_head_dmatrix(const struct pd_transformer *t, const struct pd_head_run *r, struct pd_range columns);
/* A matrix (R,C) of act, from the run's first row on. */
struct pd_matrix pd_head_rows(const struct pd_transformer *t, void *matrix, uint64_t row);

/* A product that waits for an exchange to hide. */
struct pd_head_product {
    struct pd_math *math;
    struct pd_gemm gemm;
};
PD_MUST_USE pd_status pd_head_multiply(void *product, struct pd_error *err);

/* Losses of a run and its gradients, some columns at a time: head_columns.c. */
PD_MUST_USE pd_status pd_head_columns(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                                      struct pd_error *err);
