/* Causal attention, backward, dK and dV where the key is, for compute capability 9.0: the formulas of attention_pair.h. A
 * warpgroup has 64 keys of one head and goes through the query heads of its key-value head, one after the other, see
 * attention_sums.h; tiles of 64 queries go by. A step:
 *
 *   S^T = K Q^T, dP^T = V dO^T; P from S while dP is made; dV += P dO on its way while dS is made; dK += dS Q */
#include "trainer/math/cuda/attention_pair.h"
#include "trainer/math/cuda/attention_sums.h"
#include "trainer/math/cuda/attention_wgmma_block.h"

#define QUERIES PD_PAIR
#define PIECES (QUERIES / 8)
#define STAGES 2u
#define CONSUMER_THREADS (PD_CONSUMERS * PD_WARPGROUP)
#define KEYS PD_STAY
#define BLOCKS_MAX 132u /* multiprocessors of an H100, one block each */

struct keys_rows {
    float lse2[QUERIES], delta[QUERIES]; /* infinity where there is no query: P is 0 */
    uint32_t first[QUERIES];
};

template <int D> struct keys_tiles {
    pd_wide_tile<D, 64> k[PD_CONSUMERS], v[PD_CONSUMERS];
    pd_wide_tile<D, QUERIES> q[STAGES], dout[STAGES];
    keys_rows rows[STAGES];
    uint64_t stays_full, full[STAGES], stays_empty, empty[STAGES];
};

PD_DEVICE keys_place keys_place_of(const pd_attention &a, uint64_t i, uint32_t own)
{
    const uint32_t tiles = (a.key_length + KEYS - 1) / KEYS;
    const pd_attention_item item = pd_attention_item_of(i, a.sequences, a.kv_heads, tiles, false);
    return {item.sequence, item.head,
            item.tile,     pd_attention_count(a.key_length, item.tile, KEYS),
            own,           (uint64_t)item.sequence * a.key_length + item.tile * KEYS};
}

PD_DEVICE uint64_t keys_items(const pd_attention &a)
{
    return (uint64_t)((a.key_length + KEYS - 1) / KEYS) * a.sequences * a.kv_heads;
}

/* ---- the warp that brings tiles ---- */

PD_DEVICE void keys_rows_put(const pd_attention &a, uint32_t sequence, uint32_t head, uint32_t tile, keys_rows &rows)
{
#pragma unroll
    for (uint32_t i = threadIdx.x & 31u; i < QUERIES; i += 32) {
        const uint32_t r = tile * QUERIES + i;
        const uint64_t at = ((uint64_t)sequence * a.heads + head) * a.length + r;
        const bool there = r < a.length;
        rows.lse2[i] = there ? a.lse[at] * PD_LOG2_E : INFINITY;
        rows.delta[i] = there ? a.delta[at] : 0.0f;
        rows.first[i] = pd_attention_first(a, sequence, r);
    }
}

template <int D> PD_DEVICE void keys_produce(const pd_attention &a, const pd_wide_maps &maps, keys_tiles<D> &t, bool wide)
{
    pd_ring ring = {0, 0};
    uint32_t round = 0;
    for (uint64_t i = blockIdx.x; i < keys_items(a); i += gridDim.x, round ^= 1) {
        const keys_place p = keys_place_of(a, i, 0);
        const pd_attention_span seeing = pd_attention_queries_seeing(a, p.sequence, p.tile * KEYS, p.count, QUERIES);
        const pd_wide_source k = pd_wide_k<D>(a, maps, p.sequence, p.kv), v = pd_wide_v<D>(a, maps, p.sequence, p.kv);
        pd_barrier_wait(&t.stays_empty, round ^ 1);
        for (uint32_t group = 0; group < PD_CONSUMERS; group++) {
            pd_wide_load(t.k[group], k, p.tile * KEYS + 64 * group, &t.stays_full, wide);
            pd_wide_load(t.v[group], v, p.tile * KEYS + 64 * group, &t.stays_full, wide);
        }
        pd_wide_filled(&t.stays_full, 2 * KEYS * D * 2, wide);
        for (uint32_t head = pd_attention_heads_begin(a, p.kv); head < pd_attention_heads_end(a, p.kv); head++) {
            const pd_wide_source q = pd_wide_q<D>(a, maps, p.sequence, head), o = pd_wide_dout<D>(a, maps, p.sequence, head);
            for (uint32_t tile = seeing.begin; tile < seeing.end; tile++) {
                uint64_t *full = &t.full[ring.stage];
                pd_barrier_wait(&t.empty[ring.stage], ring.parity ^ 1);
                pd_wide_load(t.q[ring.stage], q, tile * QUERIES, full, wide);
                pd_wide_load(t.dout[ring.stage], o, tile * QUERIES, full, wide);
                keys_rows_put(a, p.sequence, head, tile, t.rows[ring.stage]);
                pd_wide_filled(full, 2 * QUERIES * D * 2, wide);
                pd_ring_next<STAGES>(ring);
            }
        }
    }
}

