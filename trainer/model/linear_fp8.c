/* Linear layers of a block in fp8: weights and activations as E4M3, gradients of outputs as E5M2; products and sums as
 * usual. Those of experts are in expert_fp8.c.
 *
 * An operand has one scale per tile. A tile is never cut by a layout: a piece of tokens (virtual_sp) times a chunk of heads
 * or ffn columns (virtual_tp). So a rank finds the maximum of each of its tiles alone, and every layout finds the same. If
 * both are 1, a matrix is one tile, q, k and v together.
 *
 * Codes live until the end of the call; backward recomputes them from saved activations. Codes of weights may be kept for a
 * step (pd_fp8_kept), if no layout cuts a weight. In a product k is contiguous in both operands, so weight gradients
 * multiply transposed codes. */
#include "ckpt/base/checked.h"
#include "trainer/model/transformer_internal.h"

/* ---- which rows of a weight share a scale ---- */

/* Cuts key-value heads [begin, end) where the need of some chunk's query heads begins or ends: a rank that needs a head
 * needs its whole part. */
static uint32_t cut_heads(const struct pd_transformer *t, struct pd_range all, struct pd_range *ret_parts)
{
    const struct pd_model_config *c = &t->model->config;
    const uint64_t group = c->heads / c->kv_heads;
    uint64_t cut = all.begin;
    uint32_t count = 0;
    for (uint32_t chunk = 0; chunk < t->partition.virtual_tp; chunk++) {
        const uint64_t end = pd_partition_chunk(&t->partition, c->heads, chunk).end;
        const uint64_t borders[2] = {end / group, (end + group - 1) / group};
        for (int i = 0; i < 2; i++) {
            const uint64_t to = borders[i] < all.end ? borders[i] : all.end;
            if (to > cut) ret_parts[count++] = (struct pd_range){cut, to};
            if (to > cut) cut = to;
        }
    }
    return count;
}

static struct pd_linear_part *next_part(struct pd_fp8_linears *f)
{
    PD_CHECK(f->part_count < f->part_capacity);
    struct pd_linear_part *part = &f->parts[f->part_count++];
    *part = (struct pd_linear_part){0};
    return part;
}

static void add_part(struct pd_transformer *t, uint32_t chunk, uint64_t row, uint64_t rows, char *y, uint64_t ld_y)
{
    if (!rows) return;
    *next_part(&t->fp8) =
        (struct pd_linear_part){.chunk = chunk, .row = row, .gradient_row = row, .rows = rows, .y = y, .ld_y = ld_y};
}

/* The chunk of this rank that computes a head's gradient. */
static uint32_t chunk_of_head(const struct pd_transformer *t, uint64_t head)
{
    const struct pd_model_config *c = &t->model->config;
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range heads = pd_partition_chunk(&t->partition, c->heads, t->tp.first_chunk + i);
        const struct pd_range kv = pd_partition_kv_computed(c, heads);
        if (kv.begin <= head && head < kv.end) return i;
    }
    return 0; /* of forward, which does not ask */
}

/* Heads of keys or values: `row` and `gradient_row` for the first of `all`. */
static void add_heads(struct pd_transformer *t, struct pd_range all, uint64_t row, uint64_t gradient_row, char *y,
                      uint64_t ld_y)
{
    const uint64_t d = t->model->config.head_size;
    const uint32_t count = cut_heads(t, all, t->fp8.heads);
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_range heads = t->fp8.heads[i];
        const uint64_t before = (heads.begin - all.begin) * d;
        *next_part(&t->fp8) = (struct pd_linear_part){.chunk = chunk_of_head(t, heads.begin),
                                                      .row = row + before,
                                                      .gradient_row = gradient_row + before,
                                                      .rows = (heads.end - heads.begin) * d,
                                                      .y = y + before * t->element_bytes,
                                                      .ld_y = ld_y};
    }
}

