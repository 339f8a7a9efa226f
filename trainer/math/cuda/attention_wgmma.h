/* Shared by attention's kernels for compute capability 9.0. The first warpgroup of a block loads tiles and gives up
 * registers. The others multiply, each for 64 positions of its own. Tiles rotate through stages:
 *
 *   empty -> (copies) full -> (products) empty     `full` counts one arrival and the bytes, `empty` one arrival a warp
 *
 * A sum has the same sequence of steps of 16 as in the mma.sync kernels: see attention_tile.h. */
#pragma once

#include "trainer/math/cuda/attention_tile.h"
#include "trainer/math/cuda/hopper.h"

/* Boxes [columns / 64][rows / 64][64][64]. */
template <int D, uint32_t ROWS> struct alignas(1024) pd_wide_tile {
    uint16_t data[D * ROWS];
};

/* Aligns dynamic shared memory; request 1,024 bytes more. */
template <typename TILES> PD_DEVICE TILES &pd_wide_tiles(unsigned char *shared)
{
    return *reinterpret_cast<TILES *>(shared + (1024u - pd_shared_address(shared) % 1024u) % 1024u);
}

/* Position in a ring of stages. */
struct pd_ring {
    uint32_t stage, parity;
};

template <uint32_t STAGES> PD_DEVICE void pd_ring_next(pd_ring &ring)
{
    const bool over = ring.stage + 1 == STAGES;
    ring.stage = over ? 0 : ring.stage + 1;
    ring.parity ^= over;
}

/* ---- tiles as operands ---- */

