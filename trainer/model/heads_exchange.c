/* Attention of cut sequences, by heads (Jacobs et al. 2023, "DeepSpeed Ulysses"). Rank r of n has the r-th n-th of a
 * micro-batch's rows, with all heads. In attention it has all rows of the r-th n-th of the heads: key-value heads and the
 * queries that read them. An all-to-all converts between the two: for any n, a row's queries, keys and values are sent once,
 * and its output returns.
 *
 *   forward    a->qkv (own rows) -> packed -> a->qkv (own heads); the output in packed -> passing -> a->attention (own rows)
 *   backward   dattention -> packed -> passing (own heads); dq, dk, dv in packed -> passing -> dqkv (own rows)
 *
 * While rows are sent or received, packed and passing have one block per rank; in between a matrix of all rows, in folded
 * order: those of rank 0, then of rank 1. Every chain and tree runs on one rank, over the same parts as in
 * sequence_parallel.c, so the bits are equal. Each sp rank makes the same exchanges. */
#include "ckpt/base/checked.h"
#include "trainer/model/transformer_internal.h"

/* State of one attention. */
struct heads {
    struct pd_transformer *t;
    const struct pd_micro_batch_input *input;
    struct pd_block_activations *a;
    struct pd_attention common; /* of own heads */
    uint64_t q, k;              /* bytes of a row of own query heads, of own key heads */
    uint64_t rows;              /* of a piece */
    uint32_t piece;             /* positions */
};

static struct heads heads_of(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                             struct pd_block_activations *a)
{
    const uint32_t ranks = t->partition.sp;
    struct heads h = {.t = t,
                      .input = input,
                      .a = a,
                      .common = pd_attention_of(t),
                      .q = t->share.q_columns / ranks * t->element_bytes,
                      .k = t->share.k_columns / ranks * t->element_bytes,
                      .rows = t->sp.largest,
                      .piece = t->options.length / t->sp.total};
    h.common.heads /= ranks;
    h.common.kv_heads /= ranks;
    h.common.length = h.common.key_length = h.piece;
    h.common.ld_qkv = h.common.ld_dq = t->share.q_columns / ranks;
    h.common.ld_kv = h.common.ld_dkv = 2 * (t->share.k_columns / ranks);
    return h;
}

/* ---- exchanges ---- */

/* A matrix of all rows of own heads, and the bytes (`row` each) of rank r's rows in it. */
struct rows {
    char *all;
    uint64_t row;
};

static char *rows_of(const struct heads *h, const struct rows *m, uint32_t rank)
{
    return m->all + rank * h->t->rows * m->row;
}

/* Matrices as blocks: rank by rank, one matrix after another. */
static char *block_of(const struct heads *h, char *blocks, const struct rows *m, uint32_t count, uint32_t rank,
                      uint32_t which)
{
    uint64_t row = 0, before = 0;
    for (uint32_t i = 0; i < count; i++) {
        row += m[i].row;
        before += i < which ? m[i].row : 0;
    }
    return blocks + h->t->rows * (rank * row + before);
}

/* to_heads: sends own rows of every rank's heads from their blocks to that rank; matrices get all rows. Otherwise the
 * reverse. Copies own rows of own heads. */
static pd_status exchange(const struct heads *h, char *blocks, const struct rows *m, uint32_t count, bool to_heads,
                          struct pd_error *err)
{
    struct pd_transformer *t = h->t;
    struct pd_peer_transfer *x = &t->sp.transfer[0];
    const uint32_t me = t->partition.sp_rank;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.sp; r++)
        for (uint32_t i = 0; i < count; i++) {
            char *block = block_of(h, blocks, m, count, r, i), *rows = rows_of(h, &m[i], r);
            const uint64_t bytes = t->rows * m[i].row;
            if (r == me) {
                PD_TRY(pd_math_copy(t->math, to_heads ? rows : block, to_heads ? block : rows, bytes, err));
                continue;
            }
            pd_peer_transfer_send(x, r, to_heads ? block : rows, bytes);
            pd_peer_transfer_recv(x, r, to_heads ? rows : block, bytes);
        }
    PD_TRY(pd_peer_transfer_start(x, err));
    return pd_peer_transfer_wait(x, err);
}

/* Copies columns of all heads from `column` bytes on, own rows ld apart, to or from a block with rows of `row` bytes, at
 * offset `at`. */
static pd_status heads_exchange_pack(const struct heads *h, char *block, uint64_t row, uint64_t at, char *columns,
                                     uint64_t ld, uint64_t bytes, bool to_block, struct pd_error *err)
{
    return to_block ? pd_copy_rows(h->t->math, h->t->rows, bytes, block + at, row, columns, ld, err)
                    : pd_copy_rows(h->t->math, h->t->rows, bytes, columns, ld, block + at, row, err);
}

