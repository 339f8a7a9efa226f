/* One transformer block, both families:
 *
 *   middle = x + attention(rope(norm1(x) Wqkv + bqkv)) Wo + bo
 *   out    = middle + activation(norm2(middle) Wup + bup) Wdown + bdown
 *
 * Llama: RMS norm, RoPE, SwiGLU over gate and up, biases at most at q, k, v. GPT-2: layer norm, no RoPE, GELU, biases
 * everywhere. */
#include "trainer/model/transformer_internal.h"

#include <math.h>

/* Places of tensors inside a block of the tensor table; -1: the family has none. */
struct roles {
    int norm1, norm1_bias, qkv, qkv_bias, out, out_bias, norm2, norm2_bias, up, up_bias, down, down_bias;
};

static const struct roles llama_roles = {0, -1, 1, -1, 4, -1, 5, -1, 6, -1, 8, -1};
static const struct roles llama_bias_roles = {0, -1, 1, 4, 7, -1, 8, -1, 9, -1, 11, -1};
static const struct roles gpt2_roles = {0, 1, 2, 5, 8, 9, 10, 11, 12, 13, 14, 15};

static const struct roles *roles_of(const struct pd_transformer *t)
{
    if (!t->is_llama) return &gpt2_roles;
    return t->model->config.qkv_bias ? &llama_bias_roles : &llama_roles;
}

static void *at(void *const *pointers, int role)
{
    return role < 0 ? NULL : pointers[role];
}

static struct pd_matrix matrix(struct pd_transformer *t, void *data, uint64_t columns)
{
    return (struct pd_matrix){data, t->options.dtype, columns};
}

/* y (R,out) = x (R,in) W^T + bias + residual;  W (out,in) */
static pd_status linear(struct pd_transformer *t, uint64_t in, uint64_t out, void *x, void *weight, void *bias,
                        void *residual, void *y, struct pd_error *err)
{
    struct pd_gemm g = {.m = t->rows,
                        .n = out,
                        .k = in,
                        .trans_b = true,
                        .a = matrix(t, x, in),
                        .b = matrix(t, weight, in),
                        .c = matrix(t, y, out),
                        .bias = bias,
                        .bias_dtype = t->options.dtype,
                        .residual = matrix(t, residual, out)};
    return pd_gemm(t->math, &g, err);
}

/* dx (R,in) = dy W;  dW (out,in) = dy^T x;  dbias = sum over rows of dy */
static pd_status linear_backward(struct pd_transformer *t, uint64_t in, uint64_t out, void *x, void *weight, void *dy,
                                 void *dx, float *dweight, float *dbias, struct pd_error *err)
{
    struct pd_gemm input = {
        .m = t->rows, .n = in, .k = out, .a = matrix(t, dy, out), .b = matrix(t, weight, in), .c = matrix(t, dx, in)};
    PD_TRY(pd_gemm(t->math, &input, err));
    struct pd_gemm weights = {.m = out,
                              .n = in,
                              .k = t->rows,
                              .trans_a = true,
                              .a = matrix(t, dy, out),
                              .b = matrix(t, x, in),
                              .c = {dweight, PD_F32, in}};
    PD_TRY(pd_gemm(t->math, &weights, err));
    if (!dbias) return PD_OK;
    return pd_column_sum(t->math, t->rows, out, out, t->options.dtype, dy, dbias, err);
}

static struct pd_norm norm_of(struct pd_transformer *t, const void *x, void *weight, void *bias, float *mean, float *rstd,
                              void *out)
{
    return (struct pd_norm){.rows = t->rows,
                            .columns = t->model->config.hidden,
                            .dtype = t->options.dtype,
                            .epsilon = t->model->config.norm_epsilon,
                            .x = x,
                            .weight = weight,
                            .bias = bias,
                            .mean = mean,
                            .rstd = rstd,
                            .out = out};
}

static pd_status norm_forward(struct pd_transformer *t, const struct pd_norm *n, struct pd_error *err)
{
    return t->is_llama ? pd_rmsnorm_forward(t->math, n, err) : pd_layernorm_forward(t->math, n, err);
}

