/* Causal attention, backward, dQ per query, for compute capability 9.0: the formulas of attention_pair.h. A warpgroup has 64
 * queries with rows of Q in registers, so that a product reads only K or V from shared memory. dQ of a step runs while P and
 * dS of the next are computed. */
#include "trainer/math/cuda/attention_pair.h"
#include "trainer/math/cuda/attention_wgmma_block.h"

#define KEYS PD_PAIR
#define PIECES (KEYS / 8)
#define STAGES 3u

/* Keeps rows of dO in registers too; heads of 128 do not fit. */
template <int D> constexpr bool queries_hold_dout = D == 64;

template <int D> struct queries_tiles {
    pd_wide_tile<D, 64> q[PD_CONSUMERS], dout[PD_CONSUMERS], out[PD_CONSUMERS];
    pd_wide_tile<D, KEYS> k[STAGES], v[STAGES];
    uint64_t stays_full, full[STAGES], stays_empty, empty[STAGES];
};

static_assert(sizeof(queries_tiles<128>) <= PD_WIDE_SHARED && sizeof(queries_tiles<64>) <= PD_WIDE_SHARED, "too much");

/* The first K and V before the staying side, whose place is free later. */
template <int D>
PD_DEVICE void queries_produce(const pd_wide_maps &maps, const pd_wide_place &p, pd_wide_progress &done, queries_tiles<D> &t)
{
    const pd_wide_source q = {&maps.q, p.sequence, p.head * D}, k = {&maps.k, p.sequence, p.kv * D};
    const pd_wide_source o = {&maps.dout, p.sequence, p.head * D}, v = {&maps.v, p.sequence, p.kv * D};
    pd_ring &ring = done.ring;
    for (uint32_t kb = p.seen.begin; kb < p.seen.end; kb++) {
        pd_barrier_wait(&t.empty[ring.stage], ring.parity ^ 1);
        pd_wide_load(t.k[ring.stage], k, kb * KEYS, &t.full[ring.stage]);
        pd_wide_load(t.v[ring.stage], v, kb * KEYS, &t.full[ring.stage]);
        pd_wide_filled(&t.full[ring.stage], 2 * KEYS * D * 2);
        pd_ring_next<STAGES>(ring);
        if (kb > p.seen.begin) continue;
        pd_barrier_wait(&t.stays_empty, done.round ^ 1);
        for (uint32_t i = 0; i < PD_CONSUMERS; i++) {
            pd_wide_load(t.q[i], q, p.row + 64 * i, &t.stays_full);
            pd_wide_load(t.dout[i], o, p.row + 64 * i, &t.stays_full);
        }
        pd_wide_filled(&t.stays_full, 2 * PD_STAY * D * 2);
        done.round ^= 1;
    }
}

/* [half] is row 8 half + lane/4 of this warp's 16. */
template <int D> struct queries_state {
    uint32_t q[D / 16][4], dout[D / 16][4];
    float dq[D / 8][4], lse2[2], delta[2];
    uint32_t group;
    pd_query_rows own;
};