/* Like pack, for heads of queries or keys: rotates them on the way into a block, and back on the way out. */
static pd_status pack_turned(const struct heads *h, char *block, uint64_t row, char *columns, uint64_t ld, uint64_t bytes,
                             bool to_block, struct pd_error *err)
{
    const struct pd_transformer *t = h->t;
    const uint64_t size = t->model->config.head_size, element = t->element_bytes;
    if (!pd_attention_rotates(t)) return heads_exchange_pack(h, block, row, 0, columns, ld, bytes, to_block, err);
    const struct pd_rope rope = {.rows = t->rows,
                                 .heads = (uint32_t)(bytes / element / size),
                                 .head_size = (uint32_t)size,
                                 .dtype = t->options.dtype,
                                 .x = to_block ? block : columns,
                                 .ld = (to_block ? row : ld) / element,
                                 .positions = h->input->positions,
                                 .cos_sin = t->cos_sin,
                                 .inverse = !to_block,
                                 .from = to_block ? columns : block,
                                 .ld_from = (to_block ? ld : row) / element};
    return pd_rope(t->math, &rope, err);
}

static pd_status pack_qkv(const struct heads *h, char *blocks, const struct rows m[2], const struct pd_qkv *x,
                          bool to_blocks, struct pd_error *err)
{
    const struct pd_transformer *t = h->t;
    const uint64_t ld_q = x->ld_q * t->element_bytes, ld_kv = x->ld_kv * t->element_bytes;
    for (uint32_t r = 0; r < t->partition.sp; r++) {
        char *q = block_of(h, blocks, m, 2, r, 0), *kv = block_of(h, blocks, m, 2, r, 1);
        PD_TRY(pack_turned(h, q, h->q, x->q + r * h->q, ld_q, h->q, to_blocks, err));
        PD_TRY(pack_turned(h, kv, 2 * h->k, x->k + r * h->k, ld_kv, h->k, to_blocks, err));
        PD_TRY(heads_exchange_pack(h, kv, 2 * h->k, h->k, x->v + r * h->k, ld_kv, h->k, to_blocks, err));
    }
    return PD_OK;
}

/* (R, H*D) */
static pd_status pack_queries(const struct heads *h, char *blocks, const struct rows *m, uint32_t count, char *x,
                              bool to_blocks, struct pd_error *err)
{
    for (uint32_t r = 0; r < h->t->partition.sp; r++)
        PD_TRY(heads_exchange_pack(h, block_of(h, blocks, m, count, r, 0), h->q, 0, x + r * h->q,
                                   h->t->share.q_columns * h->t->element_bytes, h->q, to_blocks, err));
    return PD_OK;
}

/* First visible keys of all rows. */
static pd_status gather_first(const struct heads *h, struct pd_error *err)
{
    struct pd_transformer *t = h->t;
    struct pd_peer_transfer *x = &t->sp.transfer[0];
    const uint64_t bytes = t->rows * sizeof(int32_t);
    if (!t->options.separate_documents) return PD_OK;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.sp; r++) {
        if (r == t->partition.sp_rank) continue;
        pd_peer_transfer_send(x, r, h->input->first, bytes);
        pd_peer_transfer_recv(x, r, t->sp.all_first + r * t->rows, bytes);
    }
    PD_TRY(pd_peer_transfer_start(x, err));
    PD_TRY(pd_math_copy(t->math, t->sp.all_first + t->partition.sp_rank * t->rows, h->input->first, bytes, err));
    return pd_peer_transfer_wait(x, err);
}

/* ---- attention ---- */

/* The matrices of queries (or of the same shape), then of keys and values. */
static void matrices(const struct heads *h, void *base, struct rows ret[2])
{
    ret[0] = (struct rows){base, h->q};
    ret[1] = (struct rows){(char *)base + h->t->partition.sp * h->t->rows * h->q, 2 * h->k};
}

/* The first row of a piece among all. */
static uint64_t heads_exchange_row_of(const struct heads *h, uint32_t piece)
{
    const uint32_t total = h->t->sp.total;
    return h->rows * (2 * piece < total ? 2 * piece : 2 * (total - 1 - piece) + 1);
}

