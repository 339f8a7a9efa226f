/* Sums over chunks, and gradients of key-value heads that ranks share. Every tp rank makes the same calls in the same order.
 *
 * A sum over chunks, window of rows by window: each chunk's chain in fp32, the tree over this rank's chunks, then slices of
 * rows go to the ranks that finish them (tree over ranks, bias, residual, one rounding). In forward these keep them; in
 * backward all ranks get the rounded slices. One window travels while the next is multiplied. With one rank the first tree
 * is also the last. */
#include "trainer/model/transformer_internal.h"

#include <math.h>
#include <string.h>

struct pd_range pd_tp_units(const struct pd_transformer *t, uint32_t rank, uint64_t units)
{
    struct pd_partition other = t->partition;
    other.tp_rank = rank;
    return pd_partition_units(&other, units);
}

bool pd_tp_has_units(const struct pd_transformer *t, uint32_t rank, uint64_t units)
{
    struct pd_range r = pd_tp_units(t, rank, units);
    return r.begin < r.end;
}

struct pd_range pd_chunk_columns(const struct pd_transformer *t, uint64_t units, uint64_t unit, uint32_t i)
{
    struct pd_range r = pd_partition_chunk(&t->partition, units, t->tp.first_chunk + i);
    uint64_t first = pd_partition_units(&t->partition, units).begin;
    return (struct pd_range){(r.begin - first) * unit, (r.end - first) * unit};
}

/* ---- attention of this rank ---- */

struct pd_qkv pd_qkv_of(const struct pd_transformer *t, void *base, uint64_t k_columns)
{
    const uint64_t q = t->share.q_columns, bytes = t->element_bytes;
    struct pd_qkv x = {.q = base};
    x.k = x.q + (t->sp.by_parts ? t->rows : 1) * q * bytes;
    x.v = x.k + k_columns * bytes;
    x.ld_q = t->sp.by_parts ? q : q + 2 * k_columns;
    x.ld_kv = t->sp.by_parts ? 2 * k_columns : x.ld_q;
    return x;
}

bool pd_has_head_norms(const struct pd_transformer *t)
{
    return t->model->config.qk_norm && t->family->qk_norm != PD_QK_NORM_ALL;
}

bool pd_has_wide_norms(const struct pd_transformer *t)
{
    return t->family->qk_norm == PD_QK_NORM_ALL;
}

bool pd_attention_rotates(const struct pd_transformer *t)
{
    return t->family->positions == PD_POSITIONS_ROPE && !pd_has_head_norms(t);
}

/* Operands shared by every attention call on this rank. */
struct pd_attention pd_attention_of(const struct pd_transformer *t)
{
    const struct pd_model_config *c = &t->model->config;
    const struct pd_share *s = &t->share;
    const uint32_t group = c->heads / c->kv_heads, virtual_tp = t->partition.virtual_tp;
    return (struct pd_attention){.sequences = t->options.sequences,
                                 .length = t->options.length,
                                 .heads = (uint32_t)(s->heads.end - s->heads.begin),
                                 .kv_heads = (uint32_t)(s->kv_needed.end - s->kv_needed.begin),
                                 .head_size = c->head_size,
                                 .group = group,
                                 .group_offset = (uint32_t)(s->heads.begin - s->kv_needed.begin * group),
                                 .head_chunk = virtual_tp == 1 ? 0 : (c->heads + virtual_tp - 1) / virtual_tp,
                                 .dtype = t->options.dtype,
                                 .scale = 1.0f / sqrtf((float)c->head_size)};
}

/* ---- sums over chunks ---- */

struct pd_chunk_term *pd_chunk_terms(struct pd_transformer *t, uint32_t i)
{
    struct pd_chunk_term *terms = &t->tp.terms[i * PD_CHUNK_TERMS];
    memset(terms, 0, PD_CHUNK_TERMS * sizeof *terms);
    return terms;
}

static uint32_t chunk_products(const struct pd_transformer *t, uint32_t chunk)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < PD_CHUNK_TERMS; i++)
        count += t->tp.terms[chunk * PD_CHUNK_TERMS + i].k > 0;
    return count;
}

