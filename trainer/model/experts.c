/* Experts of one block. Those of this rank compute the tokens of all ep ranks (expert_exchange.c). Every sum has an order that
 * no layout changes:
 *
 *   expert    the products of each (expert, micro-batch) are over that micro-batch's tokens in ascending order
 *   token     the results of its experts, rounded as they travel, are added in the order of its choice, then the shared
 *             experts' results: a chain in fp32 for each chunk of columns, then the tree over chunks with the residual,
 *             rounded once (tensor_parallel.c)
 *   weights   gradients are a chain over the expert's tokens of a micro-batch, then like any tensor's: lane, term. If sequences
 *             are cut, a chain over its tokens of each piece, which is a term
 *
 * A token's weight multiplies the expert's hidden row before the product with down, so backward needs no result of an expert.
 * On a CPU an element's bits do not depend on the number of rows of a product; on a GPU its algorithm is chosen by that number
 * alone (pd_gemm.rows_vary). So slots are not padded.
 *
 *   source  Shazeer et al. 2017 */
#include "resharder/layout.h"
#include "trainer/model/transformer_internal.h"

#include <math.h>
#include <string.h>

static struct pd_matrix act(const struct pd_transformer *t, const void *data, uint64_t elements, uint64_t ld)
{
    return (struct pd_matrix){(char *)(uintptr_t)data + elements * t->element_bytes, t->options.dtype, ld};
}

/* Tensor `which` (0 gate, 1 up, 2 down) of this rank's expert `number`. */
static uint32_t expert_tensor(const struct pd_transformer *t, uint32_t number, uint32_t which)
{
    const uint32_t expert = number * t->options.ep + t->options.ep_rank;
    return (uint32_t)t->model->places[PD_ROLE_EXPERT_GATE][0] + PD_EXPERT_TENSORS * expert + which;
}

static uint64_t slot_count(const struct pd_transformer *t)
{
    return t->experts.is_absent ? 0 : t->rows * t->model->config.experts_per_token;
}

static struct pd_gated expert_of(const struct pd_transformer *t, uint32_t number, void *const *w)
{
    return (struct pd_gated){t->model->config.expert_ffn,
                             t->share.expert_columns,
                             w[expert_tensor(t, number, 0)],
                             w[expert_tensor(t, number, 2)],
                             NULL,
                             NULL,
                             pd_fp8_kept_expert(t, number, PD_FP8_UP),
                             pd_fp8_kept_expert(t, number, PD_FP8_DOWN),
                             {0},
                             true};
}

/* A group's rows of the slice. */
struct product {
    struct pd_gated m;
    uint64_t first, rows;
};

static struct product product_of(struct pd_transformer *t, uint32_t group, void *const *w)
{
    const int32_t *first = t->experts.slice.first + (uint64_t)group * t->sp.pieces;
    struct product p = {expert_of(t, group % pd_experts_here(t), w), (uint64_t)first[0],
                        (uint64_t)(first[t->sp.pieces] - first[0])};
    if (t->fp8.is_on) p.m.pieces = pd_fp8_pieces_of(t, first);
    return p;
}

static struct pd_gated shared_of(const struct pd_transformer *t, void *const *w, float *const *g)
{
    const int gate = t->model->places[PD_ROLE_SHARED_GATE][0], down = t->model->places[PD_ROLE_SHARED_DOWN][0];
    if (gate < 0) return (struct pd_gated){0};
    return (struct pd_gated){pd_model_shared_ffn(&t->model->config),
                             t->share.shared_columns,
                             w[gate],
                             w[down],
                             g ? g[gate] : NULL,
                             g ? g[down] : NULL,
                             pd_fp8_kept_linear(t, PD_FP8_UP),
                             pd_fp8_kept_linear(t, PD_FP8_DOWN),
                             {t->sp.pieces, t->sp.row, t->sp.rows},
                             false};
}

