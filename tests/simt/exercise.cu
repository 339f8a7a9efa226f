#include "trainer/math/cuda/grid.h"

#include "tests/simt/exercise.h"

static __global__ void places(unsigned *out)
{
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned all[12] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z,
                              blockDim.x,  blockDim.y,  blockDim.z,  gridDim.x,  gridDim.y,  gridDim.z};
    for (unsigned i = 0; i < 12; i++)
        out[(block * blockDim.x * blockDim.y * blockDim.z + thread) * 12 + i] = all[i];
}

pd_status exercise_places(unsigned *out, struct pd_error *err)
{
    return PD_LAUNCH(err, places, dim3(2, 3, 4), dim3(2, 5, 3), 0, nullptr, out);
}

static __global__ void reverse(unsigned n, const float *x, float *out)
{
    PD_SHARED_DYNAMIC(bytes);
    float *const tile = reinterpret_cast<float *>(bytes);
    const unsigned first = blockIdx.x * blockDim.x, i = first + threadIdx.x;
    const unsigned count = n - first < blockDim.x ? n - first : blockDim.x;
    if (i < n) tile[threadIdx.x] = x[i];
    __syncthreads();
    if (i < n) out[i] = tile[count - 1 - threadIdx.x];
}

pd_status exercise_reverse(unsigned n, const float *x, float *out, struct pd_error *err)
{
    return PD_LAUNCH(err, reverse, (n + 63) / 64, 64, 64 * sizeof(float), nullptr, n, x, out);
}

static __global__ void warp_operations(int *out)
{
    const int i = (int)threadIdx.x, lane = i % 32;
    int *row = out + 8 * i;
    row[0] = __shfl_sync(PD_WARP_ALL, i, 5);
    row[1] = __shfl_xor_sync(PD_WARP_ALL, i, 3);
    row[2] = __shfl_down_sync(PD_WARP_ALL, i, 4);
    row[3] = __shfl_up_sync(PD_WARP_ALL, i, 4);
    row[4] = __shfl_sync(PD_WARP_ALL, i, 1, 8);
    row[5] = (int)__ballot_sync(PD_WARP_ALL, lane % 3 == 0);
    row[6] = __any_sync(PD_WARP_ALL, i == 40);
    row[7] = __all_sync(PD_WARP_ALL, i < 32);
    __syncwarp();
}

pd_status exercise_warp(int *out, struct pd_error *err)
{
    return PD_LAUNCH(err, warp_operations, 1, 64, 0, nullptr, out);
}

/* The halves shuffle a different number of times. */
static __global__ void half_warps(int *out)
{
    const unsigned lane = threadIdx.x, half = lane / 16, mask = half ? 0xffff0000u : 0x0000ffffu;
    int value = (int)lane;
    for (unsigned i = 0; i < (half ? 9u : 2u); i++)
        value += __shfl_xor_sync(mask, value, 1);
    __syncwarp();
    out[lane] = __shfl_sync(PD_WARP_ALL, value, (int)(lane ^ 16));
}

pd_status exercise_half_warps(int *out, struct pd_error *err)
{
    return PD_LAUNCH(err, half_warps, 1, 32, 0, nullptr, out);
}

static __global__ void atomics(unsigned long long *out)
{
    const unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], i);
    atomicMax(&out[1], i);
}

pd_status exercise_atomics(unsigned n, unsigned long long *out, struct pd_error *err)
{
    return PD_LAUNCH(err, atomics, n / 32, 32, 0, nullptr, out);
}

