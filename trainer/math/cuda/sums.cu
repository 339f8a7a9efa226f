/* Sums down columns (like gradients of norms: 64 lines of threads, each with every 64th row, then a tree of lines), squares
 * along rows in fp64 (the CPU's sixteen lanes and bits), and exact sums. */
#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/functions.h"

#define COLUMNS 16u
#define LINES 64u
#define ROWS 16u /* of a block of squares */
#define EXACT_BLOCKS_MAX 128u
#define TERMS_PER_THREAD 4u

template <enum pd_dtype D>
static __global__ void __launch_bounds__(COLUMNS *LINES)
    column_sums(uint64_t rows, uint64_t n, uint64_t ld, const void *x, float *out)
{
    PD_SHARED(float, sums, [LINES][COLUMNS]);
    const unsigned line = threadIdx.y, lane = threadIdx.x;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * COLUMNS + lane;
    float sum = 0.0f;
    const auto load = [&](uint64_t row) { return pd_get<D>(x, row * ld + column); };
    if (column < n) pd_in_order<8>(line, rows, LINES, load, [&](float term) { sum = sum + term; });
    sums[line][lane] = sum;
    for (unsigned half = LINES / 2; half >= 1; half /= 2) {
        __syncthreads();
        if (line < half) sums[line][lane] += sums[line + half][lane];
    }
    if (line == 0 && column < n) out[column] = sums[0][lane];
}

pd_status pd_cuda_column_sum(void *stream, uint64_t rows, uint64_t n, uint64_t ld, enum pd_dtype dtype, const void *x,
                             float *out, struct pd_error *err)
{
    PD_WITH_DTYPE(
        dtype, D,
        return PD_LAUNCH(err, column_sums<D>, pd_blocks(n, COLUMNS), dim3(COLUMNS, LINES), 0, stream, rows, n, ld, x, out));
}

static __global__ void squares(uint64_t rows, uint64_t columns, const float *x, double *sums)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROWS + threadIdx.x / PD_LANES;
    const unsigned lane = threadIdx.x % PD_LANES;
    double sum = 0.0;
    const auto load = [&](uint64_t i) { return x[row * columns + i]; };
    const auto add = [&](float term) { /* the square of an fp32 number is exact */
                                       const double wide = static_cast<double>(term);
                                       sum = __dadd_rn(sum, __dmul_rn(wide, wide));
    };
    if (row < rows) pd_in_order<8>(lane, columns, PD_LANES, load, add);
    sum = pd_lanes_sum(sum);
    if (lane == 0 && row < rows) sums[row] = sum;
}

/* Rows of one element: a tensor of one dimension. */
static __global__ void squares_of_one(uint64_t rows, const float *x, double *sums)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row < rows) sums[row] = __dmul_rn(static_cast<double>(x[row]), static_cast<double>(x[row]));
}

pd_status pd_cuda_row_squares(void *stream, uint64_t rows, uint64_t columns, const float *x, double *sums,
                              struct pd_error *err)
{
    if (columns == 1) {
        return PD_LAUNCH(err, squares_of_one, pd_blocks(rows, PD_THREADS), PD_THREADS, 0, stream, rows, x, sums);
    }
    return PD_LAUNCH(err, squares, pd_blocks(rows, ROWS), ROWS * PD_LANES, 0, stream, rows, columns, x, sums);
}

/* ---- exact sums: the limbs of trainer/math/superaccumulator.c, added as integers, in any order ---- */

typedef unsigned long long word;
static_assert(sizeof(word) == sizeof(uint64_t), "limbs are 64-bit words");

struct exact_sum {
    word *limbs, *flags, *pending;
};

PD_DEVICE void add_exactly(double term, word *limbs, word *flags)
{
    const word bits = static_cast<word>(__double_as_longlong(term)), sign = bits >> 63;
    const unsigned exponent = static_cast<unsigned>(bits >> 52) & 0x7ffu;
    word significand = bits & 0xfffffffffffffull;
    if (exponent == 0x7ffu) {
        atomicOr(flags, significand ? 4ull : sign ? 2ull : 1ull);
        return;
    }
    const unsigned position = exponent ? exponent - 1 : 0, limb = position / 32, shift = position % 32;
    if (exponent) significand |= 1ull << 52;
    const word low = (significand & 0xffffffffull) << shift, high = (significand >> 32) << shift;
    const word parts[3] = {low & 0xffffffffull, (low >> 32) + (high & 0xffffffffull), high >> 32};
    for (unsigned i = 0; i < 3; i++)
        if (parts[i]) atomicAdd(&limbs[limb + i], sign ? 0ull - parts[i] : parts[i]);
}

template <typename TERM> static __global__ void accumulate(uint64_t n, const TERM *terms, exact_sum sum)
{
    PD_SHARED(word, limbs, [PD_SUPERACCUMULATOR_LIMBS + 1]); /* and the flags */
    for (unsigned i = threadIdx.x; i <= PD_SUPERACCUMULATOR_LIMBS; i += blockDim.x)
        limbs[i] = 0;
    __syncthreads();
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads)
        add_exactly(static_cast<double>(terms[i]), limbs, &limbs[PD_SUPERACCUMULATOR_LIMBS]);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < PD_SUPERACCUMULATOR_LIMBS; i += blockDim.x)
        if (limbs[i]) atomicAdd(&sum.limbs[i], limbs[i]);
    if (threadIdx.x != 0) return;
    atomicOr(sum.flags, limbs[PD_SUPERACCUMULATOR_LIMBS]);
    if (blockIdx.x == 0) atomicAdd(sum.pending, static_cast<word>(n));
}

template <typename TERM>
static pd_status accumulate_launch(void *stream, uint64_t n, const TERM *terms, struct pd_superaccumulator *sum,
                                   pd_error *err)
{
    const exact_sum words = {reinterpret_cast<word *>(sum->limbs), reinterpret_cast<word *>(&sum->flags),
                             reinterpret_cast<word *>(&sum->pending)};
    const unsigned wanted = pd_blocks(n, TERMS_PER_THREAD * PD_THREADS);
    const unsigned blocks = wanted < EXACT_BLOCKS_MAX ? wanted : EXACT_BLOCKS_MAX;
    return PD_LAUNCH(err, accumulate<TERM>, blocks, PD_THREADS, 0, stream, n, terms, words);
}

pd_status pd_cuda_superaccumulate(void *stream, uint64_t n, const double *terms, struct pd_superaccumulator *sum,
                                  struct pd_error *err)
{
    return accumulate_launch(stream, n, terms, sum, err);
}

/* Terms that are subnormal in fp32 are flushed, as everywhere. */
pd_status pd_cuda_superaccumulate_floats(void *stream, uint64_t n, const float *terms, struct pd_superaccumulator *sum,
                                         struct pd_error *err)
{
    return accumulate_launch(stream, n, terms, sum, err);
}
