/* The head: final norm, logits, loss, and both gradients of the output matrix. Weights are norm weight, [norm bias,] output
 * matrix. Logits exist for a run of rows at a time, and no run crosses a piece; of all columns, or of some (head_columns.c). */
#include "trainer/model/head.h"
#include "ckpt/base/trace.h"

#include <string.h>

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

/* The final norm of all rows: every rank brings those that it keeps. */
static pd_status norm_forward(struct pd_transformer *t, uint32_t slot, void *const *weights, struct pd_norm *ret_norm,
                              struct pd_error *err)
{
    const void *rows = t->stream[pd_transformer_place(t, slot, t->model->config.layers)];
    PD_TRY(pd_rows_bring(t, rows, err));
    *ret_norm = pd_norm_of(t, pd_rows_whole(t, rows), norm_weight(weights), norm_bias(t, weights), t->head_mean,
                           t->head_rstd, t->head_norm);
    return pd_norm_forward(t->math, ret_norm, err);
}

struct pd_matrix pd_head_rows(const struct pd_transformer *t, void *matrix, uint64_t row)
{
    const uint64_t hidden = t->model->config.hidden;
    return (struct pd_matrix){(char *)matrix + row * hidden * t->element_bytes, t->options.dtype, hidden};
}

/* logits (rows, columns), rows ld apart */
static pd_status logits_of(struct pd_transformer *t, uint64_t first_row, uint64_t rows, void *matrix,
                           struct pd_range columns, float *logits, uint64_t ld, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden, count = columns.end - columns.begin;
    struct pd_gemm g = {.m = rows,
                        .n = count,
                        .k = hidden,
                        .trans_b = true,
                        .a = pd_head_rows(t, t->head_norm, first_row),
                        .b = pd_head_rows(t, matrix, columns.begin),
                        .c = {logits, PD_F32, ld}};
    return count ? pd_gemm(t->math, &g, err) : PD_OK;
}

pd_status pd_head_logits(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                         struct pd_range columns, struct pd_error *err)
{
    return logits_of(t, r->row, r->rows, h->matrix, columns, t->logits, t->ld_logits, err);
}

/* A row of dlogits overlays its own row of logits, which is as wide or wider. */
uint64_t pd_head_ld_dlogits(const struct pd_transformer *t)
{
    return t->ld_logits * sizeof(float) / t->element_bytes;
}

struct pd_cross_entropy pd_head_loss(const struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r)
{
    const struct pd_partition *p = &t->partition;
    return (struct pd_cross_entropy){.rows = r->rows,
                                     .vocab = t->share.vocab_columns,
                                     .ld = t->ld_logits,
                                     .first_column = t->share.vocab.begin,
                                     .chunk = (t->model->config.vocab + p->virtual_tp - 1) / p->virtual_tp,
                                     .chunks = t->tp.chunks,
                                     .logits = t->logits,
                                     .targets = h->input->targets + r->row,
                                     .losses = t->losses + r->row,
                                     .dlogits = h->backward ? t->logits : NULL,
                                     .ld_dlogits = pd_head_ld_dlogits(t),
                                     .dtype = t->options.dtype,
                                     .scale = h->scale};
}

