/* One transformer block of any family:
 *
 *   middle = x + attention(rope(head_norms(norm1(x) Wqkv + bqkv))) Wo + bo
 *   out    = middle + activation(norm2(middle) Wup + bup) Wdown + bdown
 *
 * A row of family.c selects norms, activation, positions and biases.
 *
 * Wqkv and Wup are cut by rows (their output columns): forward sums nothing over ranks, and the gradient of the norm is a
 * sum over chunks. Wo and Wdown are cut by columns and stored as one matrix per chunk: their product is the sum over chunks.
 * Sums over tokens go piece by piece.
 *
 * Tensor-parallel ranks share the rows of x, middle and out (rows.c), in forward and while saved. The exchange after each
 * norm's gradient gathers all rows of the norm's input, from which backward recomputes the norm. */
#include "ckpt/base/trace.h"
#include "trainer/model/transformer_internal.h"

/* One pass over a block. */
struct pass {
    struct pd_transformer *t;
    const int (*places)[2]; /* by role: struct pd_model */
    enum pd_role up;
    const struct pd_micro_batch_input *input;
    struct pd_block_activations *a;
    enum pd_recompute recompute;
    uint32_t block;
    bool has_experts; /* instead of the MLP */
    void *x;          /* (kept rows, C) input of the block */
    void *const *w;
    float *const *g;
    uint64_t hidden;
};

static struct pass pass_of(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w, float *const *g)
{
    uint32_t place = pd_transformer_place(t, slot, block);
    PD_CHECK(block < t->model->config.layers);
    pd_fp8_enter(t, block);
    t->experts.is_absent = false;
    pd_router_enter(t, place, &t->blocks[place].experts);
    return (struct pass){.t = t,
                         .places = t->model->places,
                         .up = pd_up_role(t->family),
                         .input = pd_transformer_device_input(t, slot),
                         .a = &t->blocks[place],
                         .recompute = t->held[block].recompute,
                         .block = block,
                         .has_experts = pd_model_has_experts(&t->model->config, block),
                         .x = t->stream[place],
                         .w = w,
                         .g = g,
                         .hidden = t->model->config.hidden};
}

/* The block's weight with that role, or NULL. */
static void *weight(const struct pass *p, enum pd_role role)
{
    return p->places[role][0] < 0 ? NULL : p->w[p->places[role][0]];
}

static void *bias_of(const struct pass *p, enum pd_role role)
{
    return p->places[role][1] < 0 ? NULL : p->w[p->places[role][1]];
}

static float *dweight_of(const struct pass *p, enum pd_role role)
{
    return p->places[role][0] < 0 ? NULL : p->g[p->places[role][0]];
}

static float *dbias_of(const struct pass *p, enum pd_role role)
{
    return p->places[role][1] < 0 ? NULL : p->g[p->places[role][1]];
}

static struct pd_matrix matrix(const struct pd_transformer *t, const void *data, uint64_t ld)
{
    return (struct pd_matrix){(void *)(uintptr_t)data, t->options.dtype, ld};
}

static const char *shift(const struct pd_transformer *t, const void *base, uint64_t elements)
{
    return (const char *)base + elements * t->element_bytes;
}

/* ---- weights cut by rows ---- */

/* y (R,out) = x (R,C) W^T + bias;  W (out,C) */
static pd_status columns_forward(const struct pass *p, uint64_t out, const void *x, const void *w, const void *bias, void *y,
                                 struct pd_error *err)
{
    const struct pd_transformer *t = p->t;
    struct pd_gemm g = {.m = t->rows,
                        .n = out,
                        .k = p->hidden,
                        .trans_b = true,
                        .a = matrix(t, x, p->hidden),
                        .b = matrix(t, w, p->hidden),
                        .c = matrix(t, y, out),
                        .bias = bias,
                        .bias_dtype = t->options.dtype};
    return out ? pd_gemm(t->math, &g, err) : PD_OK;
}

