#include "trainer/model/transformer.h"

#include "trainer/model/transformer_internal.h"

#include <stdlib.h>
#include <string.h>

#define LOGITS_BYTES_MAX (128ull << 20)

static void *take(struct pd_arena *arena, uint64_t elements, uint64_t element_bytes)
{
    return pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, elements * element_bytes);
}

static float *take_norm_mean(struct pd_transformer *t, struct pd_arena *arena)
{
    return t->is_llama ? NULL : take(arena, t->rows, sizeof(float));
}

static void take_block(struct pd_transformer *t, struct pd_block_activations *a, struct pd_arena *arena)
{
    const struct pd_model_config *c = &t->model->config;
    a->mean1 = take_norm_mean(t, arena);
    a->rstd1 = take(arena, t->rows, sizeof(float));
    a->norm1 = take(arena, t->rows * c->hidden, t->element_bytes);
    a->qkv = take(arena, t->rows * t->qkv_columns, t->element_bytes);
    a->lse = take(arena, t->rows * c->heads, sizeof(float));
    a->attention = take(arena, t->rows * t->query_columns, t->element_bytes);
    a->middle = take(arena, t->rows * c->hidden, t->element_bytes);
    a->mean2 = take_norm_mean(t, arena);
    a->rstd2 = take(arena, t->rows, sizeof(float));
    a->norm2 = take(arena, t->rows * c->hidden, t->element_bytes);
    a->up = take(arena, t->rows * t->up_columns, t->element_bytes);
    a->hidden = take(arena, t->rows * c->ffn, t->element_bytes);
}

static void take_activations(struct pd_transformer *t, struct pd_arena *arena)
{
    const struct pd_model_config *c = &t->model->config;
    uint64_t stream = t->rows * c->hidden;
    uint32_t streams = t->options.backward ? c->layers + 1 : 2;
    for (uint32_t i = 0; i <= c->layers; i++)
        t->stream[i] = i < streams ? take(arena, stream, t->element_bytes) : t->stream[i - 2];
    uint32_t kept = t->options.backward && t->options.recompute == PD_RECOMPUTE_NONE ? c->layers : 1;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (i < kept)
            take_block(t, &t->blocks[i], arena);
        else
            t->blocks[i] = t->blocks[0];
    }
    t->head_mean = take_norm_mean(t, arena);
    t->head_rstd = take(arena, t->rows, sizeof(float));
    t->head_norm = take(arena, stream, t->element_bytes);
    t->logits = take(arena, t->logits_rows * c->vocab, sizeof(float));
    t->losses = take(arena, t->rows, sizeof(float));
    if (!t->options.backward) return;
    t->dnorm = take(arena, stream, t->element_bytes);
    t->dup = take(arena, t->rows * t->up_columns, t->element_bytes);
    t->dhidden = take(arena, t->rows * c->ffn, t->element_bytes);
    t->dqkv = take(arena, t->rows * t->qkv_columns, t->element_bytes);
    t->dattention = take(arena, t->rows * t->query_columns, t->element_bytes);
    t->delta = take(arena, t->rows * c->heads, sizeof(float));
}

static void take_input(struct pd_transformer *t, struct pd_arena *arena)
{
    t->input.tokens = take(arena, t->rows, sizeof(int32_t));
    t->input.targets = take(arena, t->rows, sizeof(int32_t));
    t->input.positions = take(arena, t->rows, sizeof(int32_t));
    t->input.first = take(arena, t->rows, sizeof(int32_t));
    if (!t->is_llama) return;
    t->cos_sin = take(arena, (uint64_t)t->options.length * t->model->config.head_size, sizeof(float));
    if (!pd_arena_is_dry(arena)) pd_model_rope_table(&t->model->config, t->options.length, t->cos_sin);
}

/* Rows of logits that exist at once: they do not change a bit, since gradient chains go on from one chunk to the next. */
static uint64_t logits_rows_of(uint64_t rows, uint64_t vocab)
{
    uint64_t fit = LOGITS_BYTES_MAX / (vocab * sizeof(float)) / 16 * 16;
    if (fit < 16) fit = 16;
    return rows < fit ? rows : fit;
}