/* dstream = gradient through the norm + dstream, which is the residual path. */
static pd_status norm_backward(struct pd_transformer *t, struct pd_norm *n, float *dweight, float *dbias,
                               struct pd_error *err)
{
    n->dout = t->dnorm;
    n->dresidual = t->dstream;
    n->dx = t->dstream;
    n->dweight = dweight;
    n->dbias = dbias;
    return t->is_llama ? pd_rmsnorm_backward(t->math, n, err) : pd_layernorm_backward(t->math, n, err);
}

static pd_status rotate(struct pd_transformer *t, void *qkv, bool inverse, struct pd_error *err)
{
    if (!t->is_llama) return PD_OK;
    const struct pd_model_config *c = &t->model->config;
    /* q and k are neighbours, so their heads are rotated as one run. */
    struct pd_rope rope = {.rows = t->rows,
                           .heads = c->heads + c->kv_heads,
                           .head_size = c->head_size,
                           .dtype = t->options.dtype,
                           .x = qkv,
                           .ld = t->qkv_columns,
                           .positions = t->input.positions,
                           .cos_sin = t->cos_sin,
                           .inverse = inverse};
    return pd_rope(t->math, &rope, err);
}

static struct pd_attention attention_of(struct pd_transformer *t, struct pd_block_activations *a)
{
    const struct pd_model_config *c = &t->model->config;
    char *q = a->qkv, *k = q + t->query_columns * t->element_bytes;
    char *v = k + (uint64_t)c->kv_heads * c->head_size * t->element_bytes;
    return (struct pd_attention){.sequences = t->options.sequences,
                                 .length = t->options.length,
                                 .heads = c->heads,
                                 .kv_heads = c->kv_heads,
                                 .head_size = c->head_size,
                                 .dtype = t->options.dtype,
                                 .scale = 1.0f / sqrtf((float)c->head_size),
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .ld_qkv = t->qkv_columns,
                                 .first = t->options.separate_documents ? t->input.first : NULL,
                                 .out = a->attention,
                                 .lse = a->lse};
}

static pd_status activation_forward(struct pd_transformer *t, struct pd_block_activations *a, struct pd_error *err)
{
    uint64_t ffn = t->model->config.ffn;
    if (t->is_llama) return pd_swiglu_forward(t->math, t->rows, ffn, t->options.dtype, a->up, a->hidden, err);
    return pd_gelu_forward(t->math, t->rows * ffn, t->options.dtype, a->up, a->hidden, err);
}

static pd_status activation_backward(struct pd_transformer *t, struct pd_block_activations *a, struct pd_error *err)
{
    uint64_t ffn = t->model->config.ffn;
    if (t->is_llama) return pd_swiglu_backward(t->math, t->rows, ffn, t->options.dtype, a->up, t->dhidden, t->dup, err);
    return pd_gelu_backward(t->math, t->rows * ffn, t->options.dtype, a->up, t->dhidden, t->dup, err);
}

/* Everything of a block up to, but not including, its output. */
static pd_status block_inner(struct pd_transformer *t, uint32_t block, void *const *w, struct pd_error *err)
{
    const struct roles *r = roles_of(t);
    const uint64_t hidden = t->model->config.hidden;
    struct pd_block_activations *a = &t->blocks[block];
    void *x = t->stream[block];
    struct pd_norm n1 = norm_of(t, x, at(w, r->norm1), at(w, r->norm1_bias), a->mean1, a->rstd1, a->norm1);
    PD_TRY(norm_forward(t, &n1, err));
    PD_TRY(linear(t, hidden, t->qkv_columns, a->norm1, w[r->qkv], at(w, r->qkv_bias), NULL, a->qkv, err));
    PD_TRY(rotate(t, a->qkv, false, err));
    struct pd_attention attention = attention_of(t, a);
    PD_TRY(pd_attention_forward(t->math, &attention, err));
    PD_TRY(linear(t, t->query_columns, hidden, a->attention, w[r->out], at(w, r->out_bias), x, a->middle, err));
    struct pd_norm n2 = norm_of(t, a->middle, at(w, r->norm2), at(w, r->norm2_bias), a->mean2, a->rstd2, a->norm2);
    PD_TRY(norm_forward(t, &n2, err));
    PD_TRY(linear(t, hidden, t->up_columns, a->norm2, w[r->up], at(w, r->up_bias), NULL, a->up, err));
    return activation_forward(t, a, err);
}

