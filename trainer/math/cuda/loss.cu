/* Cross-entropy of rows of logits and its gradient: a block handles a row, in tiles of TILE columns.
 *
 * A vocabulary in one chunk is read twice: for the maximum and the sum together, each thread its columns, then a tree over
 * threads (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"); and for the gradient. Its sums are
 * this kernel's own. A vocabulary in several chunks (virtual_tp above 1), some perhaps on other ranks, is read three times,
 * with the bits of cpu_loss.c, because the sum needs the maximum of all ranks. All threads compute exponentials; sixteen of
 * them, the lanes, add them up in the CPU's order. */
#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/functions.h"

#define EACH 8u /* columns of a thread in a tile */
#define TILE (EACH * PD_THREADS)
#define TREE_DEPTH 33u /* chunks are 32 bits */

struct reduction {
    float values[PD_THREADS / PD_WARP];
    float result;
};

PD_DEVICE float larger(float x, float running)
{
    return x > running ? x : running;
}

PD_DEVICE float row_max(const float *x, uint64_t n)
{
    PD_SHARED(reduction, shared, );
    float max = x[0];
    const auto load = [&](uint64_t i) { return x[i]; };
    pd_in_order<8>(threadIdx.x, n, PD_THREADS, load, [&](float logit) { max = larger(logit, max); });
    for (int half = 16; half >= 1; half /= 2)
        max = larger(__shfl_xor_sync(PD_WARP_ALL, max, half), max);
    if (threadIdx.x % PD_WARP == 0) shared.values[threadIdx.x / PD_WARP] = max;
    __syncthreads();
    max = shared.values[0];
    for (unsigned w = 1; w < PD_THREADS / PD_WARP; w++)
        max = larger(shared.values[w], max);
    return max;
}

/* A thread's columns of [first, first + TILE) of n, -infinity beyond the end. */
PD_DEVICE void load_columns(const float *x, uint64_t first, uint64_t n, float (&v)[EACH])
{
#pragma unroll
    for (unsigned j = 0; j < EACH; j++) {
        const uint64_t i = first + j * PD_THREADS + threadIdx.x;
        v[j] = i < n ? x[i] : __uint_as_float(0xff800000u);
    }
}

/* exp(x - max) of columns [first, first + TILE) of n into a tile, 0 beyond the end. */
PD_DEVICE void fill_tile(const float *x, uint64_t first, uint64_t n, float max, float *tile)
{
    float v[EACH];
    load_columns(x, first, n, v);
#pragma unroll
    for (unsigned j = 0; j < EACH; j++)
        tile[j * PD_THREADS + threadIdx.x] = pd_exp(v[j] - max);
}

/* For one chunk; only the first warp gets it. */
PD_DEVICE float chunk_sum(const float *x, uint64_t n, float max)
{
    PD_SHARED(float, tile, [TILE]);
    float sum = 0.0f;
    for (uint64_t first = 0; first < n; first += TILE) {
        fill_tile(x, first, n, max, tile);
        __syncthreads();
        const uint64_t left = n - first;
        const unsigned count = left < TILE ? static_cast<unsigned>(left) : TILE;
        const auto load = [&](uint64_t i) { return tile[i]; };
        if (threadIdx.x < PD_LANES)
            pd_in_order<8>(threadIdx.x, count, PD_LANES, load, [&](float term) { sum = sum + term; });
        __syncthreads();
    }
    return threadIdx.x < PD_WARP ? pd_lanes_sum(sum) : 0.0f;
}

/* The tree over chunks of ceil(vocab / chunks) columns; absent ones are 0, and adding 0 to a sum of exponentials changes
 * nothing. */
PD_DEVICE float row_sum(const struct pd_cross_entropy &l, const float *x, float max)
{
    PD_SHARED(float, stack, [TREE_DEPTH]); /* sums of full subtrees, of thread 0 */
    PD_SHARED(float, result, );
    const uint64_t chunk = l.chunk ? l.chunk : (l.vocab + l.chunks - 1) / l.chunks;
    const uint64_t count = (l.vocab + chunk - 1) / chunk;
    for (uint64_t c = 0; c < count; c++) {
        const uint64_t start = c * chunk, left = l.vocab - start;
        float sum = chunk_sum(x + start, left < chunk ? left : chunk, max);
        if (threadIdx.x != 0) continue;
        unsigned level = 0;
        for (; c >> level & 1u; level++)
            sum = stack[level] + sum;
        stack[level] = sum;
    }
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (unsigned level = 0; count >> level; level++)
            if (count >> level & 1u) sum = stack[level] + sum;
        result = sum;
    }
    __syncthreads();
    return result;
}

