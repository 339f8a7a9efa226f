/* RMS norm and layer norm; formulas in cpu_norm.c. Sixteen threads take a row and are its sixteen lanes, so that sums along
 * rows have the CPU's bits. Gradients of weights are sums over rows: here a block takes sixteen columns, its 64 lines of
 * threads every 64th row each, and the lines are added as a tree; that depends on the number of rows and on nothing else,
 * and is not the CPU's ascending order. */
#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/functions.h"

#define ROWS 8u /* of a block */
#define WIDE 8
#define COLUMNS 16u
#define LINES 64u

/* What is fetched of an element; `other` is the weight or rstd. */
struct terms {
    float dout, x, other;
};

/* Where a row of x, out, dout or dx begins, and which it is of `kept` and rstd; see struct pd_norm. */
PD_DEVICE uint64_t row_at(const struct pd_norm &n, uint64_t row)
{
    return n.heads ? row / n.heads * n.ld + row % n.heads * n.columns : row * n.columns;
}

PD_DEVICE uint64_t kept_row(const struct pd_norm &n, uint64_t row)
{
    return n.heads ? row / n.heads * n.kept_heads + row % n.heads : row;
}

struct norm_row {
    uint64_t at;   /* element 0 */
    uint64_t kept; /* row of `kept` and of rstd */
    uint64_t columns;
    unsigned lane;
};

PD_DEVICE norm_row row_of(const struct pd_norm &n, uint64_t *ret_row)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROWS + threadIdx.x / PD_LANES;
    *ret_row = row;
    return {row_at(n, row), kept_row(n, row), row < n.rows ? n.columns : 0, threadIdx.x % PD_LANES};
}

template <enum pd_dtype D, int N>
PD_DEVICE void put_normed(const struct pd_norm &n, const norm_row &r, float mean, float rstd)
{
    for (uint64_t i = r.lane * N; i < r.columns; i += PD_LANES * N) {
        float x[N], w[N], b[N];
        pd_get_n<D, N>(n.x, r.at + i, x);
        if (n.kept) pd_put_n<D, N>(n.kept, r.kept * n.columns + i, x);
        pd_get_n<D, N>(n.weight, i, w);
        if (n.bias) pd_get_n<D, N>(n.bias, i, b);
        for (int j = 0; j < N; j++) {
            x[j] = ((x[j] - mean) * rstd) * w[j];
            if (n.bias) x[j] = x[j] + b[j];
        }
        pd_put_n<D, N>(n.out, r.at + i, x);
    }
}

template <enum pd_dtype D, int N> static __global__ void forward(struct pd_norm n)
{
    uint64_t row;
    const norm_row r = row_of(n, &row);
    const float count = static_cast<float>(n.columns);
    float mean = 0.0f, sum = 0.0f;
    const auto x_at = [&](uint64_t i) { return pd_get<D>(n.x, r.at + i); };
    if (n.mean) {
        pd_in_order<8>(r.lane, r.columns, PD_LANES, x_at, [&](float x) { sum = sum + x; });
        mean = __fdiv_rn(pd_lanes_sum(sum), count);
        sum = 0.0f;
    }
    pd_in_order<8>(r.lane, r.columns, PD_LANES, x_at, [&](float x) {
        const float d = x - mean;
        sum = __fmaf_rn(d, d, sum);
    });
    const float variance = __fdiv_rn(pd_lanes_sum(sum), count);
    const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(variance + n.epsilon));
    if (r.lane == 0 && row < n.rows) {
        if (n.mean) n.mean[row] = mean;
        n.rstd[r.kept] = rstd;
    }
    put_normed<D, N>(n, r, mean, rstd);
}

template <enum pd_dtype D, int N>
PD_DEVICE void put_dx(const struct pd_norm &n, const norm_row &r, float mean, float rstd, float minus_mean_g,
                      float minus_mean_gx)
{
    for (uint64_t i = r.lane * N; i < r.columns; i += PD_LANES * N) {
        float x[N], w[N], g[N], residual[N];
        pd_get_n<D, N>(n.x, r.kept * n.columns + i, x);
        pd_get_n<D, N>(n.weight, i, w);
        pd_get_n<D, N>(n.dout, r.at + i, g);
        if (n.dresidual) pd_get_n<D, N>(n.dresidual, r.at + i, residual);
        for (int j = 0; j < N; j++) {
            const float t = __fmaf_rn((x[j] - mean) * rstd, minus_mean_gx, g[j] * w[j] + minus_mean_g);
            x[j] = __fmaf_rn(t, rstd, n.dresidual ? residual[j] : 0.0f);
        }
        pd_put_n<D, N>(n.dx, r.at + i, x);
    }
}

