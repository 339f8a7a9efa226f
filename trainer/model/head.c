/* The head: final norm, logits, loss, and both gradients of the output matrix. Weights are norm weight, [norm bias,] output
 * matrix. Logits are computed for a run of rows at a time, for all or some columns; runs do not cross pieces. */
#include "ckpt/base/trace.h"
#include "trainer/model/transformer_internal.h"

#include <string.h>

/* One call of pd_transformer_head. */
struct head {
    const struct pd_micro_batch_input *input;
    void *matrix; /* (V,C) of this rank */
    bool backward;
    float scale;
};

/* Rows of one piece, and their addition to the gradient of the output matrix. */
struct head_run {
    uint64_t row, rows;
    float *dmatrix; /* (V,C) of the piece, fp32 */
    bool goes_on;   /* dmatrix is of the runs before */
    bool adds;      /* else: it reads what earlier micro-batches left, if these are summed */
};

/* A product that waits for an exchange to hide. */
struct head_product {
    struct pd_math *math;
    struct pd_gemm gemm;
};

static void *norm_weight(void *const *weights)
{
    return weights[0];
}

static void *norm_bias(const struct pd_transformer *t, void *const *weights)
{
    return pd_norm_is_layer(t) ? weights[1] : NULL;
}

static uint32_t place_of_matrix(const struct pd_transformer *t)
{
    return pd_norm_is_layer(t) ? 2 : 1;
}

/* Final norm of all rows: every rank contributes those it keeps. */
static pd_status norm_forward(struct pd_transformer *t, uint32_t slot, void *const *weights, struct pd_norm *ret_norm,
                              struct pd_error *err)
{
    const void *rows = t->stream[pd_transformer_place(t, slot, t->model->config.layers)];
    PD_TRY(pd_rows_bring(t, rows, err));
    *ret_norm = pd_norm_of(t, pd_rows_whole(t, rows), norm_weight(weights), norm_bias(t, weights), t->head_mean,
                           t->head_rstd, t->head_norm);
    return pd_norm_forward(t->math, ret_norm, err);
}

static struct pd_matrix head_rows(const struct pd_transformer *t, void *matrix, uint64_t row)
{
    const uint64_t hidden = t->model->config.hidden;
    return (struct pd_matrix){(char *)matrix + row * hidden * t->element_bytes, t->options.dtype, hidden};
}

/* logits (rows, columns), rows ld apart */
static pd_status logits_of(struct pd_transformer *t, uint64_t first_row, uint64_t rows, void *matrix,
                           struct pd_range columns, struct pd_matrix logits, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden, count = columns.end - columns.begin;
    struct pd_gemm g = {.m = rows,
                        .n = count,
                        .k = hidden,
                        .trans_b = true,
                        .a = head_rows(t, t->head_norm, first_row),
                        .b = head_rows(t, matrix, columns.begin),
                        .c = logits};
    return count ? pd_gemm(t->math, &g, err) : PD_OK;
}

static pd_status head_logits(struct pd_transformer *t, const struct head *h, const struct head_run *r,
                             struct pd_range columns, struct pd_error *err)
{
    const struct pd_matrix logits = {t->logits, t->options.logits_dtype, t->ld_logits};
    return logits_of(t, r->row, r->rows, h->matrix, columns, logits, err);
}

/* A row of dlogits overlays its own row of logits, which is at least as wide. */
static uint64_t head_ld_dlogits(const struct pd_transformer *t)
{
    return t->ld_logits * pd_dtype_bytes(t->options.logits_dtype) / t->element_bytes;
}

static struct pd_cross_entropy head_loss(const struct pd_transformer *t, const struct head *h, const struct head_run *r)
{
    const struct pd_partition *p = &t->partition;
    return (struct pd_cross_entropy){.rows = r->rows,
                                     .vocab = t->share.vocab_columns,
                                     .ld = t->ld_logits,
                                     .first_column = t->share.vocab.begin,
                                     .chunk = (t->model->config.vocab + p->virtual_tp - 1) / p->virtual_tp,
                                     .chunks = t->tp.chunks,
                                     .logits = t->logits,
                                     .logits_dtype = t->options.logits_dtype,
                                     .targets = h->input->targets + r->row,
                                     .losses = t->losses + r->row,
                                     .dlogits = h->backward ? t->logits : NULL,
                                     .ld_dlogits = head_ld_dlogits(t),
                                     .dtype = t->options.dtype,
                                     .scale = h->scale};
}