void pd_fp8_qkv_parts(struct pd_transformer *t, const struct pd_qkv *y, bool computed)
{
    const struct pd_model_config *c = &t->model->config;
    const struct pd_share *s = &t->share;
    const uint64_t q = s->q_columns, d = c->head_size;
    t->fp8.part_count = 0;
    if (t->partition.virtual_tp == 1) {
        add_part(t, 0, 0, t->sp.by_parts ? q : q + 2 * s->k_columns, y->q, y->ld_q);
        if (t->sp.by_parts) add_part(t, 0, q, 2 * s->k_columns, y->k, y->ld_kv);
        return;
    }
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, c->heads, d, i);
        add_part(t, i, r.begin, r.end - r.begin, y->q + r.begin * t->element_bytes, y->ld_q);
    }
    const struct pd_range heads = computed ? s->kv_computed : s->kv_needed;
    const uint64_t row = q + (heads.begin - s->kv_needed.begin) * d;
    add_heads(t, heads, row, q, y->k, y->ld_kv);
    add_heads(t, heads, row + s->k_columns, q + s->dk_columns, y->v, y->ld_kv);
}

void pd_fp8_up_parts(struct pd_transformer *t, void *y)
{
    const uint64_t ffn = t->model->config.ffn, columns = t->share.ffn_columns, ld = t->share.up_columns;
    char *up = y;
    t->fp8.part_count = 0;
    if (t->partition.virtual_tp == 1) {
        add_part(t, 0, 0, ld, up, ld);
        return;
    }
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, ffn, 1, i);
        add_part(t, i, r.begin, r.end - r.begin, up + r.begin * t->element_bytes, ld);
        if (t->family->up_matrices == 2)
            add_part(t, i, columns + r.begin, r.end - r.begin, up + (columns + r.begin) * t->element_bytes, ld);
    }
}

/* ---- codes ---- */

static float *next_scale(struct pd_fp8_linears *f)
{
    PD_CHECK(f->scales_used < f->scales_capacity);
    return f->scales + PD_FP8_SCALE_FLOATS * f->scales_used++;
}

static const char *shift(const struct pd_transformer *t, const void *base, uint64_t elements)
{
    return (const char *)base + elements * t->element_bytes;
}

/* `across` (columns, rows), `codes` (rows, columns); either NULL. */
static pd_status quantize_with(struct pd_transformer *t, enum pd_fp8 format, const void *x, uint64_t ld, uint64_t rows,
                               uint64_t columns, struct pd_fp8_kept to, struct pd_error *err)
{
    const struct pd_quantize q = {.rows = rows,
                                  .columns = columns,
                                  .x = {(void *)(uintptr_t)x, t->options.dtype, ld},
                                  .format = format,
                                  .codes = to.codes,
                                  .transposed = to.across,
                                  .ld_codes = columns,
                                  .ld_transposed = rows,
                                  .scale = to.scale};
    return pd_quantize(t->math, &q, err);
}

static pd_status quantize(struct pd_transformer *t, enum pd_fp8 format, const void *x, uint64_t ld, uint64_t rows,
                          uint64_t columns, uint8_t *codes, uint8_t *across, const float **ret_scale, struct pd_error *err)
{
    const struct pd_fp8_kept to = {.codes = codes, .across = across, .scale = next_scale(&t->fp8)};
    *ret_scale = to.scale;
    return quantize_with(t, format, x, ld, rows, columns, to, err);
}

/* ---- weights ---- */

void pd_fp8_enter(struct pd_transformer *t, uint32_t block)
{
    t->fp8.block = block;
}

static uint32_t experts_here(const struct pd_transformer *t)
{
    return t->model->config.experts ? pd_experts_here(t) : 0;
}

void pd_fp8_forget(struct pd_transformer *t)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint32_t layers = t->model->config.layers;
    for (uint32_t block = 0; f->kept && block < layers; block++)
        for (int i = 0; i < PD_FP8_LINEARS; i++)
            f->kept[block][i].is_made = false;
    for (uint64_t i = 0; f->kept_experts && i < 2ull * layers * experts_here(t); i++)
        f->kept_experts[i].is_made = false;
}

struct pd_fp8_kept *pd_fp8_kept_linear(const struct pd_transformer *t, enum pd_fp8_linear linear)
{
    return t->fp8.kept ? &t->fp8.kept[t->fp8.block][linear] : NULL;
}

struct pd_fp8_kept *pd_fp8_kept_expert(const struct pd_transformer *t, uint32_t number, enum pd_fp8_linear which)
{
    const uint64_t expert = (uint64_t)t->fp8.block * experts_here(t) + number;
    return t->fp8.kept_experts ? &t->fp8.kept_experts[2 * expert + (which == PD_FP8_DOWN)] : NULL;
}

