#include "tests/gpu/operation_cases.h"

#include "tests/unit/math/reference.h"

COUNT(rows_two_ffn, 2 * s->sequences * s->length * s->ffn)
COUNT(ffn, s->ffn)
COUNT(vocab_columns, s->vocab * s->columns)
COUNT(queries, s->sequences * s->length * s->heads * s->head_size)
COUNT(keys, s->sequences * s->length * s->kv_heads * s->head_size)
COUNT(sums, s->sequences * s->length * s->heads)
COUNT(turns, s->length * s->head_size)
COUNT(head_columns, s->head_size)
COUNT(all_heads, s->sequences * s->length * s->heads)

/* ---- products ---- */

RUN(linear)
{
    return pd_gemm(math,
                   &(struct pd_gemm){.m = rows(s),
                                     .n = s->ffn,
                                     .k = s->columns,
                                     .a = {p[0], act, s->columns},
                                     .b = {p[1], act, s->columns},
                                     .c = {p[4], act, s->ffn},
                                     .trans_b = true,
                                     .bias = p[2],
                                     .bias_dtype = act,
                                     .residual = {p[3], act, s->ffn}},
                   err);
}

EXACT(linear)
{
    ref_linear_forward(rows(s), s->ffn, s->columns, v[0].exact, v[1].exact, v[2].exact, v[4].exact);
    for (uint64_t i = 0; i < rows_ffn(s); i++)
        v[4].exact[i] += v[3].exact[i];
}

/* dx (R,C) = dy (R,F) W (F,C) */
RUN(linear_input)
{
    return pd_gemm(math,
                   &(struct pd_gemm){.m = rows(s),
                                     .n = s->columns,
                                     .k = s->ffn,
                                     .a = {p[0], act, s->ffn},
                                     .b = {p[1], act, s->columns},
                                     .c = {p[2], act, s->columns}},
                   err);
}

EXACT(linear_input)
{
    memset(v[2].exact, 0, rows_columns(s) * sizeof(double));
    for (uint64_t r = 0; r < rows(s); r++)
        for (uint64_t f = 0; f < s->ffn; f++)
            for (uint64_t c = 0; c < s->columns; c++)
                v[2].exact[r * s->columns + c] += v[0].exact[r * s->ffn + f] * v[1].exact[f * s->columns + c];
}

/* dW (F,C) += dy^T (F,R) x (R,C), fp32 */
RUN(linear_weight)
{
    return pd_gemm(math,
                   &(struct pd_gemm){.m = s->ffn,
                                     .n = s->columns,
                                     .k = rows(s),
                                     .a = {p[0], act, s->ffn},
                                     .b = {p[1], act, s->columns},
                                     .c = {p[2], PD_F32, s->columns},
                                     .trans_a = true,
                                     .accumulate = true},
                   err);
}

EXACT(linear_weight)
{
    for (uint64_t r = 0; r < rows(s); r++)
        for (uint64_t f = 0; f < s->ffn; f++)
            for (uint64_t c = 0; c < s->columns; c++)
                v[2].exact[f * s->columns + c] += v[0].exact[r * s->ffn + f] * v[1].exact[r * s->columns + c];
}

/* Added where the sum lies, as a rank that is alone does, and made first and then added, as others do: the same bits. */
RUN(weight_in_place)
{
    struct pd_gemm g = {.m = s->ffn,
                        .n = s->columns,
                        .k = rows(s),
                        .a = {p[0], act, s->ffn},
                        .b = {p[1], act, s->columns},
                        .c = {p[4], PD_F32, s->columns},
                        .trans_a = true};
    const float *const apart[] = {p[3]};
    const struct pd_finish difference = {.rows = s->ffn,
                                         .columns = s->columns,
                                         .part_count = 1,
                                         .parts = apart,
                                         .scale = -1.0f,
                                         .residual = {p[2], PD_F32, s->columns},
                                         .out = {p[5], PD_F32, s->columns}};
    PD_TRY(pd_math_copy(math, p[3], p[2], ffn_columns(s) * sizeof(float), err));
    PD_TRY(pd_gemm(math, &g, err));
    PD_TRY(pd_add(math, ffn_columns(s), p[3], p[4], err));
    g.c.data = p[2];
    g.residual = g.c;
    PD_TRY(pd_gemm(math, &g, err));
    return pd_finish(math, &difference, err);
}