/* Losses of rows; with a gradient: dlogits over the logits. */
static pd_status loss(struct pd_transformer *t, const struct head *h, const struct head_run *r, struct pd_error *err)
{
    struct pd_cross_entropy l = head_loss(t, h, r);
    if (t->partition.tp == 1) return pd_cross_entropy(t->math, &l, err);
    l.max = t->tp.max;
    l.sum = t->tp.sum;
    l.target_logit = t->tp.target;
    if (l.vocab) PD_TRY(pd_logits_max(t->math, &l, err));
    PD_TRY(pd_loss_max(t, r->rows, err));
    if (l.vocab) PD_TRY(pd_logits_sum(t->math, &l, err));
    PD_TRY(pd_loss_sum(t, r->rows, l.targets, err));
    return pd_cross_entropy(t->math, &l, err);
}

static struct pd_gemm head_dmatrix(const struct pd_transformer *t, const struct head_run *r, struct pd_range columns)
{
    const uint64_t hidden = t->model->config.hidden;
    float *rows = r->dmatrix + columns.begin * hidden;
    struct pd_gemm g = {.m = columns.end - columns.begin,
                        .n = hidden,
                        .k = r->rows,
                        .trans_a = true,
                        .a = {t->logits, t->options.dtype, head_ld_dlogits(t)},
                        .b = head_rows(t, t->head_norm, r->row),
                        .c = {rows, PD_F32, hidden},
                        .accumulate = r->goes_on};
    if (r->adds && !r->goes_on) g.residual = pd_gradient_so_far(t, rows, hidden);
    return g;
}

static pd_status head_multiply(void *product, struct pd_error *err)
{
    const struct head_product *p = product;
    return p->gemm.m ? pd_gemm(p->math, &p->gemm, err) : PD_OK;
}

/* ---- some columns at a time ---- */

/* Logits for some columns at a time. This needs less memory but multiplies each logit twice.
 *
 *   1  for each vocabulary chunk, columns after columns: the maximum, and the sum of exponentials relative to it
 *   2  the maximum over chunks and ranks; sums converted to it, then their tree over chunks and ranks
 *   3  for all columns again: logits, then their gradient in place, from it rows of the matrix' gradient and a link in the
 *      chunk's chain for the norm's gradient
 *   4  the norm's gradient: the tree over chunks and ranks of these chains
 *
 * Column ranges do not cross chunks, so results do not depend on how many chunks a rank has.
 *
 * source Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models" */

/* Columns [begin, at most end) that are held at once. */
static struct pd_range columns_from(const struct pd_transformer *t, uint64_t begin, uint64_t end)
{
    const uint64_t most = t->options.logits_columns;
    return (struct pd_range){begin, end - begin < most ? end : begin + most};
}

/* The loss over these columns. */
static struct pd_cross_entropy loss_of(const struct pd_transformer *t, const struct head *h, const struct head_run *r,
                                       struct pd_range columns)
{
    struct pd_cross_entropy l = head_loss(t, h, r);
    l.vocab = columns.end - columns.begin;
    l.first_column += columns.begin;
    l.chunk = 0;
    l.chunks = 1;
    l.max = t->tp.max;
    l.sum = t->tp.sum;
    l.target_logit = t->tp.target;
    return l;
}

static struct pd_range chunk_of(const struct pd_transformer *t, uint32_t i)
{
    return pd_chunk_columns(t, t->model->config.vocab, 1, i);
}

/* ---- maximum and sum ---- */

static pd_status chunk_sums(struct pd_transformer *t, const struct head *h, const struct head_run *r, uint32_t i,
                            struct pd_error *err)
{
    const struct pd_range chunk = chunk_of(t, i);
    for (uint64_t begin = chunk.begin; begin < chunk.end; begin += t->options.logits_columns) {
        const struct pd_range columns = columns_from(t, begin, chunk.end);
        struct pd_cross_entropy l = loss_of(t, h, r, columns);
        l.max = t->head_chunk_max + i * t->logits_rows;
        l.sum = t->head_chunk_sum + i * t->logits_rows;
        l.goes_on = begin > chunk.begin;
        PD_TRY(head_logits(t, h, r, columns, err));
        PD_TRY(pd_logits_part(t->math, &l, err));
    }
    return PD_OK;
}

/* The chunks of this rank with columns are its first ones. */
static uint32_t chunks_with_columns(const struct pd_transformer *t)
{
    uint32_t count = 0;
    while (count < t->tp.chunks && chunk_of(t, count).begin < chunk_of(t, count).end)
        count++;
    return count;
}

