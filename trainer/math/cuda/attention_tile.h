/* Tiles of 16-bit numbers in shared memory, and tensor core steps over them.
 *
 * A tile is (rows, D), rows a multiple of 16. The 16-byte chunk c of row r is stored at c ^ (r & 7), so the eight rows of an
 * ldmatrix are in different banks. Fragments are those of mma.m16n8k16: in a 16 x 8 piece of C, lane l has columns 2 (l & 3)
 * and the next, of row l/4 in c[0], c[1] and of row l/4 + 8 in c[2], c[3].
 *
 * A product sums tensor core steps of 16 along k, ascending, so tile sizes do not affect the bits. */
#pragma once

#include "trainer/math/cuda/attention_items.h"
#include "trainer/math/cuda/element.h"

#define PD_ATTENTION_THREADS 128u
#define PD_LOG2_E 1.4426950408889634f

/* Packs two adjacent elements of C. */
template <enum pd_dtype T>
PD_DEVICE void pd_mma_pair(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4])
{
    const uint32_t b_left[2] = {b[0], b[1]}, b_right[2] = {b[2], b[3]};
    pd_mma_m16n8k16<T>(left, a, b_left);
    pd_mma_m16n8k16<T>(right, a, b_right);
}

template <int D> PD_DEVICE uint32_t pd_tile_at(uint32_t row, uint32_t chunk)
{
    return row * D + ((chunk ^ (row & 7u)) * 8u);
}

/* Starts loading (count, D), rows ld apart, 16-byte aligned, to tile (ROWS, D), zero-padded. Then commit and wait. */
template <int D, uint32_t ROWS> PD_DEVICE void pd_tile_load(uint16_t *tile, const uint16_t *src, uint64_t ld, uint32_t count)
{
    constexpr uint32_t chunks = D / 8, step = PD_ATTENTION_THREADS / chunks; /* rows per round, a multiple of 8 */
    const uint32_t row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    uint16_t *to = tile + pd_tile_at<D>(row, chunk);
    const uint16_t *from = src + row * ld + chunk * 8;
#pragma unroll 2 /* forward spills if more addresses are live */
    for (uint32_t i = 0; i < ROWS / step; i++)
        pd_cp_async16(to + i * step * D, from + i * step * ld, row + i * step < count);
}

/* This lane's address for an ldmatrix of four pieces, two by two: rows from `row`, a multiple of 8, and 16 columns from 16
 * k. down: pieces go downwards first, else sideways. */
template <int D> PD_DEVICE const uint16_t *pd_tile_pieces(const uint16_t *tile, uint32_t row, uint32_t k, bool down)
{
    const uint32_t lane = threadIdx.x & 31u, eight = lane & 7u, low = lane >> 3 & 1u, high = lane >> 4;
    const uint32_t below = down ? low : high, beside = down ? high : low;
    return tile + (row + 8 * below + eight) * D + ((beside ^ eight) ^ 2 * k) * 8;
}

/* Loads A (16, 16). */
template <int D> PD_DEVICE void pd_tile_a(uint32_t (&a)[4], const uint16_t *tile, uint32_t row, uint32_t k)
{
    pd_ldmatrix_x4(a, pd_tile_pieces<D>(tile, row, k, true));
}

/* Loads B (16, 16), two pieces of n; rows of the tile are n, columns k. */
template <int D> PD_DEVICE void pd_tile_b(uint32_t (&b)[4], const uint16_t *tile, uint32_t row, uint32_t k)
{
    pd_ldmatrix_x4(b, pd_tile_pieces<D>(tile, row, k, false));
}

/* The same; rows of the tile are k, columns n. */
template <int D> PD_DEVICE void pd_tile_b_turned(uint32_t (&b)[4], const uint16_t *tile, uint32_t row, uint32_t n)
{
    pd_ldmatrix_x4_trans(b, pd_tile_pieces<D>(tile, row, n, true));
}

/* c (16 M, 8 N) += X Y^T over D; X rows from `row`, Y rows from 0. */
template <enum pd_dtype T, int D, int M, int N>
PD_DEVICE void pd_tile_scores(float (&c)[M][N][4], const uint16_t *x, uint32_t row, const uint16_t *y)
{
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (uint32_t m = 0; m < M; m++)
            pd_tile_a<D>(a[m], x, row + 16 * m, k);
#pragma unroll
        for (uint32_t n = 0; n < N; n += 2) {
            uint32_t b[4];
            pd_tile_b<D>(b, y, 8 * n, k);
#pragma unroll
            for (uint32_t m = 0; m < M; m++)
                pd_mma_pair<T>(c[m][n], c[m][n + 1], a[m], b);
        }
    }
}