/* up (n, 2F) = x (n,C) [gate; up]^T */
static pd_status gated_up(struct pd_transformer *t, const struct pd_gated *m, uint64_t n, struct pd_matrix x,
                          struct pd_matrix up, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    const struct pd_gemm g = {.m = n,
                              .n = 2 * m->columns,
                              .k = hidden,
                              .trans_b = true,
                              .varies = m->varies ? PD_VARIES_M : PD_VARIES_NOT,
                              .a = x,
                              .b = act(t, m->gate_up, 0, hidden),
                              .c = up};
    if (!n || !m->columns) return PD_OK;
    return t->fp8.is_on ? pd_fp8_gated_up(t, m, x, up, err) : pd_gemm(t->math, &g, err);
}

/* y (n,C) = hidden (n,F) down^T, columns of chunk i; added to y if `adds`. Without columns only zeros would be added. */
static pd_status gated_down(struct pd_transformer *t, const struct pd_gated *m, uint32_t chunk, uint64_t n,
                            struct pd_matrix x, struct pd_matrix y, bool adds, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, chunk);
    const uint64_t k = r.end - r.begin;
    const struct pd_gemm g = {.m = n,
                              .n = hidden,
                              .k = k,
                              .trans_b = true,
                              .varies = m->varies ? PD_VARIES_M : PD_VARIES_NOT,
                              .accumulate = adds,
                              .a = {(char *)x.data + r.begin * t->element_bytes, x.dtype, x.ld},
                              .b = act(t, m->down, r.begin * hidden, k),
                              .c = y};
    if (!n || !k) return PD_OK;
    return t->fp8.is_on ? pd_fp8_gated_down(t, m, chunk, x, y, adds, err) : pd_gemm(t->math, &g, err);
}

/* dhidden (n,F) = dy (n,C) down */
static pd_status gated_down_input(struct pd_transformer *t, const struct pd_gated *m, uint64_t n, struct pd_matrix dy,
                                  struct pd_matrix dhidden, struct pd_error *err)
{
    if (t->fp8.is_on && n) return pd_fp8_gated_down_input(t, m, dy, dhidden, err);
    for (uint32_t i = 0; i < t->tp.chunks && n; i++) {
        const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, i);
        const uint64_t columns = r.end - r.begin, hidden = t->model->config.hidden;
        const struct pd_gemm g = {.m = n,
                                  .n = columns,
                                  .k = hidden,
                                  .varies = m->varies ? PD_VARIES_M : PD_VARIES_NOT,
                                  .a = dy,
                                  .b = act(t, m->down, r.begin * hidden, columns),
                                  .c = {(char *)dhidden.data + r.begin * t->element_bytes, dhidden.dtype, dhidden.ld}};
        if (columns) PD_TRY(pd_gemm(t->math, &g, err));
    }
    return PD_OK;
}

/* dx (n,C) = dup (n, 2F) [gate; up], columns of chunk i: one chain in fp32, added to dx, which is fp32 then; or rounded. */
static pd_status gated_up_input(struct pd_transformer *t, const struct pd_gated *m, uint32_t chunk, uint64_t n,
                                struct pd_matrix dup, struct pd_matrix dx, bool adds, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, chunk);
    const bool is_whole = r.end - r.begin == m->columns; /* gate and up are contiguous */
    const struct pd_matrix chain = adds || is_whole ? dx : (struct pd_matrix){t->experts.product, PD_F32, hidden};
    if (!n || r.begin == r.end) return PD_OK;
    if (t->fp8.is_on) return pd_fp8_gated_up_input(t, m, chunk, n, dup, dx, adds, err);
    for (uint32_t half = 0; half < (is_whole ? 1 : 2); half++) {
        const uint64_t column = half * m->columns + r.begin;
        const struct pd_gemm g = {.m = n,
                                  .n = hidden,
                                  .k = is_whole ? 2 * m->columns : r.end - r.begin,
                                  .varies = m->varies ? PD_VARIES_M : PD_VARIES_NOT,
                                  .accumulate = adds || half,
                                  .a = {(char *)dup.data + column * t->element_bytes, dup.dtype, dup.ld},
                                  .b = act(t, m->gate_up, column * hidden, hidden),
                                  .c = chain};
        PD_TRY(pd_gemm(t->math, &g, err));
    }
    return adds || is_whole ? PD_OK : pd_cast(t->math, n * hidden, dx.dtype, dx.data, PD_F32, t->experts.product, err);
}

