/* Cross-entropy of rows of logits and its gradient: a block handles a row.
 *
 * A vocabulary in one chunk is read once: each thread takes the maximum and the sum of its columns together, then a tree of
 * threads joins them (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"). Meanwhile the row stays in
 * shared memory for the gradient, as far as it fits; columns beyond are read again. Its sums are this kernel's own.
 *
 * A vocabulary in several chunks (virtual_tp above 1), some perhaps on other ranks, is read three times, in tiles of TILE
 * columns, with the bits of cpu_loss.c, because the sum needs the maximum of all ranks. All threads compute exponentials;
 * sixteen of them, the lanes, add them up in the CPU's order. */
#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/functions.h"

#define EACH 8u /* columns of a thread in a tile */
#define TILE (EACH * PD_THREADS)
#define TREE_DEPTH 33u /* chunks are 32 bits */

/* A row in one chunk: a pass is GROUPS groups of W adjacent columns per thread, so many loads are in flight. */
#define ROW_THREADS 512u
#define ROW_WARPS (ROW_THREADS / PD_WARP)
#define W 8u
#define GROUPS 2u
#define PASS (GROUPS * W * ROW_THREADS)
#define LOG2_E 0x1.715476p0f
#define MINUS_INFINITY __uint_as_float(0xff800000u)

struct reduction {
    float values[PD_THREADS / PD_WARP];
    float result;
};

PD_DEVICE float larger(float x, float running)
{
    return x > running ? x : running;
}

/* A row of logits of type T. */
template <enum pd_dtype T> PD_DEVICE void *row_of(const struct pd_cross_entropy &l, uint64_t row)
{
    return static_cast<char *>(l.logits) + row * l.ld * (T == PD_F32 ? 4 : 2);
}