static struct pd_gemm product(const struct pd_transformer *t, const struct pd_chunk_sum *s, const struct pd_chunk_term *term,
                              uint64_t row, uint64_t rows)
{
    const char *a = (const char *)term->a + row * term->lda * (term->a_format ? 1 : t->element_bytes);
    return (struct pd_gemm){.m = rows,
                            .n = s->columns,
                            .k = term->k,
                            .a = {(void *)(uintptr_t)a, t->options.dtype, term->lda},
                            .b = {(void *)(uintptr_t)term->b, t->options.dtype, term->ldb},
                            .trans_b = s->trans_b,
                            .a_format = term->a_format,
                            .b_format = term->b_format,
                            .b_scale = term->b_scale};
}

static void move_rows(struct pd_matrix *matrix, uint64_t rows, uint64_t element_bytes)
{
    if (matrix->data) matrix->data = (char *)matrix->data + rows * matrix->ld * element_bytes;
}

/* Computes the product g of a term for rows from `row` on; piece by piece if rows have scales. */
static pd_status multiply(struct pd_transformer *t, const struct pd_chunk_term *term, const struct pd_gemm *g, uint64_t row,
                          struct pd_error *err)
{
    if (!term->a_format) return pd_gemm(t->math, g, err);
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        const uint64_t begin = t->sp.row[place] > row ? t->sp.row[place] : row;
        const uint64_t end = t->sp.row[place + 1] < row + g->m ? t->sp.row[place + 1] : row + g->m;
        struct pd_gemm part = *g;
        if (begin >= end) continue;
        part.m = end - begin;
        part.a_scale = term->a_scales + place * PD_FP8_SCALE_FLOATS;
        move_rows(&part.a, begin - row, 1);
        move_rows(&part.c, begin - row, pd_dtype_bytes(part.c.dtype));
        move_rows(&part.residual, begin - row, pd_dtype_bytes(part.residual.dtype));
        PD_TRY(pd_gemm(t->math, &part, err));
    }
    return PD_OK;
}

/* c (rows, columns) fp32: the chain of one chunk. */
static pd_status chain(struct pd_transformer *t, const struct pd_chunk_sum *s, uint32_t chunk, uint64_t row, uint64_t rows,
                       float *c, struct pd_error *err)
{
    bool begun = false;
    for (uint32_t i = 0; i < PD_CHUNK_TERMS; i++) {
        const struct pd_chunk_term *term = &t->tp.terms[chunk * PD_CHUNK_TERMS + i];
        if (!term->k) continue;
        struct pd_gemm g = product(t, s, term, row, rows);
        g.c = (struct pd_matrix){c, PD_F32, s->columns};
        g.accumulate = begun;
        PD_TRY(multiply(t, term, &g, row, err));
        begun = true;
    }
    return PD_OK;
}

/* Chains that the caller computed. */
static pd_status made_chains(struct pd_transformer *t, const struct pd_chunk_sum *s, uint64_t row)
{
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range units = pd_chunk_columns(t, s->units, 1, i);
        t->tp.parts[i] = units.begin < units.end ? s->chains + (i * s->rows + row) * s->columns : NULL;
    }
    return PD_OK;
}

/* Chains of all chunks; t->tp.parts are the operands of a tree over them. */
static pd_status chains(struct pd_transformer *t, const struct pd_chunk_sum *s, uint64_t row, uint64_t rows,
                        struct pd_error *err)
{
    if (s->chains) return made_chains(t, s, row);
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        float *part = t->tp.chunk_parts + i * t->shared.window_rows * s->columns;
        t->tp.parts[i] = chunk_products(t, i) ? part : NULL;
        if (t->tp.parts[i]) PD_TRY(chain(t, s, i, row, rows, part, err));
    }
    return PD_OK;
}

static enum pd_dtype out_type(const struct pd_transformer *t, const struct pd_chunk_sum *s)
{
    return s->is_wide ? PD_F32 : t->options.dtype;
}

/* Computes out, rows [row, row + rows) of s, from t->tp.parts. */
static pd_status tensor_parallel_finish(struct pd_transformer *t, const struct pd_chunk_sum *s, uint32_t part_count,
                                        uint64_t row, uint64_t rows, struct pd_error *err)
{
    const uint64_t bytes = row * s->columns * pd_dtype_bytes(out_type(t, s));
    struct pd_finish f = {.rows = rows,
                          .columns = s->columns,
                          .part_count = part_count,
                          .parts = t->tp.parts,
                          .scale = 1.0f,
                          .bias = s->bias,
                          .bias_dtype = t->options.dtype,
                          .out = {(char *)s->out + bytes, out_type(t, s), s->columns}};
    if (s->residual) f.residual = (struct pd_matrix){(char *)(uintptr_t)s->residual + bytes, t->options.dtype, s->columns};
    return pd_finish(t->math, &f, err);
}

