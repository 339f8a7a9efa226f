#include "tests/gpu/operation_cases.h"

#include "tests/unit/math/reference.h"
#include "trainer/math/fp8.h"

/* ---- attention of one sequence in two parts, as ranks of a sequence have them ---- */

COUNT(positions, s->length)
COUNT(part_queries, s->length * s->heads * s->head_size)
COUNT(part_keys, s->length * s->kv_heads * s->head_size)
COUNT(part_scratch, 4 * s->length * s->heads * s->head_size + 4 * s->length * s->heads)

enum { PARTS = 2 };
enum parts_operand { Q, K, V, FIRST_KEYS, DOUT, OUTPUT, DQ, DK, DV, PART_SCRATCH };

static void *element_of(void *array, enum pd_dtype dtype, uint64_t index)
{
    return (char *)array + index * pd_dtype_bytes(dtype);
}

static uint64_t part_begin(const struct sizes *s, uint32_t part)
{
    return part * (s->length / PARTS + 3);
}

static uint64_t part_end(const struct sizes *s, uint32_t part)
{
    return part + 1 < PARTS ? part_begin(s, part + 1) : s->length;
}

/* Queries of one part, keys of another. What is carried begins where the part does. */
static struct pd_attention part_of(const struct sizes *s, enum pd_dtype act, void *const *p, uint32_t queries, uint32_t keys)
{
    const uint64_t wide = s->heads * s->head_size, kv = s->kv_heads * s->head_size, all = s->length * wide;
    const uint64_t q = part_begin(s, queries), k = part_begin(s, keys);
    float *acc = p[PART_SCRATCH], *sums = acc + 4 * all, *sums_here = sums + q * s->heads;
    return (struct pd_attention){.sequences = 1,
                                 .length = (uint32_t)(part_end(s, queries) - q),
                                 .heads = (uint32_t)s->heads,
                                 .kv_heads = (uint32_t)s->kv_heads,
                                 .head_size = (uint32_t)s->head_size,
                                 .dtype = act,
                                 .scale = SCALE,
                                 .q = element_of(p[Q], act, q * wide),
                                 .k = element_of(p[K], act, k * kv),
                                 .v = element_of(p[V], act, k * kv),
                                 .ld_qkv = wide,
                                 .ld_kv = kv,
                                 .first = (const int32_t *)p[FIRST_KEYS] + q,
                                 .query_start = (uint32_t)q,
                                 .key_start = (uint32_t)k,
                                 .key_length = (uint32_t)(part_end(s, keys) - k),
                                 .acc = acc + q * wide,
                                 .dq_acc = acc + all + q * wide,
                                 .dk_acc = acc + 2 * all + k * wide,
                                 .dv_acc = acc + 3 * all + k * wide,
                                 .max = sums_here,
                                 .sum = sums_here + s->length * s->heads,
                                 .lse = sums_here + 2 * s->length * s->heads,
                                 .delta = sums_here + 3 * s->length * s->heads,
                                 .out = element_of(p[OUTPUT], act, q * wide),
                                 .dout = element_of(p[DOUT], act, q * wide),
                                 .dq = element_of(p[DQ], act, q * wide),
                                 .dk = element_of(p[DK], act, k * kv),
                                 .dv = element_of(p[DV], act, k * kv)};
}

RUN(attention_parts)
{
    for (uint32_t q = 0; q < PARTS; q++) {
        struct pd_attention a;
        for (uint32_t k = 0; k <= q; k++) {
            a = part_of(s, act, p, q, k);
            a.first_part = k == 0, a.last_part = k == q;
            PD_TRY(pd_attention_forward(math, &a, err));
        }
        PD_TRY(pd_attention_delta(math, &a, err));
        for (uint32_t k = 0; k <= q; k++) {
            a = part_of(s, act, p, q, k);
            a.first_part = k == 0, a.last_part = k == q;
            PD_TRY(pd_attention_backward_queries(math, &a, err));
        }
    }
    for (uint32_t k = 0; k < PARTS; k++)
        for (uint32_t q = k; q < PARTS; q++) {
            struct pd_attention a = part_of(s, act, p, q, k);
            a.first_part = q == k, a.last_part = q + 1 == PARTS;
            PD_TRY(pd_attention_backward_keys(math, &a, err));
        }
    return PD_OK;
}

EXACT(attention_parts)
{
    const struct ref_attention a = {1,     s->length,  s->heads,   s->kv_heads, s->head_size,
                                    SCALE, v[Q].exact, v[K].exact, v[V].exact,  v[FIRST_KEYS].numbers};
    ref_attention_forward(&a, v[OUTPUT].exact, NULL);
    ref_attention_backward(&a, v[DOUT].exact, v[DQ].exact, v[DK].exact, v[DV].exact);
}

/* ---- the loss of a vocabulary that two ranks share ---- */

