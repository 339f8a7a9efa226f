/* RMS norms of the q and k heads, and RoPE, in one pass (Henry et al. 2020; Qwen3). A norm has one weight (D) for all heads,
 * and heads are cut over tensor-parallel ranks, so its gradient is a sum over tokens and over heads:
 *
 *   a chain of the tokens and heads of a (piece, chunk)    one backward of the norm
 *   a tree over chunks: those of this rank, then ranks     one small exchange a block, (pieces, 2, D) fp32 to every tp rank
 *   terms of pieces, as every sum over tokens              pd_vector_gradient
 *
 * A chunk without heads, or whose key-value heads another chunk computes, adds no term. So the layout does not affect the
 * bits, and every tensor-parallel rank has the whole gradient, as for every uncut tensor. */
#include "trainer/model/head_norms.h"

#include "trainer/model/transformer_internal.h"

enum { OF_Q, OF_K };

static uint64_t head_size(const struct pd_transformer *t)
{
    return t->model->config.head_size;
}

static uint64_t count_of(struct pd_range r)
{
    return r.end - r.begin;
}

/* Heads of q and k per token in a->heads. */
static uint32_t kept_heads(const struct pd_transformer *t)
{
    return (uint32_t)(count_of(t->share.heads) + count_of(t->share.kv_needed));
}

static char *shifted(const struct pd_transformer *t, const void *base, uint64_t elements)
{
    return base ? (char *)(uintptr_t)base + elements * t->element_bytes : NULL;
}

/* `heads` heads of each token from row on; `first` is the index of the first kept one. */
static struct pd_norm norm_of(const struct pd_transformer *t, const struct pd_micro_batch_input *input,
                              const struct pd_block_activations *a, const void *weight, uint64_t row, uint64_t rows,
                              uint64_t first, uint64_t heads, uint64_t ld)
{
    const uint64_t kept = row * kept_heads(t) + first;
    const bool rotates = t->family->positions == PD_POSITIONS_ROPE;
    return (struct pd_norm){.rows = rows * heads,
                            .columns = head_size(t),
                            .heads = (uint32_t)heads,
                            .kept_heads = kept_heads(t),
                            .ld = ld,
                            .positions = rotates ? input->positions + row : NULL,
                            .cos_sin = t->cos_sin,
                            .rotated = rotates ? t->model->config.rotated : 0,
                            .dtype = t->options.dtype,
                            .epsilon = t->model->config.norm_epsilon,
                            .kept = shifted(t, a->heads, kept * head_size(t)),
                            .weight = weight,
                            .rstd = a->heads_rstd + kept};
}

static void *head_norms_take(struct pd_arena *arena, uint64_t elements)
{
    return pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, elements * sizeof(float));
}

void pd_head_norms_take(struct pd_transformer *t, struct pd_arena *arena)
{
    struct pd_head_norms *h = &t->head_norms;
    const uint64_t elements = 2ull * t->sp.pieces * head_size(t);
    const uint32_t peers = t->partition.tp - 1;
    if (!pd_has_head_norms(t) || !t->options.backward || !t->has_blocks) return;
    h->parts = head_norms_take(arena, t->tp.chunks * elements);
    h->sums = t->tp.chunks == 1 ? h->parts : head_norms_take(arena, elements);
    if (!peers) return;
    h->arrived = head_norms_take(arena, t->partition.tp * elements);
    pd_peer_transfer_init(&h->transfer, t->options.tp, peers, peers, arena);
}

/* ---- one norm of all heads ---- */

/* q or k as rows of one head; they are rotated later. Both keep their original, q first. */
static struct pd_norm wide_norm_of(const struct pd_transformer *t, const struct pd_block_activations *a, const void *weight,
                                   int which, uint64_t ld)
{
    const uint64_t q = t->share.q_columns, before = which == OF_Q ? 0 : t->rows;
    return (struct pd_norm){.rows = t->rows,
                            .columns = which == OF_Q ? q : t->share.k_columns,
                            .heads = 1,
                            .kept_heads = 1,
                            .ld = ld,
                            .dtype = t->options.dtype,
                            .epsilon = t->model->config.norm_epsilon,
                            .kept = shifted(t, a->heads, before * q),
                            .weight = weight,
                            .rstd = a->heads_rstd + before};
}