/* ---- the warps that multiply ---- */

/* S^T to P^T. `key` is that of the lane's first row; `position` that of the tile's first query. */
template <bool CUT>
PD_DEVICE void keys_weights(const keys_rows &rows, float c, uint32_t key, uint32_t position, float (&x)[PIECES][4])
{
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t q = 8 * n + pd_fragment_column() + i % 2, row = key + 8 * (i / 2);
            const bool seen = !CUT || (row >= rows.first[q] && row <= position + q);
            x[n][i] = seen ? pd_exp2_fast(__fmaf_rn(x[n][i], c, -rows.lse2[q])) : 0.0f;
        }
}

template <enum pd_dtype T, int D>
PD_DEVICE void keys_step(const pd_attention &a, const keys_place &p, uint32_t tile, const pd_ring &ring, keys_tiles<D> &t,
                         keys_sums<D> &sums)
{
    const uint32_t r = tile * QUERIES, count = pd_attention_count(a.length, tile, QUERIES), stage = ring.stage;
    const uint32_t group = pd_consumer();
    const uint32_t key = a.key_start + p.tile * KEYS + p.own + pd_fragment_row(0);
    const keys_rows &rows = t.rows[stage];
    float x[PIECES][4], dp[PIECES][4];
    uint32_t operand[QUERIES / 16][4], gradient[QUERIES / 16][4];
    pd_barrier_wait(&t.full[stage], ring.parity);
    pd_product_settle(x);
    pd_product_settle(dp);
    pd_product_begin();
    pd_wide_scores<T, D>(x, t.k[group], t.q[stage]);
    pd_product_commit();
    pd_wide_scores<T, D>(dp, t.v[group], t.dout[stage]);
    pd_product_commit();
    pd_product_wait<1>();
    pd_product_settle(x);
    if (pd_attention_cut(a, p.sequence, r, count, p.tile * KEYS, p.count))
        keys_weights<true>(rows, a.scale * PD_LOG2_E, key, a.query_start + r, x);
    else
        keys_weights<false>(rows, a.scale * PD_LOG2_E, key, a.query_start + r, x);
    pd_wide_pack<T>(operand, x);
    pd_product_wait<0>();
    pd_product_settle(dp);
    pd_product_settle(sums.dv[0]);
    pd_product_begin();
    pd_wide_apply<T>(sums.dv[0], operand, t.dout[stage]);
    pd_product_commit();
#pragma unroll
    for (uint32_t n = 0; n < PIECES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            dp[n][i] = x[n][i] * (dp[n][i] - rows.delta[8 * n + pd_fragment_column() + i % 2]);
    pd_wide_pack<T>(gradient, dp);
    pd_product_settle(sums.dk[0]);
    pd_product_begin();
    pd_wide_apply<T>(sums.dk[0], gradient, t.q[stage]);
    pd_product_commit();
    pd_product_wait<0>();
    pd_product_settle(sums.dv[0]);
    pd_product_settle(sums.dk[0]);
    pd_wide_emptied(&t.empty[stage]);
}

template <enum pd_dtype T, int D>
PD_DEVICE void keys_item(const pd_attention &a, const keys_place &p, uint32_t round, pd_ring &ring, keys_tiles<D> &t,
                         const keys_waiting &waiting, bool wide)
{
    const pd_attention_span seeing = pd_attention_queries_seeing(a, p.sequence, p.tile * KEYS, p.count, QUERIES);
    const uint32_t end = pd_attention_heads_end(a, p.kv), group = pd_consumer();
    pd_attention_tree tree;
    keys_sums<D> sums;
    tree.depth = 0;
    pd_barrier_wait(&t.stays_full, round);
    for (uint32_t head = pd_attention_heads_begin(a, p.kv); head < end; head++) {
        pd_fragments_zero(sums.dk);
        pd_fragments_zero(sums.dv);
        if (!a.first_part) keys_carry<D>(a, p, head, sums, true);
        for (uint32_t tile = seeing.begin; tile < seeing.end; tile++) {
            keys_step<T, D>(a, p, tile, ring, t, sums);
            pd_ring_next<STAGES>(ring);
        }
        if (a.last_part)
            keys_grow<D>(a, p.kv, head, end, tree, sums, waiting);
        else
            keys_carry<D>(a, p, head, sums, false);
    }
    pd_group_sync(1 + group, PD_WARPGROUP);
    if (a.last_part) keys_finish<T, D>(a, p, sums, pd_wide_scratch(t.k[group]), pd_wide_scratch(t.v[group]), wide);
    pd_async_fence();
    pd_wide_emptied(&t.stays_empty);
}

/* waiting: `levels` terms a block of threads. */
template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_WIDE_THREADS, 1)
    attention_keys_wgmma(const pd_attention a, const __grid_constant__ pd_wide_maps maps, float *waiting,
                         const uint32_t levels, const bool wide)
{
    PD_SHARED_DYNAMIC(shared);
    keys_tiles<D> &t = pd_wide_tiles<keys_tiles<D>>(shared);
    const auto consume = [&] {
        const uint32_t thread = threadIdx.x - PD_WARPGROUP;
        float *const own = waiting + (uint64_t)blockIdx.x * levels * (2 * KEYS * D);
        const keys_waiting places = {reinterpret_cast<float4 *>(own), CONSUMER_THREADS, thread};
        pd_ring ring = {0, 0};
        uint32_t round = 0;
        for (uint64_t i = blockIdx.x; i < keys_items(a); i += gridDim.x, round ^= 1)
            keys_item<T, D>(a, keys_place_of(a, i, thread / 32 * 16), round, ring, t, places, wide);
    };
    pd_wide_block(
        &t.stays_full, 1 + STAGES, &t.stays_empty, 1 + STAGES, [&] { keys_produce<D>(a, maps, t, wide); }, consume);
}