/* dW (out, in) = dy^T x over n rows; 0 if there are none. */
static pd_status rows_gradient(struct pd_transformer *t, uint64_t out, uint64_t in, uint64_t n, bool varies,
                               struct pd_matrix dy, struct pd_matrix x, float *dst, struct pd_error *err)
{
    const struct pd_gemm g = {.m = out,
                              .n = in,
                              .k = n,
                              .trans_a = true,
                              .varies = varies ? PD_VARIES_K : PD_VARIES_NOT,
                              .a = dy,
                              .b = x,
                              .c = {dst, PD_F32, in},
                              .residual = pd_gradient_so_far(t, dst, in)};
    if (!out || !in || (!n && t->adds)) return PD_OK;
    return pd_gemm(t->math, &g, err);
}

static pd_status gated_weights(struct pd_transformer *t, const struct pd_gated *m, uint64_t n, struct pd_matrix x,
                               struct pd_matrix dup, struct pd_matrix hidden_rows, struct pd_matrix dy, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden;
    if (t->fp8.is_on && n) return pd_fp8_gated_weights(t, m, n, x, dup, hidden_rows, dy, err);
    PD_TRY(rows_gradient(t, 2 * m->columns, hidden, n, m->varies, dup, x, m->dgate_up, err));
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range r = pd_chunk_columns(t, m->ffn, 1, i);
        const struct pd_matrix part = {(char *)hidden_rows.data + r.begin * t->element_bytes, hidden_rows.dtype,
                                       hidden_rows.ld};
        PD_TRY(rows_gradient(t, hidden, r.end - r.begin, n, m->varies, dy, part, m->ddown + r.begin * hidden, err));
    }
    return PD_OK;
}

/* ---- forward ---- */

static pd_status activate_slice(struct pd_transformer *t, struct pd_error *err)
{
    const struct pd_expert_products *p = t->experts.slice.products;
    const struct pd_weighted_swiglu s = {.rows = pd_experts_arrived(t),
                                         .columns = t->share.expert_columns,
                                         .dtype = t->options.dtype,
                                         .gate_up = p->up,
                                         .weights = p->weights,
                                         .out = p->hidden};
    return pd_weighted_swiglu_forward(t->math, &s, err);
}

static pd_status activate_shared(struct pd_transformer *t, struct pd_block_activations *a, struct pd_error *err)
{
    const struct pd_expert_activations *x = &a->experts;
    if (!t->share.shared_columns || t->experts.is_absent) return PD_OK;
    return pd_swiglu_forward(t->math, t->rows, t->share.shared_columns, t->options.dtype, x->shared_up, x->shared_hidden,
                             err);
}

pd_status pd_experts_activate(struct pd_transformer *t, struct pd_block_activations *a, struct pd_error *err)
{
    pd_experts_first_slice(t, &a->experts);
    PD_TRY(activate_slice(t, err));
    return activate_shared(t, a, err);
}

/* Sums over chunks that exist already; in fp32 if `out` is. */
static pd_status chains_sum(struct pd_transformer *t, uint64_t columns, const float *chains, bool by_rows, bool is_wide,
                            const void *residual, void *out, struct pd_error *err)
{
    const struct pd_chunk_sum sum = {.rows = t->rows,
                                     .columns = columns,
                                     .units = t->partition.virtual_tp, /* no chunk is empty */
                                     .chains = chains,
                                     .by_rows = by_rows,
                                     .is_wide = is_wide,
                                     .residual = residual,
                                     .out = out};
    return pd_chunk_sum_run(t, &sum, err);
}

/* Chain of a chunk: for each token the sum of its experts' results. */
static struct pd_matrix chain_at(const struct pd_transformer *t, uint32_t chunk)
{
    const uint64_t hidden = t->model->config.hidden;
    return (struct pd_matrix){t->experts.chains + chunk * t->rows * hidden, PD_F32, hidden};
}