/* B lies row-major, so that its fragments are those of transposed matrices. */
template <enum pd_dtype D> static __global__ void product(const uint16_t *a, const uint16_t *b, float *c)
{
    PD_SHARED(uint16_t, rows_a, [16][16]);
    PD_SHARED(uint16_t, rows_b, [16][8]);
    const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
    pd_cp_async16(&rows_a[lane / 2][lane % 2 * 8], a + lane * 8, true);
    if (lane < 16) pd_cp_async16(&rows_b[lane][0], b + lane * 8, true);
    pd_cp_async_commit();
    pd_cp_async_wait<0>();
    __syncthreads();
    uint32_t fragment_a[4], fragment_b[4];
    pd_ldmatrix_x4(fragment_a, &rows_a[lane % 16][lane / 16 * 8]);
    pd_ldmatrix_x4_trans(fragment_b, &rows_b[lane % 16][0]);
    float sums[4] = {0, 0, 0, 0};
    const uint32_t used[2] = {fragment_b[0], fragment_b[1]};
    pd_mma_m16n8k16<D>(sums, fragment_a, used);
    for (unsigned i = 0; i < 4; i++)
        c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

pd_status exercise_mma(enum pd_dtype dtype, const uint16_t *a, const uint16_t *b, float *c, struct pd_error *err)
{
    if (dtype == PD_BF16) return PD_LAUNCH(err, product<PD_BF16>, 1, 32, 0, nullptr, a, b, c);
    return PD_LAUNCH(err, product<PD_F16>, 1, 32, 0, nullptr, a, b, c);
}

/* Two groups, the second of zeros; waits for both (0), for the older (1), then looks. */
static __global__ void async(unsigned wait, const uint16_t *from, uint16_t *out)
{
    PD_SHARED(uint16_t, tile, [2][8]);
    pd_cp_async16(tile[0], from, true);
    pd_cp_async_commit();
    pd_cp_async16(tile[1], from, false);
    pd_cp_async_commit();
    if (wait == 0) pd_cp_async_wait<0>();
    if (wait == 1) pd_cp_async_wait<1>();
    for (unsigned i = 0; i < 16; i++)
        out[i] = tile[i / 8][i % 8];
    pd_cp_async_wait<0>();
}

pd_status exercise_async(unsigned wait, const uint16_t *from, uint16_t *out, struct pd_error *err)
{
    return PD_LAUNCH(err, async, 1, 1, 0, nullptr, wait, from, out);
}

static __global__ void halve(float x, float *out)
{
    *out = __fmul_rn(x, 0.5f);
}

pd_status exercise_denormal(float x, float *out, struct pd_error *err)
{
    return PD_LAUNCH(err, halve, 1, 1, 0, nullptr, x, out);
}

static __global__ void barrier_in_branch(int never)
{
    if (threadIdx.x < 40) __syncthreads();
    if (threadIdx.x >= 40) __shfl_sync(0xffffff00u, never, 8);
}

pd_status exercise_barrier_in_branch(struct pd_error *err)
{
    return PD_LAUNCH(err, barrier_in_branch, 2, 64, 0, nullptr, 0);
}

static __global__ void barrier_after_return(unsigned first)
{
    if (threadIdx.x >= first) return;
    __syncthreads();
}

pd_status exercise_barrier_after_return(struct pd_error *err)
{
    return PD_LAUNCH(err, barrier_after_return, 2, dim3(8, 8), 0, nullptr, 5u);
}

static __global__ void warp_in_branch(int value)
{
    if (threadIdx.x != 9) __shfl_sync(PD_WARP_ALL, value, 0);
}

pd_status exercise_warp_in_branch(struct pd_error *err)
{
    return PD_LAUNCH(err, warp_in_branch, 1, 32, 0, nullptr, 1);
}

static __global__ void two_operations(int value)
{
    if (threadIdx.x % 2)
        __shfl_sync(PD_WARP_ALL, value, 0);
    else
        __syncwarp();
}

pd_status exercise_two_operations(struct pd_error *err)
{
    return PD_LAUNCH(err, two_operations, 1, 32, 0, nullptr, 1);
}

static __global__ void unwritten(float *out)
{
    PD_SHARED(float, tile, [32]);
    if (threadIdx.x != 7) tile[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

pd_status exercise_unwritten(float *out, struct pd_error *err)
{
    return PD_LAUNCH(err, unwritten, 1, 32, 0, nullptr, out);
}

static __global__ void beyond(float *out, unsigned by)
{
    PD_SHARED(float, tile, [32]);
    float *const first = tile;
    first[threadIdx.x + by] = 1;
    out[threadIdx.x] = first[threadIdx.x + by];
}

pd_status exercise_beyond(float *out, struct pd_error *err)
{
    return PD_LAUNCH(err, beyond, 1, 32, 0, nullptr, out, 1u);
}

static __global__ void missing_barrier(float *out)
{
    PD_SHARED(float, tile, [64]);
    tile[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = tile[63 - threadIdx.x];
}

pd_status exercise_missing_barrier(float *out, struct pd_error *err)
{
    return PD_LAUNCH(err, missing_barrier, 1, 64, 0, nullptr, out);
}

static __global__ void never_waits(const uint16_t *from)
{
    PD_SHARED(uint16_t, tile, [8]);
    pd_cp_async16(tile, from, true);
    pd_cp_async_commit();
}

pd_status exercise_never_waits(const uint16_t *from, struct pd_error *err)
{
    return PD_LAUNCH(err, never_waits, 1, 1, 0, nullptr, from);
}

static __global__ void crooked_row(unsigned by)
{
    PD_SHARED(uint16_t, tile, [16 * 16]);
    uint32_t r[4];
    pd_ldmatrix_x4(r, &tile[threadIdx.x % 16 * 8 + by]);
}

pd_status exercise_crooked_row(struct pd_error *err)
{
    return PD_LAUNCH(err, crooked_row, 1, 32, 0, nullptr, 4u);
}

pd_status exercise_too_much_shared(struct pd_error *err)
{
    return PD_LAUNCH(err, barrier_after_return, 1, 32, 240000, nullptr, 32u);
}

pd_status exercise_too_much_shared_together(float *out, struct pd_error *err)
{
    return PD_LAUNCH(err, unwritten, 1, 32, 49152, nullptr, out);
}

pd_status exercise_too_many_threads(struct pd_error *err)
{
    return PD_LAUNCH(err, barrier_after_return, 1, dim3(64, 32), 0, nullptr, 32u);
}
