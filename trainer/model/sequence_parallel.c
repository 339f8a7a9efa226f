/* Gradients piece by piece, and attention by parts. Keys and values (or data of queries) arrive piece by piece from the sp
 * rank that has them; the next piece is in flight while one is used. Every sp rank starts the same exchanges in the same
 * order, even for pieces it does not need. */
#include "ckpt/base/checked.h"
#include "trainer/model/transformer_internal.h"

/* ---- gradients of parameters, piece by piece ---- */

pd_status pd_take_piece(struct pd_transformer *t, const float *gradient, uint64_t n, struct pd_error *err)
{
    return pd_take_piece_of(t, t->options.ep_rank, gradient, n, err);
}

pd_status pd_take_piece_of(struct pd_transformer *t, uint32_t source, const float *gradient, uint64_t n,
                           struct pd_error *err)
{
    return t->sp.pieces == 1 || t->rehearses ? PD_OK
                                             : t->options.take_piece(t->options.take_context, source, gradient, n, err);
}

pd_status pd_piece_gradients(struct pd_transformer *t, uint64_t n, pd_piece_gradient *piece, void *context, float *dst,
                             struct pd_error *err)
{
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        PD_TRY(piece(t, context, place, dst, err));
        PD_TRY(pd_take_piece(t, dst, n, err));
    }
    return PD_OK;
}

pd_status pd_vector_gradient(struct pd_transformer *t, uint64_t n, pd_piece_gradient *piece, void *context, float *dst,
                             struct pd_error *err)
{
    PD_TRY(pd_piece_gradients(t, n, piece, context, t->adds ? t->vector : dst, err));
    return t->adds ? pd_add(t->math, n, dst, t->vector, err) : PD_OK;
}

struct pd_matrix pd_gradient_so_far(const struct pd_transformer *t, float *gradient, uint64_t ld)
{
    return (struct pd_matrix){t->adds ? gradient : NULL, PD_F32, ld};
}

/* ---- one piece after the other ---- */

/* Data sent: contiguous runs of a piece, in this order. */
#define RUNS 5

struct travel {
    struct pd_transformer *t;
    bool forwards; /* needed by ranks with a later piece of their own, or else with an earlier one */
    uint32_t run_count;
    const void *base[RUNS]; /* of all rows of this rank */
    uint64_t bytes[RUNS];   /* a row */
};

static bool needs(const struct travel *v, uint32_t rank, uint32_t piece)
{
    return v->forwards ? v->t->sp.last[rank] >= piece : v->t->sp.first[rank] <= piece;
}

static uint64_t rows_of(const struct pd_transformer *t, uint32_t piece)
{
    struct pd_range r = pd_partition_piece(&t->partition, t->options.length, piece);
    return t->options.sequences * (r.end - r.begin);
}

static pd_status sequence_parallel_start(const struct travel *v, uint32_t piece, struct pd_error *err)
{
    struct pd_transformer *t = v->t;
    if (t->partition.sp == 1 || piece >= t->sp.total) return PD_OK;
    const uint32_t me = t->partition.sp_rank, owner = pd_partition_piece_owner(&t->partition, piece);
    const uint64_t rows = rows_of(t, piece);
    struct pd_peer_transfer *x = &t->sp.transfer[piece % 2];
    char *arrived = t->sp.arrived[piece % 2];
    pd_peer_transfer_clear(x);
    for (uint32_t i = 0; i < v->run_count; i++) {
        if (owner != me && needs(v, me, piece)) pd_peer_transfer_recv(x, owner, arrived, rows * v->bytes[i]);
        arrived += pd_round_up(rows * v->bytes[i], 64);
        if (owner != me) continue;
        const char *run = (const char *)v->base[i] + t->sp.row[t->sp.place[piece]] * v->bytes[i];
        for (uint32_t r = 0; r < t->partition.sp; r++)
            if (r != me && needs(v, r, piece)) pd_peer_transfer_send(x, r, run, rows * v->bytes[i]);
    }
    return pd_peer_transfer_start(x, err);
}

static const char attention[] = "attention";