static pd_status sum_alone(struct pd_transformer *t, const struct pd_chunk_sum *s, struct pd_error *err)
{
    const struct pd_chunk_term *only = NULL;
    uint32_t products = 0;
    for (uint32_t i = 0; i < t->tp.chunks * PD_CHUNK_TERMS && !s->chains; i++) {
        if (!t->tp.terms[i].k) continue;
        only = &t->tp.terms[i];
        products++;
    }
    if (products == 1) {
        /* Only one chain: the product rounds itself. */
        struct pd_gemm g = product(t, s, only, 0, s->rows);
        g.c = (struct pd_matrix){s->out, t->options.dtype, s->columns};
        g.bias = s->bias;
        g.bias_dtype = t->options.dtype;
        g.residual = (struct pd_matrix){(void *)(uintptr_t)s->residual, t->options.dtype, s->columns};
        return multiply(t, only, &g, 0, err);
    }
    for (uint64_t row = 0; row < s->rows; row += t->shared.window_rows) {
        uint64_t rows = s->rows - row < t->shared.window_rows ? s->rows - row : t->shared.window_rows;
        PD_TRY(chains(t, s, row, rows, err));
        PD_TRY(tensor_parallel_finish(t, s, t->tp.chunks, row, rows, err));
    }
    return PD_OK;
}

static pd_status subtree(struct pd_transformer *t, const struct pd_chunk_sum *s, uint64_t row, uint64_t rows, float *sum,
                         struct pd_error *err)
{
    if (!pd_tp_has_units(t, t->partition.tp_rank, s->units)) return PD_OK;
    if (t->tp.chunks == 1 && !s->chains) return chain(t, s, 0, row, rows, sum, err);
    PD_TRY(chains(t, s, row, rows, err));
    struct pd_finish f = {.rows = rows,
                          .columns = s->columns,
                          .part_count = t->tp.chunks,
                          .parts = t->tp.parts,
                          .scale = 1.0f,
                          .out = {sum, PD_F32, s->columns}};
    return pd_finish(t->math, &f, err);
}

/* Sends slices of this window's subtree to their owners. */
static pd_status send_sums(struct pd_transformer *t, const struct pd_chunk_sum *s, uint64_t rows, uint32_t turn,
                           struct pd_error *err)
{
    const uint32_t me = t->partition.tp_rank;
    const uint64_t row_bytes = s->columns * sizeof(float);
    struct pd_peer_transfer *x = &t->tp.sums[turn];
    struct pd_range mine = pd_rows_slice(t, rows, me);
    const uint64_t bytes = (mine.end - mine.begin) * row_bytes;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.tp; r++) {
        struct pd_range slice = pd_rows_slice(t, rows, r);
        if (r == me) continue;
        if (pd_tp_has_units(t, me, s->units))
            pd_peer_transfer_send(x, r, t->tp.subtree[turn] + slice.begin * s->columns,
                                  (slice.end - slice.begin) * row_bytes);
        if (pd_tp_has_units(t, r, s->units)) pd_peer_transfer_recv(x, r, (char *)t->tp.arrived[turn] + r * bytes, bytes);
    }
    return pd_peer_transfer_start(x, err);
}

/* Exchanges with every rank the own rounded slice of the window, and of the rows to be gathered. */
static pd_status send_slices(struct pd_transformer *t, const struct pd_chunk_sum *s, uint64_t row, uint64_t rows,
                             uint32_t turn, struct pd_error *err)
{
    const uint32_t me = t->partition.tp_rank;
    const uint64_t row_bytes = s->columns * pd_dtype_bytes(out_type(t, s));
    const struct pd_range mine = pd_rows_slice(t, rows, me);
    const uint64_t bytes = (mine.end - mine.begin) * row_bytes;
    struct pd_peer_transfer *x = &t->tp.slices[turn];
    char *const matrices[2] = {(char *)s->out + row * row_bytes, t->shared.whole + row * row_bytes};
    PD_TRY(pd_peer_transfer_wait(x, err));
    pd_peer_transfer_clear(x);
    if (s->brings && bytes)
        PD_TRY(pd_math_copy(t->math, matrices[1] + mine.begin * row_bytes,
                            (const char *)s->brings + pd_rows_before(t, row) * row_bytes, bytes, err));
    for (uint32_t r = 0; r < t->partition.tp; r++) {
        const struct pd_range slice = pd_rows_slice(t, rows, r);
        for (int i = 0; i < (s->brings ? 2 : 1) && r != me; i++) {
            pd_peer_transfer_send(x, r, matrices[i] + mine.begin * row_bytes, bytes);
            pd_peer_transfer_recv(x, r, matrices[i] + slice.begin * row_bytes, (slice.end - slice.begin) * row_bytes);
        }
    }
    return pd_peer_transfer_start(x, err);
}