static pd_status qkv_forward(const struct pass *p, struct pd_error *err)
{
    const struct pd_transformer *t = p->t;
    const uint64_t q = t->share.q_columns, kv = 2 * t->share.k_columns;
    const char *w = weight(p, PD_ROLE_Q), *bias = bias_of(p, PD_ROLE_Q);
    struct pd_qkv y = pd_qkv_of(t, p->a->qkv, t->share.k_columns);
    if (t->fp8.is_on) {
        pd_fp8_qkv_parts(p->t, &y, false);
        return pd_fp8_columns_forward(p->t, PD_FP8_QKV, p->a->norm1, w, bias, err);
    }
    if (!t->sp.by_parts) return columns_forward(p, q + kv, p->a->norm1, w, bias, p->a->qkv, err);
    PD_TRY(columns_forward(p, q, p->a->norm1, w, bias, y.q, err));
    return columns_forward(p, kv, p->a->norm1, shift(t, w, q * p->hidden), bias ? shift(t, bias, q) : NULL, y.k, err);
}

static pd_status up_forward(const struct pass *p, struct pd_error *err)
{
    const void *w = weight(p, p->up), *bias = bias_of(p, p->up);
    if (!p->t->fp8.is_on) return columns_forward(p, p->t->share.up_columns, p->a->norm2, w, bias, p->a->up, err);
    pd_fp8_up_parts(p->t, p->a->up);
    return pd_fp8_columns_forward(p->t, PD_FP8_UP, p->a->norm2, w, bias, err);
}

/* dW (out,in) = dy^T x, a chain of tokens a piece. */
struct weight_gradient {
    const void *dy, *x;
    uint64_t out, ld_dy, in, ld_x;
};

static pd_status weight_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct weight_gradient *w = context;
    const uint64_t row = t->sp.row[place];
    struct pd_gemm g = {.m = w->out,
                        .n = w->in,
                        .k = t->sp.rows[place],
                        .trans_a = true,
                        .a = matrix(t, shift(t, w->dy, row * w->ld_dy), w->ld_dy),
                        .b = matrix(t, shift(t, w->x, row * w->ld_x), w->ld_x),
                        .c = {dst, PD_F32, w->in},
                        .residual = pd_gradient_so_far(t, dst, w->in)};
    return pd_gemm(t->math, &g, err);
}

static pd_status bias_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct weight_gradient *w = context;
    return pd_column_sum(t->math, t->sp.rows[place], w->out, w->ld_dy, t->options.dtype,
                         shift(t, w->dy, t->sp.row[place] * w->ld_dy), dst, err);
}

static pd_status weight_backward(struct pd_transformer *t, struct weight_gradient *w, float *dweight, float *dbias,
                                 struct pd_error *err)
{
    if (!w->out || !w->in) return PD_OK;
    PD_TRY(pd_piece_gradients(t, w->out * w->in, weight_piece, w, dweight, err));
    return dbias ? pd_vector_gradient(t, w->out, bias_piece, w, dbias, err) : PD_OK;
}

static pd_status qkv_weights(const struct pass *p, const struct pd_qkv *d, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const uint64_t q = t->share.q_columns, kv = 2 * t->share.dk_columns;
    float *dweight = dweight_of(p, PD_ROLE_Q), *dbias = dbias_of(p, PD_ROLE_Q);
    if (t->fp8.is_on) return pd_fp8_columns_weights(t, p->a->norm1, dweight, dbias, err);
    struct weight_gradient all = {d->q, p->a->norm1, q + kv, d->ld_q, p->hidden, p->hidden};
    if (!t->sp.by_parts) return weight_backward(t, &all, dweight, dbias, err);
    struct weight_gradient queries = {d->q, p->a->norm1, q, d->ld_q, p->hidden, p->hidden};
    struct weight_gradient keys = {d->k, p->a->norm1, kv, d->ld_kv, p->hidden, p->hidden};
    PD_TRY(weight_backward(t, &queries, dweight, dbias, err));
    return weight_backward(t, &keys, dweight + q * p->hidden, dbias ? dbias + q : NULL, err);
}

static struct pd_chunk_term term(const struct pd_transformer *t, const void *dy, uint64_t ld_dy, uint64_t dy_column,
                                 const void *w, uint64_t w_row, uint64_t k)
{
    const uint64_t hidden = t->model->config.hidden;
    return (struct pd_chunk_term){
        .a = shift(t, dy, dy_column), .b = shift(t, w, w_row * hidden), .lda = ld_dy, .ldb = hidden, .k = k};
}

