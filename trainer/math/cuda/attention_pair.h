/* Shared by the two backward passes of attention. A block of four warps stays at 64 positions of one side, each warp at 16
 * of them. Tiles of 64 of the other side pass by; the next one loads while one is used:
 *
 *   queries  stay Q, dO    pass K, V    S = Q K^T     dP = dO V^T     dQ += dS K
 *   keys     stay K, V     pass Q, dO   S^T = K Q^T   dP^T = V dO^T   dK += dS^T Q, dV += P^T dO
 *
 * with P = 2^(c S - log2(e) lse), c = scale log2 e, dS = P (dP - delta). Sums go over ascending positions. */
#pragma once

#include "trainer/math/cuda/attention_tile.h"

#define PD_PAIR 64u /* positions per tile, either side */
#define PD_PAIR_PIECES (PD_PAIR / 8)

template <int D> struct pd_pair_tiles {
    uint16_t stays[2][PD_PAIR * D];
    uint16_t passes[2][2][PD_PAIR * D]; /* [stage][operand] */
};

static_assert(sizeof(pd_pair_tiles<128>) <= PD_SHARED_EVERYWHERE, "some GPUs have less");

using pd_pair_scores = float[1][PD_PAIR_PIECES][4];

/* One tile of two arrays with rows ld[i] apart. */
template <int D>
PD_DEVICE void pd_pair_load(uint16_t (&tiles)[2][PD_PAIR * D], const uint16_t *const (&src)[2], const uint64_t (&ld)[2],
                            uint32_t tile, uint32_t length)
{
    uint32_t count = pd_attention_count(length, tile, PD_PAIR);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        pd_tile_load<D, PD_PAIR>(tiles[i], src[i] + (uint64_t)tile * PD_PAIR * ld[i], ld[i], count);
}

/* Computes S and dP for this warp's 16 staying rows. */
template <enum pd_dtype T, int D>
PD_DEVICE void pd_pair_products(pd_pair_scores &s, pd_pair_scores &dp, const uint16_t (&stays)[2][PD_PAIR * D],
                                const uint16_t (&passes)[2][PD_PAIR * D])
{
    const uint32_t row = threadIdx.x / 32 * 16;
    pd_fragments_zero(s);
    pd_fragments_zero(dp);
    pd_tile_scores<T, D>(s, stays[0], row, passes[0]);
    pd_tile_scores<T, D>(dp, stays[1], row, passes[1]);
}

/* Converts S to P and dP to dS. */
PD_DEVICE void pd_pair_gradient(float &s, float &dp, float c, float lse2, float delta, bool seen)
{
    s = seen ? pd_exp2_fast(__fmaf_rn(s, c, -lse2)) : 0.0f;
    dp = s * (dp - delta);
}
