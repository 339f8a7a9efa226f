/* Causal attention, backward, dQ where the query is, for compute capability 9.0: the formulas of attention_pair.h. A
 * warpgroup has 64 queries; their rows of Q are in registers, so that a product reads shared memory for K or V alone.
 * dQ of a step is made while P and dS of the next are. */
#include "trainer/math/cuda/attention_pair.h"
#include "trainer/math/cuda/attention_wgmma.h"

#define KEYS PD_PAIR
#define PIECES (KEYS / 8)
#define STAGES 3u
#define CONSUMERS 2u
#define QUERIES (CONSUMERS * 64u)
#define THREADS ((CONSUMERS + 1) * PD_WARPGROUP)

/* Rows of dO in registers too: with heads of 128 there is no room. */
template <int D> constexpr bool queries_hold_dout = D == 64;

template <int D> struct queries_tiles {
    pd_wide_tile<D, 64> q[CONSUMERS], dout[CONSUMERS];
    pd_wide_tile<D, KEYS> k[STAGES], v[STAGES];
    uint64_t q_full, full[STAGES], empty[STAGES];
};

struct queries_maps {
    pd_tensor_map q, dout, k, v;
};

struct queries_place {
    uint32_t sequence, head, kv, row, count; /* queries of the block, from `row` of the sequence; `count` are there */
    pd_attention_span seen;                  /* steps of keys */
};

PD_DEVICE queries_place queries_place_of(const pd_attention &a)
{
    const uint32_t tiles = (a.length + QUERIES - 1) / QUERIES;
    const pd_attention_item item = pd_attention_item_of(blockIdx.x, a.sequences, a.heads, tiles, true);
    const uint32_t row = item.tile * QUERIES, count = pd_attention_count(a.length, item.tile, QUERIES);
    return {item.sequence, item.head, (item.head + a.group_offset) / a.group,
            row,           count,     pd_attention_keys_seen(a, item.sequence, row, count, KEYS)};
}

template <int D>
PD_DEVICE void queries_produce(const pd_attention &a, const queries_maps &maps, const queries_place &p, queries_tiles<D> &t,
                               bool wide)
{
    const pd_wide_source q = {&maps.q, (const uint16_t *)a.q, a.ld_qkv, a.length, p.sequence, p.head * D};
    const pd_wide_source o = {&maps.dout, (const uint16_t *)a.dout, (uint64_t)a.heads * D, a.length, p.sequence, p.head * D};
    const pd_wide_source k = {&maps.k, (const uint16_t *)a.k, a.ld_kv, a.key_length, p.sequence, p.kv * D};
    const pd_wide_source v = {&maps.v, (const uint16_t *)a.v, a.ld_kv, a.key_length, p.sequence, p.kv * D};
    pd_ring ring = {0, 0};
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        pd_wide_load(t.q[i], q, p.row + 64 * i, &t.q_full, wide);
        pd_wide_load(t.dout[i], o, p.row + 64 * i, &t.q_full, wide);
    }
    pd_wide_filled(&t.q_full, 2 * QUERIES * D * 2, wide);
    for (uint32_t kb = p.seen.begin; kb < p.seen.end; kb++) {
        pd_barrier_wait(&t.empty[ring.stage], ring.parity ^ 1);
        pd_wide_load(t.k[ring.stage], k, kb * KEYS, &t.full[ring.stage], wide);
        pd_wide_load(t.v[ring.stage], v, kb * KEYS, &t.full[ring.stage], wide);
        pd_wide_filled(&t.full[ring.stage], 2 * KEYS * D * 2, wide);
        pd_ring_next<STAGES>(ring);
    }
}

/* [half] is row 8 half + lane/4 of this warp's 16, which begin at `row` of the sequence; `count` of them are there. */
template <int D> struct queries_state {
    uint32_t q[D / 16][4], dout[D / 16][4];
    float dq[D / 8][4], lse2[2], delta[2];
    uint32_t row, count;
    uint64_t q_row; /* of the arrays */
};