/* In its own layout or transposed; at `place` if codes are not kept. */
static pd_status weight_codes(struct pd_transformer *t, const struct pd_fp8_weight *w, bool across, uint8_t *place,
                              const uint8_t **ret_codes, const float **ret_scale, struct pd_error *err)
{
    struct pd_fp8_kept *kept = w->kept;
    *ret_codes = place;
    if (!kept)
        return quantize(t, PD_FP8_E4M3, w->w, w->columns, w->rows, w->columns, across ? NULL : place, across ? place : NULL,
                        ret_scale, err);
    *ret_codes = across ? kept->across : kept->codes;
    *ret_scale = kept->scale;
    PD_CHECK(!across || kept->is_made); /* a backward follows a forward */
    if (kept->is_made) return PD_OK;
    kept->is_made = true;
    return quantize_with(t, PD_FP8_E4M3, w->w, w->columns, w->rows, w->columns, *kept, err);
}

/* All rows of this rank. */
static struct pd_row_pieces all_rows(const struct pd_transformer *t)
{
    return (struct pd_row_pieces){t->sp.pieces, t->sp.row, t->sp.rows};
}

/* Piece by piece, also in memory; scales of pieces are PD_FP8_SCALE_FLOATS apart. */
static pd_status quantize_rows(struct pd_transformer *t, const struct pd_row_pieces *pieces, enum pd_fp8 format,
                               const void *x, uint64_t ld, uint64_t columns, uint8_t *codes, uint8_t *across,
                               const float **ret_scales, struct pd_error *err)
{
    for (uint32_t place = 0; place < pieces->count; place++) {
        const uint64_t before = pieces->row[place] * columns;
        const float *scale;
        PD_TRY(quantize(t, format, shift(t, x, pieces->row[place] * ld), ld, pieces->rows[place], columns,
                        codes ? codes + before : NULL, across ? across + before : NULL, &scale, err));
        if (place == 0) *ret_scales = scale;
    }
    return PD_OK;
}

static pd_status quantize_pieces(struct pd_transformer *t, enum pd_fp8 format, const void *x, uint64_t ld, uint64_t columns,
                                 uint8_t *codes, uint8_t *across, const float **ret_scales, struct pd_error *err)
{
    const struct pd_row_pieces pieces = all_rows(t);
    return quantize_rows(t, &pieces, format, x, ld, columns, codes, across, ret_scales, err);
}

/* c (rows of each piece, n) = a (rows, k) b (n, k)^T + bias */
struct rows_product {
    uint64_t n, k;
    const uint8_t *a, *b;
    enum pd_fp8 a_format;
    const float *a_scales, *b_scale;
    const void *bias;
    struct pd_matrix c;
    bool adds, varies;
};

static pd_status multiply_rows(struct pd_transformer *t, const struct pd_row_pieces *pieces, const struct rows_product *p,
                               struct pd_error *err)
{
    for (uint32_t place = 0; place < pieces->count; place++) {
        const uint64_t row = pieces->row[place];
        if (!pieces->rows[place]) continue;
        const struct pd_gemm g = {
            .m = pieces->rows[place],
            .n = p->n,
            .k = p->k,
            .trans_b = true,
            .varies = p->varies ? PD_VARIES_M : PD_VARIES_NOT,
            .accumulate = p->adds,
            .a = {(void *)(uintptr_t)(p->a + row * p->k), t->options.dtype, p->k},
            .b = {(void *)(uintptr_t)p->b, t->options.dtype, p->k},
            .c = {(char *)p->c.data + row * p->c.ld * pd_dtype_bytes(p->c.dtype), p->c.dtype, p->c.ld},
            .bias = p->bias,
            .bias_dtype = t->options.dtype,
            .a_format = p->a_format,
            .b_format = PD_FP8_E4M3,
            .a_scale = p->a_scales + place * PD_FP8_SCALE_FLOATS,
            .b_scale = p->b_scale,
        };
        PD_TRY(pd_gemm(t->math, &g, err));
    }
    return PD_OK;
}

static pd_status multiply_pieces(struct pd_transformer *t, const struct rows_product *p, struct pd_error *err)
{
    const struct pd_row_pieces pieces = all_rows(t);
    return multiply_rows(t, &pieces, p, err);
}

static struct pd_matrix result(const struct pd_transformer *t, const void *y, uint64_t ld)
{
    return (struct pd_matrix){(void *)(uintptr_t)y, t->options.dtype, ld};
}