static uint64_t term_bytes(const struct pd_attention *a)
{
    return 2 * KEYS * (uint64_t)a->head_size * sizeof(float);
}

uint64_t pd_attention_wgmma_workspace(const struct pd_attention *a)
{
    return pd_attention_keys_workspace(a, KEYS, term_bytes(a), BLOCKS_MAX);
}

template <enum pd_dtype T, int D>
static pd_status keys_launch(void *stream, const pd_attention *a, struct pd_cuda_workspace workspace, pd_error *err)
{
    const uint64_t blocks = pd_attention_keys_blocks(a, KEYS, term_bytes(a), workspace.bytes);
    const uint32_t levels = a->last_part ? pd_attention_waiting(a) : 0;
    const bool wide = pd_operands_are_wide(a, a->dout) &&
                      (!a->last_part || (pd_is_wide(a->dk, a->ld_dkv) && pd_is_wide(a->dv, a->ld_dkv)));
    pd_wide_maps maps = {};
    PD_TRY(pd_wide_maps_make(a, a->dout, wide, &maps, err));
    return PD_LAUNCH(err, (attention_keys_wgmma<T, D>), static_cast<unsigned>(blocks), PD_WIDE_THREADS,
                     sizeof(keys_tiles<D>) + 1024, stream, *a, maps, static_cast<float *>(workspace.data), levels, wide);
}

pd_status pd_attention_wgmma_keys(void *stream, const struct pd_attention *a, struct pd_cuda_workspace workspace,
                                  struct pd_error *err)
{
    return PD_OF_TILES(a, keys_launch, stream, a, workspace, err);
}