static bool has_columns(const struct pd_transformer *t, uint32_t chunk)
{
    const struct pd_range r = pd_chunk_columns(t, t->model->config.expert_ffn, 1, chunk);
    return r.begin < r.end;
}

/* A slice's results of a chunk of columns travel back, with dweights of all chunks if given; after the last a token's are
 * added. */
static pd_status combine_chunk(struct pd_transformer *t, const struct pd_expert_activations *x, uint32_t chunk,
                               bool has_dweights, struct pd_error *err)
{
    struct pd_expert_rows rows[1 + PD_LAYOUT_CHUNKS_MAX];
    const uint64_t row = t->model->config.hidden * t->element_bytes;
    char *results = t->experts.results + (t->experts.is_sliced ? chunk * slot_count(t) * row : 0);
    uint32_t count = 0;
    if (has_columns(t, chunk)) rows[count++] = (struct pd_expert_rows){results, t->experts.arrived, row};
    for (uint32_t i = 0; i < t->tp.chunks && has_dweights; i++)
        rows[count++] = (struct pd_expert_rows){t->experts.dweights + i * slot_count(t),
                                                t->experts.arrived_dweights + i * pd_experts_arrived(t), sizeof(float)};
    PD_TRY(pd_experts_travel(t, x, rows, count, true, err));
    PD_TRY(pd_peer_transfer_wait(&t->experts.travel, err));
    if (t->experts.is_absent || !t->experts.slice.is_last) return PD_OK;
    const struct pd_combine c = {.rows = t->rows,
                                 .columns = t->model->config.hidden,
                                 .per_token = t->model->config.experts_per_token,
                                 .parts = has_columns(t, chunk) ? results : NULL,
                                 .slots = x->slots,
                                 .out = chain_at(t, chunk).data,
                                 .dtype = t->options.dtype};
    return pd_combine(t->math, &c, err);
}

static pd_status down_chunk(struct pd_transformer *t, const struct pd_expert_activations *x, void *const *w, uint32_t chunk,
                            struct pd_error *err)
{
    const uint64_t columns = t->share.expert_columns, hidden = t->model->config.hidden;
    for (uint32_t i = 0; i < t->model->config.experts; i++) {
        const struct product p = product_of(t, i, w);
        PD_TRY(gated_down(t, &p.m, chunk, p.rows, act(t, t->experts.slice.products->hidden, p.first * columns, columns),
                          act(t, t->experts.arrived, p.first * hidden, hidden), false, err));
    }
    return combine_chunk(t, x, chunk, false, err);
}

static void *inputs_of(const struct pd_transformer *t)
{
    void *arrived = t->experts.slice.products->arrived;
    return arrived ? arrived : t->experts.rows;
}

/* Tokens and their weights go to the experts; in backward with dout. */
static pd_status send_tokens(struct pd_transformer *t, const struct pd_expert_activations *x, bool is_backward,
                             struct pd_error *err)
{
    const struct pd_expert_products *p = t->experts.slice.products;
    const uint64_t row = t->model->config.hidden * t->element_bytes;
    const struct pd_expert_rows rows[] = {{t->experts.rows, p->arrived, row},
                                          {x->weights, p->weights, sizeof(float)},
                                          {t->experts.dout, t->experts.arrived_dout, row}};
    return pd_experts_travel(t, x, rows, is_backward ? 3 : 2, false, err);
}

/* Waits for the tokens. */
static pd_status up_products(struct pd_transformer *t, void *const *w, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden, columns = 2 * t->share.expert_columns;
    PD_TRY(pd_peer_transfer_wait(&t->experts.travel, err));
    for (uint32_t i = 0; i < t->model->config.experts; i++) {
        const struct product p = product_of(t, i, w);
        PD_TRY(gated_up(t, &p.m, p.rows, act(t, inputs_of(t), p.first * hidden, hidden),
                        act(t, t->experts.slice.products->up, p.first * columns, columns), err));
    }
    return PD_OK;
}