static struct pd_attention pair_of(const struct heads *h, uint32_t query, uint32_t key)
{
    const struct pd_transformer *t = h->t;
    const uint64_t q = heads_exchange_row_of(h, query), k = heads_exchange_row_of(h, key);
    struct pd_attention c = h->common;
    struct rows x[2];
    matrices(h, h->a->qkv, x);
    c.query_start = query * h->piece;
    c.key_start = key * h->piece;
    c.q = x[0].all + q * h->q;
    c.k = x[1].all + k * 2 * h->k;
    c.v = (const char *)c.k + h->k;
    c.first = t->options.separate_documents ? t->sp.all_first + q : NULL;
    c.lse = h->a->lse + q * c.heads;
    c.first_part = key == 0;
    c.last_part = key == query;
    return c;
}

pd_status pd_heads_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                           struct pd_block_activations *a, struct pd_error *err)
{
    const struct heads h = heads_of(t, input, a);
    const struct pd_qkv x = pd_qkv_of(t, a->qkv, t->share.k_columns);
    const struct rows out = {t->sp.packed, h.q};
    struct rows m[2];
    matrices(&h, a->qkv, m);
    PD_TRY(gather_first(&h, err));
    PD_TRY(pack_qkv(&h, t->sp.packed, m, &x, true, err));
    PD_TRY(exchange(&h, t->sp.packed, m, 2, true, err));
    for (uint32_t query = 0; query < t->sp.total; query++)
        for (uint32_t key = 0; key <= query; key++) {
            struct pd_attention c = pair_of(&h, query, key);
            c.out = out.all + heads_exchange_row_of(&h, query) * h.q;
            c.acc = t->sp.acc;
            c.max = t->sp.max;
            c.sum = t->sp.sum;
            PD_TRY(pd_attention_forward(t->math, &c, err));
        }
    PD_TRY(exchange(&h, t->sp.passing, &out, 1, false, err));
    return pack_queries(&h, t->sp.passing, &out, 1, a->attention, false, err);
}

/* Sums of dout out travel with dout: values of own heads are not contiguous, as in lse (sequences, H, positions). */
static pd_status bring_gradient(const struct heads *h, const struct rows m[2], struct pd_error *err)
{
    struct pd_transformer *t = h->t;
    const uint64_t row = h->common.heads * h->piece * sizeof(float), runs = t->options.sequences * t->sp.pieces;
    PD_TRY(pack_queries(h, t->sp.packed, m, 2, t->dattention, true, err));
    for (uint32_t r = 0; r < t->partition.sp; r++)
        PD_TRY(pd_copy_rows(t->math, runs, row, block_of(h, t->sp.packed, m, 2, r, 1), row, (char *)t->delta + r * row,
                            t->partition.sp * row, err));
    return exchange(h, t->sp.packed, m, 2, true, err);
}

static pd_status backward(const struct heads *h, const struct rows from[2], const struct rows to[2], struct pd_error *err)
{
    const struct pd_transformer *t = h->t;
    for (int keys = 0; keys < 2; keys++)
        for (uint32_t own = 0; own < t->sp.total; own++)
            for (uint32_t i = keys ? own : 0; i < (keys ? t->sp.total : own + 1); i++) {
                const uint32_t query = keys ? i : own, key = keys ? own : i;
                struct pd_attention c = pair_of(h, query, key);
                c.dout = from[0].all + heads_exchange_row_of(h, query) * h->q;
                c.delta = (float *)(void *)(from[1].all + heads_exchange_row_of(h, query) * from[1].row);
                c.dq = to[0].all + heads_exchange_row_of(h, query) * h->q;
                c.dk = to[1].all + heads_exchange_row_of(h, key) * 2 * h->k;
                c.dv = (char *)c.dk + h->k;
                c.dq_acc = c.dk_acc = t->sp.acc;
                c.dv_acc = t->sp.acc2;
                if (keys) c.first_part = query == key, c.last_part = query + 1 == t->sp.total;
                PD_TRY((keys ? pd_attention_backward_keys : pd_attention_backward_queries)(t->math, &c, err));
            }
    return PD_OK;
}

pd_status pd_heads_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                            struct pd_block_activations *a, struct pd_error *err)
{
    const struct heads h = heads_of(t, input, a);
    const struct pd_qkv d = pd_qkv_of(t, t->dqkv, t->share.dk_columns);
    struct rows from[2], to[2];
    matrices(&h, t->sp.passing, from);
    matrices(&h, t->sp.packed, to);
    from[1].row = h.common.heads * sizeof(float);
    PD_TRY(gather_first(&h, err));
    PD_TRY(bring_gradient(&h, from, err));
    PD_TRY(backward(&h, from, to, err));
    PD_TRY(exchange(&h, t->sp.passing, to, 2, false, err));
    return pack_qkv(&h, t->sp.passing, to, &d, false, err);
}
