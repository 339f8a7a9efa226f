/* Shared by attention's backward passes that stay at keys, for compute capability 9.0. A warpgroup has 64 keys; tiles of 64
 * queries pass by. TILES are a block's: k and v of each consumer, q, dout and rows of each stage, and the barriers of both.
 */
#ifndef PD_TRAINER_MATH_CUDA_ATTENTION_WGMMA_PAIR_H
#define PD_TRAINER_MATH_CUDA_ATTENTION_WGMMA_PAIR_H

#include "trainer/math/cuda/attention_pair.h"
#include "trainer/math/cuda/attention_sums.h"
#include "trainer/math/cuda/attention_wgmma_block.h"

#define QUERIES PD_PAIR
#define PIECES (QUERIES / 8)
#define KEYS PD_STAY

/* Keeps rows of K and V in registers if they fit, so that S and dP read only Q and dO from shared memory. */
template <int D> constexpr bool keys_hold = D == 64;

struct keys_rows {
    float lse2[QUERIES], delta[QUERIES]; /* infinity if the query does not exist, so that P is 0 */
    uint32_t first[QUERIES];
};

/* See pd_attention_cut; for 64 queries from r. Beyond the last query, `first` is the last's. Keys beyond the last are zeros,
 * whose weights may be infinite. */
PD_DEVICE bool keys_cut(const pd_attention &a, const pd_keys_place &p, uint32_t r, const keys_rows &rows)
{
    const uint32_t key = a.key_start + p.tile * KEYS;
    return p.count < KEYS || key + p.count - 1 > a.query_start + r || rows.first[QUERIES - 1] > key;
}

/* ---- the warp that loads tiles ---- */

/* Data of two queries on its way to shared memory. */
struct keys_row {
    float lse[2], delta[2];
    uint32_t first[2];
};

PD_DEVICE void keys_rows_get(const pd_attention &a, uint32_t sequence, uint32_t head, uint32_t tile, keys_row &row)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t r = tile * QUERIES + (threadIdx.x & 31u) + 32 * i;
        const uint64_t at = ((uint64_t)sequence * a.heads + head) * a.length + r;
        const bool there = r < a.length;
        row.lse[i] = there ? a.lse[at] : INFINITY;
        row.delta[i] = there ? a.delta[at] : 0.0f;
        row.first[i] = pd_attention_first(a, sequence, r);
    }
}

PD_DEVICE void keys_rows_put(const keys_row &row, keys_rows &rows)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t at = (threadIdx.x & 31u) + 32 * i;
        rows.lse2[at] = row.lse[i] * PD_LOG2_E;
        rows.delta[at] = row.delta[i];
        rows.first[at] = row.first[i];
    }
}

/* Requests rows before waiting for their place. */
template <int D, typename TILES>
PD_DEVICE void keys_produce(const pd_attention &a, const pd_wide_maps &maps, const pd_keys_place &p, pd_wide_progress &done,
                            TILES &t)
{
    const pd_attention_span seeing = pd_attention_queries_seeing(a, p.sequence, p.tile * KEYS, p.count, QUERIES);
    const pd_wide_source k = {&maps.k, p.sequence, p.kv * D}, v = {&maps.v, p.sequence, p.kv * D};
    const pd_wide_source q = {&maps.q, p.sequence, p.head * D}, o = {&maps.dout, p.sequence, p.head * D};
    pd_ring &ring = done.ring;
    pd_barrier_wait(&t.stays_empty, done.round ^ 1);
    for (uint32_t group = 0; group < PD_CONSUMERS; group++) {
        pd_wide_load(t.k[group], k, p.tile * KEYS + 64 * group, &t.stays_full);
        pd_wide_load(t.v[group], v, p.tile * KEYS + 64 * group, &t.stays_full);
    }
    pd_wide_filled(&t.stays_full, 2 * KEYS * D * 2);
    done.round ^= 1;
    for (uint32_t tile = seeing.begin; tile < seeing.end; tile++) {
        uint64_t *full = &t.full[ring.stage];
        keys_row row;
        keys_rows_get(a, p.sequence, p.head, tile, row);
        pd_barrier_wait(&t.empty[ring.stage], ring.parity ^ 1);
        pd_wide_load(t.q[ring.stage], q, tile * QUERIES, full);
        pd_wide_load(t.dout[ring.stage], o, tile * QUERIES, full);
        keys_rows_put(row, t.rows[ring.stage]);
        pd_wide_filled(full, 2 * QUERIES * D * 2);
        pd_ring_next<TILES::stages>(ring);
    }
}

/* ---- the warps that multiply ---- */

/* State of a warpgroup, for one item. */
template <int D> struct keys_state {
    uint32_t k[D / 16][4], v[D / 16][4]; /* if keys_hold */
    keys_sums<D> sums;
    uint32_t group;
};

/* Values of this lane's two queries of piece n. */
PD_DEVICE float2 keys_two(const float (&of)[QUERIES], uint32_t n)
{
    return *reinterpret_cast<const float2 *>(of + 8 * n + pd_fragment_column());
}

/* Converts S^T to P^T. */
PD_DEVICE void keys_weights(const keys_rows &rows, float c, float (&x)[PIECES][4])
{
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++) {
        const float2 lse2 = keys_two(rows.lse2, n);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            x[n][i] = pd_exp2_fast(__fmaf_rn(x[n][i], c, i % 2 ? -lse2.y : -lse2.x));
    }
}

/* Zeroes P^T where a query cannot see the key. `key`: of the lane's first row; `position`: of the tile's first query. */
PD_DEVICE void keys_mask(const keys_rows &rows, uint32_t key, uint32_t position, float (&x)[PIECES][4])
{
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t q = 8 * n + pd_fragment_column() + i % 2, row = key + 8 * (i / 2);
            if (row < rows.first[q] || row > position + q) x[n][i] = 0.0f;
        }
}

/* Converts dP^T to dS^T. */
PD_DEVICE void keys_gradients(const keys_rows &rows, const float (&x)[PIECES][4], float (&dp)[PIECES][4])
{
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++) {
        const float2 delta = keys_two(rows.delta, n);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            dp[n][i] = x[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
    }
}

/* Starts S^T and dP^T, one group each. */
template <enum pd_dtype T, int D, typename TILES>
PD_DEVICE void keys_products(const keys_state<D> &s, uint32_t stage, const TILES &t, float (&x)[PIECES][4],
                             float (&dp)[PIECES][4])
{
    pd_wgmma_pin(x);
    pd_wgmma_pin(dp);
    pd_wgmma_fence();
    if constexpr (keys_hold<D>)
        pd_wide_scores<T, D>(x, s.k, t.q[stage]);
    else
        pd_wide_scores<T, D>(x, t.k[s.group], t.q[stage]);
    pd_wgmma_commit();
    if constexpr (keys_hold<D>)
        pd_wide_scores<T, D>(dp, s.v, t.dout[stage]);
    else
        pd_wide_scores<T, D>(dp, t.v[s.group], t.dout[stage]);
    pd_wgmma_commit();
}

#endif