/* Of exp(x - max) over some columns. */
struct running_sum {
    float max, sum;
};

PD_DEVICE struct running_sum join(struct running_sum a, struct running_sum b)
{
    const float max = larger(b.max, a.max);
    return {max, a.sum * pd_exp(a.max - max) + b.sum * pd_exp(b.max - max)};
}

/* Starts below every finite logit, so that a thread without columns adds 0. */
PD_DEVICE struct running_sum columns_sum(const float *x, uint64_t n)
{
    struct running_sum r = {-0x1.fffffep127f, 0.0f};
    for (uint64_t first = 0; first < n; first += TILE) {
        float v[EACH], max = r.max;
        load_columns(x, first, n, v);
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            max = larger(v[j], max);
        r.sum = r.sum * pd_exp(r.max - max);
        r.max = max;
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            r.sum = r.sum + pd_exp(v[j] - max);
    }
    return r;
}

/* Both threads of a join compute the same sum. */
PD_DEVICE struct running_sum whole_row_sum(const float *x, uint64_t n)
{
    PD_SHARED(running_sum, warps, [PD_THREADS / PD_WARP]);
    struct running_sum r = columns_sum(x, n);
    for (int half = 16; half >= 1; half /= 2)
        r = join(r, {__shfl_xor_sync(PD_WARP_ALL, r.max, half), __shfl_xor_sync(PD_WARP_ALL, r.sum, half)});
    if (threadIdx.x % PD_WARP == 0) warps[threadIdx.x / PD_WARP] = r;
    __syncthreads();
    r = warps[0];
    for (unsigned w = 1; w < PD_THREADS / PD_WARP; w++)
        r = join(r, warps[w]);
    return r;
}

/* Column of a row's target, or `vocab` if it is elsewhere. */
PD_DEVICE uint64_t target_column(const struct pd_cross_entropy &l, uint64_t row)
{
    const uint64_t column = static_cast<uint64_t>(static_cast<int64_t>(l.targets[row])) - l.first_column;
    return l.targets[row] >= 0 && column < l.vocab ? column : l.vocab;
}

static __global__ void max_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x;
    float max = 0.0f;
    if (l.targets[row] >= 0) max = l.vocab ? row_max(l.logits + row * l.ld, l.vocab) : __uint_as_float(0xff800000u);
    if (threadIdx.x == 0) l.max[row] = max;
}

static __global__ void sum_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x;
    const float *x = l.logits + row * l.ld;
    const float sum = l.targets[row] < 0 || l.vocab == 0 ? 0.0f : row_sum(l, x, l.max[row]);
    if (threadIdx.x != 0) return;
    l.sum[row] = sum;
    const uint64_t column = target_column(l, row);
    if (column < l.vocab) l.target_logit[row] = x[column];
}

/* Joins the sum of these columns to the sum of earlier ones. */
static __global__ void part_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x, column = target_column(l, row);
    const float *x = l.logits + row * l.ld;
    struct running_sum r = {0.0f, 0.0f};
    if (l.targets[row] >= 0) r = whole_row_sum(x, l.vocab);
    if (threadIdx.x != 0) return;
    if (l.goes_on && l.targets[row] >= 0) r = join({l.max[row], l.sum[row]}, r);
    l.max[row] = r.max;
    l.sum[row] = r.sum;
    if (column < l.vocab) l.target_logit[row] = x[column];
}

static __global__ void rescale_kernel(uint64_t rows, const float *part_max, const float *max, float *sum)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * PD_THREADS + threadIdx.x;
    if (row < rows) sum[row] = sum[row] * pd_exp(part_max[row] - max[row]);
}

/* The output may overlay its own row: an element is no wider than a logit, and all threads read a tile of logits before any
 * of its gradients is written. */
