/* Causal attention, backward, on tensor cores: dK and dV per key, see attention_pair.h. */
#include "trainer/math/cuda/attention_pair.h"
#include "trainer/math/cuda/attention_sums.h"

struct keys_rows {
    float lse2[PD_PAIR], delta[PD_PAIR]; /* of the passing queries; infinity if they do not exist, so that P is 0 */
    uint32_t first[PD_PAIR];
};

template <int D> struct keys_tiles {
    pd_pair_tiles<D> pair;
    keys_rows rows[2]; /* [stage] */
};
static_assert(sizeof(keys_tiles<128>) <= PD_SHARED_EVERYWHERE, "some GPUs have less");

/* One query's row on its way to shared memory, in threads 0 .. 63. */
struct keys_row {
    float lse2, delta;
    uint32_t first;
};

PD_DEVICE keys_row keys_row_get(const pd_attention &a, uint32_t sequence, uint32_t head, uint32_t tile)
{
    uint32_t r = tile * PD_PAIR + threadIdx.x;
    uint64_t at = ((uint64_t)sequence * a.heads + head) * a.length + r;
    if (threadIdx.x >= PD_PAIR || r >= a.length) return {INFINITY, 0.0f, 0};
    return {a.lse[at] * PD_LOG2_E, a.delta[at], pd_attention_first(a, sequence, r)};
}

PD_DEVICE void keys_row_put(const keys_row &row, keys_rows &rows)
{
    if (threadIdx.x >= PD_PAIR) return;
    rows.lse2[threadIdx.x] = row.lse2;
    rows.delta[threadIdx.x] = row.delta;
    rows.first[threadIdx.x] = row.first;
}

/* Pieces of 8 queries with scores in registers at a time: besides sums of 128 columns only half a tile fits. */
template <int D> constexpr uint32_t keys_pieces = D == 128 ? 4 : 8;

/* Queries from `from` of the tile. `key` belongs to the lane's first row, `position` to the tile's first query. */
template <bool CUT, int N>
PD_DEVICE void keys_gradients(const keys_rows &rows, uint32_t from, float c, uint32_t key, uint32_t position,
                              float (&s)[1][N][4], float (&dp)[1][N][4])
{
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t q = from + 8 * n + pd_fragment_column() + i % 2, row = key + 8 * (i / 2);
            bool seen = !CUT || (row >= rows.first[q] && row <= position + q);
            pd_pair_gradient(s[0][n][i], dp[0][n][i], c, rows.lse2[q], rows.delta[q], seen);
        }
}

template <int D>
PD_DEVICE void keys_fetch(const pd_attention &a, const pd_keys_place &p, uint32_t tile, uint16_t (&tiles)[2][PD_PAIR * D])
{
    const uint64_t row = (uint64_t)p.sequence * a.length, ld_out = (uint64_t)a.heads * D, ld[2] = {a.ld_qkv, ld_out};
    const uint16_t *const src[2] = {(const uint16_t *)a.q + row * a.ld_qkv + p.head * D,
                                    (const uint16_t *)a.dout + row * ld_out + p.head * D};
    pd_pair_load<D>(tiles, src, ld, tile, a.length);
}