pd_status pd_transformer_block_forward(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w, void *out,
                                       struct pd_error *err)
{
    (void)slot;
    const struct roles *r = roles_of(t);
    const struct pd_model_config *c = &t->model->config;
    PD_TRY(block_inner(t, block, w, err));
    struct pd_block_activations *a = &t->blocks[block];
    return linear(t, c->ffn, c->hidden, a->hidden, w[r->down], at(w, r->down_bias), a->middle,
                  out ? out : t->stream[block + 1], err);
}

static pd_status mlp_backward(struct pd_transformer *t, struct pd_block_activations *a, void *const *w, float *const *g,
                              struct pd_error *err)
{
    const struct roles *r = roles_of(t);
    const struct pd_model_config *c = &t->model->config;
    PD_TRY(linear_backward(t, c->ffn, c->hidden, a->hidden, w[r->down], t->dstream, t->dhidden, g[r->down],
                           at((void *const *)g, r->down_bias), err));
    PD_TRY(activation_backward(t, a, err));
    PD_TRY(linear_backward(t, c->hidden, t->up_columns, a->norm2, w[r->up], t->dup, t->dnorm, g[r->up],
                           at((void *const *)g, r->up_bias), err));
    struct pd_norm n2 = norm_of(t, a->middle, at(w, r->norm2), at(w, r->norm2_bias), a->mean2, a->rstd2, NULL);
    return norm_backward(t, &n2, g[r->norm2], at((void *const *)g, r->norm2_bias), err);
}

static pd_status attention_backward(struct pd_transformer *t, uint32_t block, void *const *w, float *const *g,
                                    struct pd_error *err)
{
    const struct roles *r = roles_of(t);
    const struct pd_model_config *c = &t->model->config;
    struct pd_block_activations *a = &t->blocks[block];
    PD_TRY(linear_backward(t, t->query_columns, c->hidden, a->attention, w[r->out], t->dstream, t->dattention, g[r->out],
                           at((void *const *)g, r->out_bias), err));
    struct pd_attention attention = attention_of(t, a);
    attention.dout = t->dattention;
    attention.delta = t->delta;
    attention.dq = t->dqkv;
    attention.dk = (char *)t->dqkv + t->query_columns * t->element_bytes;
    attention.dv = (char *)attention.dk + (uint64_t)c->kv_heads * c->head_size * t->element_bytes;
    PD_TRY(pd_attention_backward(t->math, &attention, err));
    PD_TRY(rotate(t, t->dqkv, true, err));
    PD_TRY(linear_backward(t, c->hidden, t->qkv_columns, a->norm1, w[r->qkv], t->dqkv, t->dnorm, g[r->qkv],
                           at((void *const *)g, r->qkv_bias), err));
    struct pd_norm n1 = norm_of(t, t->stream[block], at(w, r->norm1), at(w, r->norm1_bias), a->mean1, a->rstd1, NULL);
    return norm_backward(t, &n1, g[r->norm1], at((void *const *)g, r->norm1_bias), err);
}

pd_status pd_transformer_block_backward(struct pd_transformer *t, uint32_t slot, uint32_t block, void *const *w,
                                        float *const *g, void *dstream, struct pd_error *err)
{
    (void)slot;
    t->dstream = dstream;
    if (t->options.recompute != PD_RECOMPUTE_NONE) PD_TRY(block_inner(t, block, w, err));
    PD_TRY(mlp_backward(t, &t->blocks[block], w, g, err));
    return attention_backward(t, block, w, g, err);
}
