/* dK and dV in registers: 16 keys a warp, all columns, as fragments. The gradients of the query heads of a key-value head
 * form the tree of attention_place.h, whose waiting terms lie in the workspace, each thread's own numbers at its own places.
 */
#pragma once

#include "trainer/math/cuda/attention_tile.h"

template <int D> struct keys_sums {
    float dk[1][D / 8][4], dv[1][D / 8][4];
};

/* Of a block: float4 i of this thread, of `threads`, at a level. */
struct keys_waiting {
    float4 *data;
    uint32_t threads, thread;
};

template <int D> PD_DEVICE float4 *keys_waiting_at(const keys_waiting &w, uint32_t level, uint32_t i)
{
    return w.data + ((uint64_t)level * (D / 4) + i) * w.threads + w.thread;
}

template <int D> PD_DEVICE void keys_wait(const keys_sums<D> &sums, const keys_waiting &waiting, uint32_t level)
{
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++) {
        const float(&k)[4] = sums.dk[0][n], (&v)[4] = sums.dv[0][n];
        *keys_waiting_at<D>(waiting, level, 2 * n) = make_float4(k[0], k[1], k[2], k[3]);
        *keys_waiting_at<D>(waiting, level, 2 * n + 1) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

template <int D> PD_DEVICE void keys_join(keys_sums<D> &sums, const keys_waiting &waiting, uint32_t level)
{
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++)
#pragma unroll
        for (uint32_t operand = 0; operand < 2; operand++) {
            float4 left = *keys_waiting_at<D>(waiting, level, 2 * n + operand);
            float(&sum)[4] = operand ? sums.dv[0][n] : sums.dk[0][n];
            sum[0] = left.x + sum[0];
            sum[1] = left.y + sum[1];
            sum[2] = left.z + sum[2];
            sum[3] = left.w + sum[3];
        }
}

template <int D>
PD_DEVICE void keys_grow(const pd_attention &a, uint32_t kv, uint32_t head, uint32_t end, pd_attention_tree &tree,
                         keys_sums<D> &sums, const keys_waiting &waiting)
{
    pd_attention_tree_grow(
        a, kv, head, end, tree, [&](uint32_t level) { keys_join<D>(sums, waiting, level); },
        [&](uint32_t level) { keys_wait<D>(sums, waiting, level); });
}

/* By way of runs of 16 rows of shared memory that are this warp's own; one run may be both. */
template <enum pd_dtype T, int D>
PD_DEVICE void keys_finish(const pd_attention &a, const pd_keys_place &p, const keys_sums<D> &sums, uint16_t *dk_rows,
                           uint16_t *dv_rows, bool wide)
{
    const uint32_t left = p.count > p.own ? p.count - p.own : 0;
    const uint64_t at = (p.row + p.own) * a.ld_dkv + p.kv * D;
    const float scale[2] = {a.scale, a.scale}, one[2] = {1.0f, 1.0f};
    if (a.kv_partial) {
        pd_fragments_put<D>(sums.dk[0], (float *)a.dk + at, a.ld_dkv, 0, left);
        pd_fragments_put<D>(sums.dv[0], (float *)a.dv + at, a.ld_dkv, 0, left);
        return;
    }
    pd_fragments_store<T, D>(sums.dk[0], scale, dk_rows, 0, (uint16_t *)a.dk + at, a.ld_dkv, left, wide);
    __syncwarp();
    pd_fragments_store<T, D>(sums.dv[0], one, dv_rows, 0, (uint16_t *)a.dv + at, a.ld_dkv, left, wide);
}

/* The chains of a query head between calls. */
template <int D>
PD_DEVICE void keys_carry(const pd_attention &a, const pd_keys_place &p, uint32_t head, keys_sums<D> &sums, bool load)
{
    const uint64_t ld = (uint64_t)a.heads * D, at = p.row * ld + head * D;
    if (load) {
        pd_fragments_get<D>(sums.dk[0], a.dk_acc + at, ld, p.own, p.count);
        pd_fragments_get<D>(sums.dv[0], a.dv_acc + at, ld, p.own, p.count);
    } else {
        pd_fragments_put<D>(sums.dk[0], a.dk_acc + at, ld, p.own, p.count);
        pd_fragments_put<D>(sums.dv[0], a.dv_acc + at, ld, p.own, p.count);
    }
}
