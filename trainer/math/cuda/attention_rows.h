/* Work of a warp on 16 queries of one head, the same for mma.sync and wgmma kernels: how a running softmax or dQ begins,
 * continues and ends. Arrays are fragments of attention_tile.h: [half] is row 8 half + lane/4. */
#pragma once

#include "trainer/math/cuda/attention_tile.h"
#include "trainer/math/cuda/functions.h"

#define PD_LOWEST (-1e30f) /* still finite times scale log2 e */

/* Queries from `row` of the sequence, q_row of the arrays; `count` of the 16 exist. */
struct pd_query_rows {
    uint32_t sequence, head, row, count;
    uint64_t q_row;
};

/* The queries from `own` on, of a tile of `tile_count` queries from `row`. */
PD_DEVICE pd_query_rows pd_query_rows_of(const pd_attention &a, uint32_t sequence, uint32_t head, uint32_t row,
                                         uint32_t tile_count, uint32_t own)
{
    return {sequence, head, row + own, tile_count > own ? tile_count - own : 0, (uint64_t)sequence * a.length + row + own};
}

/* ---- forward ---- */

/* sum: four partial sums per row, one per lane; in a later part lane 0 continues from the carried value. */
template <int D>
PD_DEVICE void pd_softmax_start(const pd_attention &a, const pd_query_rows &p, float (&o)[D / 8][4], float (&max)[2],
                                float (&sum)[2])
{
    const uint64_t ld = (uint64_t)a.heads * D;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = pd_fragment_row(half);
        const uint64_t at = (p.q_row + r) * a.heads + p.head;
        const bool carried = !a.first_part && r < p.count;
        max[half] = carried ? a.max[at] : PD_LOWEST;
        sum[half] = carried && (threadIdx.x & 3u) == 0 ? a.sum[at] : 0.0f;
    }
    pd_fragment_zero(o);
    if (!a.first_part) pd_fragments_get<D>(o, a.acc + p.q_row * ld + p.head * D, ld, 0, p.count);
}

template <int N>
PD_DEVICE void pd_softmax_mask(const pd_attention &a, const pd_query_rows &p, uint32_t first_key, float (&x)[N][4])
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const pd_attention_seen seen = pd_attention_seen_by(a, p.sequence, p.row + pd_fragment_row(half));
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t key = first_key + 8 * n + pd_fragment_column() + i;
                if (key < seen.first || key > seen.last) x[n][2 * half + i] = -INFINITY;
            }
    }
}

/* Converts S to P in place; returns the factor for O. */
template <int N>
PD_DEVICE void pd_softmax_step(float c, float (&x)[N][4], float (&row_max)[2], float (&row_sum)[2], float (&rescale)[2])
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        float max = row_max[half], sum = 0.0f;
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
            max = fmaxf(max, fmaxf(x[n][2 * half], x[n][2 * half + 1]));
        max = fmaxf(max, __shfl_xor_sync(PD_WARP_ALL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(PD_WARP_ALL, max, 2));
        const float shift = max * c;
        rescale[half] = pd_exp2_fast((row_max[half] - max) * c);
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t i = 2 * half; i < 2 * half + 2; i++) {
                x[n][i] = pd_exp2_fast(__fmaf_rn(x[n][i], c, -shift));
                sum += x[n][i];
            }
        row_max[half] = max;
        row_sum[half] = __fmaf_rn(row_sum[half], rescale[half], sum);
    }
}

template <int N> PD_DEVICE void pd_softmax_rescale(float (&o)[N][4], const float (&rescale)[2])
{
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            o[n][i] *= rescale[i / 2];
}

/* Last part: writes out and lse; else what the next part continues from. tile: this warp's rows of shared memory. */
template <enum pd_dtype T, int D>
PD_DEVICE void pd_softmax_finish(const pd_attention &a, const pd_query_rows &p, const float (&o)[D / 8][4],
                                 const float (&max)[2], float (&sum)[2], uint16_t *tile)
{
    const uint64_t ld = (uint64_t)a.heads * D, lse = ((uint64_t)p.sequence * a.heads + p.head) * a.length + p.row;
    float scale[2];
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = pd_fragment_row(half);
        const uint64_t at = (p.q_row + r) * a.heads + p.head;
        sum[half] += __shfl_xor_sync(PD_WARP_ALL, sum[half], 1);
        sum[half] += __shfl_xor_sync(PD_WARP_ALL, sum[half], 2);
        scale[half] = 1.0f / sum[half];
        if (r >= p.count || (threadIdx.x & 3u) != 0) continue;
        if (a.last_part) {
            a.lse[lse + r] = __fmaf_rn(max[half], a.scale, pd_log(sum[half]));
        } else {
            a.max[at] = max[half];
            a.sum[at] = sum[half];
        }
    }
    if (a.last_part)
        pd_fragments_store<T, D>(o, scale, tile, 0, (uint16_t *)a.out + p.q_row * ld + p.head * D, ld, p.count);
    else
        pd_fragments_put<D>(o, a.acc + p.q_row * ld + p.head * D, ld, 0, p.count);
}

/* ---- backward: dQ ---- */

/* lse2: infinity if the query does not exist, so that P is 0. */
template <int D>
PD_DEVICE void pd_dq_start(const pd_attention &a, const pd_query_rows &p, float (&dq)[D / 8][4], float (&lse2)[2],
                           float (&delta)[2])
{
    const uint64_t ld = (uint64_t)a.heads * D;
    pd_fragment_zero(dq);
    if (!a.first_part) pd_fragments_get<D>(dq, a.dq_acc + p.q_row * ld + p.head * D, ld, 0, p.count);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = pd_fragment_row(half);
        const uint64_t at = ((uint64_t)p.sequence * a.heads + p.head) * a.length + p.row + r;
        lse2[half] = r < p.count ? a.lse[at] * PD_LOG2_E : INFINITY;
        delta[half] = r < p.count ? a.delta[at] : 0.0f;
    }
}

template <enum pd_dtype T, int D>
PD_DEVICE void pd_dq_finish(const pd_attention &a, const pd_query_rows &p, const float (&dq)[D / 8][4], uint16_t *tile)
{
    const uint64_t ld = (uint64_t)a.heads * D;
    const float scale[2] = {a.scale, a.scale};
    if (a.last_part)
        pd_fragments_store<T, D>(dq, scale, tile, 0, (uint16_t *)a.dq + p.q_row * a.ld_dq + p.head * D, a.ld_dq, p.count);
    else
        pd_fragments_put<D>(dq, a.dq_acc + p.q_row * ld + p.head * D, ld, 0, p.count);
}