EXACT(weight_in_place)
{
    memset(v[4].exact, 0, ffn_columns(s) * sizeof(double));
    for (uint64_t r = 0; r < rows(s); r++)
        for (uint64_t f = 0; f < s->ffn; f++)
            for (uint64_t c = 0; c < s->columns; c++)
                v[4].exact[f * s->columns + c] += v[0].exact[r * s->ffn + f] * v[1].exact[r * s->columns + c];
    for (uint64_t i = 0; i < ffn_columns(s); i++)
        v[3].exact[i] = v[2].exact[i] += v[4].exact[i]; /* and of v[5] 0 */
}

/* ---- norms ---- */

static struct pd_norm norm_of(const struct sizes *s, enum pd_dtype act, void *x, void *weight)
{
    return (struct pd_norm){
        .rows = rows(s), .columns = s->columns, .dtype = act, .epsilon = 1e-5f, .x = x, .weight = weight};
}

RUN(rmsnorm)
{
    struct pd_norm n = norm_of(s, act, p[0], p[1]);
    n.rstd = p[2], n.out = p[3], n.dout = p[4], n.dx = p[5], n.dweight = p[6];
    PD_TRY(pd_norm_forward(math, &n, err));
    return pd_norm_backward(math, &n, err);
}

EXACT(rmsnorm)
{
    ref_norm_forward(rows(s), s->columns, 1e-5f, v[0].exact, v[1].exact, NULL, NULL, v[2].exact, v[3].exact);
    ref_norm_backward(rows(s), s->columns, 1e-5f, v[0].exact, v[1].exact, v[4].exact, NULL, v[5].exact, v[6].exact, NULL);
}

RUN(layernorm)
{
    struct pd_norm n = norm_of(s, act, p[0], p[1]);
    n.bias = p[2], n.mean = p[3], n.rstd = p[4], n.out = p[5], n.dout = p[6], n.dx = p[7], n.dweight = p[8], n.dbias = p[9];
    PD_TRY(pd_norm_forward(math, &n, err));
    return pd_norm_backward(math, &n, err);
}

EXACT(layernorm)
{
    ref_norm_forward(rows(s), s->columns, 1e-5f, v[0].exact, v[1].exact, v[2].exact, v[3].exact, v[4].exact, v[5].exact);
    ref_norm_backward(rows(s), s->columns, 1e-5f, v[0].exact, v[1].exact, v[6].exact, NULL, v[7].exact, v[8].exact,
                      v[9].exact);
}

/* ---- attention and what belongs to it ---- */

RUN(rope)
{
    return pd_rope(math,
                   &(struct pd_rope){.rows = rows(s),
                                     .heads = (uint32_t)s->heads,
                                     .head_size = (uint32_t)s->head_size,
                                     .dtype = act,
                                     .x = p[0],
                                     .ld = s->heads * s->head_size,
                                     .positions = p[1],
                                     .cos_sin = p[2]},
                   err);
}

EXACT(rope)
{
    ref_rope(rows(s), s->heads, s->head_size, v[0].exact, v[1].numbers, v[2].exact, false);
}

/* Norms of heads where they lie, and RoPE; then both the other way. */
RUN(heads)
{
    struct pd_norm n = {.rows = all_heads(s),
                        .columns = s->head_size,
                        .heads = (uint32_t)s->heads,
                        .kept_heads = (uint32_t)s->heads,
                        .ld = s->heads * s->head_size,
                        .kept = p[4],
                        .positions = p[2],
                        .cos_sin = p[3],
                        .dtype = act,
                        .epsilon = 1e-5f,
                        .x = p[0],
                        .weight = p[1],
                        .rstd = p[5],
                        .out = p[0]};
    PD_TRY(pd_norm_forward(math, &n, err));
    n.x = p[4], n.kept = NULL, n.dout = n.dx = p[6], n.dweight = p[7];
    return pd_norm_backward(math, &n, err);
}