/* dW (out,in) = dy^T x from transposed codes of pieces. */
struct weight_gradient {
    uint64_t out, in;
    const uint8_t *dy, *x; /* (out, rows), (in, rows) of each piece */
    const float *dy_scales, *x_scales;
};

static pd_status weight_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct weight_gradient *w = context;
    const uint64_t row = t->sp.row[place], rows = t->sp.rows[place];
    const struct pd_gemm g = {.m = w->out,
                              .n = w->in,
                              .k = rows,
                              .trans_b = true,
                              .a = {(void *)(uintptr_t)(w->dy + row * w->out), PD_F32, rows},
                              .b = {(void *)(uintptr_t)(w->x + row * w->in), PD_F32, rows},
                              .c = {dst, PD_F32, w->in},
                              .residual = pd_gradient_so_far(t, dst, w->in),
                              .a_format = PD_FP8_E5M2,
                              .b_format = PD_FP8_E4M3,
                              .a_scale = w->dy_scales + place * PD_FP8_SCALE_FLOATS,
                              .b_scale = w->x_scales + place * PD_FP8_SCALE_FLOATS};
    return pd_gemm(t->math, &g, err);
}

static pd_status bias_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct pd_linear_part *part = context;
    return pd_column_sum(t->math, t->sp.rows[place], part->rows, part->ld_y, t->options.dtype,
                         shift(t, part->y, t->sp.row[place] * part->ld_y), dst, err);
}

/* ---- cut by rows of the weight ---- */

pd_status pd_fp8_columns_forward(struct pd_transformer *t, enum pd_fp8_linear linear, const void *x, const void *w,
                                 const void *bias, struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint64_t hidden = t->model->config.hidden;
    const float *x_scales, *w_scale;
    f->scales_used = 0;
    if (!f->part_count) return PD_OK;
    PD_TRY(quantize_pieces(t, PD_FP8_E4M3, x, hidden, hidden, f->x, NULL, &x_scales, err));
    for (uint32_t i = 0; i < f->part_count; i++) {
        const struct pd_linear_part *part = &f->parts[i];
        const struct pd_fp8_weight weight = {shift(t, w, part->row * hidden), part->rows, hidden,
                                             pd_fp8_kept_linear(t, linear)};
        const uint8_t *codes;
        PD_TRY(weight_codes(t, &weight, false, f->w, &codes, &w_scale, err));
        const struct rows_product product = {.n = part->rows,
                                             .k = hidden,
                                             .a = f->x,
                                             .b = codes,
                                             .a_format = PD_FP8_E4M3,
                                             .a_scales = x_scales,
                                             .b_scale = w_scale,
                                             .bias = bias ? shift(t, bias, part->row) : NULL,
                                             .c = result(t, part->y, part->ld_y)};
        PD_TRY(multiply_pieces(t, &product, err));
    }
    return PD_OK;
}

/* Adds the part's product with the weight as a term of its chunk's chain. */
static pd_status part_term(struct pd_transformer *t, struct pd_linear_part *part, uint64_t before,
                           const struct pd_fp8_weight *all, struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint64_t hidden = t->model->config.hidden;
    const struct pd_fp8_weight weight = {shift(t, all->w, part->row * hidden), part->rows, hidden, all->kept};
    uint8_t *dy = f->dy + before * t->rows, *place = f->w ? f->w + before * hidden : NULL;
    const uint8_t *turned;
    const float *w_scale;
    PD_TRY(weight_codes(t, &weight, true, place, &turned, &w_scale, err));
    part->across = f->dy_across + before * t->rows;
    PD_TRY(quantize_pieces(t, PD_FP8_E5M2, part->y, part->ld_y, part->rows, dy, part->across, &part->scales, err));
    struct pd_chunk_term *term = &t->tp.terms[part->chunk * PD_CHUNK_TERMS];
    while (term->k)
        term++;
    PD_CHECK(term < &t->tp.terms[(part->chunk + 1) * PD_CHUNK_TERMS]);
    *term = (struct pd_chunk_term){.a = dy,
                                   .b = turned,
                                   .lda = part->rows,
                                   .ldb = part->rows,
                                   .k = part->rows,
                                   .a_format = PD_FP8_E5M2,
                                   .b_format = PD_FP8_E4M3,
                                   .a_scales = part->scales,
                                   .b_scale = w_scale};
    return PD_OK;
}

