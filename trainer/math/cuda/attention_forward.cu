/* Causal attention, forward, on tensor cores (Dao 2023). A block of four warps has 128 queries of one head, a warp 32 of
 * them; keys go by in steps of 64:
 *
 *   m' = max(m, max S)   P = 2^(c S - c m')   l = l 2^(c m - c m') + sum of P   O = O 2^(c m - c m') + P V
 *
 * with S = Q K^T and c = scale log2 e; out = O / l, lse = scale m + log l. While S is made, V is on its way; while P and O
 * are made, the next K. Sums over a row are four partial ones, one a lane, until the end, where they are added 0+1, 2+3 and
 * then together; of a later part lane 0 goes on from what was carried. */
#include "trainer/math/cuda/attention_tile.h"
#include "trainer/math/cuda/functions.h"

#define QUERIES 128u
#define KEYS PD_ATTENTION_STEP
#define LOWEST (-1e30f) /* times c it is still finite */

template <int D> struct forward_tiles {
    uint16_t q[QUERIES * D], k[KEYS * D], v[KEYS * D];
};
static_assert(sizeof(forward_tiles<128>) <= PD_SHARED_EVERYWHERE, "some GPUs have less");

/* The rows of a warp: [m][half] is row 16 m + 8 half + lane/4 of its 32. */
template <int D> struct forward_state {
    float o[2][D / 8][4], max[2][2], sum[2][2];
};

struct forward_place {
    uint32_t sequence, head, row, count; /* rows of this call's sequence from `row`; `count` of this warp's are there */
    uint64_t q_row, k_row;               /* of the arrays: query `row`, key 0 */
};

template <int D> PD_DEVICE void forward_start(const pd_attention &a, const forward_place &p, forward_state<D> &s)
{
    pd_fragments_zero(s.o);
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t r = 16 * m + pd_fragment_row(half);
            uint64_t at = (p.q_row + r) * a.heads + p.head;
            bool carried = !a.first_part && r < p.count;
            s.max[m][half] = carried ? a.max[at] : LOWEST;
            s.sum[m][half] = carried && (threadIdx.x & 3u) == 0 ? a.sum[at] : 0.0f;
        }
        uint64_t ld = (uint64_t)a.heads * D;
        if (!a.first_part) pd_fragments_get<D>(s.o[m], a.acc + p.q_row * ld + p.head * D, ld, 16 * m, p.count);
    }
}

PD_DEVICE void forward_mask(const pd_attention &a, const forward_place &p, uint32_t first_key, float (&x)[2][KEYS / 8][4])
{
#pragma unroll
    for (uint32_t m = 0; m < 2; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const pd_attention_seen seen = pd_attention_seen_by(a, p.sequence, p.row + 16 * m + pd_fragment_row(half));
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    const uint32_t key = first_key + 8 * n + pd_fragment_column() + i;
                    if (key < seen.first || key > seen.last) x[m][n][2 * half + i] = -INFINITY;
                }
        }
}

/* S to P in place. */
template <int D> PD_DEVICE void forward_softmax(forward_state<D> &s, float c, float (&x)[2][KEYS / 8][4])
{
#pragma unroll
    for (uint32_t m = 0; m < 2; m++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            float max = s.max[m][half], sum = 0.0f;
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; n++)
                max = fmaxf(max, fmaxf(x[m][n][2 * half], x[m][n][2 * half + 1]));
            max = fmaxf(max, __shfl_xor_sync(PD_WARP_ALL, max, 1));
            max = fmaxf(max, __shfl_xor_sync(PD_WARP_ALL, max, 2));
            float rescale = pd_exp2_fast((s.max[m][half] - max) * c), shift = max * c;
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
                    x[m][n][i] = pd_exp2_fast(__fmaf_rn(x[m][n][i], c, -shift));
                    sum += x[m][n][i];
                }
            s.max[m][half] = max;
            s.sum[m][half] = __fmaf_rn(s.sum[m][half], rescale, sum);
#pragma unroll
            for (uint32_t n = 0; n < D / 8; n++) {
                s.o[m][n][2 * half] *= rescale;
                s.o[m][n][2 * half + 1] *= rescale;
            }
        }
}

/* All lanes of a row have its sum. */
template <int D> PD_DEVICE void forward_join(forward_state<D> &s)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float &sum = s.sum[i / 2][i % 2];
        sum += __shfl_xor_sync(PD_WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(PD_WARP_ALL, sum, 2);
    }
}

template <int D> PD_DEVICE void forward_carry(const pd_attention &a, const forward_place &p, const forward_state<D> &s)
{
    uint64_t ld = (uint64_t)a.heads * D;
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        pd_fragments_put<D>(s.o[m], a.acc + p.q_row * ld + p.head * D, ld, 16 * m, p.count);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t r = 16 * m + pd_fragment_row(half);
            uint64_t at = (p.q_row + r) * a.heads + p.head;
            if (r >= p.count || (threadIdx.x & 3u) != 0) continue;
            a.max[at] = s.max[m][half];
            a.sum[at] = s.sum[m][half];
        }
    }
}