/* Sets t->tp.sum to the tree over this rank's chunks, relative to t->tp.max. */
static pd_status join_sum(struct pd_transformer *t, uint64_t rows, struct pd_error *err)
{
    const uint32_t count = chunks_with_columns(t);
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        float *sum = t->head_chunk_sum + i * t->logits_rows;
        t->tp.parts[i] = i < count ? sum : NULL;
        if (i < count) PD_TRY(pd_logits_rescale(t->math, rows, t->head_chunk_max + i * t->logits_rows, t->tp.max, sum, err));
    }
    const struct pd_finish f = {.rows = 1,
                                .columns = rows,
                                .part_count = t->tp.chunks,
                                .parts = t->tp.parts,
                                .scale = 1.0f,
                                .out = {t->tp.sum, PD_F32, rows}};
    return count ? pd_finish(t->math, &f, err) : PD_OK;
}

static pd_status losses(struct pd_transformer *t, const struct head *h, const struct head_run *r, struct pd_error *err)
{
    const bool together = t->partition.tp > 1;
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        PD_TRY(chunk_sums(t, h, r, i, err));
    /* Sets t->tp.max to the maximum over this rank's chunks. */
    uint64_t rows = r->rows;
    const struct pd_logits_join join = {
        .rows = rows, .ld = t->logits_rows, .ranks = chunks_with_columns(t), .all_max = t->head_chunk_max, .max = t->tp.max};
    PD_TRY(join.ranks ? pd_logits_join(t->math, &join, err) : PD_OK);
    if (together) PD_TRY(pd_loss_max(t, r->rows, err));
    PD_TRY(join_sum(t, r->rows, err));
    struct pd_cross_entropy l = loss_of(t, h, r, (struct pd_range){0, 0});
    if (together) PD_TRY(pd_loss_sum(t, r->rows, l.targets, err));
    l.dlogits = NULL;
    return pd_cross_entropy(t->math, &l, err);
}

/* ---- gradients ---- */

/* The link of these columns in their chunk's chain: t->head_terms + i (rows, C). */
static pd_status dnorm_term(struct pd_transformer *t, const struct head *h, const struct head_run *r, uint32_t i,
                            struct pd_range columns, bool goes_on, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    const struct pd_gemm g = {.m = r->rows,
                              .n = hidden,
                              .k = columns.end - columns.begin,
                              .a = {t->logits, t->options.dtype, head_ld_dlogits(t)},
                              .b = head_rows(t, h->matrix, columns.begin),
                              .c = {t->head_terms + i * r->rows * hidden, PD_F32, hidden},
                              .accumulate = goes_on};
    return pd_gemm(t->math, &g, err);
}

/* *last: the matrix product for this rank's last columns, left to overlap the exchange of dnorm. */
static pd_status chunk_gradients(struct pd_transformer *t, const struct head *h, const struct head_run *r, uint32_t i,
                                 struct head_product *last, struct pd_error *err)
{
    const struct pd_range chunk = chunk_of(t, i);
    for (uint64_t begin = chunk.begin; begin < chunk.end; begin += t->options.logits_columns) {
        const struct pd_range columns = columns_from(t, begin, chunk.end);
        const struct pd_cross_entropy l = loss_of(t, h, r, columns);
        const struct pd_gemm dmatrix = head_dmatrix(t, r, columns);
        PD_TRY(head_logits(t, h, r, columns, err));
        PD_TRY(pd_cross_entropy(t->math, &l, err));
        PD_TRY(dnorm_term(t, h, r, i, columns, begin > chunk.begin, err));
        if (columns.end < t->share.vocab_columns)
            PD_TRY(pd_gemm(t->math, &dmatrix, err));
        else
            last->gemm = dmatrix;
    }
    return PD_OK;
}

static pd_status head_columns(struct pd_transformer *t, const struct head *h, const struct head_run *r, struct pd_error *err)
{
    struct head_product last = {.math = t->math};
    const struct pd_beside beside[2] = {{head_multiply, &last}};
    const struct pd_chunk_sum dnorm = {.rows = r->rows,
                                       .columns = t->model->config.hidden,
                                       .units = t->model->config.vocab,
                                       .chains = t->head_terms,
                                       .out = head_rows(t, t->dnorm, r->row).data,
                                       .beside = beside};
    PD_TRY(losses(t, h, r, err));
    if (!h->backward) return PD_OK;
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        PD_TRY(chunk_gradients(t, h, r, i, &last, err));
    return pd_chunk_sum_run(t, &dnorm, err);
}

/* ---- both ways ---- */

