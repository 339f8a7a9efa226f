/* The head where logits exist for some columns at a time: less memory, and each logit is multiplied twice.
 *
 *   1  of each chunk of the vocabulary, columns after columns: the maximum, and the sum of exponentials relative to it
 *   2  the maximum over chunks and ranks; sums brought to it, their tree over chunks and ranks
 *   3  of all columns again: logits, their gradient over them, from it rows of the matrix' gradient and a link in the chunk's
 *      chain of the norm's
 *   4  the norm's gradient: the tree over chunks and ranks of these chains
 *
 * No columns cross a chunk, so what is computed does not know how many chunks a rank has.
 *
 * source  Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models" */
#include "trainer/model/head.h"

/* Columns [begin, at most end) of those that exist at once. */
static struct pd_range columns_from(const struct pd_transformer *t, uint64_t begin, uint64_t end)
{
    const uint64_t most = t->options.logits_columns;
    return (struct pd_range){begin, end - begin < most ? end : begin + most};
}

/* The loss as far as these columns know it. */
static struct pd_cross_entropy loss_of(const struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                                       struct pd_range columns)
{
    struct pd_cross_entropy l = pd_head_loss(t, h, r);
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

static pd_status chunk_sums(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r, uint32_t i,
                            struct pd_error *err)
{
    const struct pd_range chunk = chunk_of(t, i);
    for (uint64_t begin = chunk.begin; begin < chunk.end; begin += t->options.logits_columns) {
        const struct pd_range columns = columns_from(t, begin, chunk.end);
        struct pd_cross_entropy l = loss_of(t, h, r, columns);
        l.max = t->head_chunk_max + i * t->logits_rows;
        l.sum = t->head_chunk_sum + i * t->logits_rows;
        l.goes_on = begin > chunk.begin;
        PD_TRY(pd_head_logits(t, h, r, columns, err));
        PD_TRY(pd_logits_part(t->math, &l, err));
    }
    return PD_OK;
}

/* Chunks of this rank that have columns are its first ones. */
static uint32_t chunks_with_columns(const struct pd_transformer *t)
{
    uint32_t count = 0;
    while (count < t->tp.chunks && chunk_of(t, count).begin < chunk_of(t, count).end)
        count++;
    return count;
}

/* t->tp.max becomes that over this rank's chunks. */
static pd_status join_max(struct pd_transformer *t, uint64_t rows, struct pd_error *err)
{
    const struct pd_logits_join join = {
        .rows = rows, .ld = t->logits_rows, .ranks = chunks_with_columns(t), .all_max = t->head_chunk_max, .max = t->tp.max};
    return join.ranks ? pd_logits_join(t->math, &join, err) : PD_OK;
}

/* t->tp.sum becomes the tree over this rank's chunks, relative to t->tp.max. */
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

static pd_status losses(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r, struct pd_error *err)
{
    const bool together = t->partition.tp > 1;
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        PD_TRY(chunk_sums(t, h, r, i, err));
    PD_TRY(join_max(t, r->rows, err));
    if (together) PD_TRY(pd_loss_max(t, r->rows, err));
    PD_TRY(join_sum(t, r->rows, err));
    struct pd_cross_entropy l = loss_of(t, h, r, (struct pd_range){0, 0});
    if (together) PD_TRY(pd_loss_sum(t, r->rows, l.targets, err));
    l.dlogits = NULL;
    return pd_cross_entropy(t->math, &l, err);
}

/* ---- gradients ---- */

/* The link of these columns in their chunk's chain: t->head_terms + i (rows, C). */
static pd_status dnorm_term(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r, uint32_t i,
                            struct pd_range columns, bool goes_on, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    const struct pd_gemm g = {.m = r->rows,
                              .n = hidden,
                              .k = columns.end - columns.begin,
                              .a = {t->logits, t->options.dtype, pd_head_ld_dlogits(t)},
                              .b = pd_head_rows(t, h->matrix, columns.begin),
                              .c = {t->head_terms + i * r->rows * hidden, PD_F32, hidden},
                              .accumulate = goes_on};
    return pd_gemm(t->math, &g, err);
}

/* *last: the matrix' product of this rank's last columns, which is left for the exchange of dnorm to hide. */
static pd_status chunk_gradients(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r, uint32_t i,
                                 struct pd_head_product *last, struct pd_error *err)
{
    const struct pd_range chunk = chunk_of(t, i);
    for (uint64_t begin = chunk.begin; begin < chunk.end; begin += t->options.logits_columns) {
        const struct pd_range columns = columns_from(t, begin, chunk.end);
        const struct pd_cross_entropy l = loss_of(t, h, r, columns);
        const struct pd_gemm dmatrix = pd_head_dmatrix(t, r, columns);
        PD_TRY(pd_head_logits(t, h, r, columns, err));
        PD_TRY(pd_cross_entropy(t->math, &l, err));
        PD_TRY(dnorm_term(t, h, r, i, columns, begin > chunk.begin, err));
        if (columns.end < t->share.vocab_columns)
            PD_TRY(pd_gemm(t->math, &dmatrix, err));
        else
            last->gemm = dmatrix;
    }
    return PD_OK;
}

pd_status pd_head_columns(struct pd_transformer *t, const struct pd_head *h, const struct pd_head_run *r,
                          struct pd_error *err)
{
    struct pd_head_product last = {.math = t->math};
    const struct pd_beside beside[2] = {{pd_head_multiply, &last}};
    const struct pd_chunk_sum dnorm = {.rows = r->rows,
                                       .columns = t->model->config.hidden,
                                       .units = t->model->config.vocab,
                                       .chains = t->head_terms,
                                       .out = pd_head_rows(t, t->dnorm, r->row).data,
                                       .beside = beside};
    PD_TRY(losses(t, h, r, err));
    if (!h->backward) return PD_OK;
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        PD_TRY(chunk_gradients(t, h, r, i, &last, err));
    return pd_chunk_sum_run(t, &dnorm, err);
}