template <enum pd_dtype T, int D>
PD_DEVICE void forward_finish(const pd_attention &a, const forward_place &p, const forward_state<D> &s, uint16_t *tile,
                              bool wide)
{
    uint64_t ld = (uint64_t)a.heads * D, lse = ((uint64_t)p.sequence * a.heads + p.head) * a.length + p.row;
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        float scale[2];
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t r = 16 * m + pd_fragment_row(half);
            scale[half] = 1.0f / s.sum[m][half];
            if (r < p.count && (threadIdx.x & 3u) == 0)
                a.lse[lse + r] = __fmaf_rn(s.max[m][half], a.scale, pd_log(s.sum[m][half]));
        }
        uint16_t *out = (uint16_t *)a.out + p.q_row * ld + p.head * D;
        pd_fragments_store<T, D>(s.o[m], scale, tile, 16 * m, out, ld, p.count, wide);
    }
}

template <enum pd_dtype T, int D>
static __global__ void __launch_bounds__(PD_ATTENTION_THREADS) attention_forward_tiles(const pd_attention a, const bool wide)
{
    PD_SHARED_DYNAMIC(shared);
    forward_tiles<D> &t = *reinterpret_cast<forward_tiles<D> *>(shared);
    const uint32_t tiles = (a.length + QUERIES - 1) / QUERIES, warp = threadIdx.x / 32;
    const pd_attention_item item = pd_attention_item_of(a, blockIdx.x, tiles, false);
    const uint32_t kv = (item.head + a.group_offset) / a.group, r = item.tile * QUERIES;
    const uint32_t count = pd_attention_count(a.length, item.tile, QUERIES);
    const uint64_t row = (uint64_t)item.sequence * a.length + r, key_row = (uint64_t)item.sequence * a.key_length;
    const uint16_t *k = (const uint16_t *)a.k + key_row * a.ld_kv + kv * D,
                   *v = (const uint16_t *)a.v + key_row * a.ld_kv + kv * D;
    const pd_attention_span seen = pd_attention_keys_seen(a, item.sequence, r, count, KEYS);
    const uint32_t own = warp * 32;
    const forward_place p = {item.sequence, item.head, r + own, count > own ? count - own : 0, row + own, key_row};
    forward_state<D> s;
    pd_tile_load<D, QUERIES>(t.q, (const uint16_t *)a.q + row * a.ld_qkv + item.head * D, a.ld_qkv, count, wide);
    if (seen.begin < seen.end) {
        uint32_t keys = pd_attention_count(a.key_length, seen.begin, KEYS);
        pd_tile_load<D, KEYS>(t.k, k + (uint64_t)seen.begin * KEYS * a.ld_kv, a.ld_kv, keys, wide);
    }
    pd_cp_async_commit();
    forward_start<D>(a, p, s);
    for (uint32_t kb = seen.begin; kb < seen.end; kb++) {
        float x[2][KEYS / 8][4];
        pd_cp_async_wait<0>();
        __syncthreads();
        pd_tile_load<D, KEYS>(t.v, v + (uint64_t)kb * KEYS * a.ld_kv, a.ld_kv, pd_attention_count(a.key_length, kb, KEYS),
                              wide);
        pd_cp_async_commit();
        pd_fragments_zero(x);
        pd_tile_scores<T, D>(x, t.q, own, t.k);
        pd_cp_async_wait<0>();
        __syncthreads();
        if (kb + 1 < seen.end) {
            uint32_t keys = pd_attention_count(a.key_length, kb + 1, KEYS);
            pd_tile_load<D, KEYS>(t.k, k + (uint64_t)(kb + 1) * KEYS * a.ld_kv, a.ld_kv, keys, wide);
        }
        pd_cp_async_commit();
        if (pd_attention_cut(a, item.sequence, r, count, kb * KEYS, KEYS)) forward_mask(a, p, a.key_start + kb * KEYS, x);
        forward_softmax<D>(s, a.scale * PD_LOG2_E, x);
        pd_tile_apply<T, D>(s.o, x, t.v);
    }
    pd_cp_async_wait<0>();
    __syncthreads();
    forward_join<D>(s);
    if (a.last_part)
        forward_finish<T, D>(a, p, s, t.q + own * D, wide);
    else
        forward_carry<D>(a, p, s);
}

template <enum pd_dtype T, int D> static pd_status forward_launch(void *stream, const pd_attention *a, pd_error *err)
{
    const uint64_t tiles = (a->length + QUERIES - 1) / QUERIES, items = tiles * a->sequences * a->heads;
    const bool wide = pd_operands_are_wide(a, NULL) && (!a->last_part || pd_is_wide(a->out, D));
    return PD_LAUNCH(err, (attention_forward_tiles<T, D>), static_cast<unsigned>(items), PD_ATTENTION_THREADS,
                     sizeof(forward_tiles<D>), stream, *a, wide);
}

pd_status pd_attention_tiles_forward(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    return PD_OF_TILES(a, forward_launch, stream, a, err);
}
