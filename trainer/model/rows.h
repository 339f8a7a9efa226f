/* Rows of the residual stream; each tensor-parallel rank keeps a share of them (rows.c). */
#pragma once

#include "trainer/math/math.h"
#include "trainer/model/partition.h"
#include "trainer/model/transfers.h"

struct pd_transformer;
struct pd_chunk_sum;

/* Arena. With one rank only the window and the number of rows are set. */
struct pd_shared_rows {
    uint64_t window_rows, kept_rows; /* kept_rows: most of any rank */
    /* Buffers for all rows. norm: a norm's output, until the product after it. whole: gathered rows (x or middle of a block
     * in backward, or the head's input); the exchange owns it from start to wait. */
    char *norm, *whole; /* (R,C) act */
    float *mean, *rstd; /* (R) */
    struct pd_peer_transfer gather;
};

void pd_rows_init(struct pd_transformer *t);
void pd_rows_take(struct pd_transformer *t, struct pd_arena *arena);
/* A rank's rows of a window of `rows` rows. */
struct pd_range pd_rows_slice(const struct pd_transformer *t, uint64_t rows, uint32_t rank);
/* Number of rows this rank keeps from windows before the one that begins at row `window`. */
uint64_t pd_rows_before(const struct pd_transformer *t, uint64_t window);
/* The rank that keeps a row. */
uint32_t pd_rows_owner(const struct pd_transformer *t, uint64_t row);
/* Address of all rows, after pd_rows_bring. With one rank: `rows`. */
const void *pd_rows_whole(const struct pd_transformer *t, const void *rows);
PD_MUST_USE pd_status pd_rows_bring(struct pd_transformer *t, const void *rows, struct pd_error *err);
/* Forward of a norm. x: rows this rank keeps; out: rows of all ranks. With several ranks mean and rstd are meaningless. The
 * exchange owns this rank's rows of out from start to wait. */
PD_MUST_USE pd_status pd_rows_norm_start(struct pd_transformer *t, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_rows_norm_wait(struct pd_transformer *t, struct pd_error *err);