/* S to P. */
template <bool CUT, int D>
PD_DEVICE void queries_weights(const pd_attention &a, uint32_t sequence, const queries_state<D> &s, uint32_t first_key,
                               float (&x)[PIECES][4])
{
    const float c = a.scale * PD_LOG2_E;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        pd_attention_seen seen = {0, 0};
        if (CUT) seen = pd_attention_seen_by(a, sequence, s.own.row + pd_fragment_row(half));
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
PD_DEVICE void queries_step(const pd_attention &a, const pd_wide_place &p, uint32_t kb, const pd_ring &now, uint32_t before,
                            queries_tiles<D> &t, queries_state<D> &s, uint32_t (&ds)[KEYS / 16][4])
{
    float x[PIECES][4], dp[PIECES][4];
    pd_barrier_wait(&t.full[now.stage], now.parity);
    pd_wgmma_pin(x);
    pd_wgmma_pin(dp);
    if (!FIRST) pd_wgmma_pin(s.dq);
    pd_wgmma_fence();
    pd_wide_scores<T, D>(x, s.q, t.k[now.stage]);
    pd_wgmma_commit();
    if constexpr (queries_hold_dout<D>)
        pd_wide_scores<T, D>(dp, s.dout, t.v[now.stage]);
    else
        pd_wide_scores<T, D>(dp, t.dout[s.group], t.v[now.stage]);
    pd_wgmma_commit();
    if (!FIRST) {
        pd_wide_apply<T>(s.dq, ds, t.k[before]);
        pd_wgmma_commit();
    }
    pd_wgmma_wait<(FIRST ? 1 : 2)>();
    pd_wgmma_pin(x);
    if (pd_wide_cut(a, p, kb * KEYS, KEYS))
        queries_weights<true, D>(a, p.sequence, s, a.key_start + kb * KEYS, x);
    else
        queries_weights<false, D>(a, p.sequence, s, a.key_start + kb * KEYS, x);
    pd_wgmma_wait<(FIRST ? 0 : 1)>();
    pd_wgmma_pin(dp);
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            dp[n][i] = x[n][i] * (dp[n][i] - s.delta[i / 2]);
    if (!FIRST) {
        pd_wgmma_wait<0>();
        pd_wgmma_pin(s.dq);
        pd_wide_emptied(&t.empty[before]);
    }
    pd_wide_pack<T>(ds, dp);
}

template <enum pd_dtype T, int D>
PD_DEVICE void queries_consume(const pd_attention &a, const pd_wide_place &p, uint32_t group, pd_wide_progress &done,
                               queries_tiles<D> &t)
{
    queries_state<D> s;
    uint32_t ds[KEYS / 16][4];
    s.group = group;
    s.own = pd_wide_own_of(a, p);
    pd_dq_start<D>(a, s.own, s.dq, s.lse2, s.delta);
    if (p.seen.begin < p.seen.end) {
        pd_barrier_wait(&t.stays_full, done.round);
        done.round ^= 1;
        pd_wide_rows<D>(s.q, t.q[group]);
        if (queries_hold_dout<D>) pd_wide_rows<D>(s.dout, t.dout[group]);
    }
    pd_wide_walk<STAGES>(
        p.seen, done.ring,
        [&](auto first, uint32_t kb, const pd_ring &now, const pd_ring &before) {
            queries_step<T, D, decltype(first)::value>(a, p, kb, now, before.stage, t, s, ds);
        },
        [&](const pd_ring &last) {
            pd_wide_emptied(&t.stays_empty);
            pd_wide_apply_now<T>(s.dq, ds, t.k[last.stage]);
            pd_wide_emptied(&t.empty[last.stage]);
        });
    pd_dq_finish<T, D>(a, s.own, s.dq, pd_wide_scratch(t.out[group]));
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_WIDE_THREADS, 1)
    attention_queries_wgmma(const pd_attention a, const __grid_constant__ pd_wide_maps maps, const pd_wide_queue queue)
{
    PD_SHARED_DYNAMIC(shared);
    queries_tiles<D> &t = pd_wide_tiles<queries_tiles<D>>(shared);
    pd_wide_progress done = {0, {0, 0}};
    const auto produce = [&](uint32_t i) { queries_produce<D>(maps, pd_wide_place_of<KEYS>(a, i), done, t); };
    const auto consume = [&](pd_wide_hand &hand) {
        const uint32_t group = pd_consumer();
        pd_wide_take(queue, hand,
                     [&](uint32_t i) { queries_consume<T, D>(a, pd_wide_place_of<KEYS>(a, i), group, done, t); });
    };
    pd_wide_block(queue, &t.stays_full, 1 + STAGES, &t.stays_empty, 1 + STAGES, produce, consume);
}

template <enum pd_dtype T, int D>
static pd_status queries_launch(void *stream, const pd_attention *a, struct pd_cuda_workspace workspace, pd_error *err)
{
    return pd_wide_launch(err, "attention_queries_wgmma", attention_queries_wgmma<T, D>, sizeof(queries_tiles<D>), stream, a,
                          a->dout, pd_wide_items(a), workspace.begun);
}

pd_status pd_attention_wgmma_queries(void *stream, const struct pd_attention *a, struct pd_cuda_workspace workspace,
                                     struct pd_error *err)
{
    return PD_OF_TILES(a, queries_launch, stream, a, workspace, err);
}