COUNT(loss_scratch, 9 * rows(s))

enum loss_operand { LOGITS, TARGET_TOKENS, LOSSES, DLOGITS, LOSS_SCRATCH };

static struct pd_cross_entropy cut_of(const struct sizes *s, enum pd_dtype act, void *const *p, uint32_t rank)
{
    const uint64_t here = (s->vocab + 1) / 2, from = rank * here;
    return (struct pd_cross_entropy){.rows = rows(s),
                                     .vocab = rank ? s->vocab - here : here,
                                     .ld = s->vocab,
                                     .first_column = from,
                                     .chunks = 1,
                                     .logits = (float *)p[LOGITS] + from,
                                     .targets = p[TARGET_TOKENS],
                                     .losses = p[LOSSES],
                                     .dlogits = element_of(p[DLOGITS], act, from),
                                     .ld_dlogits = s->vocab,
                                     .dtype = act,
                                     .scale = SCALE};
}

RUN(cut_logits)
{
    const uint64_t n = rows(s);
    float *all_max = p[LOSS_SCRATCH], *all_sums = all_max + 2 * n, *all_targets = all_sums + 2 * n;
    float *max = all_targets + 2 * n, *sum = max + n, *target = sum + n;
    struct pd_cross_entropy ranks[] = {cut_of(s, act, p, 0), cut_of(s, act, p, 1)};
    struct pd_logits_join join = {.rows = n,
                                  .ld = n,
                                  .ranks = 2,
                                  .all_max = all_max,
                                  .max = max,
                                  .targets = p[TARGET_TOKENS],
                                  .rank_columns = ranks[0].vocab};
    const float *const parts[2] = {all_sums, all_sums + n};
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].max = all_max + r * n;
        PD_TRY(pd_logits_max(math, &ranks[r], err));
    }
    PD_TRY(pd_logits_join(math, &join, err));
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].max = max, ranks[r].sum = all_sums + r * n, ranks[r].target_logit = all_targets + r * n;
        PD_TRY(pd_logits_sum(math, &ranks[r], err));
    }
    join.max = NULL, join.all_targets = all_targets, join.target_logit = target;
    PD_TRY(pd_logits_join(math, &join, err));
    PD_TRY(pd_finish(
        math,
        &(struct pd_finish){.rows = 1, .columns = n, .part_count = 2, .parts = parts, .scale = 1, .out = {sum, PD_F32, n}},
        err));
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].sum = sum, ranks[r].target_logit = target;
        PD_TRY(pd_cross_entropy(math, &ranks[r], err));
    }
    return PD_OK;
}

/* Logits of which some columns exist at a time: a chunk in two parts. */
RUN(parts_of_logits)
{
    const uint64_t n = rows(s);
    float *max = p[LOSS_SCRATCH], *sum = max + n, *target = sum + n;
    for (uint32_t step = 0; step < 4; step++) {
        struct pd_cross_entropy part = cut_of(s, act, p, step % 2);
        part.max = max, part.sum = sum, part.target_logit = target, part.goes_on = step == 1;
        PD_TRY(step < 2 ? pd_logits_part(math, &part, err) : pd_cross_entropy(math, &part, err));
        if (step == 1) PD_TRY(pd_logits_rescale(math, n, max, max, sum, err)); /* to where it is */
    }
    return PD_OK;
}

EXACT(cut_logits)
{
    ref_cross_entropy(rows(s), s->vocab, v[LOGITS].exact, v[TARGET_TOKENS].numbers, SCALE, v[LOSSES].exact,
                      v[DLOGITS].exact);
}

/* ---- numbers of eight bits ---- */

static uint64_t scales(const struct sizes *s)
{
    (void)s;
    return 2 * PD_FP8_SCALE_FLOATS;
}

static struct pd_quantize quantize_of(uint64_t rows, uint64_t columns, enum pd_dtype act, void *x, enum pd_fp8 format,
                                      void *codes, void *transposed, float *scale)
{
    return (struct pd_quantize){.rows = rows,
                                .columns = columns,
                                .x = {x, act, columns},
                                .format = format,
                                .codes = codes,
                                .transposed = transposed,
                                .ld_codes = columns,
                                .ld_transposed = rows,
                                .scale = scale};
}

/* What the codes stand for, without their scale, which is returned. */
static double exact_codes(enum pd_fp8 format, uint64_t n, const double *x, double *ret_codes)
{
    float largest = 0;
    uint32_t bits;
    for (uint64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf((float)x[i]));
    memcpy(&bits, &largest, sizeof bits);
    const float scale = pd_fp8_scale_of(format, bits);
    for (uint64_t i = 0; i < n; i++)
        ret_codes[i] = (double)pd_f32_of_fp8(format, pd_fp8_of_f32(format, (float)x[i] / scale));
    return (double)scale;
}