template <enum pd_dtype T, int D>
PD_DEVICE void keys_step(const pd_attention &a, const pd_keys_place &p, uint32_t tile, const keys_tiles<D> &t,
                         uint32_t stage, keys_sums<D> &sums)
{
    constexpr uint32_t pieces = keys_pieces<D>;
    const uint32_t r = tile * PD_PAIR, count = pd_attention_count(a.length, tile, PD_PAIR), own = p.own;
    const uint32_t key = a.key_start + p.tile * PD_PAIR + own + pd_fragment_row(0);
    const bool cut = pd_attention_cut(a, p.sequence, r, count, p.tile * PD_PAIR, p.count);
    const float c = a.scale * PD_LOG2_E;
#pragma unroll 1
    for (uint32_t from = 0; from < PD_PAIR; from += 8 * pieces) {
        const uint16_t *q = t.pair.passes[stage][0] + from * D, *dout = t.pair.passes[stage][1] + from * D;
        float s[1][pieces][4], dp[1][pieces][4];
        pd_fragments_zero(s);
        pd_fragments_zero(dp);
        pd_tile_scores<T, D>(s, t.pair.stays[0], own, q);
        pd_tile_scores<T, D>(dp, t.pair.stays[1], own, dout);
        if (cut)
            keys_gradients<true>(t.rows[stage], from, c, key, a.query_start + r, s, dp);
        else
            keys_gradients<false>(t.rows[stage], from, c, key, a.query_start + r, s, dp);
        pd_tile_apply<T, D>(sums.dv, s, dout);
        pd_tile_apply<T, D>(sums.dk, dp, q);
    }
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_ATTENTION_THREADS) attention_keys_tiles(const pd_attention a)
{
    PD_SHARED_DYNAMIC(shared);
    keys_tiles<D> &t = *reinterpret_cast<keys_tiles<D> *>(shared);
    const pd_keys_place p = pd_keys_place_of(a, blockIdx.x, PD_PAIR, threadIdx.x / 32 * 16);
    const pd_attention_span seeing = pd_attention_queries_seeing(a, p.sequence, p.tile * PD_PAIR, p.count, PD_PAIR);
    const uint64_t ld[2] = {a.ld_kv, a.ld_kv}, at = (p.row - p.tile * PD_PAIR) * a.ld_kv + p.kv * D;
    const uint16_t *const stays[2] = {(const uint16_t *)a.k + at, (const uint16_t *)a.v + at};
    const bool any = seeing.begin < seeing.end;
    keys_sums<D> sums;
    pd_pair_load<D>(t.pair.stays, stays, ld, p.tile, a.key_length);
    if (any) keys_fetch<D>(a, p, seeing.begin, t.pair.passes[0]);
    pd_cp_async_commit();
    if (any) keys_row_put(keys_row_get(a, p.sequence, p.head, seeing.begin), t.rows[0]);
    pd_fragments_zero(sums.dk);
    pd_fragments_zero(sums.dv);
    if (!a.first_part) keys_carry<D>(a, p, sums, true);
    for (uint32_t tile = seeing.begin, stage = 0; tile < seeing.end; tile++, stage ^= 1) {
        const bool more = tile + 1 < seeing.end;
        keys_row row = {INFINITY, 0.0f, 0};
        pd_cp_async_wait<0>();
        __syncthreads();
        if (more) keys_fetch<D>(a, p, tile + 1, t.pair.passes[stage ^ 1]);
        pd_cp_async_commit();
        if (more) row = keys_row_get(a, p.sequence, p.head, tile + 1);
        keys_step<T, D>(a, p, tile, t, stage, sums);
        if (more) keys_row_put(row, t.rows[stage ^ 1]);
    }
    pd_cp_async_wait<0>();
    __syncthreads();
    if (a.last_part)
        keys_finish<T, D>(a, p, sums, t.pair.stays[0] + p.own * D, t.pair.stays[1] + p.own * D);
    else
        keys_carry<D>(a, p, sums, false);
}

template <enum pd_dtype T, int D> static pd_status keys_launch(void *stream, const pd_attention *a, pd_error *err)
{
    return PD_LAUNCH(err, (attention_keys_tiles<T, D>), static_cast<unsigned>(pd_attention_keys_items(a, PD_PAIR)),
                     PD_ATTENTION_THREADS, sizeof(keys_tiles<D>), stream, *a);
}

pd_status pd_attention_tiles_keys(void *stream, const struct pd_attention *a, struct pd_cuda_workspace, struct pd_error *err)
{
    return PD_OF_TILES(a, keys_launch, stream, a, err);
}