/* Waits for a piece, with the next in flight; ret_runs: its rows, until `leave`. */
static pd_status arrive(const struct travel *v, uint32_t piece, const void **ret_runs, struct pd_error *err)
{
    struct pd_transformer *t = v->t;
    const uint32_t place = t->sp.place[piece];
    char *arrived = t->sp.arrived[piece % 2];
    PD_TRY(sequence_parallel_start(v, piece + 1, err));
    if (t->partition.sp > 1) {
        PD_TRY(pd_peer_transfer_wait(&t->sp.transfer[piece % 2], err));
        pd_owner_acquire(&t->sp.transfer[piece % 2].owner, attention);
    }
    for (uint32_t i = 0; i < v->run_count; i++) {
        ret_runs[i] = place == PD_NOT_HELD ? arrived : (const char *)v->base[i] + t->sp.row[place] * v->bytes[i];
        if (place == PD_NOT_HELD) arrived += pd_round_up(rows_of(t, piece) * v->bytes[i], 64);
    }
    return PD_OK;
}

static void sequence_parallel_leave(struct pd_transformer *t, uint32_t piece)
{
    if (t->partition.sp > 1) pd_owner_release(&t->sp.transfer[piece % 2].owner, attention);
}

/* ---- attention ---- */

/* One attention: common operands, and where the operands of all rows begin. */
struct parts {
    struct pd_transformer *t;
    const struct pd_micro_batch_input *input;
    struct pd_block_activations *a;
    struct pd_qkv x;
    struct pd_attention common;
    uint64_t heads;
};

static struct parts sequence_parallel_parts_of(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                               struct pd_block_activations *a)
{
    struct parts p = {t, input, a, pd_qkv_of(t, a->qkv, t->share.k_columns), pd_attention_of(t), 0};
    p.common.ld_qkv = p.x.ld_q;
    p.common.ld_kv = p.x.ld_kv;
    p.heads = p.common.heads;
    return p;
}

static struct pd_range positions_of(const struct pd_transformer *t, uint32_t piece)
{
    return pd_partition_piece(&t->partition, t->options.length, piece);
}

/* This rank's queries at a place. */
static void set_queries(const struct parts *p, uint32_t place, struct pd_attention *c)
{
    const struct pd_transformer *t = p->t;
    const uint64_t row = t->sp.row[place], q = t->share.q_columns, bytes = t->element_bytes;
    struct pd_range r = positions_of(t, pd_partition_piece_at(&t->partition, place));
    c->query_start = (uint32_t)r.begin;
    c->length = (uint32_t)(r.end - r.begin);
    c->q = p->x.q + row * p->x.ld_q * bytes;
    c->first = t->options.separate_documents ? p->input->first + row : NULL;
    c->out = (char *)p->a->attention + row * q * bytes;
    c->lse = p->a->lse + row * p->heads;
    c->acc = t->sp.acc + row * q;
    c->max = t->sp.max + row * p->heads;
    c->sum = t->sp.sum + row * p->heads;
}

/* Also what backward reads for them. */
static void set_gradients(const struct parts *p, uint32_t place, struct pd_attention *c)
{
    const struct pd_transformer *t = p->t;
    const uint64_t row = t->sp.row[place], bytes = t->element_bytes;
    set_queries(p, place, c);
    c->acc = NULL;
    c->dout = (char *)t->dattention + row * t->share.q_columns * bytes;
    c->delta = t->delta + row * p->heads;
    c->dq = (char *)p->common.dq + row * p->common.ld_dq * bytes;
    c->dq_acc = t->sp.acc + row * t->share.q_columns;
}

static void set_keys(const struct parts *p, uint32_t piece, const char *kv, struct pd_attention *c)
{
    struct pd_range r = positions_of(p->t, piece);
    c->key_start = (uint32_t)r.begin;
    c->key_length = (uint32_t)(r.end - r.begin);
    c->k = kv;
    c->v = kv + (p->x.v - p->x.k);
}

static struct travel keys_travel(const struct parts *p)
{
    return (struct travel){
        .t = p->t, .forwards = true, .run_count = 1, .base = {p->x.k}, .bytes = {p->x.ld_kv * p->t->element_bytes}};
}

typedef pd_status attention_call(struct pd_math *math, const struct pd_attention *attention, struct pd_error *err);