/* The terms of a chunk: its columns of q, of k, of v. */
static void qkv_terms(const struct pass *p, const struct pd_qkv *d)
{
    struct pd_transformer *t = p->t;
    const struct pd_model_config *c = &t->model->config;
    const struct pd_share *s = &t->share;
    const char *w = weight(p, PD_ROLE_Q);
    const uint64_t first_computed = (s->kv_computed.begin - s->kv_needed.begin) * c->head_size;
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        struct pd_chunk_term *terms = pd_chunk_terms(t, i);
        struct pd_range heads = pd_partition_chunk(&t->partition, c->heads, t->tp.first_chunk + i);
        struct pd_range kv = pd_partition_kv_computed(c, heads), q = pd_chunk_columns(t, c->heads, c->head_size, i);
        const uint64_t column = (kv.begin - s->kv_computed.begin) * c->head_size;
        const uint64_t k = (kv.end - kv.begin) * c->head_size, row = s->q_columns + first_computed + column;
        terms[0] = term(t, d->q, d->ld_q, q.begin, w, q.begin, q.end - q.begin);
        terms[1] = term(t, d->k, d->ld_kv, column, w, row, k);
        terms[2] = term(t, d->v, d->ld_kv, column, w, row + s->k_columns, k);
    }
    if (t->partition.virtual_tp == 1 && !t->sp.by_parts) { /* contiguous in memory: one product */
        t->tp.terms[0].k = s->q_columns + 2 * s->dk_columns;
        t->tp.terms[1].k = t->tp.terms[2].k = 0;
    }
}

static void up_terms(const struct pass *p)
{
    struct pd_transformer *t = p->t;
    const uint64_t ffn = t->model->config.ffn, columns = t->share.ffn_columns, ld = t->share.up_columns;
    const void *w = weight(p, p->up);
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        struct pd_chunk_term *terms = pd_chunk_terms(t, i);
        struct pd_range r = pd_chunk_columns(t, ffn, 1, i);
        const uint64_t k = r.end - r.begin;
        terms[0] = term(t, t->dup, ld, r.begin, w, r.begin, k);
        terms[1] = term(t, t->dup, ld, columns + r.begin, w, columns + r.begin, t->family->up_matrices == 2 ? k : 0);
    }
    if (t->partition.virtual_tp == 1) {
        t->tp.terms[0].k = ld;
        t->tp.terms[1].k = 0;
    }
}

/* dnorm (R,C): the tree over chunks of the chain of each chunk's terms. The rows that the norm read come along. */
static pd_status columns_input(const struct pass *p, uint64_t units, const void *brings, const struct pd_beside *beside,
                               struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    struct pd_chunk_sum sum = {.rows = t->rows,
                               .columns = p->hidden,
                               .units = units,
                               .trans_b = t->fp8.is_on,
                               .out = t->dnorm,
                               .brings = brings,
                               .beside = beside};
    return pd_chunk_sum_run(t, &sum, err);
}

/* ---- weights cut by columns ---- */

static struct pd_row_linear out_projection(const struct pass *p)
{
    const struct pd_model_config *c = &p->t->model->config;
    return (struct pd_row_linear){PD_FP8_OUT,      PD_ROLE_OUT,           c->heads, c->head_size, p->t->share.q_columns,
                                  p->a->attention, weight(p, PD_ROLE_OUT)};
}

static struct pd_row_linear down_projection(const struct pass *p)
{
    return (struct pd_row_linear){PD_FP8_DOWN,  PD_ROLE_DOWN,           p->t->model->config.ffn, 1, p->t->share.ffn_columns,
                                  p->a->hidden, weight(p, PD_ROLE_DOWN)};
}

/* y = x W^T + bias + residual, for the rows that this rank keeps. */
static pd_status rows_forward(const struct pass *p, const struct pd_row_linear *l, const void *residual, void *y,
                              struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const struct pd_chunk_sum sum = {.rows = t->rows,
                                     .columns = p->hidden,
                                     .units = l->units,
                                     .trans_b = true,
                                     .by_rows = true,
                                     .bias = bias_of(p, l->role),
                                     .residual = residual,
                                     .out = y};
    if (t->fp8.is_on) PD_TRY(pd_fp8_rows_terms(t, l, err));
    for (uint32_t i = 0; i < t->tp.chunks && !t->fp8.is_on; i++) {
        struct pd_range r = pd_chunk_columns(t, l->units, l->unit, i);
        const uint64_t k = r.end - r.begin;
        *pd_chunk_terms(t, i) = (struct pd_chunk_term){
            .a = shift(t, l->x, r.begin), .b = shift(t, l->w, r.begin * p->hidden), .lda = l->in, .ldb = k, .k = k};
    }
    return pd_chunk_sum_run(t, &sum, err);
}