/* dx may be x, dout or dresidual: a row is summed before any of it is written, and sixteen threads are in one warp. */
template <enum pd_dtype D, int N> static __global__ void backward(struct pd_norm n)
{
    uint64_t row;
    const norm_row r = row_of(n, &row);
    const float count = static_cast<float>(n.columns);
    const float mean = n.mean && row < n.rows ? n.mean[row] : 0.0f, rstd = row < n.rows ? n.rstd[r.kept] : 0.0f;
    float sum = 0.0f, sum_x = 0.0f;
    const auto load = [&](uint64_t i) {
        return terms{pd_get<D>(n.dout, r.at + i), pd_get<D>(n.x, r.kept * n.columns + i), pd_get<D>(n.weight, i)};
    };
    pd_in_order<8>(r.lane, r.columns, PD_LANES, load, [&](const terms &t) {
        const float g = t.dout * t.other;
        sum = sum + g;
        sum_x = __fmaf_rn(g, (t.x - mean) * rstd, sum_x);
    });
    sum = pd_lanes_sum(sum);
    sum_x = pd_lanes_sum(sum_x);
    const float mean_g = n.mean ? __fdiv_rn(sum, count) : 0.0f;
    put_dx<D, N>(n, r, mean, rstd, -mean_g, -__fdiv_rn(sum_x, count));
}

template <enum pd_dtype D> static __global__ void __launch_bounds__(COLUMNS *LINES) weights(struct pd_norm n)
{
    PD_SHARED(float, sums, [2][LINES][COLUMNS]);
    const unsigned line = threadIdx.y, lane = threadIdx.x;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * COLUMNS + lane;
    float dweight = 0.0f, dbias = 0.0f;
    if (column < n.columns) {
        const auto load = [&](uint64_t row) {
            const float d = pd_get<D>(n.dout, row_at(n, row) + column), mean = n.mean ? n.mean[row] : 0.0f;
            const uint64_t kept = kept_row(n, row);
            return terms{d, pd_get<D>(n.x, kept * n.columns + column) - mean, n.rstd[kept]};
        };
        pd_in_order<8>(line, n.rows, LINES, load, [&](const terms &t) {
            dweight = __fmaf_rn(t.dout, t.x * t.other, dweight);
            dbias = dbias + t.dout;
        });
    }
    sums[0][line][lane] = dweight;
    sums[1][line][lane] = dbias;
    for (unsigned half = LINES / 2; half >= 1; half /= 2) {
        __syncthreads();
        if (line >= half) continue;
        sums[0][line][lane] += sums[0][line + half][lane];
        sums[1][line][lane] += sums[1][line + half][lane];
    }
    if (line != 0 || column >= n.columns) return;
    n.dweight[column] = sums[0][0][lane];
    if (n.dbias) n.dbias[column] = sums[1][0][lane];
}

static bool rows_are_aligned(const struct pd_norm *n)
{
    return n->columns % WIDE == 0 && n->ld % WIDE == 0 && pd_is_16_aligned(n->x) && pd_is_16_aligned(n->kept) &&
           pd_is_16_aligned(n->weight) && pd_is_16_aligned(n->bias);
}

pd_status pd_cuda_norm_forward(void *stream, const struct pd_norm *n, struct pd_error *err)
{
    const bool aligned = rows_are_aligned(n) && pd_is_16_aligned(n->out);
    const unsigned blocks = pd_blocks(n->rows, ROWS), threads = ROWS * PD_LANES;
    PD_WITH_DTYPE(n->dtype, D, {
        if (aligned) return PD_LAUNCH(err, (forward<D, WIDE>), blocks, threads, 0, stream, *n);
        return PD_LAUNCH(err, (forward<D, 1>), blocks, threads, 0, stream, *n);
    });
}

/* Columns first: dx may overwrite dout or x. */
pd_status pd_cuda_norm_backward(void *stream, const struct pd_norm *n, struct pd_error *err)
{
    const bool aligned =
        rows_are_aligned(n) && pd_is_16_aligned(n->dout) && pd_is_16_aligned(n->dresidual) && pd_is_16_aligned(n->dx);
    const unsigned blocks = pd_blocks(n->rows, ROWS), threads = ROWS * PD_LANES;
    PD_WITH_DTYPE(n->dtype, D, {
        PD_TRY(PD_LAUNCH(err, weights<D>, pd_blocks(n->columns, COLUMNS), dim3(COLUMNS, LINES), 0, stream, *n));
        if (aligned) return PD_LAUNCH(err, (backward<D, WIDE>), blocks, threads, 0, stream, *n);
        return PD_LAUNCH(err, (backward<D, 1>), blocks, threads, 0, stream, *n);
    });
}