/* Key pieces ascending; each with all own queries at or after it. */
static pd_status over_keys(const struct parts *p, void (*set)(const struct parts *, uint32_t, struct pd_attention *),
                           attention_call *call, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    struct travel v = keys_travel(p);
    PD_TRY(sequence_parallel_start(&v, 0, err));
    for (uint32_t key = 0; key < t->sp.total; key++) {
        const void *kv;
        PD_TRY(arrive(&v, key, &kv, err));
        for (uint32_t place = 0; place < t->sp.pieces; place++) {
            const uint32_t query = pd_partition_piece_at(&t->partition, place);
            if (query < key) continue;
            struct pd_attention c = p->common;
            set(p, place, &c);
            set_keys(p, key, kv, &c);
            c.first_part = key == 0;
            c.last_part = key == query;
            PD_TRY(call(t->math, &c, err));
        }
        sequence_parallel_leave(t, key);
    }
    return PD_OK;
}

pd_status pd_parts_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                           struct pd_block_activations *a, struct pd_error *err)
{
    struct parts p = sequence_parallel_parts_of(t, input, a);
    if (t->sp.by_heads) return pd_heads_forward(t, input, a, err);
    return over_keys(&p, set_queries, pd_attention_forward, err);
}

static struct travel queries_travel(const struct parts *p)
{
    const struct pd_transformer *t = p->t;
    const uint64_t q = t->share.q_columns * t->element_bytes, heads = p->heads * sizeof(float);
    return (struct travel){.t = p->t,
                           .run_count = t->options.separate_documents ? 5 : 4,
                           .base = {p->x.q, t->dattention, p->a->lse, t->delta, p->input->first},
                           .bytes = {q, q, heads, heads, sizeof(int32_t)}};
}

/* Query pieces ascending; each with all own keys at or before it. */
static pd_status over_queries(const struct parts *p, struct pd_error *err)
{
    struct pd_transformer *t = p->t;
    struct travel v = queries_travel(p);
    const uint64_t kv_element = p->common.kv_partial ? sizeof(float) : t->element_bytes;
    PD_TRY(sequence_parallel_start(&v, 0, err));
    for (uint32_t query = 0; query < t->sp.total; query++) {
        const void *runs[RUNS];
        PD_TRY(arrive(&v, query, runs, err));
        for (uint32_t place = 0; place < t->sp.pieces; place++) {
            const uint32_t key = pd_partition_piece_at(&t->partition, place);
            const uint64_t row = t->sp.row[place];
            struct pd_range r = positions_of(t, query);
            if (query < key) continue;
            struct pd_attention c = p->common;
            set_keys(p, key, p->x.k + row * p->x.ld_kv * t->element_bytes, &c);
            c.query_start = (uint32_t)r.begin;
            c.length = (uint32_t)(r.end - r.begin);
            c.q = runs[0];
            c.dout = runs[1];
            c.lse = (float *)(uintptr_t)runs[2];
            c.delta = (float *)(uintptr_t)runs[3];
            c.first = t->options.separate_documents ? runs[4] : NULL;
            c.dk_acc = t->sp.acc + row * t->share.q_columns;
            c.dv_acc = t->sp.acc2 + row * t->share.q_columns;
            c.dk = (char *)p->common.dk + row * p->common.ld_dkv * kv_element;
            c.dv = (char *)p->common.dv + row * p->common.ld_dkv * kv_element;
            c.first_part = query == key;
            c.last_part = query + 1 == t->sp.total;
            PD_TRY(pd_attention_backward_keys(t->math, &c, err));
        }
        sequence_parallel_leave(t, query);
    }
    return PD_OK;
}

/* `gradient`: where dq, dk, dv of all rows go. */
pd_status pd_parts_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                            struct pd_block_activations *a, const struct pd_attention *gradient, struct pd_error *err)
{
    struct parts p = sequence_parallel_parts_of(t, input, a);
    p.common.dq = gradient->dq;
    p.common.dk = gradient->dk;
    p.common.dv = gradient->dv;
    p.common.ld_dq = gradient->ld_dq;
    p.common.ld_dkv = gradient->ld_dkv;
    p.common.kv_partial = gradient->kv_partial;
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        struct pd_attention c = p.common;
        set_gradients(&p, place, &c);
        PD_TRY(pd_attention_delta(t->math, &c, err));
    }
    if (t->sp.by_heads) return pd_heads_backward(t, input, a, err);
    PD_TRY(over_keys(&p, set_gradients, pd_attention_backward_queries, err));
    return over_queries(&p, err);
}