/* Finishes the own slice of the window: tree over ranks, rounded. */
static pd_status finish_slice(struct pd_transformer *t, const struct pd_chunk_sum *s, uint64_t row, uint64_t rows,
                              uint32_t turn, struct pd_error *err)
{
    const uint32_t me = t->partition.tp_rank, ranks = t->partition.tp;
    const struct pd_range mine = pd_rows_slice(t, rows, me);
    const uint64_t out = s->by_rows ? pd_rows_before(t, row) : row + mine.begin;
    const uint64_t elements = (mine.end - mine.begin) * s->columns;
    PD_TRY(pd_peer_transfer_wait(&t->tp.sums[turn], err));
    for (uint32_t r = 0; r < ranks; r++) {
        t->tp.parts[r] = r == me ? t->tp.subtree[turn] + mine.begin * s->columns : t->tp.arrived[turn] + r * elements;
        if (!pd_tp_has_units(t, r, s->units)) t->tp.parts[r] = NULL;
    }
    if (elements) PD_TRY(tensor_parallel_finish(t, s, ranks, out, mine.end - mine.begin, err));
    return s->by_rows ? PD_OK : send_slices(t, s, row, rows, turn, err);
}

static pd_status run_beside(const struct pd_chunk_sum *s, int exchange, struct pd_error *err)
{
    const struct pd_beside *b = s->beside ? &s->beside[exchange] : NULL;
    return b && b->run ? b->run(b->context, err) : PD_OK;
}

static uint32_t turn_of(const struct pd_transformer *t, uint64_t row)
{
    return (uint32_t)(row / t->shared.window_rows % 2);
}

/* Window by window: one's terms travel while the next one's are computed. */
static pd_status sum_together(struct pd_transformer *t, const struct pd_chunk_sum *s, struct pd_error *err)
{
    const uint64_t window = t->shared.window_rows, last = (s->rows - 1) / window * window;
    PD_CHECK((!s->by_rows && !s->brings) || (s->rows == t->rows && s->columns == t->model->config.hidden));
    for (uint64_t row = 0; row < s->rows; row += window) {
        const uint64_t rows = row == last ? s->rows - row : window;
        PD_TRY(subtree(t, s, row, rows, t->tp.subtree[turn_of(t, row)], err));
        PD_TRY(send_sums(t, s, rows, turn_of(t, row), err));
        if (row) PD_TRY(finish_slice(t, s, row - window, window, turn_of(t, row - window), err));
    }
    PD_TRY(run_beside(s, 0, err));
    PD_TRY(finish_slice(t, s, last, s->rows - last, turn_of(t, last), err));
    PD_TRY(run_beside(s, 1, err));
    PD_TRY(pd_peer_transfer_wait(&t->tp.slices[0], err));
    return pd_peer_transfer_wait(&t->tp.slices[1], err);
}

pd_status pd_chunk_sum_run(struct pd_transformer *t, const struct pd_chunk_sum *s, struct pd_error *err)
{
    if (t->partition.tp > 1) return sum_together(t, s, err);
    PD_TRY(sum_alone(t, s, err));
    PD_TRY(run_beside(s, 0, err));
    return run_beside(s, 1, err);
}

/* ---- gradients of key-value heads ---- */

/* Columns of one head of dk_partial or dv_partial, dense. */
static pd_status cut_head(struct pd_transformer *t, const float *partial, uint64_t head, float *dst, struct pd_error *err)
{
    const uint64_t d = t->model->config.head_size;
    const float *part = partial + head * d;
    struct pd_finish f = {.rows = t->rows,
                          .columns = d,
                          .part_count = 1,
                          .parts = &part,
                          .ld_parts = t->share.k_columns,
                          .scale = 1.0f,
                          .out = {dst, PD_F32, d}};
    return pd_finish(t->math, &f, err);
}

