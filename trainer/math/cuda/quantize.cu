/* fp8 codes: first the largest absolute value, then every element and, if requested, its transpose through a tile in shared
 * memory. A block has a tile of 64 x 64, each thread four columns of four rows. */
#include "trainer/math/cuda/element.h"

#include "trainer/math/fp8.h"

#define SIDE 64u
#define EACH 4u
#define LINES (SIDE / EACH)
#define THREADS (LINES * LINES)
#define PAD 4u /* words stay aligned, and rows begin in different banks */

struct quantize_job {
    struct pd_quantize q;
    uint32_t *largest;                      /* after the scale; bits of absolute values compare as integers */
    bool wide, wide_codes, wide_transposed; /* four at a time */
};

static __global__ void begin(uint32_t *largest)
{
    *largest = 0;
}

/* Four neighbours of a row, 0 outside. */
template <enum pd_dtype D> PD_DEVICE void four(const struct quantize_job &j, uint64_t row, uint64_t column, float (&x)[EACH])
{
    const uint64_t at = row * j.q.x.ld + column;
    const bool inside = row < j.q.rows;
    if (inside && j.wide && column + EACH <= j.q.columns) {
        pd_get_n<D, EACH>(j.q.x.data, at, x);
        return;
    }
    for (uint32_t i = 0; i < EACH; i++)
        x[i] = inside && column + i < j.q.columns ? pd_get<D>(j.q.x.data, at + i) : 0.0f;
}

template <enum pd_dtype D> static __global__ void __launch_bounds__(THREADS) find_largest(struct quantize_job j)
{
    PD_SHARED(uint32_t, of_warps, [THREADS / PD_WARP]);
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * SIDE + threadIdx.x % LINES * EACH;
    const uint64_t first_row = static_cast<uint64_t>(blockIdx.y) * SIDE + threadIdx.x / LINES;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < EACH; i++) {
        float x[EACH];
        four<D>(j, first_row + i * LINES, column, x);
        for (uint32_t k = 0; k < EACH; k++) {
            const uint32_t size = __float_as_uint(x[k]) & 0x7fffffffu;
            largest = size > largest ? size : largest;
        }
    }
    for (uint32_t half = PD_WARP / 2; half >= 1; half /= 2) {
        const uint32_t other = __shfl_xor_sync(PD_WARP_ALL, largest, static_cast<int>(half));
        largest = other > largest ? other : largest;
    }
    if (threadIdx.x % PD_WARP == 0) of_warps[threadIdx.x / PD_WARP] = largest;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (uint32_t i = 1; i < THREADS / PD_WARP; i++)
        largest = of_warps[i] > largest ? of_warps[i] : largest;
    atomicMax(j.largest, largest);
}

PD_DEVICE void put_four(uint8_t *to, uint32_t word, uint64_t place, uint64_t places, bool wide)
{
    if (wide && place + EACH <= places) {
        *reinterpret_cast<uint32_t *>(to) = word;
        return;
    }
    for (uint32_t i = 0; i < EACH && place + i < places; i++)
        to[i] = static_cast<uint8_t>(word >> 8 * i);
}

template <enum pd_dtype D> static __global__ void __launch_bounds__(THREADS) write_codes(struct quantize_job j)
{
    PD_SHARED(uint8_t, tile, [SIDE][SIDE + PAD]);
    const uint32_t x = threadIdx.x % LINES, y = threadIdx.x / LINES;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * SIDE + x * EACH;
    const uint64_t first_row = static_cast<uint64_t>(blockIdx.y) * SIDE;
    const float scale = pd_fp8_scale_of(j.q.format, *j.largest), inverse = pd_fp8_inverse(scale);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *j.q.scale = scale;
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t line = y + i * LINES;
        const uint64_t row = first_row + line;
        float values[EACH];
        uint32_t word = 0;
        four<D>(j, row, column, values);
        for (uint32_t k = 0; k < EACH; k++) {
            const uint8_t code = pd_fp8_of_f32(j.q.format, __fmul_rn(values[k], inverse));
            word |= static_cast<uint32_t>(code) << 8 * k;
            tile[x * EACH + k][line] = code;
        }
        if (j.q.codes && row < j.q.rows)
            put_four(j.q.codes + row * j.q.ld_codes + column, word, column, j.q.columns, j.wide_codes);
    }
    if (!j.q.transposed) return;
    __syncthreads();
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t line = y + i * LINES;
        const uint64_t to_row = static_cast<uint64_t>(blockIdx.x) * SIDE + line, to_column = first_row + x * EACH;
        if (to_row >= j.q.columns) continue;
        const uint32_t word = *reinterpret_cast<const uint32_t *>(&tile[line][x * EACH]);
        put_four(j.q.transposed + to_row * j.q.ld_transposed + to_column, word, to_column, j.q.transposed_rows,
                 j.wide_transposed);
    }
}

static bool is_wide(const void *data, uint64_t ld_bytes, uint64_t bytes)
{
    return (reinterpret_cast<uintptr_t>(data) | ld_bytes) % bytes == 0;
}

#define ROW_BLOCKS 65535u

pd_status pd_cuda_quantize(void *stream, const struct pd_quantize *q, struct pd_error *err)
{
    const uint64_t element = pd_dtype_bytes(q->x.dtype);
    const unsigned row_blocks = pd_blocks(q->rows, SIDE);
    const dim3 grid(pd_blocks(q->columns, SIDE), row_blocks);
    const struct quantize_job j = {*q, reinterpret_cast<uint32_t *>(q->scale + 1),
                                   is_wide(q->x.data, q->x.ld * element, EACH * element),
                                   is_wide(q->codes, q->ld_codes, EACH), is_wide(q->transposed, q->ld_transposed, EACH)};
    if (row_blocks > ROW_BLOCKS)
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0, "fp8: %llu rows at once; the most is %u",
                            static_cast<unsigned long long>(q->rows), ROW_BLOCKS * SIDE);
    PD_TRY(PD_LAUNCH(err, begin, 1, 1, 0, stream, j.largest));
    PD_WITH_DTYPE(q->x.dtype, D, PD_TRY(PD_LAUNCH(err, find_largest<D>, grid, THREADS, 0, stream, j)));
    PD_WITH_DTYPE(q->x.dtype, D, return PD_LAUNCH(err, write_codes<D>, grid, THREADS, 0, stream, j));
}