/* dx (R,in) = dy W, with dy = dstream; in fp8 also dW. */
static pd_status rows_backward(const struct pass *p, const struct pd_row_linear *l, void *dx, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    if (t->fp8.is_on) return pd_fp8_rows_backward(t, l, dx, dweight_of(p, l->role), err);
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        struct pd_range r = pd_chunk_columns(t, l->units, l->unit, i);
        const uint64_t n = r.end - r.begin;
        if (!n) continue;
        struct pd_gemm g = {.m = t->rows,
                            .n = n,
                            .k = p->hidden,
                            .a = matrix(t, t->dstream, p->hidden),
                            .b = matrix(t, shift(t, l->w, r.begin * p->hidden), n),
                            .c = matrix(t, shift(t, dx, r.begin), l->in)};
        PD_TRY(pd_gemm(t->math, &g, err));
    }
    return PD_OK;
}

/* dW in the layout of W, except in fp8; dbias on every rank. */
static pd_status rows_weights(const struct pass *p, const struct pd_row_linear *l, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    for (uint32_t i = 0; i < t->tp.chunks && !t->fp8.is_on; i++) {
        const struct pd_range r = pd_chunk_columns(t, l->units, l->unit, i);
        struct weight_gradient w = {t->dstream, shift(t, l->x, r.begin), p->hidden, p->hidden, r.end - r.begin, l->in};
        PD_TRY(weight_backward(t, &w, dweight_of(p, l->role) + r.begin * p->hidden, NULL, err));
    }
    struct weight_gradient bias = {.dy = t->dstream, .out = p->hidden, .ld_dy = p->hidden};
    float *dbias = dbias_of(p, l->role);
    return dbias ? pd_vector_gradient(t, p->hidden, bias_piece, &bias, dbias, err) : PD_OK;
}

/* ---- norms ---- */

/* For x: all rows, or those this rank keeps. */
static struct pd_norm norm1_of(const struct pass *p, const void *x)
{
    return pd_norm_of(p->t, x, weight(p, PD_ROLE_NORM1), bias_of(p, PD_ROLE_NORM1), p->a->mean1, p->a->rstd1, p->a->norm1);
}

static struct pd_norm norm2_of(const struct pass *p, const void *middle)
{
    return pd_norm_of(p->t, middle, weight(p, PD_ROLE_NORM2), bias_of(p, PD_ROLE_NORM2), p->a->mean2, p->a->rstd2,
                      p->a->norm2);
}

static pd_status norm1_start(const struct pass *p, struct pd_error *err)
{
    const struct pd_norm n = norm1_of(p, p->x);
    return pd_rows_norm_start(p->t, &n, err);
}

static pd_status norm2_start(const struct pass *p, struct pd_error *err)
{
    const struct pd_norm n = norm2_of(p, p->a->middle);
    return pd_rows_norm_start(p->t, &n, err);
}

/* In backward, for gathered rows; with one rank the norm was kept or recomputed before. */
static pd_status norm_again(const struct pass *p, const struct pd_norm *n, struct pd_error *err)
{
    return p->t->partition.tp > 1 ? pd_norm_forward(p->t->math, n, err) : PD_OK;
}

/* ---- activation functions ---- */

static pd_status activation_forward(const struct pass *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    if (p->has_experts) return pd_experts_activate(t, p->a, err);
    const uint64_t ffn = t->share.ffn_columns;
    if (!ffn) return PD_OK;
    if (t->family->activation == PD_ACTIVATION_SWIGLU)
        return pd_swiglu_forward(t->math, t->rows, ffn, t->options.dtype, p->a->up, p->a->hidden, err);
    return pd_gelu_forward(t->math, t->rows * ffn, t->options.dtype, p->a->up, p->a->hidden, err);
}

static pd_status activation_backward(const struct pass *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const uint64_t ffn = t->share.ffn_columns;
    if (!ffn) return PD_OK;
    if (t->family->activation == PD_ACTIVATION_SWIGLU)
        return pd_swiglu_backward(t->math, t->rows, ffn, t->options.dtype, p->a->up, t->dhidden, t->dup, err);
    return pd_gelu_backward(t->math, t->rows * ffn, t->options.dtype, p->a->up, t->dhidden, t->dup, err);
}

/* ---- the block ---- */

