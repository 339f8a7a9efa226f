/* dK and dV in registers as fragments: 16 keys per warp, all columns. */
#pragma once

#include "trainer/math/cuda/attention_tile.h"

template <int D> struct keys_sums {
    float dk[1][D / 8][4], dv[1][D / 8][4];
};

/* Goes through runs of 16 rows of shared memory that this warp owns; both may be the same run. */
template <enum pd_dtype T, int D>
PD_DEVICE void keys_finish(const pd_attention &a, const pd_keys_place &p, const keys_sums<D> &sums, uint16_t *dk_rows,
                           uint16_t *dv_rows)
{
    const uint32_t left = p.count > p.own ? p.count - p.own : 0;
    const uint64_t at = (p.row + p.own) * a.ld_dkv + p.kv * D;
    const float scale[2] = {a.scale, a.scale}, one[2] = {1.0f, 1.0f};
    if (a.kv_partial) {
        pd_fragments_put<D>(sums.dk[0], (float *)a.dk + at, a.ld_dkv, 0, left);
        pd_fragments_put<D>(sums.dv[0], (float *)a.dv + at, a.ld_dkv, 0, left);
        return;
    }
    pd_fragments_store<T, D>(sums.dk[0], scale, dk_rows, 0, (uint16_t *)a.dk + at, a.ld_dkv, left);
    __syncwarp();
    pd_fragments_store<T, D>(sums.dv[0], one, dv_rows, 0, (uint16_t *)a.dv + at, a.ld_dkv, left);
}

/* Loads or stores the chains of a query head between calls, or its terms. */
template <int D> PD_DEVICE void keys_carry(const pd_attention &a, const pd_keys_place &p, keys_sums<D> &sums, bool load)
{
    const uint64_t ld = (uint64_t)a.heads * D, at = p.row * ld + p.head * D;
    if (load) {
        pd_fragments_get<D>(sums.dk[0], a.dk_acc + at, ld, p.own, p.count);
        pd_fragments_get<D>(sums.dv[0], a.dv_acc + at, ld, p.own, p.count);
    } else {
        pd_fragments_put<D>(sums.dk[0], a.dk_acc + at, ld, p.own, p.count);
        pd_fragments_put<D>(sums.dv[0], a.dv_acc + at, ld, p.own, p.count);
    }
}