/* Shared experts compute while the first slice's tokens travel. Without `out`, backward makes the other slices itself. */
pd_status pd_experts_forward(struct pd_transformer *t, uint32_t block, struct pd_block_activations *a, void *const *w,
                             const void *middle, void *out, struct pd_error *err)
{
    struct pd_expert_activations *x = &a->experts;
    const uint64_t hidden = t->model->config.hidden, shared_columns = t->share.shared_columns;
    const struct pd_gated shared = shared_of(t, w, NULL);
    (void)block;
    PD_TRY(pd_router_choose(t, a->norm2, x, w, err));
    PD_TRY(pd_gather_rows(t->math, slot_count(t), hidden * t->element_bytes, x->tokens, a->norm2, t->experts.rows, err));
    PD_TRY(pd_experts_meet(t, x, err));
    pd_experts_first_slice(t, x);
    PD_TRY(send_tokens(t, x, false, err));
    PD_TRY(gated_up(t, &shared, t->rows, act(t, a->norm2, 0, hidden), act(t, x->shared_up, 0, 2 * shared_columns), err));
    PD_TRY(activate_shared(t, a, err));
    do {
        if (t->experts.slice.number) PD_TRY(send_tokens(t, x, false, err));
        PD_TRY(up_products(t, w, err));
        PD_TRY(activate_slice(t, err));
        for (uint32_t i = 0; i < t->tp.chunks && out; i++)
            PD_TRY(down_chunk(t, x, w, i, err));
    } while (out && pd_experts_next_slice(t, x));
    for (uint32_t i = 0; i < t->tp.chunks && out; i++)
        PD_TRY(gated_down(t, &shared, i, shared_columns ? t->rows : 0, act(t, x->shared_hidden, 0, shared_columns),
                          chain_at(t, i), true, err));
    return out ? chains_sum(t, hidden, t->experts.chains, true, false, middle, out, err) : PD_OK;
}

pd_status pd_experts_join_forward(struct pd_transformer *t, struct pd_block_activations *a, void *const *w, bool returns,
                                  struct pd_error *err)
{
    struct pd_expert_activations *x = &a->experts;
    const uint64_t bytes = (t->model->config.experts * t->sp.pieces + 1ull) * sizeof *x->first;
    memset(x->first, 0, bytes);
    if (t->options.on_device) PD_TRY(pd_math_copy(t->math, x->device_first, t->experts.zeros, bytes, err));
    PD_TRY(pd_experts_meet(t, x, err));
    pd_experts_first_slice(t, x);
    do {
        PD_TRY(send_tokens(t, x, false, err));
        PD_TRY(up_products(t, w, err));
        PD_TRY(activate_slice(t, err));
        for (uint32_t i = 0; i < t->tp.chunks && returns; i++)
            PD_TRY(down_chunk(t, x, w, i, err));
    } while (returns && pd_experts_next_slice(t, x));
    return PD_OK;
}

/* ---- backward ---- */

/* The gradient of the weights of a token's experts, in the order of its choice. */
static pd_status weights_gradient(struct pd_transformer *t, const struct pd_expert_activations *x, struct pd_error *err)
{
    const uint32_t k = t->model->config.experts_per_token;
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        PD_TRY(pd_gather_rows(t->math, slot_count(t), sizeof(float), x->slots, t->experts.dweights + i * slot_count(t),
                              t->experts.dchosen + i * slot_count(t), err));
    return chains_sum(t, k, t->experts.dchosen, false, true, NULL, t->experts.weights, err);
}

/* Of one piece of the micro-batch of rank `source`, for its experts in the slice. */
static pd_status piece_weights(struct pd_transformer *t, uint32_t source, uint32_t place, float *to, void *const *w,
                               struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden, columns = t->share.expert_columns, matrix = columns * hidden;
    const struct pd_range experts = pd_experts_in_slice(t, source);
    for (uint64_t number = experts.begin; number < experts.end; number++) {
        const int32_t *first =
            t->experts.slice.first + ((uint64_t)source * pd_experts_here(t) + number) * t->sp.pieces + place;
        const uint64_t row = (uint64_t)first[0];
        struct pd_gated m = expert_of(t, (uint32_t)number, w);
        m.dgate_up = to + number * PD_EXPERT_TENSORS * matrix;
        m.ddown = m.dgate_up + 2 * matrix;
        PD_TRY(gated_weights(t, &m, (uint64_t)(first[1] - first[0]), act(t, inputs_of(t), row * hidden, hidden),
                             act(t, t->experts.dup, row * 2 * columns, 2 * columns),
                             act(t, t->experts.slice.products->hidden, row * columns, columns),
                             act(t, t->experts.arrived_dout, row * hidden, hidden), err));
    }
    return pd_take_piece_of(t, source, to + experts.begin * PD_EXPERT_TENSORS * matrix,
                            (experts.end - experts.begin) * PD_EXPERT_TENSORS * matrix, err);
}