/* out NULL: computes all except the output. */
static pd_status run_forward(const struct pass *p, void *out, struct pd_error *err)
{
    const struct pd_row_linear attention_out = out_projection(p), down = down_projection(p);
    PD_TRY(norm1_start(p, err));
    struct pd_transformer *t = p->t;
    PD_TRY(pd_rows_norm_wait(t, err));
    PD_TRY(qkv_forward(p, err));
    if (p->places[PD_ROLE_Q_NORM][0] >= 0)
        PD_TRY(pd_head_norms_forward(t, p->input, p->a, p->w + p->places[PD_ROLE_Q_NORM][0], err));
    PD_TRY(pd_block_attention_forward(t, p->input, p->a, err));
    PD_TRY(rows_forward(p, &attention_out, p->x, p->a->middle, err));
    PD_TRY(norm2_start(p, err));
    PD_TRY(pd_rows_norm_wait(p->t, err));
    if (p->has_experts) return pd_experts_forward(t, p->block, p->a, p->w, p->a->middle, out, err);
    PD_TRY(up_forward(p, err));
    PD_TRY(activation_forward(p, err));
    return out ? rows_forward(p, &down, p->a->middle, out, err) : PD_OK;
}

static pd_status recompute(const struct pass *p, struct pd_error *err)
{
    if (p->recompute == PD_RECOMPUTE_NONE) return PD_OK;
    if (p->recompute == PD_RECOMPUTE_FULL) return run_forward(p, NULL, err);
    if (p->t->partition.tp == 1) {
        PD_TRY(norm1_start(p, err));
        PD_TRY(norm2_start(p, err));
    }
    return activation_forward(p, err);
}

pd_status pd_transformer_block_forward(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w, void *out,
                                       struct pd_error *err)
{
    PD_TRY(pd_activations_open(t, slot, block, err));
    const uint64_t begin = pd_trace_begin();
    struct pass p = pass_of(t, slot, block, w, NULL);
    if (!out) PD_TRY(pd_activations_input(t, slot, block + 1, &out, err));
    PD_TRY(run_forward(&p, out, err));
    pd_trace_end(begin, "compute", "block forward", block);
    return pd_activations_close(t, slot, block, err);
}

/* ---- weight gradients, postponed to overlap an exchange; not in fp8, whose code buffers are reused ---- */

static pd_status down_weights(void *pass, struct pd_error *err)
{
    const struct pd_row_linear down = down_projection(pass);
    return rows_weights(pass, &down, err);
}

static pd_status up_weights(void *pass, struct pd_error *err)
{
    const struct pass *p = pass;
    struct pd_transformer *t = p->t;
    if (p->has_experts) return PD_OK; /* they have them already */
    float *dweight = dweight_of(p, p->up), *dbias = dbias_of(p, p->up);
    if (t->fp8.is_on) return pd_fp8_columns_weights(t, p->a->norm2, dweight, dbias, err);
    struct weight_gradient up = {t->dup, p->a->norm2, t->share.up_columns, t->share.up_columns, p->hidden, p->hidden};
    return weight_backward(t, &up, dweight, dbias, err);
}

static pd_status out_weights(void *pass, struct pd_error *err)
{
    const struct pd_row_linear out = out_projection(pass);
    return rows_weights(pass, &out, err);
}

/* t->dnorm */
static pd_status up_gradient(struct pass *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const struct pd_beside beside[2] = {{down_weights, p}};
    if (t->fp8.is_on) {
        PD_TRY(down_weights(p, err));
        pd_fp8_up_parts(t, t->dup);
        PD_TRY(pd_fp8_columns_terms(t, PD_FP8_UP, weight(p, p->up), err));
    } else {
        up_terms(p);
    }
    return columns_input(p, t->model->config.ffn, p->a->middle, t->fp8.is_on ? NULL : beside, err);
}

/* t->dnorm */
static pd_status qkv_gradient(struct pass *p, const struct pd_qkv *d, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const struct pd_beside beside[2] = {{up_weights, p}, {out_weights, p}};
    if (t->fp8.is_on) {
        PD_TRY(out_weights(p, err));
        pd_fp8_qkv_parts(t, d, true);
        PD_TRY(pd_fp8_columns_terms(t, PD_FP8_QKV, weight(p, PD_ROLE_Q), err));
    } else {
        qkv_terms(p, d);
    }
    return columns_input(p, t->model->config.heads, p->x, t->fp8.is_on ? NULL : beside, err);
}