static pd_status wide_norms_forward(struct pd_transformer *t, const struct pd_block_activations *a, void *const *weights,
                                    struct pd_error *err)
{
    const struct pd_qkv x = pd_qkv_of(t, a->qkv, t->share.k_columns);
    for (int which = OF_Q; which <= OF_K; which++) {
        struct pd_norm n = wide_norm_of(t, a, weights[which], which, x.ld_q);
        n.x = n.out = which == OF_Q ? x.q : x.k;
        PD_TRY(pd_norm_forward(t->math, &n, err));
    }
    return PD_OK;
}

static pd_status wide_norms_backward(struct pd_transformer *t, const struct pd_block_activations *a, void *const *weights,
                                     float *const *gradients, struct pd_error *err)
{
    const struct pd_qkv d = pd_qkv_of(t, t->dqkv, t->share.dk_columns);
    for (int which = OF_Q; which <= OF_K; which++) {
        struct pd_norm n = wide_norm_of(t, a, weights[which], which, d.ld_q);
        n.x = n.kept;
        n.kept = NULL;
        n.dout = n.dx = which == OF_Q ? d.q : d.k;
        n.dweight = t->adds ? t->vector : gradients[which];
        PD_TRY(pd_norm_backward(t->math, &n, err));
        if (t->adds) PD_TRY(pd_add(t->math, n.columns, gradients[which], t->vector, err));
    }
    return PD_OK;
}

/* q and k are neighbours, so their heads are one run; with pieces each is its own. */
pd_status pd_head_norms_forward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                struct pd_block_activations *a, void *const *weights, struct pd_error *err)
{
    if (pd_has_wide_norms(t)) return wide_norms_forward(t, a, weights, err);
    const struct pd_qkv x = pd_qkv_of(t, a->qkv, t->share.k_columns);
    const uint64_t q = count_of(t->share.heads), k = count_of(t->share.kv_needed);
    struct pd_norm n = norm_of(t, input, a, weights[OF_Q], 0, t->rows, 0, t->sp.by_parts ? q : q + k, x.ld_q);
    n.x = n.out = x.q;
    n.other_weight = t->sp.by_parts ? NULL : weights[OF_K];
    n.other_first = (uint32_t)q;
    if (n.heads) PD_TRY(pd_norm_forward(t->math, &n, err));
    if (!t->sp.by_parts || !k) return PD_OK;
    n = norm_of(t, input, a, weights[OF_K], 0, t->rows, q, k, x.ld_kv);
    n.x = n.out = x.k;
    return pd_norm_forward(t->math, &n, err);
}

/* ---- backward ---- */

/* Heads whose gradient a chunk computes, counted from the model's first. */
static struct pd_range computed_by(const struct pd_transformer *t, struct pd_range heads, int which)
{
    return which == OF_Q ? heads : pd_partition_kv_computed(&t->model->config, heads);
}

/* Where the sum of a piece is in (pieces, 2, D) at `base`. */
static float *sum_at(const struct pd_transformer *t, float *base, uint64_t place, int which)
{
    return base + (2 * place + (uint64_t)which) * head_size(t);
}

static float *part_of(const struct pd_transformer *t, uint32_t chunk)
{
    return t->head_norms.parts + chunk * 2ull * t->sp.pieces * head_size(t);
}

/* dx of the chunk's heads, and its parts of dweight. */
static pd_status chunk_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                const struct pd_block_activations *a, const struct pd_qkv *d, uint32_t chunk, int which,
                                const void *weight, struct pd_error *err)
{
    const struct pd_share *s = &t->share;
    const struct pd_range all = pd_partition_chunk(&t->partition, t->model->config.heads, t->tp.first_chunk + chunk);
    const struct pd_range heads = computed_by(t, all, which);
    const uint64_t ld = which == OF_Q ? d->ld_q : d->ld_kv;
    const uint64_t kept =
        which == OF_Q ? heads.begin - s->heads.begin : count_of(s->heads) + heads.begin - s->kv_needed.begin;
    const uint64_t column = (heads.begin - (which == OF_Q ? s->heads.begin : s->kv_computed.begin)) * head_size(t);
    if (!count_of(heads)) return PD_OK;
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        const uint64_t row = t->sp.row[place];
        struct pd_norm n = norm_of(t, input, a, weight, row, t->sp.rows[place], kept, count_of(heads), ld);
        char *dx = shifted(t, which == OF_Q ? d->q : d->k, row * ld + column);
        n.x = n.kept;
        n.kept = NULL;
        n.dout = dx;
        n.dx = dx;
        n.dweight = sum_at(t, part_of(t, chunk), place, which);
        PD_TRY(pd_norm_backward(t->math, &n, err));
    }
    return PD_OK;
}