static pd_status exchange_heads(struct pd_transformer *t, struct pd_error *err)
{
    const struct pd_share *s = &t->share;
    struct pd_tensor_parallel *tp = &t->tp;
    const uint64_t half = t->rows * t->model->config.head_size, bytes = 2 * half * sizeof(float);
    pd_peer_transfer_clear(&tp->kv);
    if (tp->kv_owner != PD_NOT_HELD) {
        PD_TRY(cut_head(t, tp->dk_partial, 0, tp->kv_send, err));
        PD_TRY(cut_head(t, tp->dv_partial, 0, tp->kv_send + half, err));
        pd_peer_transfer_send(&tp->kv, tp->kv_owner, tp->kv_send, bytes);
    }
    for (uint32_t i = 0; i < tp->kv_sharer_count; i++)
        pd_peer_transfer_recv(&tp->kv, t->partition.tp_rank + 1 + i, tp->kv_arrived + i * 2 * half, bytes);
    PD_TRY(pd_peer_transfer_start(&tp->kv, err));
    if (!tp->kv_sharer_count) return PD_OK;
    const uint64_t last = s->kv_computed.end - 1 - s->kv_needed.begin;
    PD_TRY(cut_head(t, tp->dk_partial, last, tp->kv_own, err));
    return cut_head(t, tp->dv_partial, last, tp->kv_own + half, err);
}

/* Heads that this rank shares with no other. */
static pd_status finish_own(struct pd_transformer *t, uint64_t heads, const float *partial, float scale, void *out,
                            uint64_t ld, struct pd_error *err)
{
    const uint64_t d = t->model->config.head_size;
    const float *part = partial + (t->share.kv_computed.begin - t->share.kv_needed.begin) * d;
    struct pd_finish f = {.rows = t->rows,
                          .columns = heads * d,
                          .part_count = 1,
                          .parts = &part,
                          .ld_parts = t->share.k_columns,
                          .scale = scale,
                          .out = {out, t->options.dtype, ld}};
    return heads ? pd_finish(t->math, &f, err) : PD_OK;
}

/* The last head; which: 0 for dk, 1 for dv. */
static pd_status finish_shared(struct pd_transformer *t, uint32_t which, float scale, char *out, uint64_t ld,
                               struct pd_error *err)
{
    const uint64_t d = t->model->config.head_size, half = t->rows * d;
    const uint32_t me = t->partition.tp_rank;
    for (uint32_t r = 0; r < t->partition.tp; r++)
        t->tp.parts[r] = NULL;
    t->tp.parts[me] = t->tp.kv_own + which * half;
    for (uint32_t i = 0; i < t->tp.kv_sharer_count; i++)
        t->tp.parts[me + 1 + i] = t->tp.kv_arrived + (2 * i + which) * half;
    struct pd_finish f = {.rows = t->rows,
                          .columns = d,
                          .part_count = t->partition.tp,
                          .parts = t->tp.parts,
                          .scale = scale,
                          .out = {out + (t->share.dk_columns - d) * t->element_bytes, t->options.dtype, ld}};
    return pd_finish(t->math, &f, err);
}

pd_status pd_kv_combine(struct pd_transformer *t, const struct pd_qkv *d, struct pd_error *err)
{
    const struct pd_tensor_parallel *tp = &t->tp;
    const float scale = pd_attention_of(t).scale;
    const uint64_t computed = t->share.kv_computed.end - t->share.kv_computed.begin;
    const uint64_t own = computed - (tp->kv_sharer_count > 0);
    PD_TRY(exchange_heads(t, err));
    PD_TRY(finish_own(t, own, tp->dk_partial, scale, d->k, d->ld_kv, err));
    PD_TRY(finish_own(t, own, tp->dv_partial, 1.0f, d->v, d->ld_kv, err));
    PD_TRY(pd_peer_transfer_wait(&t->tp.kv, err));
    if (!tp->kv_sharer_count) return PD_OK;
    PD_TRY(finish_shared(t, 0, scale, d->k, d->ld_kv, err));
    return finish_shared(t, 1, 1.0f, d->v, d->ld_kv, err);
}