EXACT(heads)
{
    const uint64_t d = s->head_size;
    memcpy(v[4].exact, v[0].exact, queries(s) * sizeof(double));
    ref_norm_forward(all_heads(s), d, 1e-5f, v[4].exact, v[1].exact, NULL, NULL, v[5].exact, v[0].exact);
    ref_rope(rows(s), s->heads, d, v[0].exact, v[2].numbers, v[3].exact, false);
    ref_rope(rows(s), s->heads, d, v[6].exact, v[2].numbers, v[3].exact, true);
    ref_norm_backward(all_heads(s), d, 1e-5f, v[4].exact, v[1].exact, v[6].exact, NULL, v[6].exact, v[7].exact, NULL);
}

static struct pd_attention attention_of(const struct sizes *s, enum pd_dtype act, void *const *p)
{
    return (struct pd_attention){.sequences = (uint32_t)s->sequences,
                                 .length = (uint32_t)s->length,
                                 .heads = (uint32_t)s->heads,
                                 .kv_heads = (uint32_t)s->kv_heads,
                                 .head_size = (uint32_t)s->head_size,
                                 .dtype = act,
                                 .scale = SCALE,
                                 .q = p[0],
                                 .k = p[1],
                                 .v = p[2],
                                 .first = p[3],
                                 .ld_qkv = s->heads * s->head_size,
                                 .ld_kv = s->kv_heads * s->head_size};
}

RUN(attention)
{
    struct pd_attention a = attention_of(s, act, p);
    a.out = p[4], a.lse = p[5];
    return pd_attention_forward(math, &a, err);
}

static struct ref_attention exact_attention_of(const struct sizes *s, const struct value *v)
{
    return (struct ref_attention){s->sequences, s->length,  s->heads,   s->kv_heads, s->head_size,
                                  SCALE,        v[0].exact, v[1].exact, v[2].exact,  v[3].numbers};
}

EXACT(attention)
{
    const struct ref_attention a = exact_attention_of(s, v);
    ref_attention_forward(&a, v[4].exact, v[5].exact);
}

/* out, lse and delta are scratch of the workspace behind dv */
RUN(attention_backward)
{
    struct pd_attention a = attention_of(s, act, p);
    float *more = p[8];
    a.lse = more, a.delta = more + sums(s), a.out = more + 2 * sums(s);
    PD_TRY(pd_attention_forward(math, &a, err));
    a.dout = p[4], a.dq = p[5], a.dk = p[6], a.dv = p[7];
    return pd_attention_backward(math, &a, err);
}

COUNT(attention_scratch, 2 * sums(s) + queries(s))

EXACT(attention_backward)
{
    const struct ref_attention a = exact_attention_of(s, v);
    ref_attention_backward(&a, v[4].exact, v[5].exact, v[6].exact, v[7].exact);
}

/* ---- element by element ---- */

RUN(swiglu)
{
    PD_TRY(pd_swiglu_forward(math, rows(s), s->ffn, act, p[0], p[1], err));
    return pd_swiglu_backward(math, rows(s), s->ffn, act, p[0], p[2], p[3], err);
}

EXACT(swiglu)
{
    ref_swiglu_forward(rows(s), s->ffn, v[0].exact, v[1].exact);
    ref_swiglu_backward(rows(s), s->ffn, v[0].exact, v[2].exact, v[3].exact);
}

RUN(gelu)
{
    PD_TRY(pd_gelu_forward(math, rows_ffn(s), act, p[0], p[1], err));
    return pd_gelu_backward(math, rows_ffn(s), act, p[0], p[2], p[3], err);
}

EXACT(gelu)
{
    ref_gelu_forward(rows_ffn(s), v[0].exact, v[1].exact);
    ref_gelu_backward(rows_ffn(s), v[0].exact, v[2].exact, v[3].exact);
}