/* The gradients of this rank's experts from the micro-batch of each rank that has one. */
static pd_status experts_weights(struct pd_transformer *t, void *const *w, float *const *g, struct pd_error *err)
{
    for (uint32_t source = 0; source < t->options.ep; source++) {
        float *to = t->options.ep > 1 ? t->experts.sources[source] : g[expert_tensor(t, 0, 0)];
        for (uint32_t place = 0; to && place < t->sp.pieces; place++)
            PD_TRY(piece_weights(t, source, place, to, w, err));
    }
    return PD_OK;
}

static pd_status shared_backward(struct pd_transformer *t, const struct pd_block_activations *a, const struct pd_gated *m,
                                 struct pd_error *err)
{
    const struct pd_expert_activations *x = &a->experts;
    const uint64_t hidden = t->model->config.hidden, columns = t->share.shared_columns;
    const struct pd_matrix dy = act(t, t->dstream, 0, hidden), dup = act(t, t->experts.dshared_up, 0, 2 * columns);
    if (!columns) return PD_OK;
    PD_TRY(gated_down_input(t, m, t->rows, dy, act(t, t->experts.dshared_hidden, 0, columns), err));
    PD_TRY(pd_swiglu_backward(t->math, t->rows, columns, t->options.dtype, x->shared_up, t->experts.dshared_hidden,
                              t->experts.dshared_up, err));
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        const uint64_t row = t->sp.row[place];
        PD_TRY(gated_weights(t, m, t->sp.rows[place], act(t, a->norm2, row * hidden, hidden),
                             act(t, dup.data, row * 2 * columns, 2 * columns),
                             act(t, x->shared_hidden, row * columns, columns), act(t, dy.data, row * hidden, hidden), err));
        PD_TRY(pd_take_piece(t, m->dgate_up, 2 * columns * hidden, err));
        PD_TRY(pd_take_piece(t, m->ddown, columns * hidden, err));
    }
    return PD_OK;
}

/* From dout, which travels to the experts, to dup and dweights of all rows that arrived. */
static pd_status hidden_backward(struct pd_transformer *t, void *const *w, struct pd_error *err)
{
    const struct pd_expert_products *rows = t->experts.slice.products;
    const uint64_t hidden = t->model->config.hidden, columns = t->share.expert_columns;
    const struct pd_range chunk = pd_partition_chunk(&t->partition, t->model->config.expert_ffn, 0);
    PD_TRY(pd_peer_transfer_wait(&t->experts.travel, err));
    for (uint32_t i = 0; i < t->model->config.experts; i++) {
        const struct product p = product_of(t, i, w);
        PD_TRY(gated_down_input(t, &p.m, p.rows, act(t, t->experts.arrived_dout, p.first * hidden, hidden),
                                act(t, t->experts.dhidden, p.first * columns, columns), err));
    }
    const struct pd_weighted_swiglu s = {.rows = pd_experts_arrived(t),
                                         .columns = columns,
                                         .dtype = t->options.dtype,
                                         .gate_up = rows->up,
                                         .weights = rows->weights,
                                         .dout = t->experts.dhidden,
                                         .dgate_up = t->experts.dup,
                                         .chunks = t->tp.chunks,
                                         .chunk = chunk.end - chunk.begin,
                                         .dweights = t->experts.arrived_dweights};
    return pd_weighted_swiglu_backward(t->math, &s, err);
}