pd_status pd_fp8_columns_terms(struct pd_transformer *t, enum pd_fp8_linear linear, const void *w, struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const struct pd_fp8_weight all = {.w = w, .kept = pd_fp8_kept_linear(t, linear)};
    uint64_t before = 0;
    f->scales_used = 0;
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        pd_chunk_terms(t, i);
    for (uint32_t i = 0; i < f->part_count; before += f->parts[i].rows, i++)
        PD_TRY(part_term(t, &f->parts[i], before, &all, err));
    return PD_OK;
}

pd_status pd_fp8_columns_weights(struct pd_transformer *t, const void *x, float *dweight, float *dbias, struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint64_t hidden = t->model->config.hidden;
    const float *x_scales = NULL;
    if (f->part_count) PD_TRY(quantize_pieces(t, PD_FP8_E4M3, x, hidden, hidden, NULL, f->x, &x_scales, err));
    for (uint32_t i = 0; i < f->part_count; i++) {
        struct pd_linear_part *part = &f->parts[i];
        struct weight_gradient gradient = {part->rows, hidden, part->across, f->x, part->scales, x_scales};
        PD_TRY(
            pd_piece_gradients(t, part->rows * hidden, weight_piece, &gradient, dweight + part->gradient_row * hidden, err));
        if (dbias) PD_TRY(pd_vector_gradient(t, part->rows, bias_piece, part, dbias + part->gradient_row, err));
    }
    return PD_OK;
}

/* ---- cut by columns of the weight ---- */

pd_status pd_fp8_rows_terms(struct pd_transformer *t, const struct pd_row_linear *l, struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint64_t hidden = t->model->config.hidden;
    f->scales_used = 0;
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, l->units, l->unit, i);
        struct pd_chunk_term *terms = pd_chunk_terms(t, i);
        const uint64_t k = r.end - r.begin;
        if (!k) continue;
        const struct pd_fp8_weight weight = {shift(t, l->w, r.begin * hidden), hidden, k, pd_fp8_kept_linear(t, l->linear)};
        const uint8_t *codes;
        const float *scale;
        PD_TRY(weight_codes(t, &weight, false, f->w ? f->w + r.begin * hidden : NULL, &codes, &scale, err));
        terms[0] = (struct pd_chunk_term){.a = f->x + r.begin * t->rows,
                                          .b = codes,
                                          .lda = k,
                                          .ldb = k,
                                          .k = k,
                                          .a_format = PD_FP8_E4M3,
                                          .b_format = PD_FP8_E4M3,
                                          .b_scale = scale};
        PD_TRY(quantize_pieces(t, PD_FP8_E4M3, shift(t, l->x, r.begin), l->in, k, f->x + r.begin * t->rows, NULL,
                               &terms[0].a_scales, err));
    }
    return PD_OK;
}

pd_status pd_fp8_rows_backward(struct pd_transformer *t, const struct pd_row_linear *l, void *dx, float *dweight,
                               struct pd_error *err)
{
    struct pd_fp8_linears *f = &t->fp8;
    const uint64_t hidden = t->model->config.hidden;
    const float *dy_scales, *x_scales, *w_scale;
    f->scales_used = 0;
    PD_TRY(quantize_pieces(t, PD_FP8_E5M2, t->dstream, hidden, hidden, f->dy, f->dy_across, &dy_scales, err));
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, l->units, l->unit, i);
        const uint64_t n = r.end - r.begin;
        if (!n) continue;
        const struct pd_fp8_weight weight = {shift(t, l->w, r.begin * hidden), hidden, n, pd_fp8_kept_linear(t, l->linear)};
        const uint8_t *codes;
        PD_TRY(weight_codes(t, &weight, true, f->w, &codes, &w_scale, err));
        PD_TRY(quantize_pieces(t, PD_FP8_E4M3, shift(t, l->x, r.begin), l->in, n, NULL, f->x, &x_scales, err));
        const struct rows_product product = {.n = n,
                                             .k = hidden,
                                             .a = f->dy,
                                             .b = codes,
                                             .a_format = PD_FP8_E5M2,
                                             .a_scales = dy_scales,
                                             .b_scale = w_scale,
                                             .c = result(t, shift(t, dx, r.begin), l->in)};
        PD_TRY(multiply_pieces(t, &product, err));
        struct weight_gradient gradient = {hidden, n, f->dy_across, f->x, dy_scales, x_scales};
        PD_TRY(pd_piece_gradients(t, hidden * n, weight_piece, &gradient, dweight + r.begin * hidden, err));
    }
    return PD_OK;
}