template <enum pd_dtype T> PD_DEVICE float row_max(const void *x, uint64_t n)
{
    PD_SHARED(reduction, shared, );
    float max = pd_get<T>(x, 0);
    const auto load = [&](uint64_t i) { return pd_get<T>(x, i); };
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
template <enum pd_dtype T> PD_DEVICE void load_columns(const void *x, uint64_t first, uint64_t n, float (&v)[EACH])
{
#pragma unroll
    for (unsigned j = 0; j < EACH; j++) {
        const uint64_t i = first + j * PD_THREADS + threadIdx.x;
        v[j] = i < n ? pd_get<T>(x, i) : MINUS_INFINITY;
    }
}

/* exp(x - max) of columns [first, first + TILE) of n into a tile, 0 beyond the end. */
template <enum pd_dtype T> PD_DEVICE void fill_tile(const void *x, uint64_t first, uint64_t n, float max, float *tile)
{
    float v[EACH];
    load_columns<T>(x, first, n, v);
#pragma unroll
    for (unsigned j = 0; j < EACH; j++)
        tile[j * PD_THREADS + threadIdx.x] = pd_exp(v[j] - max);
}

/* For columns [start, start + n); only the first warp gets it. */
template <enum pd_dtype T> PD_DEVICE float chunk_sum(const void *x, uint64_t start, uint64_t n, float max)
{
    PD_SHARED(float, tile, [TILE]);
    float sum = 0.0f;
    for (uint64_t first = 0; first < n; first += TILE) {
        fill_tile<T>(x, start + first, start + n, max, tile);
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
template <enum pd_dtype T> PD_DEVICE float row_sum(const struct pd_cross_entropy &l, const void *x, float max)
{
    PD_SHARED(float, stack, [TREE_DEPTH]); /* sums of full subtrees, of thread 0 */
    PD_SHARED(float, result, );
    const uint64_t chunk = l.chunk ? l.chunk : (l.vocab + l.chunks - 1) / l.chunks;
    const uint64_t count = (l.vocab + chunk - 1) / chunk;
    for (uint64_t c = 0; c < count; c++) {
        const uint64_t start = c * chunk, left = l.vocab - start;
        float sum = chunk_sum<T>(x, start, left < chunk ? left : chunk, max);
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

/* exp(x) by the special function unit. */
PD_DEVICE float fast_exp(float x)
{
    return pd_exp2_fast(x * LOG2_E);
}

/* First column of a thread's group in the pass at `first`. */
PD_DEVICE uint64_t group_column(uint64_t first, unsigned group)
{
    return first + (static_cast<uint64_t>(group) * ROW_THREADS + threadIdx.x) * W;
}

/* A thread's columns of a pass over n, -infinity beyond the end. wide: the row is 16-aligned. */
template <enum pd_dtype T>
PD_DEVICE void load_pass(const void *x, uint64_t first, uint64_t n, bool wide, float (&v)[GROUPS][W])
{
#pragma unroll
    for (unsigned g = 0; g < GROUPS; g++) {
        const uint64_t i = group_column(first, g);
        if (wide && i + W <= n) {
            pd_get_n<T, W>(x, i, v[g]);
            continue;
        }
#pragma unroll
        for (unsigned j = 0; j < W; j++)
            v[g][j] = i + j < n ? pd_get<T>(x, i + j) : MINUS_INFINITY;
    }
}

/* Starts below every finite logit, so that a thread without columns adds 0. Keeps columns below `held` in the same places of
 * `kept`, where this thread alone reads them. */
template <enum pd_dtype T>
PD_DEVICE struct running_sum columns_sum(const void *x, uint64_t n, bool wide, uint64_t held, void *kept)
{
    struct running_sum r = {-0x1.fffffep127f, 0.0f};
    for (uint64_t first = 0; first < n; first += PASS) {
        float v[GROUPS][W], max = r.max;
        load_pass<T>(x, first, n, wide, v);
#pragma unroll
        for (unsigned g = 0; g < GROUPS; g++) {
            if (first < held) pd_put_n<T, W>(kept, group_column(first, g), v[g]);
#pragma unroll
            for (unsigned j = 0; j < W; j++)
                max = larger(v[g][j], max);
        }
        r.sum = r.sum * fast_exp(r.max - max);
        r.max = max;
#pragma unroll
        for (unsigned g = 0; g < GROUPS; g++)
#pragma unroll
            for (unsigned j = 0; j < W; j++)
                r.sum = r.sum + fast_exp(v[g][j] - max);
    }
    return r;
}

/* Both threads of a join compute the same sum. warps: shared memory. */
template <enum pd_dtype T>
PD_DEVICE struct running_sum whole_row_sum(const void *x, uint64_t n, bool wide, uint64_t held, void *kept,
                                           struct running_sum *warps)
{
    struct running_sum r = columns_sum<T>(x, n, wide, held, kept);
    for (int half = 16; half >= 1; half /= 2)
        r = join(r, {__shfl_xor_sync(PD_WARP_ALL, r.max, half), __shfl_xor_sync(PD_WARP_ALL, r.sum, half)});
    if (threadIdx.x % PD_WARP == 0) warps[threadIdx.x / PD_WARP] = r;
    __syncthreads();
    r = warps[0];
    for (unsigned w = 1; w < ROW_WARPS; w++)
        r = join(r, warps[w]);
    return r;
}

/* Column of a row's target, or `vocab` if it is elsewhere. */
PD_DEVICE uint64_t target_column(const struct pd_cross_entropy &l, uint64_t row)
{
    const uint64_t column = static_cast<uint64_t>(static_cast<int64_t>(l.targets[row])) - l.first_column;
    return l.targets[row] >= 0 && column < l.vocab ? column : l.vocab;
}

template <enum pd_dtype T> static __global__ void max_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x;
    float max = 0.0f;
    if (l.targets[row] >= 0) max = l.vocab ? row_max<T>(row_of<T>(l, row), l.vocab) : MINUS_INFINITY;
    if (threadIdx.x == 0) l.max[row] = max;
}

template <enum pd_dtype T> static __global__ void sum_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x;
    const void *x = row_of<T>(l, row);
    const float sum = l.targets[row] < 0 || l.vocab == 0 ? 0.0f : row_sum<T>(l, x, l.max[row]);
    if (threadIdx.x != 0) return;
    l.sum[row] = sum;
    const uint64_t column = target_column(l, row);
    if (column < l.vocab) l.target_logit[row] = pd_get<T>(x, column);
}

/* Joins the sum of these columns to the sum of earlier ones. */
template <enum pd_dtype T>
static __global__ void __launch_bounds__(ROW_THREADS) part_kernel(struct pd_cross_entropy l, bool wide)
{
    const uint64_t row = blockIdx.x, column = target_column(l, row);
    const void *x = row_of<T>(l, row);
    PD_SHARED(running_sum, warps, [ROW_WARPS]);
    struct running_sum r = {0.0f, 0.0f};
    if (l.targets[row] >= 0) r = whole_row_sum<T>(x, l.vocab, wide, 0, NULL, warps);
    if (threadIdx.x != 0) return;
    if (l.goes_on && l.targets[row] >= 0) r = join({l.max[row], l.sum[row]}, r);
    l.max[row] = r.max;
    l.sum[row] = r.sum;
    if (column < l.vocab) l.target_logit[row] = pd_get<T>(x, column);
}

static __global__ void rescale_kernel(uint64_t rows, const float *part_max, const float *max, float *sum)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * PD_THREADS + threadIdx.x;
    if (row < rows) sum[row] = sum[row] * pd_exp(part_max[row] - max[row]);
}

/* The output may overlay its own row: an element is no wider than a logit, and all threads read a tile of logits before any
 * of its gradients is written. */
template <enum pd_dtype T, enum pd_dtype D>
PD_DEVICE void write_gradient(const struct pd_cross_entropy &l, uint64_t row, float max, float factor, float target_gradient)
{
    const void *x = row_of<T>(l, row);
    const uint64_t target = target_column(l, row), at = row * l.ld_dlogits;
    for (uint64_t first = 0; first < l.vocab; first += TILE) {
        float v[EACH];
        load_columns<T>(x, first, l.vocab, v);
        __syncthreads();
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            const uint64_t i = first + j * PD_THREADS + threadIdx.x;
            if (i < l.vocab) pd_put<D>(l.dlogits, at + i, i == target ? target_gradient : pd_exp(v[j] - max) * factor);
        }
    }
}

template <enum pd_dtype D> PD_DEVICE void ignore_row(const struct pd_cross_entropy &l, uint64_t row)
{
    if (threadIdx.x == 0) l.losses[row] = 0.0f;
    for (uint64_t i = threadIdx.x; l.dlogits && i < l.vocab; i += blockDim.x)
        pd_put<D>(l.dlogits, row * l.ld_dlogits + i, 0.0f);
}

/* Of a vocabulary in chunks, or with its maximum and sum. */
template <enum pd_dtype T, enum pd_dtype D> static __global__ void loss_kernel(struct pd_cross_entropy l)
{
    const uint64_t row = blockIdx.x;
    const void *x = row_of<T>(l, row);
    if (l.targets[row] < 0) return ignore_row<D>(l, row);
    float max, sum, target_logit;
    if (l.max) {
        max = l.max[row];
        sum = l.sum[row];
        target_logit = l.target_logit[row];
    } else {
        PD_DEVICE_CHECK(target_column(l, row) < l.vocab);
        max = row_max<T>(x, l.vocab);
        sum = row_sum<T>(l, x, max);
        target_logit = pd_get<T>(x, target_column(l, row));
    }
    if (threadIdx.x == 0) l.losses[row] = (max - target_logit) + pd_log(sum);
    if (!l.dlogits) return;
    __syncthreads(); /* the target's logit was read */
    const float factor = __fdiv_rn(l.scale, sum);
    write_gradient<T, D>(l, row, max, factor, __fmaf_rn(pd_exp(target_logit - max), factor, -l.scale));
}

/* As write_gradient; the row is read from `kept`, and from column `held` on once more. Gradients of kept columns do not reach
 * the columns that are not. */
template <enum pd_dtype T, enum pd_dtype D>
PD_DEVICE void write_row(const struct pd_cross_entropy &l, uint64_t row, float max, float factor, float target_gradient,
                         bool wide, uint64_t held, const void *kept)
{
    const void *x = row_of<T>(l, row);
    const uint64_t target = target_column(l, row), at = row * l.ld_dlogits;
    for (uint64_t first = 0; first < l.vocab; first += PASS) {
        float v[GROUPS][W];
        if (first < held) {
            load_pass<T>(kept, first, held, true, v);
        } else {
            load_pass<T>(x, first, l.vocab, wide, v);
            __syncthreads();
        }
#pragma unroll
        for (unsigned g = 0; g < GROUPS; g++) {
            const uint64_t i = group_column(first, g);
#pragma unroll
            for (unsigned j = 0; j < W; j++)
                v[g][j] = i + j == target ? target_gradient : fast_exp(v[g][j] - max) * factor;
            if (wide && i + W <= l.vocab) {
                pd_put_n<D, W>(l.dlogits, at + i, v[g]);
                continue;
            }
#pragma unroll
            for (unsigned j = 0; j < W; j++)
                if (i + j < l.vocab) pd_put<D>(l.dlogits, at + i + j, v[g][j]);
        }
    }
}

/* Of a whole vocabulary in one chunk. held: columns that the launch has shared memory for; wide: every row of logits and
 * gradients is 16-aligned. */
template <enum pd_dtype T, enum pd_dtype D>
static __global__ void __launch_bounds__(ROW_THREADS) row_kernel(struct pd_cross_entropy l, uint64_t held, bool wide)
{
    PD_SHARED_DYNAMIC(shared); /* (ROW_WARPS) sums, then the row */
    struct running_sum *warps = reinterpret_cast<struct running_sum *>(shared);
    unsigned char *kept = shared + ROW_WARPS * sizeof *warps;
    const uint64_t row = blockIdx.x;
    if (l.targets[row] < 0) return ignore_row<D>(l, row);
    PD_DEVICE_CHECK(target_column(l, row) < l.vocab);
    const void *x = row_of<T>(l, row);
    const struct running_sum whole = whole_row_sum<T>(x, l.vocab, wide, held, kept, warps);
    const float target_logit = pd_get<T>(x, target_column(l, row));
    if (threadIdx.x == 0) l.losses[row] = (whole.max - target_logit) + pd_log(whole.sum);
    if (!l.dlogits) return;
    __syncthreads(); /* the target's logit was read */
    const float factor = __fdiv_rn(l.scale, whole.sum);
    write_row<T, D>(l, row, whole.max, factor, __fmaf_rn(fast_exp(target_logit - whole.max), factor, -l.scale), wide, held,
                    kept);
}

pd_status pd_cuda_logits_max(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    const unsigned rows = static_cast<unsigned>(l->rows);
    PD_WITH_DTYPE(l->logits_dtype, T, return PD_LAUNCH(err, max_kernel<T>, rows, PD_THREADS, 0, stream, *l));
}

pd_status pd_cuda_logits_sum(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    const unsigned rows = static_cast<unsigned>(l->rows);
    PD_WITH_DTYPE(l->logits_dtype, T, return PD_LAUNCH(err, sum_kernel<T>, rows, PD_THREADS, 0, stream, *l));
}

static bool rows_are_aligned(const void *data, uint64_t ld, enum pd_dtype dtype)
{
    return pd_is_16_aligned(data) && ld * pd_dtype_bytes(dtype) % 16 == 0;
}

pd_status pd_cuda_logits_part(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    const unsigned rows = static_cast<unsigned>(l->rows);
    const bool wide = rows_are_aligned(l->logits, l->ld, l->logits_dtype);
    PD_WITH_DTYPE(l->logits_dtype, T, return PD_LAUNCH(err, part_kernel<T>, rows, ROW_THREADS, 0, stream, *l, wide));
}

pd_status pd_cuda_logits_rescale(void *stream, uint64_t rows, const float *part_max, const float *max, float *sum,
                                 struct pd_error *err)
{
    const unsigned blocks = static_cast<unsigned>((rows + PD_THREADS - 1) / PD_THREADS);
    return PD_LAUNCH(err, rescale_kernel, blocks, PD_THREADS, 0, stream, rows, part_max, max, sum);
}

template <enum pd_dtype T, enum pd_dtype D>
static pd_status launch_loss(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    const unsigned rows = static_cast<unsigned>(l->rows);
    if (l->max || l->chunks > 1) return PD_LAUNCH(err, (loss_kernel<T, D>), rows, PD_THREADS, 0, stream, *l);
    const size_t warps_bytes = ROW_WARPS * sizeof(struct running_sum);
    const uint64_t column_bytes = pd_dtype_bytes(T), passes = (l->vocab + PASS - 1) / PASS,
                   most = (PD_SHARED_EVERYWHERE - warps_bytes) / (PASS * column_bytes),
                   fit = (passes < most ? passes : most) * PASS, held = l->dlogits ? fit : 0;
    const bool wide =
        rows_are_aligned(l->logits, l->ld, T) && (!l->dlogits || rows_are_aligned(l->dlogits, l->ld_dlogits, D));
    return PD_LAUNCH(err, (row_kernel<T, D>), rows, ROW_THREADS, warps_bytes + held * column_bytes, stream, *l, held, wide);
}

pd_status pd_cuda_cross_entropy(void *stream, const struct pd_cross_entropy *l, struct pd_error *err)
{
    PD_WITH_DTYPE(l->dtype, D, {
        return l->logits_dtype == PD_F32 ? launch_loss<PD_F32, D>(stream, l, err) : launch_loss<D, D>(stream, l, err);
    });
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
