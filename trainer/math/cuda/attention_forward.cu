/* Causal attention, forward, on tensor cores (Dao 2023). A block of four warps has 128 queries of one head, each warp 32 of
 * them; keys pass in steps of 64:
 *
 *   m' = max(m, max S)   P = 2^(c S - c m')   l = l 2^(c m - c m') + sum of P   O = O 2^(c m - c m') + P V
 *
 * with S = Q K^T and c = scale log2 e; out = O / l, lse = scale m + log l. V loads while S is computed; the next K while P
 * and O are. A row has four partial sums, one per lane, until the end, where they are added 0+1, 2+3 and then together. In a
 * later part lane 0 continues from the carried value. */
#include "trainer/math/cuda/attention_rows.h"

#define QUERIES 128u
#define KEYS PD_ATTENTION_STEP

template <int D> struct forward_tiles {
    uint16_t q[QUERIES * D], k[KEYS * D], v[KEYS * D];
};
static_assert(sizeof(forward_tiles<128>) <= PD_SHARED_EVERYWHERE, "some GPUs have less");

/* The rows of a warp, 16 of its 32 in each m. */
template <int D> struct forward_state {
    pd_query_rows rows[2];
    float o[2][D / 8][4], max[2][2], sum[2][2];
};

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_ATTENTION_THREADS) attention_forward_tiles(const pd_attention a)
{
    PD_SHARED_DYNAMIC(shared);
    forward_tiles<D> &t = *reinterpret_cast<forward_tiles<D> *>(shared);
    const uint32_t tiles = (a.length + QUERIES - 1) / QUERIES, warp = threadIdx.x / 32;
    const pd_attention_item item = pd_attention_item_of(a, blockIdx.x, tiles, PD_ITEMS_OF_QUERIES);
    const uint32_t kv = (item.head + a.group_offset) / a.group, r = item.tile * QUERIES;
    const uint32_t count = pd_attention_count(a.length, item.tile, QUERIES);
    const uint64_t row = (uint64_t)item.sequence * a.length + r, key_row = (uint64_t)item.sequence * a.key_length;
    const uint16_t *k = (const uint16_t *)a.k + key_row * a.ld_kv + kv * D,
                   *v = (const uint16_t *)a.v + key_row * a.ld_kv + kv * D;
    const pd_attention_span seen = pd_attention_keys_seen(a, item.sequence, r, count, KEYS);
    const uint32_t own = warp * 32;
    forward_state<D> s;
    pd_tile_load<D, QUERIES>(t.q, (const uint16_t *)a.q + row * a.ld_qkv + item.head * D, a.ld_qkv, count);
    if (seen.begin < seen.end) {
        uint32_t keys = pd_attention_count(a.key_length, seen.begin, KEYS);
        pd_tile_load<D, KEYS>(t.k, k + (uint64_t)seen.begin * KEYS * a.ld_kv, a.ld_kv, keys);
    }
    pd_cp_async_commit();
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        s.rows[m] = pd_query_rows_of(a, item.sequence, item.head, r, count, own + 16 * m);
        pd_softmax_start<D>(a, s.rows[m], s.o[m], s.max[m], s.sum[m]);
    }
    for (uint32_t kb = seen.begin; kb < seen.end; kb++) {
        float x[2][KEYS / 8][4];
        pd_cp_async_wait<0>();
        __syncthreads();
        pd_tile_load<D, KEYS>(t.v, v + (uint64_t)kb * KEYS * a.ld_kv, a.ld_kv, pd_attention_count(a.key_length, kb, KEYS));
        pd_cp_async_commit();
        pd_fragments_zero(x);
        pd_tile_scores<T, D>(x, t.q, own, t.k);
        pd_cp_async_wait<0>();
        __syncthreads();
        if (kb + 1 < seen.end) {
            uint32_t keys = pd_attention_count(a.key_length, kb + 1, KEYS);
            pd_tile_load<D, KEYS>(t.k, k + (uint64_t)(kb + 1) * KEYS * a.ld_kv, a.ld_kv, keys);
        }
        pd_cp_async_commit();
        const bool cut = pd_attention_cut(a, item.sequence, r, count, kb * KEYS, KEYS);
#pragma unroll
        for (uint32_t m = 0; m < 2; m++) {
            float rescale[2];
            if (cut) pd_softmax_mask(a, s.rows[m], a.key_start + kb * KEYS, x[m]);
            pd_softmax_step(a.scale * PD_LOG2_E, x[m], s.max[m], s.sum[m], rescale);
            pd_softmax_rescale(s.o[m], rescale);
        }
        pd_tile_apply<T, D>(s.o, x, t.v);
    }
    pd_cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (uint32_t m = 0; m < 2; m++)
        pd_softmax_finish<T, D>(a, s.rows[m], s.o[m], s.max[m], s.sum[m], t.q + (own + 16 * m) * D);
}

template <enum pd_dtype T, int D> static pd_status forward_launch(void *stream, const pd_attention *a, pd_error *err)
{
    const uint64_t tiles = (a->length + QUERIES - 1) / QUERIES, items = tiles * a->sequences * a->heads;
    return PD_LAUNCH(err, (attention_forward_tiles<T, D>), static_cast<unsigned>(items), PD_ATTENTION_THREADS,
                     sizeof(forward_tiles<D>), stream, *a);
}

pd_status pd_attention_tiles_forward(void *stream, const struct pd_attention *a, struct pd_cuda_workspace,
                                     struct pd_error *err)
{
    return PD_OF_TILES(a, forward_launch, stream, a, err);
}