/* head_sums of q or of k = the tree over t->tp.parts; `which` has those with a term. */
static pd_status add_up(struct pd_transformer *t, uint32_t part_count, int which, struct pd_error *err)
{
    const uint64_t d = head_size(t);
    struct pd_finish f = {.rows = t->sp.pieces,
                          .columns = d,
                          .part_count = part_count,
                          .parts = t->tp.parts,
                          .ld_parts = 2 * d,
                          .scale = 1.0f,
                          .out = {sum_at(t, t->head_norms.sums, 0, which), PD_F32, 2 * d}};
    bool has_any = false;
    for (uint32_t i = 0; i < part_count; i++)
        has_any |= t->tp.parts[i] != NULL;
    return has_any ? pd_finish(t->math, &f, err) : PD_OK;
}

/* The tree over this rank's chunks. */
static pd_status add_chunks(struct pd_transformer *t, int which, struct pd_error *err)
{
    for (uint32_t i = 0; i < t->tp.chunks; i++) {
        const struct pd_range all = pd_partition_chunk(&t->partition, t->model->config.heads, t->tp.first_chunk + i);
        t->tp.parts[i] = count_of(computed_by(t, all, which)) ? sum_at(t, part_of(t, i), 0, which) : NULL;
    }
    return add_up(t, t->tp.chunks, which, err);
}

static struct pd_range heads_of_rank(const struct pd_transformer *t, uint32_t rank)
{
    struct pd_partition other = t->partition;
    other.tp_rank = rank;
    return pd_partition_units(&other, t->model->config.heads);
}

/* A rank without heads sends nothing. */
static pd_status exchange(struct pd_transformer *t, struct pd_error *err)
{
    const uint32_t me = t->partition.tp_rank;
    const uint64_t elements = 2ull * t->sp.pieces * head_size(t), bytes = elements * sizeof(float);
    struct pd_peer_transfer *x = &t->head_norms.transfer;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.tp; r++) {
        if (r == me) continue;
        if (count_of(t->share.heads)) pd_peer_transfer_send(x, r, t->head_norms.sums, bytes);
        if (count_of(heads_of_rank(t, r))) pd_peer_transfer_recv(x, r, t->head_norms.arrived + r * elements, bytes);
    }
    PD_TRY(pd_peer_transfer_start(x, err));
    return pd_peer_transfer_wait(x, err);
}

/* The tree over ranks continues the tree over chunks. */
static pd_status add_ranks(struct pd_transformer *t, int which, struct pd_error *err)
{
    const uint64_t elements = 2ull * t->sp.pieces * head_size(t);
    for (uint32_t r = 0; r < t->partition.tp; r++) {
        float *base = r == t->partition.tp_rank ? t->head_norms.sums : t->head_norms.arrived + r * elements;
        t->tp.parts[r] = count_of(computed_by(t, heads_of_rank(t, r), which)) ? sum_at(t, base, 0, which) : NULL;
    }
    return add_up(t, t->partition.tp, which, err);
}

static pd_status copy_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const int which = *(const int *)context;
    return pd_math_copy(t->math, dst, sum_at(t, t->head_norms.sums, place, which), head_size(t) * sizeof(float), err);
}

pd_status pd_head_norms_backward(struct pd_transformer *t, const struct pd_micro_batch_input *input,
                                 const struct pd_block_activations *a, void *const *weights, float *const *gradients,
                                 struct pd_error *err)
{
    if (pd_has_wide_norms(t)) return wide_norms_backward(t, a, weights, gradients, err);
    const struct pd_qkv d = pd_qkv_of(t, t->dqkv, t->share.dk_columns);
    for (int which = OF_Q; which <= OF_K; which++) {
        for (uint32_t i = 0; i < t->tp.chunks; i++)
            PD_TRY(chunk_backward(t, input, a, &d, i, which, weights[which], err));
        if (t->tp.chunks > 1) PD_TRY(add_chunks(t, which, err));
    }
    if (t->partition.tp > 1) PD_TRY(exchange(t, err));
    for (int which = OF_Q; which <= OF_K; which++) {
        if (t->partition.tp > 1) PD_TRY(add_ranks(t, which, err));
        PD_TRY(pd_vector_gradient(t, head_size(t), copy_piece, &which, gradients[which], err));
    }
    return PD_OK;
}