/* Experts read norm2 of all rows, so these are gathered first. */
static pd_status experts_backward(struct pass *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    PD_TRY(pd_rows_bring(t, p->a->middle, err));
    const struct pd_norm n = norm2_of(p, pd_rows_whole(t, p->a->middle));
    PD_TRY(norm_again(p, &n, err));
    PD_TRY(pd_experts_backward(t, p->block, p->a, p->w, p->g, err));
    return pd_norm_gradient(t, &n, t->dstream, dweight_of(p, PD_ROLE_NORM2), dbias_of(p, PD_ROLE_NORM2), err);
}

static pd_status mlp_backward(struct pass *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const struct pd_row_linear down = down_projection(p);
    const struct pd_norm n = norm2_of(p, pd_rows_whole(t, p->a->middle));
    PD_TRY(rows_backward(p, &down, t->dhidden, err));
    PD_TRY(activation_backward(p, err));
    PD_TRY(up_gradient(p, err));
    PD_TRY(norm_again(p, &n, err));
    if (t->fp8.is_on) PD_TRY(up_weights(p, err));
    return pd_norm_gradient(t, &n, t->dstream, dweight_of(p, PD_ROLE_NORM2), dbias_of(p, PD_ROLE_NORM2), err);
}

static pd_status attention_backward(struct pass *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    const int heads = p->places[PD_ROLE_Q_NORM][0];
    const struct pd_row_linear out = out_projection(p);
    const struct pd_qkv d = pd_qkv_of(t, t->dqkv, t->share.dk_columns);
    const struct pd_norm n = norm1_of(p, pd_rows_whole(t, p->x));
    PD_TRY(rows_backward(p, &out, t->dattention, err));
    PD_TRY(pd_block_attention_backward(t, p->input, p->a, err));
    if (heads >= 0) PD_TRY(pd_head_norms_backward(t, p->input, p->a, p->w + heads, p->g + heads, err));
    PD_TRY(qkv_gradient(p, &d, err));
    PD_TRY(norm_again(p, &n, err));
    PD_TRY(qkv_weights(p, &d, err));
    return pd_norm_gradient(t, &n, t->dstream, dweight_of(p, PD_ROLE_NORM1), dbias_of(p, PD_ROLE_NORM1), err);
}

pd_status pd_transformer_block_backward(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w,
                                        float *const *g, void *dstream, struct pd_error *err)
{
    PD_TRY(pd_activations_ensure(t, slot, block, err));
    const uint64_t begin = pd_trace_begin();
    struct pass p = pass_of(t, slot, block, w, g);
    pd_transformer_set_dstream(t, dstream);
    PD_TRY(recompute(&p, err));
    PD_TRY(p.has_experts ? experts_backward(&p, err) : mlp_backward(&p, err));
    PD_TRY(attention_backward(&p, err));
    pd_trace_end(begin, "compute", "block backward", block);
    return PD_OK;
}

/* ---- a slot without a micro-batch ---- */

static bool joins(const struct pd_transformer *t, uint32_t block)
{
    return t->options.ep > 1 && pd_model_has_experts(&t->model->config, block);
}

pd_status pd_transformer_block_join_forward(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w,
                                            struct pd_error *err)
{
    void *unused;
    if (!joins(t, block)) return PD_OK;
    PD_TRY(pd_activations_input(t, slot, block, &unused, err));
    PD_TRY(pd_activations_open(t, slot, block, err));
    const struct pass p = pass_of(t, slot, block, w, NULL);
    t->experts.is_absent = true;
    PD_TRY(pd_experts_join_forward(t, p.a, w, true, err));
    return pd_activations_close(t, slot, block, err);
}

pd_status pd_transformer_block_join_backward(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w,
                                             struct pd_error *err)
{
    if (!joins(t, block)) return PD_OK;
    PD_TRY(pd_activations_ensure(t, slot, block, err));
    const struct pass p = pass_of(t, slot, block, w, NULL);
    t->experts.is_absent = true;
    if (p.recompute == PD_RECOMPUTE_FULL) PD_TRY(pd_experts_join_forward(t, p.a, w, false, err));
    if (p.recompute == PD_RECOMPUTE_SELECTIVE) PD_TRY(pd_experts_activate(t, p.a, err));
    return pd_experts_join_backward(t, p.a, w, err);
}