/* A run with the logits of all columns at once. */
static pd_status whole_rows(struct pd_transformer *t, const struct head *h, const struct head_run *r, struct pd_error *err)
{
    const struct pd_range all = {0, t->share.vocab_columns};
    PD_TRY(head_logits(t, h, r, all, err));
    PD_TRY(loss(t, h, r, err));
    if (!h->backward) return PD_OK;
    struct head_product dmatrix = {t->math, head_dmatrix(t, r, all)};
    /* Gradient of the norm's output, a sum over vocabulary chunks; the output matrix' gradient overlaps it. */
    const struct pd_beside beside[2] = {{head_multiply, &dmatrix}};
    const uint64_t vocab = t->model->config.vocab, hidden = t->model->config.hidden;
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        struct pd_range c = pd_chunk_columns(t, vocab, 1, i);
        *pd_chunk_terms(t, i) = (struct pd_chunk_term){.a = (char *)t->logits + c.begin * t->element_bytes,
                                                       .b = (char *)h->matrix + c.begin * hidden * t->element_bytes,
                                                       .lda = head_ld_dlogits(t),
                                                       .ldb = hidden,
                                                       .k = c.end - c.begin};
    }
    struct pd_chunk_sum sum = {
        .rows = r->rows, .columns = hidden, .units = vocab, .out = head_rows(t, t->dnorm, r->row).data, .beside = beside};
    return pd_chunk_sum_run(t, &sum, err);
}

/* Where a micro-batch's dmatrix is computed: with several runs of logits, these are summed before other micro-batches. */
static float *micro_batch_matrix(const struct pd_transformer *t, uint64_t rows, float *dmatrix)
{
    return t->adds && rows > t->logits_rows ? t->matrix : dmatrix;
}

/* Rows of one piece; dmatrix (V,C) is the chain over them. */
static pd_status head_piece(struct pd_transformer *t, void *context, uint32_t place, float *dmatrix, struct pd_error *err)
{
    const struct head *h = context;
    const uint64_t elements = t->share.vocab_columns * t->model->config.hidden;
    const uint64_t begin = t->sp.row[place], end = t->sp.row[place + 1];
    float *micro_batch = micro_batch_matrix(t, end - begin, dmatrix);
    for (uint64_t row = begin; row < end; row += t->logits_rows) {
        const struct head_run r = {.row = row,
                                   .rows = end - row < t->logits_rows ? end - row : t->logits_rows,
                                   .dmatrix = micro_batch,
                                   .goes_on = row > begin,
                                   .adds = micro_batch == dmatrix};
        PD_TRY(t->options.logits_columns ? head_columns(t, h, &r, err) : whole_rows(t, h, &r, err));
    }
    return micro_batch == dmatrix ? PD_OK : pd_add(t->math, elements, dmatrix, micro_batch, err);
}

pd_status pd_transformer_add_losses(struct pd_transformer *t, struct pd_superaccumulator *sum, struct pd_error *err)
{
    return pd_superaccumulate_floats(t->math, t->rows, t->losses, sum, err);
}

pd_status pd_transformer_losses(struct pd_transformer *t, float *ret_losses, struct pd_error *err)
{
    PD_TRY(pd_math_copy(t->math, ret_losses, t->losses, t->rows * sizeof(float), err));
    return pd_math_sync(t->math, err);
}

pd_status pd_transformer_head(struct pd_transformer *t, uint32_t slot, void *const *weights, float *const *gradients,
                              float scale, void *dstream, struct pd_error *err)
{
    const uint32_t matrix = place_of_matrix(t);
    struct pd_norm n;
    struct head h = {.input = pd_transformer_device_input(t, slot),
                     .matrix = weights[matrix],
                     .backward = gradients != NULL,
                     .scale = scale};
    const uint64_t begin = pd_trace_begin();
    PD_TRY(norm_forward(t, slot, weights, &n, err));
    if (!gradients) {
        for (uint32_t place = 0; place < t->sp.pieces; place++)
            PD_TRY(head_piece(t, &h, place, NULL, err));
        pd_trace_end(begin, "compute", "head", slot);
        return PD_OK;
    }
    PD_TRY(pd_piece_gradients(t, t->share.vocab_columns * t->model->config.hidden, head_piece, &h, gradients[matrix], err));
    pd_transformer_set_dstream(t, dstream);
    PD_TRY(pd_norm_gradient(t, &n, NULL, gradients[0], pd_norm_is_layer(t) ? gradients[1] : NULL, err));
    pd_trace_end(begin, "compute", "head and its gradients", slot);
    return PD_OK;
}

pd_status pd_transformer_row_logits(struct pd_transformer *t, void *const *head_weights, uint64_t row, float *ret_logits,
                                    struct pd_error *err)
{
    PD_CHECK(row < t->rows && t->partition.sp == 1);
    struct pd_norm n;
    PD_TRY(norm_forward(t, 0, head_weights, &n, err));
    const struct pd_range all = {0, t->share.vocab_columns};
    const struct pd_matrix logits = {ret_logits + t->share.vocab.begin, PD_F32, all.end};
    PD_TRY(logits_of(t, row, 1, head_weights[place_of_matrix(t)], all, logits, err));
    return t->partition.tp > 1 ? pd_logits_fetch(t, ret_logits, err) : PD_OK;
}
