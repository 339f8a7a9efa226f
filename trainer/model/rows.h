/* Rows of the residual stream, of which each tensor-parallel rank keeps its share: rows.c. */
#pragma once

#include "trainer/math/math.h"
#include "trainer/model/partition.h"
#include "trainer/model/transfers.h"

struct pd_transformer;
struct pd_chunk_sum;

/* Arena. With one rank the window and the number of rows alone. */
struct pd_shared_rows {
    uint64_t window_rows, kept_rows; /* kept: the most of any rank */
    /* Of all rows. What a norm makes, until the product behind it; and what was brought, x or middle of a block in backward or
     * the head's input, which the exchange has from its start to its wait. */
    char *norm, *whole; /* (R,C) act */
    float *mean, *rstd; /* (R) */
    struct pd_peer_transfer gather;
};

void pd_rows_init(struct pd_transformer *t);
void pd_rows_take(struct pd_transformer *t, struct pd_arena *arena);
/* Rows that a rank has of a window of so many. */
struct pd_range pd_rows_slice(const struct pd_transformer *t, uint64_t rows, uint32_t rank);
/* Rows that this rank keeps of the windows before the one that begins at row `window`. */
uint64_t pd_rows_before(const struct pd_transformer *t, uint64_t window);
/* The rank that keeps a row. */
uint32_t pd_rows_owner(const struct pd_transformer *t, uint64_t row);
/* Where all rows are, once they were brought. With one rank: `rows`. */
const void *pd_rows_whole(const struct pd_transformer *t, const void *rows);
PD_MUST_USE pd_status pd_rows_bring(struct pd_transformer *t, const void *rows, struct pd_error *err);
/* A norm's forward: x, rows that this rank keeps; out, those of all ranks. With several ranks mean and rstd are of no use. The
 * exchange has its rows of out from start to wait. */
PD_MUST_USE pd_status pd_rows_norm_start(struct pd_transformer *t, const struct pd_norm *norm, struct pd_error *err);
PD_MUST_USE pd_status pd_rows_norm_wait(struct pd_transformer *t, struct pd_error *err);