template <enum pd_dtype D>
PD_DEVICE void write_gradient(const struct pd_cross_entropy &l, uint64_t row, float max, float factor, float target_gradient)
{
    const float *x = l.logits + row * l.ld;
    const uint64_t target = target_column(l, row), at = row * l.ld_dlogits;
    for (uint64_t first = 0; first < l.vocab; first += TILE) {
        float v[EACH];
        load_columns(x, first, l.vocab, v);
        __syncthreads();
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            const uint64_t i = first + j * PD_THREADS + threadIdx.x;
            if (i < l.vocab) pd_put<D>(l.dlogits, at + i, i == target ? target_gradient : pd_exp(v[j] - max) * factor);
        }
    }
}

template <enum pd_dtype D> static __global__ void loss_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x;
    const float *x = l.logits + row * l.ld;
    if (l.targets[row] < 0) {
        if (threadIdx.x == 0) l.losses[row] = 0.0f;
        for (uint64_t i = threadIdx.x; l.dlogits && i < l.vocab; i += PD_THREADS)
            pd_put<D>(l.dlogits, row * l.ld_dlogits + i, 0.0f);
        return;
    }
    float max, sum, target_logit;
    if (l.max) {
        max = l.max[row];
        sum = l.sum[row];
        target_logit = l.target_logit[row];
    } else {
        PD_DEVICE_CHECK(target_column(l, row) < l.vocab);
        if (l.chunks == 1) {
            const struct running_sum whole = whole_row_sum(x, l.vocab);
            max = whole.max;
            sum = whole.sum;
        } else {
            max = row_max(x, l.vocab);
            sum = row_sum(l, x, max);
        }
        target_logit = x[target_column(l, row)];
    }
    if (threadIdx.x == 0) l.losses[row] = (max - target_logit) + pd_log(sum);
    if (!l.dlogits) return;
    __syncthreads(); /* the target's logit was read */
    const float factor = __fdiv_rn(l.scale, sum);
    write_gradient<D>(l, row, max, factor, __fmaf_rn(pd_exp(target_logit - max), factor, -l.scale));
}

pd_status pd_cuda_logits_max(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    return PD_LAUNCH(err, max_kernel, static_cast<unsigned>(l->rows), PD_THREADS, 0, stream, *l);
}

pd_status pd_cuda_logits_sum(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    return PD_LAUNCH(err, sum_kernel, static_cast<unsigned>(l->rows), PD_THREADS, 0, stream, *l);
}

pd_status pd_cuda_logits_part(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    return PD_LAUNCH(err, part_kernel, static_cast<unsigned>(l->rows), PD_THREADS, 0, stream, *l);
}

pd_status pd_cuda_logits_rescale(void *stream, uint64_t rows, const float *part_max, const float *max, float *sum,
                                 struct pd_error *err)
{
    const unsigned blocks = static_cast<unsigned>((rows + PD_THREADS - 1) / PD_THREADS);
    return PD_LAUNCH(err, rescale_kernel, blocks, PD_THREADS, 0, stream, rows, part_max, max, sum);
}

pd_status pd_cuda_cross_entropy(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    const unsigned rows = static_cast<unsigned>(l->rows);
    PD_WITH_DTYPE(l->dtype, D, return PD_LAUNCH(err, loss_kernel<D>, rows, PD_THREADS, 0, stream, *l));
}

static __global__ void join_kernel(struct pd_logits_join j)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * PD_THREADS + threadIdx.x;
    if (row >= j.rows) return;
    if (j.max) {
        float max = j.all_max[row];
        for (uint32_t r = 1; r < j.ranks; r++)
            max = larger(j.all_max[r * j.ld + row], max);
        j.max[row] = max;
    }
    if (j.target_logit && j.targets[row] >= 0)
        j.target_logit[row] = j.all_targets[static_cast<uint64_t>(j.targets[row]) / j.rank_columns * j.ld + row];
}

pd_status pd_cuda_logits_join(void *stream, const struct pd_logits_join *j, struct pd_error *err)
{
    const unsigned blocks = static_cast<unsigned>((j->rows + PD_THREADS - 1) / PD_THREADS);
    return PD_LAUNCH(err, join_kernel, blocks, PD_THREADS, 0, stream, *j);
}