RUN(finish)
{
    const float *const parts[4] = {p[0], NULL, p[1], NULL};
    return pd_finish(math,
                     &(struct pd_finish){.rows = rows(s),
                                         .columns = s->columns,
                                         .part_count = 4,
                                         .parts = parts,
                                         .scale = SCALE,
                                         .residual = {p[2], act, s->columns},
                                         .out = {p[3], act, s->columns}},
                     err);
}

EXACT(finish)
{
    for (uint64_t i = 0; i < rows_columns(s); i++)
        v[3].exact[i] = SCALE * (v[0].exact[i] + v[1].exact[i]) + v[2].exact[i];
}

RUN(casts)
{
    PD_TRY(pd_cast(math, rows_columns(s), act, p[1], PD_F32, p[0], err));
    PD_TRY(pd_math_copy(math, p[2], p[0], rows_columns(s) * sizeof(float), err));
    PD_TRY(pd_add(math, rows_columns(s), p[2], p[0], err));
    return pd_column_sum(math, rows(s), s->columns, s->columns, act, p[1], p[3], err);
}

EXACT(casts)
{
    memset(v[3].exact, 0, s->columns * sizeof(double));
    for (uint64_t i = 0; i < rows_columns(s); i++) {
        v[1].exact[i] = v[0].exact[i];
        v[2].exact[i] = 2 * v[0].exact[i];
        v[3].exact[i % s->columns] += v[0].exact[i];
    }
}

/* ---- the two ends ---- */

static pd_status embed(struct pd_math *math, const struct pd_embedding *e, struct pd_error *err)
{
    PD_TRY(pd_embedding_forward(math, e, err));
    return pd_embedding_backward(math, e, err);
}

RUN(embedding)
{
    return embed(math,
                 &(struct pd_embedding){.rows = rows(s),
                                        .columns = s->columns,
                                        .vocab = s->vocab,
                                        .dtype = act,
                                        .tokens = p[0],
                                        .token_table = p[1],
                                        .out = p[2],
                                        .dout = p[3],
                                        .dtoken_table = p[4]},
                 err);
}

EXACT(embedding)
{
    ref_embedding_forward(rows(s), s->columns, v[0].numbers, NULL, v[1].exact, NULL, v[2].exact);
    ref_embedding_backward(rows(s), s->columns, s->vocab, v[0].numbers, v[3].exact, v[4].exact);
}

/* With positions, and a vocabulary that two ranks share. */
COUNT(places, s->length * s->columns)

enum { TOKEN, POSITION, TABLE, PLACES, LOOKED_UP, DLOOKED_UP, DTABLE, DPLACES };

RUN(embedding_shared)
{
    const uint64_t here = (s->vocab + 1) / 2;
    for (uint64_t from = 0; from < s->vocab; from += here) {
        const struct pd_embedding e = {.rows = rows(s),
                                       .columns = s->columns,
                                       .vocab = from ? s->vocab - here : here,
                                       .dtype = act,
                                       .first_token = (int32_t)from,
                                       .tokens = p[TOKEN],
                                       .positions = p[POSITION],
                                       .token_table = (char *)p[TABLE] + from * s->columns * pd_dtype_bytes(act),
                                       .position_table = p[PLACES],
                                       .context = s->length,
                                       .out = p[LOOKED_UP],
                                       .dout = p[DLOOKED_UP],
                                       .dtoken_table = (float *)p[DTABLE] + from * s->columns,
                                       .dposition_table = p[DPLACES]};
        PD_TRY(embed(math, &e, err));
    }
    return PD_OK;
}

EXACT(embedding_shared)
{
    const int32_t *tokens = v[TOKEN].numbers, *positions = v[POSITION].numbers;
    ref_embedding_forward(rows(s), s->columns, tokens, positions, v[TABLE].exact, v[PLACES].exact, v[LOOKED_UP].exact);
    ref_embedding_backward(rows(s), s->columns, s->vocab, tokens, v[DLOOKED_UP].exact, v[DTABLE].exact);
    ref_embedding_backward(rows(s), s->columns, s->length, positions, v[DLOOKED_UP].exact, v[DPLACES].exact);
}