pd_status pd_transformer_new(const struct pd_model *model, struct pd_math *math,
                             const struct pd_transformer_options *options, struct pd_arena *arena,
                             struct pd_transformer **ret_transformer, struct pd_error *err)
{
    const struct pd_model_config *c = &model->config;
    struct pd_transformer *t = calloc(1, sizeof *t);
    if (t) {
        t->stream = calloc(c->layers + 1, sizeof *t->stream);
        t->blocks = calloc(c->layers, sizeof *t->blocks);
    }
    if (!t || !t->stream || !t->blocks) {
        pd_transformer_free(t);
        PD_FAIL(err, PD_NO_MEMORY, "model: no memory for the tables of %u blocks", c->layers);
    }
    t->model = model;
    t->math = math;
    t->options = *options;
    t->is_llama = c->family == PD_FAMILY_LLAMA;
    t->rows = (uint64_t)options->sequences * options->length;
    t->element_bytes = pd_dtype_bytes(options->dtype);
    t->query_columns = (uint64_t)c->heads * c->head_size;
    t->qkv_columns = t->query_columns + 2ull * c->kv_heads * c->head_size;
    t->up_columns = t->is_llama ? 2ull * c->ffn : c->ffn;
    t->logits_rows = logits_rows_of(t->rows, c->vocab);
    take_input(t, arena);
    take_activations(t, arena);
    *ret_transformer = t;
    return PD_OK;
}

void pd_transformer_free(struct pd_transformer *t)
{
    if (!t) return;
    free(t->stream);
    free(t->blocks);
    free(t);
}

uint64_t pd_transformer_rows(const struct pd_transformer *t)
{
    return t->rows;
}

uint64_t pd_transformer_stream_bytes(const struct pd_transformer *t)
{
    return t->rows * t->model->config.hidden * t->element_bytes;
}

struct pd_leaf_input *pd_transformer_input(struct pd_transformer *t, uint32_t slot)
{
    (void)slot;
    return &t->input;
}

void *pd_transformer_stream(struct pd_transformer *t, uint32_t slot, uint32_t block)
{
    (void)slot;
    return t->stream[block];
}

const float *pd_transformer_losses(const struct pd_transformer *t)
{
    return t->losses;
}

static struct pd_embedding embedding_of(struct pd_transformer *t)
{
    const struct pd_model_config *c = &t->model->config;
    return (struct pd_embedding){.rows = t->rows,
                                 .columns = c->hidden,
                                 .vocab = c->vocab,
                                 .dtype = t->options.dtype,
                                 .tokens = t->input.tokens,
                                 .positions = t->input.positions,
                                 .context = c->context};
}

pd_status pd_transformer_embed(struct pd_transformer *t, uint32_t slot, void *const *weights, struct pd_error *err)
{
    (void)slot;
    struct pd_embedding e = embedding_of(t);
    e.token_table = weights[0];
    e.position_table = t->is_llama ? NULL : weights[1];
    e.out = t->stream[0];
    return pd_embedding_forward(t->math, &e, err);
}

pd_status pd_transformer_embed_backward(struct pd_transformer *t, uint32_t slot, float *const *gradients, void *dstream,
                                        struct pd_error *err)
{
    (void)slot;
    struct pd_embedding e = embedding_of(t);
    e.dout = dstream;
    e.dtoken_table = gradients[0];
    e.dposition_table = t->is_llama ? NULL : gradients[1];
    return pd_embedding_backward(t->math, &e, err);
}

/* ---- head: weights are norm weight, [norm bias,] output matrix ---- */

static struct pd_norm head_norm_of(struct pd_transformer *t, void *const *weights)
{
    struct pd_norm n = {.rows = t->rows,
                        .columns = t->model->config.hidden,
                        .dtype = t->options.dtype,
                        .epsilon = t->model->config.norm_epsilon};
    n.x = t->stream[t->model->config.layers];
    n.weight = weights[0];
    n.bias = t->is_llama ? NULL : weights[1];
    n.mean = t->head_mean;
    n.rstd = t->head_rstd;
    n.out = t->head_norm;
    return n;
}

static pd_status head_norm_forward(struct pd_transformer *t, const struct pd_norm *n, struct pd_error *err)
{
    return t->is_llama ? pd_rmsnorm_forward(t->math, n, err) : pd_layernorm_forward(t->math, n, err);
}