/* o (16 M, D) += P Y over 8 N rows of Y; P is rounded, as fragments of scores. */
template <enum pd_dtype T, int D, int M, int N>
PD_DEVICE void pd_tile_apply(float (&o)[M][D / 8][4], const float (&p)[M][N][4], const uint16_t *y)
{
#pragma unroll
    for (uint32_t k = 0; k < N / 2; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (uint32_t m = 0; m < M; m++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                a[m][i] = pd_pack<T>(p[m][2 * k + i / 2][2 * (i % 2)], p[m][2 * k + i / 2][2 * (i % 2) + 1]);
#pragma unroll
        for (uint32_t n = 0; n < D / 16; n++) {
            uint32_t b[4];
            pd_tile_b_turned<D>(b, y, 16 * k, n);
#pragma unroll
            for (uint32_t m = 0; m < M; m++)
                pd_mma_pair<T>(o[m][2 * n], o[m][2 * n + 1], a[m], b);
        }
    }
}

template <int N> PD_DEVICE void pd_fragment_zero(float (&c)[N][4])
{
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            c[n][i] = 0.0f;
}

template <int M, int N> PD_DEVICE void pd_fragments_zero(float (&c)[M][N][4])
{
#pragma unroll
    for (uint32_t m = 0; m < M; m++)
        pd_fragment_zero(c[m]);
}

/* Row, and column, in a 16 x 8 piece of this lane's c[2 half]. */
PD_DEVICE uint32_t pd_fragment_row(uint32_t half)
{
    return ((threadIdx.x & 31u) >> 2) + 8u * half;
}

PD_DEVICE uint32_t pd_fragment_column()
{
    return 2u * (threadIdx.x & 3u);
}

/* Stores c (16, D) times scale[half], rounded, to rows of dst (count of them exist), through rows [row, row + 16) of `tile`,
 * which this warp owns and no longer reads. */
template <enum pd_dtype T, int D>
PD_DEVICE void pd_fragments_store(const float (&c)[D / 8][4], const float (&scale)[2], uint16_t *tile, uint32_t row,
                                  uint16_t *dst, uint64_t ld, uint32_t count)
{
    constexpr uint32_t chunks = D / 8;
    uint32_t column = pd_fragment_column(), lane = threadIdx.x & 31u;
#pragma unroll
    for (uint32_t n = 0; n < chunks; n++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t *to = (uint32_t *)(tile + pd_tile_at<D>(row + pd_fragment_row(half), n) + column);
            *to = pd_pack<T>(c[n][2 * half] * scale[half], c[n][2 * half + 1] * scale[half]);
        }
    __syncwarp();
    for (uint32_t i = lane; i < 16 * chunks; i += 32) {
        uint32_t r = row + i / chunks, chunk = i % chunks;
        if (r < count) *(uint4 *)(dst + r * ld + chunk * 8) = *(const uint4 *)(tile + pd_tile_at<D>(r, chunk));
    }
}

/* Copies fp32 c (16, D) to or from rows of `dst` from `row` on; `count` of them exist. */
template <int D>
PD_DEVICE void pd_fragments_put(const float (&c)[D / 8][4], float *dst, uint64_t ld, uint32_t row, uint32_t count)
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t r = row + pd_fragment_row(half);
        if (r >= count) continue;
        float *to = dst + r * ld + pd_fragment_column();
#pragma unroll
        for (uint32_t n = 0; n < D / 8; n++) {
            to[8 * n] = c[n][2 * half];
            to[8 * n + 1] = c[n][2 * half + 1];
        }
    }
}

template <int D>
PD_DEVICE void pd_fragments_get(float (&c)[D / 8][4], const float *src, uint64_t ld, uint32_t row, uint32_t count)
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t r = row + pd_fragment_row(half);
        bool there = r < count;
        const float *from = src + (there ? r * ld : 0) + pd_fragment_column();
#pragma unroll
        for (uint32_t n = 0; n < D / 8; n++) {
            c[n][2 * half] = there ? from[8 * n] : 0.0f;
            c[n][2 * half + 1] = there ? from[8 * n + 1] : 0.0f;
        }
    }
}

/* Calls launch<T, D>(arguments) with the dtype and head size of a. */
#define PD_OF_TILES(a, launch, ...)                                                                                      \
    ((a)->head_size == 64 ? ((a)->dtype == PD_BF16 ? launch<PD_BF16, 64>(__VA_ARGS__) : launch<PD_F16, 64>(__VA_ARGS__)) \
                          : ((a)->dtype == PD_BF16 ? launch<PD_BF16, 128>(__VA_ARGS__) : launch<PD_F16, 128>(__VA_ARGS__)))