static pd_status input_chunk(struct pd_transformer *t, const struct pd_expert_activations *x, void *const *w, uint32_t chunk,
                             struct pd_error *err)
{
    const uint64_t columns = 2 * t->share.expert_columns, hidden = t->model->config.hidden;
    for (uint32_t i = 0; i < t->model->config.experts; i++) {
        const struct product p = product_of(t, i, w);
        PD_TRY(gated_up_input(t, &p.m, chunk, p.rows, act(t, t->experts.dup, p.first * columns, columns),
                              act(t, t->experts.arrived, p.first * hidden, hidden), false, err));
    }
    return combine_chunk(t, x, chunk, chunk == 0, err);
}

static pd_status send_dout(struct pd_transformer *t, const struct pd_expert_activations *x, struct pd_error *err)
{
    const struct pd_expert_rows rows = {t->experts.dout, t->experts.arrived_dout,
                                        t->model->config.hidden * t->element_bytes};
    return pd_experts_travel(t, x, &rows, 1, false, err);
}

/* A slice after the first: its tokens travel again, with dout. */
static pd_status make_again(struct pd_transformer *t, const struct pd_expert_activations *x, void *const *w,
                            struct pd_error *err)
{
    PD_TRY(send_tokens(t, x, true, err));
    PD_TRY(up_products(t, w, err));
    return activate_slice(t, err);
}

/* Shared experts compute while dout of the first slice travels. */
pd_status pd_experts_backward(struct pd_transformer *t, uint32_t block, struct pd_block_activations *a, void *const *w,
                              float *const *g, struct pd_error *err)
{
    const struct pd_expert_activations *x = &a->experts;
    const uint64_t row = t->model->config.hidden * t->element_bytes, shared_columns = 2 * t->share.shared_columns;
    const struct pd_gated shared = shared_of(t, w, g);
    pd_experts_first_slice(t, x);
    PD_TRY(pd_gather_rows(t->math, slot_count(t), row, x->tokens, t->dstream, t->experts.dout, err));
    PD_TRY(send_dout(t, x, err));
    PD_TRY(pd_router_meet(t, x, err));
    PD_TRY(shared_backward(t, a, &shared, err));
    if (t->options.ep == 1 || !t->experts.slice.is_last)
        PD_TRY(pd_gather_rows(t->math, slot_count(t), row, x->tokens, a->norm2, t->experts.rows, err));
    do {
        if (t->experts.slice.number) PD_TRY(make_again(t, x, w, err));
        PD_TRY(hidden_backward(t, w, err));
        for (uint32_t i = 0; i < t->tp.chunks; i++)
            PD_TRY(input_chunk(t, x, w, i, err));
        PD_TRY(experts_weights(t, w, g, err));
    } while (pd_experts_next_slice(t, x));
    for (uint32_t i = 0; i < t->tp.chunks; i++)
        PD_TRY(gated_up_input(t, &shared, i, shared_columns ? t->rows : 0, act(t, t->experts.dshared_up, 0, shared_columns),
                              chain_at(t, i), true, err));
    PD_TRY(weights_gradient(t, x, err));
    PD_TRY(pd_router_backward(t, block, a, w, g, err));
    PD_TRY(pd_router_input(t, w, chain_at(t, 0), err));
    return chains_sum(t, t->model->config.hidden, t->experts.chains, false, false, NULL, t->dnorm, err);
}

pd_status pd_experts_join_backward(struct pd_transformer *t, struct pd_block_activations *a, void *const *w,
                                   struct pd_error *err)
{
    const struct pd_expert_activations *x = &a->experts;
    pd_experts_first_slice(t, x);
    PD_TRY(send_dout(t, x, err));
    do {
        if (t->experts.slice.number) PD_TRY(make_again(t, x, w, err));
        PD_TRY(hidden_backward(t, w, err));
        for (uint32_t i = 0; i < t->tp.chunks; i++)
            PD_TRY(input_chunk(t, x, w, i, err));
        PD_TRY(experts_weights(t, w, NULL, err));
    } while (pd_experts_next_slice(t, x));
    return PD_OK;
}