/* Matrix descriptor: boxes of 64 columns are `box_bytes` apart, groups of 8 rows 1,024. */
PD_DEVICE uint64_t pd_describe(const uint16_t *at, uint32_t box_bytes)
{
    return (pd_shared_address(at) & 0x3ffffu) >> 4 | (uint64_t)(box_bytes >> 4) << 16 | (uint64_t)(1024u >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Columns [16 k, 16 k + 16) of 64 or ROWS rows from `row`, a multiple of 8. */
template <int D, uint32_t ROWS> PD_DEVICE uint64_t pd_across(const pd_wide_tile<D, ROWS> &tile, uint32_t row, uint32_t k)
{
    return pd_describe(tile.data + row * 64, ROWS * 128) + ((k / 4 * (ROWS * 128) + k % 4 * 32) >> 4);
}

/* Rows [16 k, 16 k + 16), all columns. */
template <int D, uint32_t ROWS> PD_DEVICE uint64_t pd_down(const pd_wide_tile<D, ROWS> &tile, uint32_t k)
{
    return pd_describe(tile.data, ROWS * 128) + ((k * 16 * 128) >> 4);
}

/* c (64, 8 N) = X Y^T over D, X 64 rows, Y 8 N rows. */
template <enum pd_dtype T, int D, int N, uint32_t ROWS>
PD_DEVICE void pd_wide_scores(float (&c)[N][4], const pd_wide_tile<D, 64> &x, const pd_wide_tile<D, ROWS> &y)
{
    pd_wgmma<T, false>(c, pd_across(x, 0, 0), pd_across(y, 0, 0));
#pragma unroll
    for (uint32_t k = 1; k < D / 16; k++)
        pd_wgmma<T, true>(c, pd_across(x, 0, k), pd_across(y, 0, k));
}

/* The same with X in registers. */
template <enum pd_dtype T, int D, int N, uint32_t ROWS>
PD_DEVICE void pd_wide_scores(float (&c)[N][4], const uint32_t (&x)[D / 16][4], const pd_wide_tile<D, ROWS> &y)
{
    pd_wgmma<T, false, false>(c, x[0], pd_across(y, 0, 0));
#pragma unroll
    for (uint32_t k = 1; k < D / 16; k++)
        pd_wgmma<T, true, false>(c, x[k], pd_across(y, 0, k));
}

/* o (64, D) += P Y over 16 K rows of Y. */
template <enum pd_dtype T, int D, int K, uint32_t ROWS>
PD_DEVICE void pd_wide_apply(float (&o)[D / 8][4], const uint32_t (&p)[K][4], const pd_wide_tile<D, ROWS> &y)
{
#pragma unroll
    for (uint32_t k = 0; k < K; k++)
        pd_wgmma<T, true, true>(o, p[k], pd_down(y, k));
}

/* The same, started and waited for. */
template <enum pd_dtype T, int D, int K, uint32_t ROWS>
PD_DEVICE void pd_wide_apply_now(float (&o)[D / 8][4], const uint32_t (&p)[K][4], const pd_wide_tile<D, ROWS> &y)
{
    pd_wgmma_pin(o);
    pd_wgmma_fence();
    pd_wide_apply<T>(o, p, y);
    pd_wgmma_commit();
    pd_wgmma_wait<0>();
    pd_wgmma_pin(o);
}

/* Scores as an operand, rounded. */
template <enum pd_dtype T, int N> PD_DEVICE void pd_wide_pack(uint32_t (&p)[N / 2][4], const float (&x)[N][4])
{
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            p[k][i] = pd_pack<T>(x[2 * k + i / 2][2 * (i % 2)], x[2 * k + i / 2][2 * (i % 2) + 1]);
}

/* This warp's 16 rows of the warpgroup's 64, as an operand. */
template <int D> PD_DEVICE void pd_wide_rows(uint32_t (&a)[D / 16][4], const pd_wide_tile<D, 64> &tile)
{
    const uint32_t lane = threadIdx.x & 31u, row = threadIdx.x / 32 % 4 * 16 + (lane & 15u), beside = lane >> 4;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++)
        pd_ldmatrix_x4(a[k], tile.data + k / 4 * (64 * 64) + row * 64 + (((k % 4 * 2 + beside) ^ (row & 7u)) * 8));
}

/* ---- the warp that loads tiles ---- */

/* One head of one sequence. */
struct pd_wide_source {
    const pd_tensor_map *map;
    uint32_t sequence, column;
};

/* Loads rows from `row` on into the tile, zeros beyond the end; called by a whole warp. */
template <int D, uint32_t ROWS>
PD_DEVICE void pd_wide_load(pd_wide_tile<D, ROWS> &tile, const pd_wide_source &s, uint32_t row, uint64_t *full)
{
    if ((threadIdx.x & 31u) != 0) return;
#pragma unroll
    for (uint32_t i = 0; i < D / 64 * (ROWS / 64); i++) {
        const uint32_t half = i / (ROWS / 64), down = i % (ROWS / 64) * 64;
        pd_box_load(tile.data + i * (64 * 64), s.map, s.column + 64 * half, row + down, s.sequence, full);
    }
}

/* All loads of a stage, `bytes` in all, are started; called by a whole warp. */
PD_DEVICE void pd_wide_filled(uint64_t *full, uint32_t bytes)
{
    __syncwarp();
    if ((threadIdx.x & 31u) == 0) pd_barrier_arrive_expect(full, bytes);
}

/* ---- the warps that multiply ---- */

/* This warp no longer reads the stage. */
PD_DEVICE void pd_wide_emptied(uint64_t *empty)
{
    __syncwarp();
    if ((threadIdx.x & 31u) == 0) pd_barrier_arrive(empty);
}

/* For a warpgroup that has finished with `tile`: space to reorder fragments, 16 rows per warp. */
template <int D> PD_DEVICE uint16_t *pd_wide_scratch(pd_wide_tile<D, 64> &tile)
{
    return tile.data + threadIdx.x / 32 % 4 * (16 * D);
}

/* Called by one thread, before a barrier of all. */
PD_DEVICE void pd_barriers_init(uint64_t *barriers, uint32_t count, uint32_t arrivals)
{
    for (uint32_t i = 0; i < count; i++)
        pd_barrier_init(barriers + i, arrivals);
}