template <int D> PD_DEVICE void queries_start(const pd_attention &a, const queries_place &p, queries_state<D> &s)
{
    const uint32_t own = (threadIdx.x / 32 - 4) * 16;
    const uint64_t ld = (uint64_t)a.heads * D;
    s.row = p.row + own;
    s.count = p.count > own ? p.count - own : 0;
    s.q_row = (uint64_t)p.sequence * a.length + s.row;
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            s.dq[n][i] = 0.0f;
    if (!a.first_part) pd_fragments_get<D>(s.dq, a.dq_acc + s.q_row * ld + p.head * D, ld, 0, s.count);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = pd_fragment_row(half);
        const uint64_t at = ((uint64_t)p.sequence * a.heads + p.head) * a.length + s.row + r;
        s.lse2[half] = r < s.count ? a.lse[at] * PD_LOG2_E : INFINITY;
        s.delta[half] = r < s.count ? a.delta[at] : 0.0f;
    }
}

/* S to P. */
template <bool CUT, int D>
PD_DEVICE void queries_weights(const pd_attention &a, uint32_t sequence, const queries_state<D> &s, uint32_t first_key,
                               float (&x)[PIECES][4])
{
    const float c = a.scale * PD_LOG2_E;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        pd_attention_seen seen = {0, 0};
        if (CUT) seen = pd_attention_seen_by(a, sequence, s.row + pd_fragment_row(half));
#pragma unroll
        for (uint32_t n = 0; n < PIECES; n++)
#pragma unroll
            for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
                const uint32_t key = first_key + 8 * n + pd_fragment_column() + i % 2;
                const bool sees = !CUT || (key >= seen.first && key <= seen.last);
                x[n][i] = sees ? pd_exp2_fast(__fmaf_rn(x[n][i], c, -s.lse2[half])) : 0.0f;
            }
    }
}

/* Step kb, and dQ of the step before, of stages `now` and `before`; ds is this step's afterwards. */
template <enum pd_dtype T, int D, bool FIRST>
PD_DEVICE void queries_step(const pd_attention &a, const queries_place &p, uint32_t kb, const pd_ring &now, uint32_t before,
                            queries_tiles<D> &t, queries_state<D> &s, uint32_t (&ds)[KEYS / 16][4])
{
    float x[PIECES][4], dp[PIECES][4];
    pd_barrier_wait(&t.full[now.stage], now.parity);
    pd_product_settle(x);
    pd_product_settle(dp);
    if (!FIRST) pd_product_settle(s.dq);
    pd_product_begin();
    pd_wide_scores<T, D>(x, s.q, t.k[now.stage]);
    pd_product_commit();
    if constexpr (queries_hold_dout<D>)
        pd_wide_scores<T, D>(dp, s.dout, t.v[now.stage]);
    else
        pd_wide_scores<T, D>(dp, t.dout[threadIdx.x / PD_WARPGROUP - 1], t.v[now.stage]);
    pd_product_commit();
    if (!FIRST) {
        pd_wide_apply<T>(s.dq, ds, t.k[before]);
        pd_product_commit();
    }
    pd_product_wait<(FIRST ? 1 : 2)>();
    pd_product_settle(x);
    if (pd_attention_cut(a, p.sequence, p.row, p.count, kb * KEYS, KEYS))
        queries_weights<true, D>(a, p.sequence, s, a.key_start + kb * KEYS, x);
    else
        queries_weights<false, D>(a, p.sequence, s, a.key_start + kb * KEYS, x);
    pd_product_wait<(FIRST ? 0 : 1)>();
    pd_product_settle(dp);
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            dp[n][i] = x[n][i] * (dp[n][i] - s.delta[i / 2]);
    if (!FIRST) {
        pd_product_wait<0>();
        pd_product_settle(s.dq);
        pd_wide_emptied(&t.empty[before]);
    }
    pd_wide_pack<T>(ds, dp);
}

template <enum pd_dtype T, int D>
PD_DEVICE void queries_finish(const pd_attention &a, const queries_place &p, const queries_state<D> &s, uint16_t *scratch,
                              bool wide)
{
    const uint64_t ld = (uint64_t)a.heads * D;
    const float scale[2] = {a.scale, a.scale};
    if (a.last_part)
        pd_fragments_store<T, D>(s.dq, scale, scratch, 0, (uint16_t *)a.dq + s.q_row * a.ld_dq + p.head * D, a.ld_dq,
                                 s.count, wide);
    else
        pd_fragments_put<D>(s.dq, a.dq_acc + s.q_row * ld + p.head * D, ld, 0, s.count);
}