RUN(quantize)
{
    float *scale = p[4];
    const struct pd_quantize plain = quantize_of(rows(s), s->columns, act, p[0], PD_FP8_E4M3, p[1], p[2], scale);
    const struct pd_quantize other =
        quantize_of(rows(s), s->columns, act, p[0], PD_FP8_E5M2, p[3], NULL, scale + PD_FP8_SCALE_FLOATS);
    PD_TRY(pd_quantize(math, &plain, err));
    return pd_quantize(math, &other, err);
}

EXACT(quantize)
{
    exact_codes(PD_FP8_E4M3, rows_columns(s), v[0].exact, v[1].exact);
    for (uint64_t i = 0; i < rows_columns(s); i++)
        v[2].exact[i % s->columns * rows(s) + i / s->columns] = v[1].exact[i];
    exact_codes(PD_FP8_E5M2, rows_columns(s), v[0].exact, v[3].exact);
}

/* y (R,F) = x (R,C) w^T (C,F), x in either format */
static pd_status product(struct pd_math *math, const struct sizes *s, enum pd_dtype act, void *const *p, enum pd_fp8 format,
                         void *y, struct pd_error *err)
{
    float *scale = p[6];
    const struct pd_quantize x = quantize_of(rows(s), s->columns, act, p[0], format, p[2], NULL, scale);
    const struct pd_quantize w =
        quantize_of(s->ffn, s->columns, act, p[1], PD_FP8_E4M3, p[3], NULL, scale + PD_FP8_SCALE_FLOATS);
    PD_TRY(pd_quantize(math, &x, err));
    PD_TRY(pd_quantize(math, &w, err));
    return pd_gemm(math,
                   &(struct pd_gemm){.m = rows(s),
                                     .n = s->ffn,
                                     .k = s->columns,
                                     .a = {p[2], PD_F32, s->columns},
                                     .b = {p[3], PD_F32, s->columns},
                                     .c = {y, act, s->ffn},
                                     .trans_b = true,
                                     .a_format = format,
                                     .b_format = PD_FP8_E4M3,
                                     .a_scale = x.scale,
                                     .b_scale = w.scale},
                   err);
}

RUN(fp8_products)
{
    PD_TRY(product(math, s, act, p, PD_FP8_E5M2, p[4], err));
    return product(math, s, act, p, PD_FP8_E4M3, p[5], err);
}

EXACT(fp8_products)
{
    for (uint32_t i = 0; i < 2; i++) {
        const double x = exact_codes(i ? PD_FP8_E4M3 : PD_FP8_E5M2, rows_columns(s), v[0].exact, v[2].exact);
        const double w = exact_codes(PD_FP8_E4M3, ffn_columns(s), v[1].exact, v[3].exact);
        ref_linear_forward(rows(s), s->ffn, s->columns, v[2].exact, v[3].exact, NULL, v[4 + i].exact);
        for (uint64_t n = 0; n < rows_ffn(s); n++)
            v[4 + i].exact[n] *= x * w;
    }
}

/* ---- squares, copies ---- */

COUNT(limbs, (s->length > 0) * sizeof(struct pd_superaccumulator) / sizeof(double))
COUNT(one, s->length > 0)

/* In two halves. */
RUN(norm)
{
    (void)act;
    struct pd_superaccumulator sum;
    const uint64_t half = rows(s) / 2;
    pd_superaccumulator_init(&sum);
    PD_TRY(pd_math_copy(math, p[2], &sum, sizeof sum, err));
    PD_TRY(pd_row_squares(math, rows(s), s->columns, p[0], p[1], err));
    PD_TRY(pd_superaccumulate(math, half, p[1], p[2], err));
    PD_TRY(pd_superaccumulate(math, rows(s) - half, (const double *)p[1] + half, p[2], err));
    PD_TRY(pd_math_copy(math, &sum, p[2], sizeof sum, err));
    PD_TRY(pd_math_sync(math, err));
    const double value = pd_superaccumulator_value(&sum);
    PD_TRY(pd_math_copy(math, p[3], &value, sizeof value, err));
    return pd_math_sync(math, err);
}

EXACT(norm)
{
    long double sum = 0; /* one sum of thousands of terms in float64 would be further off than what is compared with it */
    for (uint64_t i = 0; i < rows_columns(s); i++)
        sum += (long double)v[0].exact[i] * v[0].exact[i];
    v[3].exact[0] = (double)sum;
}

RUN(row_squares)
{
    (void)act;
    return pd_row_squares(math, rows(s), s->columns, p[0], p[1], err);
}

EXACT(row_squares)
{
    for (uint64_t i = 0; i < rows_columns(s); i++)
        v[1].exact[i / s->columns] += v[0].exact[i] * v[0].exact[i];
}