static pd_status loss_of(struct pd_math *math, const struct sizes *s, enum pd_dtype act, void *const *p, uint32_t chunks,
                         enum pd_dtype logits_dtype, struct pd_error *err)
{
    const struct pd_cross_entropy l = {.rows = rows(s),
                                       .vocab = s->vocab,
                                       .ld = s->vocab,
                                       .chunks = chunks,
                                       .logits = p[0],
                                       .logits_dtype = logits_dtype,
                                       .targets = p[1],
                                       .losses = p[2],
                                       .dlogits = p[3],
                                       .ld_dlogits = s->vocab,
                                       .dtype = act,
                                       .scale = SCALE};
    return pd_cross_entropy(math, &l, err);
}

RUN(cross_entropy)
{
    return loss_of(math, s, act, p, 1, PD_F32, err);
}

RUN(cross_entropy_in_chunks)
{
    return loss_of(math, s, act, p, 2, PD_F32, err);
}

RUN(cross_entropy_of_activations)
{
    return loss_of(math, s, act, p, 1, act, err);
}

EXACT(cross_entropy)
{
    ref_cross_entropy(rows(s), s->vocab, v[0].exact, v[1].numbers, SCALE, v[2].exact, v[3].exact);
}

/* ---- the optimizer ---- */

static const struct pd_update_config adam_config = {
    .rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 0.5, .step = 3};

RUN(adam)
{
    const struct pd_adam_step step = pd_adam_step_make(&adam_config);
    return pd_adam(math, &step,
                   &(struct pd_update_range){.n = rows_columns(s),
                                             .decay = true,
                                             .param = p[0],
                                             .exp_avg = p[1],
                                             .exp_avg_sq = p[2],
                                             .grad = p[3],
                                             .copy = p[4],
                                             .copy_dtype = act},
                   err);
}

EXACT(adam)
{
    const struct pd_update_config *c = &adam_config;
    for (uint64_t i = 0; i < rows_columns(s); i++) {
        const double g = c->scale * v[3].exact[i];
        double *x = &v[0].exact[i], *m = &v[1].exact[i], *n = &v[2].exact[i];
        *m = c->beta1 * *m + (1 - c->beta1) * g;
        *n = c->beta2 * *n + (1 - c->beta2) * g * g;
        *x = (1 - c->rate * c->weight_decay) * *x - c->rate / (1 - pow(c->beta1, (double)c->step)) * *m /
                                                        (sqrt(*n / (1 - pow(c->beta2, (double)c->step))) + c->epsilon);
        v[4].exact[i] = *x;
    }
}