static struct pd_matrix rows_of(struct pd_transformer *t, void *base, uint64_t first_row, uint64_t columns)
{
    return (struct pd_matrix){(char *)base + first_row * columns * t->element_bytes, t->options.dtype, columns};
}

static pd_status logits_of(struct pd_transformer *t, uint64_t first_row, uint64_t rows, void *output_matrix, float *logits,
                           struct pd_error *err)
{
    uint64_t hidden = t->model->config.hidden, vocab = t->model->config.vocab;
    struct pd_gemm g = {.m = rows,
                        .n = vocab,
                        .k = hidden,
                        .trans_b = true,
                        .a = rows_of(t, t->head_norm, first_row, hidden),
                        .b = {output_matrix, t->options.dtype, hidden},
                        .c = {logits, PD_F32, vocab}};
    return pd_gemm(t->math, &g, err);
}

/* Loss of a chunk of rows; with a gradient: dlogits over the logits, then the two products. */
static pd_status head_chunk(struct pd_transformer *t, uint64_t first_row, uint64_t rows, void *output_matrix,
                            float *doutput_matrix, float scale, struct pd_error *err)
{
    uint64_t hidden = t->model->config.hidden, vocab = t->model->config.vocab;
    PD_TRY(logits_of(t, first_row, rows, output_matrix, t->logits, err));
    struct pd_cross_entropy loss = {.rows = rows,
                                    .vocab = vocab,
                                    .ld = vocab,
                                    .chunks = 1,
                                    .logits = t->logits,
                                    .targets = t->input.targets + first_row,
                                    .losses = t->losses + first_row,
                                    .dtype = t->options.dtype,
                                    .scale = scale};
    /* A row of dlogits overlays its own row of logits, which is as wide or wider. */
    uint64_t ld = vocab * sizeof(float) / t->element_bytes;
    if (doutput_matrix) {
        loss.dlogits = t->logits;
        loss.ld_dlogits = ld;
    }
    PD_TRY(pd_cross_entropy(t->math, &loss, err));
    if (!doutput_matrix) return PD_OK;
    struct pd_matrix dlogits = {t->logits, t->options.dtype, ld};
    struct pd_gemm dnorm = {.m = rows,
                            .n = hidden,
                            .k = vocab,
                            .a = dlogits,
                            .b = {output_matrix, t->options.dtype, hidden},
                            .c = rows_of(t, t->dnorm, first_row, hidden)};
    PD_TRY(pd_gemm(t->math, &dnorm, err));
    struct pd_gemm dmatrix = {.m = vocab,
                              .n = hidden,
                              .k = rows,
                              .trans_a = true,
                              .a = dlogits,
                              .b = rows_of(t, t->head_norm, first_row, hidden),
                              .c = {doutput_matrix, PD_F32, hidden},
                              .accumulate = first_row > 0};
    return pd_gemm(t->math, &dmatrix, err);
}

pd_status pd_transformer_head(struct pd_transformer *t, uint32_t slot, void *const *weights, float *const *gradients,
                              float scale, void *dstream, struct pd_error *err)
{
    (void)slot;
    struct pd_norm n = head_norm_of(t, weights);
    PD_TRY(head_norm_forward(t, &n, err));
    uint32_t matrix = t->is_llama ? 1 : 2;
    for (uint64_t row = 0; row < t->rows; row += t->logits_rows) {
        uint64_t rows = t->rows - row < t->logits_rows ? t->rows - row : t->logits_rows;
        PD_TRY(head_chunk(t, row, rows, weights[matrix], gradients ? gradients[matrix] : NULL, scale, err));
    }
    if (!gradients) return PD_OK;
    n.dout = t->dnorm;
    n.dx = dstream;
    n.dweight = gradients[0];
    n.dbias = t->is_llama ? NULL : gradients[1];
    return t->is_llama ? pd_rmsnorm_backward(t->math, &n, err) : pd_layernorm_backward(t->math, &n, err);
}

pd_status pd_transformer_row_logits(struct pd_transformer *t, void *const *head_weights, uint64_t row, float *ret_logits,
                                    struct pd_error *err)
{
    PD_CHECK(row < t->rows);
    struct pd_norm n = head_norm_of(t, head_weights);
    PD_TRY(head_norm_forward(t, &n, err));
    return logits_of(t, row, 1, head_weights[t->is_llama ? 1 : 2], ret_logits, err);
}