template <enum pd_dtype T, int D>
PD_DEVICE void queries_consume(const pd_attention &a, const queries_place &p, queries_tiles<D> &t, bool wide)
{
    const uint32_t group = threadIdx.x / PD_WARPGROUP - 1;
    queries_state<D> s;
    uint32_t ds[KEYS / 16][4];
    pd_ring now = {0, 0};
    uint32_t before = 0;
    queries_start<D>(a, p, s);
    pd_barrier_wait(&t.q_full, 0);
    pd_wide_rows<D>(s.q, t.q[group]);
    if (queries_hold_dout<D>) pd_wide_rows<D>(s.dout, t.dout[group]);
    if (p.seen.begin < p.seen.end) {
        queries_step<T, D, true>(a, p, p.seen.begin, now, before, t, s, ds);
        for (uint32_t kb = p.seen.begin + 1; kb < p.seen.end; kb++) {
            before = now.stage;
            pd_ring_next<STAGES>(now);
            queries_step<T, D, false>(a, p, kb, now, before, t, s, ds);
        }
        pd_product_settle(s.dq);
        pd_product_begin();
        pd_wide_apply<T>(s.dq, ds, t.k[now.stage]);
        pd_product_commit();
        pd_product_wait<0>();
        pd_product_settle(s.dq);
    }
    pd_group_sync(1 + group, PD_WARPGROUP);
    queries_finish<T, D>(a, p, s, pd_wide_scratch(t.q[group]), wide);
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(THREADS, 1)
    attention_queries_wgmma(const pd_attention a, const __grid_constant__ queries_maps maps, const bool wide)
{
    PD_SHARED_DYNAMIC(shared);
    queries_tiles<D> &t = pd_wide_tiles<queries_tiles<D>>(shared);
    const queries_place p = queries_place_of(a);
    if (threadIdx.x == 0) {
        pd_barriers_init(&t.q_full, 1 + STAGES, 1);
        pd_barriers_init(t.empty, STAGES, CONSUMERS * 4);
        pd_barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < PD_WARPGROUP) {
        pd_registers_give<PD_PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) queries_produce<D>(a, maps, p, t, wide);
    } else {
        pd_registers_take<PD_CONSUMER_REGISTERS>();
        queries_consume<T, D>(a, p, t, wide);
    }
}

template <enum pd_dtype T, int D> static pd_status queries_launch(void *stream, const pd_attention *a, pd_error *err)
{
    const uint64_t tiles = (a->length + QUERIES - 1) / QUERIES, items = tiles * a->sequences * a->heads;
    const bool wide = pd_is_wide(a->q, a->ld_qkv) && pd_is_wide(a->k, a->ld_kv) && pd_is_wide(a->v, a->ld_kv) &&
                      pd_is_wide(a->dout, D) && (!a->last_part || pd_is_wide(a->dq, a->ld_dq));
    queries_maps maps = {};
    PD_TRY(pd_wide_map(&maps.q, wide, a->q, a->heads, D, a->ld_qkv, a->length, a->sequences, err));
    PD_TRY(pd_wide_map(&maps.dout, wide, a->dout, a->heads, D, (uint64_t)a->heads * D, a->length, a->sequences, err));
    PD_TRY(pd_wide_map(&maps.k, wide, a->k, a->kv_heads, D, a->ld_kv, a->key_length, a->sequences, err));
    PD_TRY(pd_wide_map(&maps.v, wide, a->v, a->kv_heads, D, a->ld_kv, a->key_length, a->sequences, err));
    return PD_LAUNCH(err, (attention_queries_wgmma<T, D>), static_cast<unsigned>(items), THREADS,
                     sizeof(queries_tiles<D>) + 1024, stream, *a, maps, wide);
}

pd_status pd_attention_wgmma_queries(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    if (a->dtype == PD_BF16 && a->head_size == 64) return queries_launch<PD_BF16, 64>(stream, a, err);
    if (a->dtype == PD_BF16) return queries_launch<PD_BF16, 128>(stream, a, err);
    if (a->head_size == 64) return queries_launch<PD_F16, 64>(stream, a, err);
    return queries_launch<PD_F16, 128>(stream, a, err);
}