/* Terms twice, the second time added. */
enum { TERM_TOKENS = 100, TERM_MARK = 7 };
COUNT(words, rows_columns(s) + (s->length > 0))

RUN(terms)
{
    (void)act;
    const struct pd_quantum q = pd_quantum_of(TERM_TOKENS, 2, 0);
    const uint64_t n = rows_columns(s);
    int64_t *sums = p[1], *check = sums + n;
    uint32_t *marks = p[3];
    for (int adds = 0; adds < 2; adds++) {
        const struct pd_term_run run = {p[0], sums, n, adds, !adds, q.scale, check, marks};
        const struct pd_terms terms = {&run, 1, PD_TERM_F32, q.limit, TERM_MARK, false};
        PD_TRY(pd_terms(math, &terms, err));
    }
    const struct pd_term_sums made = {n, sums, p[2], q.quantum, check, marks, TERM_MARK, false, NULL};
    return pd_term_sums(math, &made, err);
}

EXACT(terms)
{
    const struct pd_quantum q = pd_quantum_of(TERM_TOKENS, 2, 0);
    for (uint64_t i = 0; i < rows_columns(s); i++)
        v[2].exact[i] = (double)(float)(2 * rint(v[0].exact[i] * (double)q.scale) / (double)q.scale);
}

RUN(copy)
{
    return pd_math_copy(math, p[1], p[0], rows_columns(s) * pd_dtype_bytes(act), err);
}

RUN(copy_pieces)
{
    const uint64_t bytes = rows_columns(s) * pd_dtype_bytes(act), cut = bytes / 3 / 2 * 2;
    const struct pd_copies copies = {2, {{p[1], p[0], cut}, {(char *)p[1] + cut, (const char *)p[0] + cut, bytes - cut}}};
    return pd_copy_pieces(math, &copies, err);
}

EXACT(copy)
{
    memcpy(v[1].exact, v[0].exact, rows_columns(s) * sizeof(double));
}

const struct operation more_operations[] = {
    {"attention, in parts",
     {{ACT, IN, part_queries, 1},
      {ACT, IN, part_keys, 1},
      {ACT, IN, part_keys, 1},
      {FIRST, IN, positions, 0},
      {ACT, IN, part_queries, 1},
      {ACT, OUT, part_queries, 0},
      {ACT, OUT, part_queries, 0},
      {ACT, OUT, part_keys, 0},
      {ACT, OUT, part_keys, 0},
      {F32, IN, part_scratch, 0}},
     FORMULA(attention_parts),
     .slack = 8},
    {"cut logits",
     {{F32, IN, rows_vocab, 3}, {TARGETS, IN, rows, 0}, {ROW_SUMS}, {ACT, OUT, rows_vocab, 0}, {F32, IN, loss_scratch, 0}},
     FORMULA(cut_logits)},
    {"logits in parts",
     {{F32, IN, rows_vocab, 3}, {TARGETS, IN, rows, 0}, {ROW_SUMS}, {ACT, OUT, rows_vocab, 0}, {F32, IN, loss_scratch, 0}},
     .run = run_parts_of_logits,
     .exact = exact_cut_logits},
    {"quantize",
     {{IN_ROWS},
      {E4M3, OUT, rows_columns, 0},
      {E4M3, OUT, rows_columns, 0},
      {E5M2, OUT, rows_columns, 0},
      {F32, IN, scales, 0}},
     FORMULA(quantize),
     .tolerance = 1e-12}, /* integers: all of them right */
    {"fp8 products",
     {{IN_ROWS},
      {IN_WEIGHT},
      {E5M2, IN, rows_columns, 0},
      {E4M3, IN, ffn_columns, 0},
      {OUT_FFN},
      {OUT_FFN},
      {F32, IN, scales, 0}},
     FORMULA(fp8_products),
     .tolerance = 5e-3, /* tensor cores add products of codes in fewer bits than fp32 has */
     .capability = 89},
    {"terms and their sums",
     {{IN_ROWS_F32}, {F64, IN, words, 0}, {F32, OUT, rows_columns, 0}, {F32, IN, one, 0}},
     FORMULA(terms),
     .tolerance = 1e-12}, /* sums of two are exact in fp64 */
    {"squares of rows", {{IN_ROWS_F32}, {F64, OUT, rows, 0}}, FORMULA(row_squares), .tolerance = 1e-14},
    {"norm, exactly",
     {{IN_ROWS_F32}, {F64, IN, rows, 0}, {F64, IN, limbs, 0}, {F64, OUT, one, 0}},
     FORMULA(norm),
     .tolerance = 1e-14},
    {"copy", {{IN_ROWS}, {OUT_ROWS}}, FORMULA(copy), .tolerance = 1e-12},
    {"copies of pieces", {{IN_ROWS}, {OUT_ROWS}}, .run = run_copy_pieces, .exact = exact_copy, .tolerance = 1e-12},
    {0}};