/* Losses of rows; with a gradient: dlogits over the logits. */
static pd_status loss(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r, struct pd_error *err)
{
    struct pd_cross_entropy l = pd_head_loss(t, h, r);
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

struct pd_gemm pd_head_dmatrix(const struct pd_transformer *t, const struct pd_head_run *r, struct pd_range columns)
{
    const uint64_t hidden = t->model->config.hidden;
    float *rows = r->dmatrix + columns.begin * hidden;
    struct pd_gemm g = {.m = columns.end - columns.begin,
                        .n = hidden,
                        .k = r->rows,
                        .trans_a = true,
                        .a = {t->logits, t->options.dtype, pd_head_ld_dlogits(t)},
                        .b = pd_head_rows(t, t->head_norm, r->row),
                        .c = {rows, PD_F32, hidden},
                        .accumulate = r->goes_on};
    if (r->adds && !r->goes_on) g.residual = pd_gradient_so_far(t, rows, hidden);
    return g;
}

pd_status pd_head_multiply(void *product, struct pd_error *err)
{
    const struct pd_head_product *p = product;
    return p->gemm.m ? pd_gemm(p->math, &p->gemm, err) : PD_OK;
}

/* Gradient of the norm's output, a sum over chunks of the vocabulary; and the output matrix' meanwhile. */
static pd_status dnorm_rows(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                            struct pd_head_product *dmatrix, struct pd_error *err)
{
    const struct pd_beside beside[2] = {{pd_head_multiply, dmatrix}};
    const uint64_t vocab = t->model->config.vocab, hidden = t->model->config.hidden;
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        struct pd_range c = pd_chunk_columns(t, vocab, 1, i);
        *pd_chunk_terms(t, i) = (struct pd_chunk_term){.a = (char *)t->logits + c.begin * t->element_bytes,
                                                       .b = (char *)h->matrix + c.begin * hidden * t->element_bytes,
                                                       .lda = pd_head_ld_dlogits(t),
                                                       .ldb = hidden,
                                                       .k = c.end - c.begin};
    }
    struct pd_chunk_sum sum = {
        .rows = r->rows, .columns = hidden, .units = vocab, .out = pd_head_rows(t, t->dnorm, r->row).data, .beside = beside};
    return pd_chunk_sum_run(t, &sum, err);
}

/* A run whose logits of all columns exist at once. */
static pd_status whole_rows(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                            struct pd_error *err)
{
    const struct pd_range all = {0, t->share.vocab_columns};
    PD_TRY(pd_head_logits(t, h, r, all, err));
    PD_TRY(loss(t, h, r, err));
    if (!h->backward) return PD_OK;
    struct pd_head_product dmatrix = {t->math, pd_head_dmatrix(t, r, all)};
    return dnorm_rows(t, h, r, &dmatrix, err);
}

/* Where a micro-batch's dmatrix is made: with several runs of logits its own sum comes before that with others. */
static float *micro_batch_matrix(const struct pd_transformer *t, uint64_t rows, float *dmatrix)
{
    return t->adds && rows > t->logits_rows ? t->matrix : dmatrix;
}

/* Rows of one piece; dmatrix (V,C) is the chain over them. */
static pd_status head_piece(struct pd_transformer *t, void *context, uint32_t place, float *dmatrix, struct pd_error *err)
{
    const struct pd_head *h = context;
    const uint64_t elements = t->share.vocab_columns * t->model->config.hidden;
    const uint64_t begin = t->sp.row[place], end = t->sp.row[place + 1];
    float *micro_batch = micro_batch_matrix(t, end - begin, dmatrix);
    for (uint64_t row = begin; row < end; row += t->logits_rows) {
        const struct pd_head_run r = {.row = row,
                                      .rows = end - row < t->logits_rows ? end - row : t->logits_rows,
                                      .dmatrix = micro_batch,
                                      .goes_on = row > begin,
                                      .adds = micro_batch == dmatrix};
        PD_TRY(t->options.logits_columns ? pd_head_columns(t, h, &r, err) : whole_rows(t, h, &r, err));
    }
    return micro_batch == dmatrix ? PD_OK : pd_add(t->math, elements, dmatrix, PD_F32, micro_batch, false, err);
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
    struct pd_head h = {.input = pd_transformer_device_input(t, slot),
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
    PD_TRY(pd_sum_pieces(t, t->share.vocab_columns * t->model->config.hidden, head_piece, &h, gradients[matrix], err));
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
    PD_TRY(logits_of(t, row, 1, head_weights[place_of_matrix(t)], all, ret_logits + t->share.vocab.begin, all.end, err));
    return t->partition.tp > 1 ? pd_logits_fetch(t, ret_logits, err) : PD_OK;
}
