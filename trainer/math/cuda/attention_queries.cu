/* Causal attention, backward, on tensor cores: dQ per query. See attention_pair.h. */
#include "trainer/math/cuda/attention_pair.h"
#include "trainer/math/cuda/attention_rows.h"

/* The rows of a lane: [half]. */
struct queries_rows {
    pd_query_rows own;
    float lse2[2], delta[2];
};

template <bool CUT>
PD_DEVICE void queries_gradients(const pd_attention &a, const queries_rows &rows, uint32_t first_key, pd_pair_scores &s,
                                 pd_pair_scores &dp)
{
    const float c = a.scale * PD_LOG2_E;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        pd_attention_seen seen = {0, 0};
        if (CUT) seen = pd_attention_seen_by(a, rows.own.sequence, rows.own.row + pd_fragment_row(half));
#pragma unroll
        for (uint32_t n = 0; n < PD_PAIR_PIECES; n++)
#pragma unroll
            for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
                const uint32_t key = first_key + 8 * n + pd_fragment_column() + i % 2;
                const bool sees = !CUT || (key >= seen.first && key <= seen.last);
                pd_pair_gradient(s[0][n][i], dp[0][n][i], c, rows.lse2[half], rows.delta[half], sees);
            }
    }
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_ATTENTION_THREADS) attention_queries_tiles(const pd_attention a)
{
    PD_SHARED_DYNAMIC(shared);
    pd_pair_tiles<D> &t = *reinterpret_cast<pd_pair_tiles<D> *>(shared);
    const uint32_t tiles = (a.length + PD_PAIR - 1) / PD_PAIR;
    const pd_attention_item item = pd_attention_item_of(a, blockIdx.x, tiles, PD_ITEMS_OF_QUERIES);
    const uint32_t kv = (item.head + a.group_offset) / a.group, r = item.tile * PD_PAIR, own = threadIdx.x / 32 * 16;
    const uint32_t count = pd_attention_count(a.length, item.tile, PD_PAIR);
    const uint64_t row = (uint64_t)item.sequence * a.length, key_row = (uint64_t)item.sequence * a.key_length;
    const uint64_t ld_out = (uint64_t)a.heads * D, ld_stays[2] = {a.ld_qkv, ld_out}, ld_passes[2] = {a.ld_kv, a.ld_kv};
    const uint16_t *const stays[2] = {(const uint16_t *)a.q + row * a.ld_qkv + item.head * D,
                                      (const uint16_t *)a.dout + row * ld_out + item.head * D};
    const uint16_t *const passes[2] = {(const uint16_t *)a.k + key_row * a.ld_kv + kv * D,
                                       (const uint16_t *)a.v + key_row * a.ld_kv + kv * D};
    const pd_attention_span seen = pd_attention_keys_seen(a, item.sequence, r, count, PD_PAIR);
    float dq[1][D / 8][4];
    queries_rows rows;
    pd_pair_load<D>(t.stays, stays, ld_stays, item.tile, a.length);
    if (seen.begin < seen.end) pd_pair_load<D>(t.passes[0], passes, ld_passes, seen.begin, a.key_length);
    pd_cp_async_commit();
    rows.own = pd_query_rows_of(a, item.sequence, item.head, r, count, own);
    pd_dq_start<D>(a, rows.own, dq[0], rows.lse2, rows.delta);
    for (uint32_t kb = seen.begin, stage = 0; kb < seen.end; kb++, stage ^= 1) {
        pd_pair_scores s, dp;
        pd_cp_async_wait<0>();
        __syncthreads();
        if (kb + 1 < seen.end) pd_pair_load<D>(t.passes[stage ^ 1], passes, ld_passes, kb + 1, a.key_length);
        pd_cp_async_commit();
        pd_pair_products<T, D>(s, dp, t.stays, t.passes[stage]);
        if (pd_attention_cut(a, item.sequence, r, count, kb * PD_PAIR, PD_PAIR))
            queries_gradients<true>(a, rows, a.key_start + kb * PD_PAIR, s, dp);
        else
            queries_gradients<false>(a, rows, a.key_start + kb * PD_PAIR, s, dp);
        pd_tile_apply<T, D>(dq, dp, t.passes[stage][0]);
    }
    pd_cp_async_wait<0>();
    __syncthreads();
    pd_dq_finish<T, D>(a, rows.own, dq[0], t.stays[0] + own * D);
}

template <enum pd_dtype T, int D> static pd_status queries_launch(void *stream, const pd_attention *a, pd_error *err)
{
    const uint64_t tiles = (a->length + PD_PAIR - 1) / PD_PAIR, items = tiles * a->sequences * a->heads;
    return PD_LAUNCH(err, (attention_queries_tiles<T, D>), static_cast<unsigned>(items), PD_ATTENTION_THREADS,
                     sizeof(pd_pair_tiles<D>), stream, *a);
}

pd_status pd_attention_tiles_queries(void *stream, const struct pd_attention *a, struct pd_cuda_workspace,
                                     struct pd_error *err)
{
    return PD_OF_TILES(a, queries_launch, stream, a, err);
}