/* ---- for experts ---- */

#define ROWS_MULTIPLE 16 /* of k in a product of codes by cuBLASLt */

static uint64_t padded_rows(const struct pd_transformer *t, uint64_t rows)
{
    return t->options.on_device ? pd_round_up(rows, ROWS_MULTIPLE) : rows;
}

/* Products with PD_VARIES_K need a power of two. */
uint64_t pd_fp8_across_ld(const struct pd_transformer *t, uint64_t rows)
{
    uint64_t power = ROWS_MULTIPLE;
    while (power < rows)
        power *= 2;
    return t->options.on_device ? power : rows;
}

struct pd_row_pieces pd_fp8_pieces_of(struct pd_transformer *t, const int32_t *first)
{
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        t->fp8.row[place] = (uint64_t)(first[place] - first[0]);
        t->fp8.rows[place] = (uint64_t)(first[place + 1] - first[place]);
    }
    return (struct pd_row_pieces){t->sp.pieces, t->fp8.row, t->fp8.rows};
}

pd_status pd_fp8_rows_codes(struct pd_transformer *t, enum pd_fp8 format, const struct pd_row_pieces *pieces,
                            struct pd_matrix x, uint64_t columns, struct pd_fp8_operand *ret_operand, struct pd_error *err)
{
    uint8_t *codes = format == PD_FP8_E4M3 ? t->fp8.x : t->fp8.dy;
    *ret_operand = (struct pd_fp8_operand){.format = format, .codes = codes, .columns = columns};
    t->fp8.scales_used = 0;
    return quantize_rows(t, pieces, format, x.data, x.ld, columns, codes, NULL, &ret_operand->scales, err);
}

pd_status pd_fp8_rows_multiply(struct pd_transformer *t, const struct pd_row_pieces *pieces, const struct pd_fp8_operand *x,
                               const struct pd_fp8_weight *w, bool across, struct pd_matrix c, bool adds, bool varies,
                               struct pd_error *err)
{
    const uint8_t *codes;
    const float *scale;
    PD_TRY(weight_codes(t, w, across, t->fp8.w, &codes, &scale, err));
    const struct rows_product product = {.n = across ? w->columns : w->rows,
                                         .k = x->columns,
                                         .a = x->codes,
                                         .b = codes,
                                         .a_format = x->format,
                                         .a_scales = x->scales,
                                         .b_scale = scale,
                                         .c = c,
                                         .adds = adds,
                                         .varies = varies};
    return multiply_rows(t, pieces, &product, err);
}

pd_status pd_fp8_across_codes(struct pd_transformer *t, enum pd_fp8 format, uint64_t rows, struct pd_matrix x,
                              uint64_t columns, struct pd_fp8_operand *ret_operand, struct pd_error *err)
{
    uint8_t *codes = format == PD_FP8_E4M3 ? t->fp8.x : t->fp8.dy_across;
    float *scale = next_scale(&t->fp8);
    const uint64_t ld = pd_fp8_across_ld(t, rows), padded = padded_rows(t, rows);
    *ret_operand = (struct pd_fp8_operand){format, codes, scale, columns, padded, ld};
    const struct pd_quantize q = {.rows = rows,
                                  .columns = columns,
                                  .x = x,
                                  .format = format,
                                  .transposed = codes,
                                  .ld_transposed = ld,
                                  .transposed_rows = padded,
                                  .scale = scale};
    return pd_quantize(t->math, &q, err);
}

pd_status pd_fp8_rows_gradient(struct pd_transformer *t, const struct pd_fp8_operand *dy, const struct pd_fp8_operand *x,
                               bool varies, float *dst, struct pd_error *err)
{
    const struct pd_gemm g = {.m = dy->columns,
                              .n = x->columns,
                              .k = dy->rows,
                              .trans_b = true,
                              .varies = varies ? PD_VARIES_K : PD_VARIES_NOT,
                              .a = {(void *)(uintptr_t)dy->codes, PD_F32, dy->ld},
                              .b = {(void *)(uintptr_t)x->codes, PD_F32, x->ld},
                              .c = {dst, PD_F32, x->columns},
                              .residual = pd_gradient_so_far(t, dst, x->columns),
                              .a_format = dy->format,
                              .b_format = x->format,
                              .a_scale = dy->scales,
                              .b_scale = x->scales};
    return pd_gemm(t->math, &g, err);
}