const struct operation operations[] = {
    {"linear", {{IN_ROWS}, {IN_WEIGHT}, {ACT, IN, ffn, 1}, {IN_FFN}, {OUT_FFN}}, FORMULA(linear)},
    {"linear, input", {{IN_FFN}, {IN_WEIGHT}, {OUT_ROWS}}, FORMULA(linear_input)},
    {"linear, weight", {{IN_FFN}, {IN_ROWS}, {F32, BOTH, ffn_columns, 1}}, FORMULA(linear_weight)},
    {"linear, in place",
     {{IN_FFN}, {IN_ROWS}, {F32, BOTH, ffn_columns, 1}, {OUT_WEIGHT}, {OUT_WEIGHT}, {OUT_WEIGHT}},
     FORMULA(weight_in_place)},
    {"rmsnorm", {{IN_ROWS}, {IN_COLUMNS}, {ROW_SUMS}, {OUT_ROWS}, {IN_ROWS}, {OUT_ROWS}, {COLUMN_SUMS}}, FORMULA(rmsnorm)},
    {"layernorm",
     {{IN_ROWS},
      {IN_COLUMNS},
      {IN_COLUMNS},
      {ROW_SUMS},
      {ROW_SUMS},
      {OUT_ROWS},
      {IN_ROWS},
      {OUT_ROWS},
      {COLUMN_SUMS},
      {COLUMN_SUMS}},
     FORMULA(layernorm)},
    {"rope", {{ACT, BOTH, queries, 1}, {POSITIONS, IN, rows, 0}, {F32, IN, turns, 1}}, FORMULA(rope)},
    {"norms of heads, rotated",
     {{ACT, BOTH, queries, 1},
      {ACT, IN, head_columns, 1},
      {POSITIONS, IN, rows, 0},
      {F32, IN, turns, 1},
      {ACT, OUT, queries, 0},
      {F32, OUT, all_heads, 0},
      {ACT, BOTH, queries, 1},
      {F32, OUT, head_columns, 0}},
     FORMULA(heads)},
    {"attention",
     {{ACT, IN, queries, 1},
      {ACT, IN, keys, 1},
      {ACT, IN, keys, 1},
      {FIRST, IN, rows, 0},
      {ACT, OUT, queries, 0},
      {F32, OUT, sums, 0}},
     FORMULA(attention),
     .slack = 4},
    {"attention, backward",
     {{ACT, IN, queries, 1},
      {ACT, IN, keys, 1},
      {ACT, IN, keys, 1},
      {FIRST, IN, rows, 0},
      {ACT, IN, queries, 1},
      {ACT, OUT, queries, 0},
      {ACT, OUT, keys, 0},
      {ACT, OUT, keys, 0},
      {F32, IN, attention_scratch, 0}},
     FORMULA(attention_backward),
     .slack = 8},
    {"swiglu", {{ACT, IN, rows_two_ffn, 2}, {OUT_FFN}, {IN_FFN}, {ACT, OUT, rows_two_ffn, 0}}, FORMULA(swiglu)},
    {"gelu", {{ACT, IN, rows_ffn, 2}, {OUT_FFN}, {IN_FFN}, {OUT_FFN}}, FORMULA(gelu)},
    {"finish", {{IN_ROWS_F32}, {IN_ROWS_F32}, {IN_ROWS}, {OUT_ROWS}}, FORMULA(finish)},
    {"casts and sums", {{IN_ROWS_F32}, {OUT_ROWS}, {F32, OUT, rows_columns, 0}, {COLUMN_SUMS}}, FORMULA(casts), .slack = 2},
    {"embedding",
     {{TOKENS, IN, rows, 0}, {ACT, IN, vocab_columns, 1}, {OUT_ROWS}, {IN_ROWS}, {F32, OUT, vocab_columns, 0}},
     FORMULA(embedding)},
    {"embedding, of two ranks",
     {{TOKENS, IN, rows, 0},
      {POSITIONS, IN, rows, 0},
      {ACT, IN, vocab_columns, 1},
      {ACT, IN, places, 1},
      {OUT_ROWS},
      {IN_ROWS},
      {F32, OUT, vocab_columns, 0},
      {F32, OUT, places, 0}},
     FORMULA(embedding_shared)},
    {"cross-entropy",
     {{F32, IN, rows_vocab, 3}, {TARGETS, IN, rows, 0}, {ROW_SUMS}, {ACT, OUT, rows_vocab, 0}},
     FORMULA(cross_entropy)},
    {"cross-entropy, two chunks",
     {{F32, IN, rows_vocab, 3}, {TARGETS, IN, rows, 0}, {ROW_SUMS}, {ACT, OUT, rows_vocab, 0}},
     .run = run_cross_entropy_in_chunks,
     .exact = exact_cross_entropy},
    {"cross-entropy, logits as activations",
     {{ACT, IN, rows_vocab, 3}, {TARGETS, IN, rows, 0}, {ROW_SUMS}, {ACT, OUT, rows_vocab, 0}},
     .run = run_cross_entropy_of_activations,
     .exact = exact_cross_entropy},
    {"adam",
     {{F32, BOTH, rows_columns, 1},
      {F32, BOTH, rows_columns, 0.1},
      {F32, BOTH, rows_columns, -0.1},
      {IN_ROWS_F32},
      {OUT_ROWS}},
     FORMULA(adam)},
    {0}};
