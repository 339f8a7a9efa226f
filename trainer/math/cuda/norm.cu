/* RMS norm and layer norm; formulas in cpu_norm.c. Sixteen threads handle a row and are its sixteen lanes, so that sums
 * along rows have the CPU's bits. Gradients of weights are sums over rows; their order depends on the sizes and is not the
 * CPU's ascending one.
 *
 * Backward reads x and dout once. A block takes a band of rows, some at a time in shared memory. From there it computes
 * their dx and adds them to the band's weight gradients, one chain per column; `join` adds up the bands. Rows too long for
 * shared memory are read in place.
 *
 * Heads are rotated between the norm and memory: in forward_heads a thread has both halves of a pair; backward rotates dout
 * back in shared memory. */
#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/functions.h"

#define ROWS 8u /* of a block */
#define WIDE 8
#define COLUMNS 16u

/* Loaded data of an element; `other` is the weight or rstd. */
struct terms {
    float dout, x, other;
};

/* Offset of a row of x, out, dout or dx, and its index in `kept` and rstd; see struct pd_norm. */
PD_DEVICE uint64_t row_at(const struct pd_norm &n, uint64_t row)
{
    return n.heads ? row / n.heads * n.ld + row % n.heads * n.columns : row * n.columns;
}

PD_DEVICE uint64_t kept_row(const struct pd_norm &n, uint64_t row)
{
    return n.heads ? row / n.heads * n.kept_heads + row % n.heads : row;
}

struct norm_row {
    uint64_t at; /* element 0 */
    uint64_t columns;
    unsigned lane;
};

PD_DEVICE norm_row row_of(const struct pd_norm &n, uint64_t *ret_row)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROWS + threadIdx.x / PD_LANES;
    *ret_row = row;
    return {row_at(n, row), row < n.rows ? n.columns : 0, threadIdx.x % PD_LANES};
}

/* From the row's mean; the result is in all of its lanes. */
template <enum pd_dtype D> PD_DEVICE float rstd_of(const struct pd_norm &n, const norm_row &r, float mean)
{
    float sum = 0.0f;
    const auto x_at = [&](uint64_t i) { return pd_get<D>(n.x, r.at + i); };
    pd_in_order<8>(r.lane, r.columns, PD_LANES, x_at, [&](float x) {
        const float d = x - mean;
        sum = __fmaf_rn(d, d, sum);
    });
    const float variance = __fdiv_rn(pd_lanes_sum(sum), static_cast<float>(n.columns));
    return __fdiv_rn(1.0f, __fsqrt_rn(variance + n.epsilon));
}

template <enum pd_dtype D, int N>
PD_DEVICE void put_normed(const struct pd_norm &n, const norm_row &r, float mean, float rstd)
{
    for (uint64_t i = r.lane * N; i < r.columns; i += PD_LANES * N) {
        float x[N], w[N], b[N];
        pd_get_n<D, N>(n.x, r.at + i, x);
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
    float mean = 0.0f, sum = 0.0f;
    if (n.mean) {
        const auto x_at = [&](uint64_t i) { return pd_get<D>(n.x, r.at + i); };
        pd_in_order<8>(r.lane, r.columns, PD_LANES, x_at, [&](float x) { sum = sum + x; });
        mean = __fdiv_rn(pd_lanes_sum(sum), static_cast<float>(n.columns));
    }
    const float rstd = rstd_of<D>(n, r, mean);
    if (r.lane == 0 && row < n.rows) {
        if (n.mean) n.mean[row] = mean;
        n.rstd[row] = rstd;
    }
    put_normed<D, N>(n, r, mean, rstd);
}

/* ---- heads ---- */

/* x[0] and x[1]: elements i and i + C/2 of a head, N of each. */
template <enum pd_dtype D, int N> PD_DEVICE void get_halves(const void *data, uint64_t at, uint64_t half, float (&x)[2][N])
{
    pd_get_n<D, N>(data, at, x[0]);
    pd_get_n<D, N>(data, at + half, x[1]);
}

template <enum pd_dtype D, int N> PD_DEVICE void put_halves(void *data, uint64_t at, uint64_t half, const float (&x)[2][N])
{
    pd_put_n<D, N>(data, at, x[0]);
    pd_put_n<D, N>(data, at + half, x[1]);
}

/* out may be x: all lanes read a row before one of them writes. */
template <enum pd_dtype D, int N> static __global__ void forward_heads(struct pd_norm n)
{
    uint64_t row;
    const norm_row r = row_of(n, &row);
    const uint64_t half = n.columns / 2, kept = kept_row(n, row);
    const bool is_there = row < n.rows, is_other = n.other_weight && row % n.heads >= n.other_first;
    const void *weight = is_other ? n.other_weight : n.weight;
    const float *angles = n.positions && is_there ? n.cos_sin + n.positions[row / n.heads] * n.columns : nullptr;
    const float rstd = rstd_of<D>(n, r, 0.0f);
    if (r.lane == 0 && is_there) n.rstd[kept] = rstd;
    for (uint64_t i = r.lane * N; i < r.columns / 2; i += PD_LANES * N) {
        float x[2][N], w[2][N];
        get_halves<D, N>(n.x, r.at + i, half, x);
        if (n.kept) put_halves<D, N>(n.kept, kept * n.columns + i, half, x);
        get_halves<D, N>(weight, i, half, w);
        for (int j = 0; j < N; j++) {
            x[0][j] = pd_round<D>((x[0][j] * rstd) * w[0][j]);
            x[1][j] = pd_round<D>((x[1][j] * rstd) * w[1][j]);
            if (angles) pd_rotate(x[0][j], x[1][j], angles[2 * (i + j)], angles[2 * (i + j) + 1]);
        }
        put_halves<D, N>(n.out, r.at + i, half, x);
    }
}

/* ---- backward in one pass ---- */

#define AT_ONCE_MAX 16u   /* rows in shared memory: a block has sixteen lanes for as many */
#define SHARED_AIM 65536u /* so that three blocks share a multiprocessor of an H100 */
#define PAD 16u           /* elements between rows, so that two rows' lanes use different banks */
#define EACH_MAX 64u      /* columns a thread adds up */
#define BANDS_MAX 264u    /* of rows of 2,048 columns: two blocks a multiprocessor; of shorter ones up to four times */
#define LINES_OF_BANDS 16u

struct bands {
    uint64_t rows; /* a band */
    uint32_t count, at_once;
    uint32_t shared_bytes;
};

/* A row's place, and values common to its elements. */
struct staged_row {
    uint64_t at, kept;
    float mean, rstd, minus_mean_g, minus_mean_gx;
};

/* Columns of a row to shared memory, 16 bytes or one element at a time; a thread's share of a row of `threads`. */
template <enum pd_dtype D> PD_DEVICE void stage(void *to, const void *from, uint64_t at, uint32_t columns, bool wide)
{
    constexpr uint32_t bytes = D == PD_F32 ? 4 : 2;
    char *dst = static_cast<char *>(to);
    const char *src = static_cast<const char *>(from) + at * bytes;
    const uint32_t step = wide ? 16 : bytes;
    for (uint32_t i = threadIdx.x * step; i < columns * bytes; i += PD_THREADS * step) {
        if (wide)
            pd_cp_async16(dst + i, src + i, true);
        else if (D == PD_F32)
            *reinterpret_cast<float *>(dst + i) = *reinterpret_cast<const float *>(src + i);
        else
            *reinterpret_cast<uint16_t *>(dst + i) = *reinterpret_cast<const uint16_t *>(src + i);
    }
}

/* Data in shared memory, or for rows that are too long in the operands. */
struct staged {
    unsigned char *dout, *x, *weight;
    uint32_t stride; /* elements from row to row */
};

/* Heads: converts the gradient of the rotated values to the gradient of the norm's output, rounded. */
template <enum pd_dtype D> PD_DEVICE void turn_back(const struct pd_norm &n, const staged &s, uint64_t first, uint32_t count)
{
    const uint32_t half = static_cast<uint32_t>(n.columns) / 2;
    for (uint32_t i = threadIdx.x; i < count * half; i += PD_THREADS) {
        const uint32_t r = i / half, c = i % half, at = r * s.stride + c;
        const float *angles = n.cos_sin + n.positions[(first + r) / n.heads] * n.columns + 2 * c;
        float a = pd_get<D>(s.dout, at), b = pd_get<D>(s.dout, at + half);
        pd_rotate(a, b, angles[0], -angles[1]);
        pd_put<D>(s.dout, at, a);
        pd_put<D>(s.dout, at + half, b);
    }
    __syncthreads();
}

/* The sums along the rows, by the sixteen lanes of each. */
template <enum pd_dtype D>
PD_DEVICE void sum_rows(const struct pd_norm &n, const staged &s, staged_row *rows, uint32_t count)
{
    const uint32_t r = threadIdx.x / PD_LANES, lane = threadIdx.x % PD_LANES;
    const float mean = r < count ? rows[r].mean : 0.0f, rstd = r < count ? rows[r].rstd : 0.0f;
    float sum = 0.0f, sum_x = 0.0f;
    const auto load = [&](uint64_t i) {
        return terms{pd_get<D>(s.dout, r * s.stride + i), pd_get<D>(s.x, r * s.stride + i), pd_get<D>(s.weight, i)};
    };
    pd_in_order<8>(lane, r < count ? n.columns : 0, PD_LANES, load, [&](const terms &t) {
        const float g = t.dout * t.other;
        sum = sum + g;
        sum_x = __fmaf_rn(g, (t.x - mean) * rstd, sum_x);
    });
    sum = pd_lanes_sum(sum);
    sum_x = pd_lanes_sum(sum_x);
    if (lane != 0 || r >= count) return;
    rows[r].minus_mean_g = n.mean ? -__fdiv_rn(sum, static_cast<float>(n.columns)) : -0.0f;
    rows[r].minus_mean_gx = -__fdiv_rn(sum_x, static_cast<float>(n.columns));
}

template <enum pd_dtype D, int N>
PD_DEVICE void put_staged_dx(const struct pd_norm &n, const staged &s, const staged_row *rows, uint32_t count)
{
    const uint32_t each = static_cast<uint32_t>(n.columns) / N;
    for (uint32_t i = threadIdx.x; i < count * each; i += PD_THREADS) {
        const uint32_t r = i / each, c = i % each * N;
        const staged_row row = rows[r];
        float x[N], w[N], g[N], residual[N];
        pd_get_n<D, N>(s.x, r * s.stride + c, x);
        pd_get_n<D, N>(s.weight, c, w);
        pd_get_n<D, N>(s.dout, r * s.stride + c, g);
        if (n.dresidual) pd_get_n<D, N>(n.dresidual, row.at + c, residual);
        for (int j = 0; j < N; j++) {
            const float t = __fmaf_rn((x[j] - row.mean) * row.rstd, row.minus_mean_gx, g[j] * w[j] + row.minus_mean_g);
            x[j] = __fmaf_rn(t, row.rstd, n.dresidual ? residual[j] : 0.0f);
        }
        pd_put_n<D, N>(n.dx, row.at + c, x);
    }
}

template <enum pd_dtype D>
PD_DEVICE void add_column(const staged &s, const staged_row *rows, uint32_t count, uint32_t c, float *dweight, float *dbias)
{
#pragma unroll 1 /* registers are few beside the sums of K columns */
    for (uint32_t r = 0; r < count; r++) {
        const float d = pd_get<D>(s.dout, r * s.stride + c), x = pd_get<D>(s.x, r * s.stride + c);
        *dweight = __fmaf_rn(d, (x - rows[r].mean) * rows[r].rstd, *dweight);
        if (dbias) *dbias = *dbias + d;
    }
}

PD_DEVICE void find_rows(const struct pd_norm &n, staged_row *rows, uint64_t first, uint32_t count)
{
    if (threadIdx.x < count) {
        const uint64_t row = first + threadIdx.x, kept = kept_row(n, row);
        rows[threadIdx.x] = {row_at(n, row), kept, n.mean ? n.mean[row] : 0.0f, n.rstd[kept], 0.0f, 0.0f};
    }
    __syncthreads();
}

template <enum pd_dtype D>
PD_DEVICE void stage_rows(const struct pd_norm &n, const staged &s, const staged_row *rows, uint32_t count, bool wide)
{
    constexpr uint32_t bytes = D == PD_F32 ? 4 : 2;
    const uint32_t columns = static_cast<uint32_t>(n.columns);
    for (uint32_t r = 0; r < count; r++) {
        stage<D>(s.dout + r * s.stride * bytes, n.dout, rows[r].at, columns, wide);
        stage<D>(s.x + r * s.stride * bytes, n.x, rows[r].kept * columns, columns, wide);
    }
    pd_cp_async_commit();
    pd_cp_async_wait<0>();
    __syncthreads();
}

/* partials: (bands, 2, columns) with a bias, else (bands, columns). dx may be x, dout or dresidual: a row is read completely
 * before any of it is written. A thread sums K columns in registers, every PD_THREADS-th; K 0: rows exceed shared memory,
 * and sums continue in `partials`. */
template <enum pd_dtype D, int K>
static __global__ void __launch_bounds__(PD_THREADS)
    backward_bands(const struct pd_norm n, const bands b, float *partials, const bool wide)
{
    constexpr uint32_t bytes = D == PD_F32 ? 4 : 2;
    PD_SHARED_DYNAMIC(shared);
    PD_SHARED(staged_row, rows, [AT_ONCE_MAX]);
    const uint32_t columns = static_cast<uint32_t>(n.columns), stride = (columns + PAD + 7) / 8 * 8;
    staged s = {shared, shared + b.at_once * stride * bytes, shared + 2 * b.at_once * stride * bytes, stride};
    const uint64_t begin = blockIdx.x * b.rows, end = begin + b.rows < n.rows ? begin + b.rows : n.rows;
    float *const to = partials + static_cast<uint64_t>(blockIdx.x) * columns * (n.dbias ? 2 : 1);
    float dweight[K ? K : 1] = {}, dbias[K ? K : 1] = {};
    if (K) stage<D>(s.weight, n.weight, 0, columns, wide);
    for (uint32_t c = threadIdx.x; !K && c < columns * (n.dbias ? 2 : 1); c += PD_THREADS)
        to[c] = 0.0f;
    for (uint64_t first = begin; first < end; first += b.at_once) {
        const uint32_t count = end - first < b.at_once ? static_cast<uint32_t>(end - first) : b.at_once;
        __syncthreads();
        find_rows(n, rows, first, count);
        if (K)
            stage_rows<D>(n, s, rows, count, wide);
        else
            s = {(unsigned char *)n.dout + first * columns * bytes, (unsigned char *)n.x + first * columns * bytes,
                 (unsigned char *)n.weight, columns};
        if (K == 1 && n.positions) turn_back<D>(n, s, first, count);
        sum_rows<D>(n, s, rows, count);
        for (uint32_t c = threadIdx.x; !K && c < columns; c += PD_THREADS)
            add_column<D>(s, rows, count, c, to + c, n.dbias ? to + columns + c : nullptr);
        __syncthreads();
        if (wide)
            put_staged_dx<D, WIDE>(n, s, rows, count);
        else
            put_staged_dx<D, 1>(n, s, rows, count);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const uint32_t c = k * PD_THREADS + threadIdx.x;
            if (c < columns) add_column<D>(s, rows, count, c, &dweight[k], &dbias[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const uint32_t c = k * PD_THREADS + threadIdx.x;
        if (c < columns) to[c] = dweight[k];
        if (c < columns && n.dbias) to[columns + c] = dbias[k];
    }
}

/* Bands of a column: each of sixteen lines of threads adds every sixteenth, then a tree of lines. blockIdx.y 1: dbias. */
static __global__ void join(const struct pd_norm n, const uint32_t count, const float *partials)
{
    PD_SHARED(float, sums, [LINES_OF_BANDS][COLUMNS]);
    const unsigned line = threadIdx.y, lane = threadIdx.x;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * COLUMNS + lane, row = n.columns * (n.dbias ? 2 : 1);
    const float *from = partials + blockIdx.y * n.columns + column;
    float sum = 0.0f;
    if (column < n.columns)
        pd_in_order<8>(
            line, count, LINES_OF_BANDS, [&](uint64_t band) { return from[band * row]; },
            [&](float term) { sum = sum + term; });
    sums[line][lane] = sum;
    for (unsigned half = LINES_OF_BANDS / 2; half >= 1; half /= 2) {
        __syncthreads();
        if (line < half) sums[line][lane] += sums[line + half][lane];
    }
    if (line == 0 && column < n.columns) (blockIdx.y ? n.dbias : n.dweight)[column] = sums[0][lane];
}

static bool is_too_long(const struct pd_norm *n)
{
    const uint64_t row = (n->columns + PAD + 7) / 8 * 8 * pd_dtype_bytes(n->dtype);
    return n->columns > EACH_MAX * PD_THREADS || 3 * row > PD_SHARED_EVERYWHERE - sizeof(staged_row) * AT_ONCE_MAX;
}

/* From sizes alone. */
static bands bands_of(const struct pd_norm *n)
{
    const uint64_t row = (n->columns + PAD + 7) / 8 * 8 * pd_dtype_bytes(n->dtype), all = n->rows ? n->rows : 1;
    uint64_t at_once = is_too_long(n) ? AT_ONCE_MAX : (SHARED_AIM - (row < SHARED_AIM ? row : SHARED_AIM)) / (2 * row);
    at_once = at_once < 1 ? 1 : at_once < AT_ONCE_MAX ? at_once : AT_ONCE_MAX;
    bands b;
    const uint64_t shorter = 2048 / (n->columns ? n->columns : 1);
    uint64_t most = BANDS_MAX * (shorter < 1 ? 1 : shorter < 4 ? shorter : 4);
    const uint64_t held = PD_CUDA_NORM_WORKSPACE_MAX / (2 * sizeof(float) * (n->columns ? n->columns : 1));
    if (most > held) most = held;
    const uint64_t wanted = (all + AT_ONCE_MAX - 1) / AT_ONCE_MAX, count = wanted < most ? wanted : most;
    b.rows = (all + count - 1) / count;
    b.count = static_cast<uint32_t>((all + b.rows - 1) / b.rows);
    const uint64_t rounds = (b.rows + at_once - 1) / at_once;
    b.at_once = static_cast<uint32_t>((b.rows + rounds - 1) / rounds);
    b.shared_bytes = is_too_long(n) ? PAD : static_cast<uint32_t>((2 * b.at_once + 1) * row);
    return b;
}

uint64_t pd_cuda_norm_workspace_bytes(const struct pd_norm *n)
{
    return bands_of(n).count * n->columns * (n->dbias ? 2 : 1) * sizeof(float);
}

template <enum pd_dtype D>
static pd_status launch_bands(void *stream, const struct pd_norm *n, const bands &b, float *partials, bool wide,
                              pd_error *err)
{
    const uint64_t each = (n->columns + PD_THREADS - 1) / PD_THREADS;
    const auto kernel = is_too_long(n) ? backward_bands<D, 0>
                        : each <= 1    ? backward_bands<D, 1>
                        : each <= 4    ? backward_bands<D, 4>
                        : each <= 16   ? backward_bands<D, 16>
                                       : backward_bands<D, EACH_MAX>;
    PD_TRY(
        pd_cuda_launch(err, "backward_bands", kernel, b.count, PD_THREADS, b.shared_bytes, stream, *n, b, partials, wide));
    return PD_LAUNCH(err, join, dim3(pd_blocks(n->columns, COLUMNS), n->dbias ? 2 : 1), dim3(COLUMNS, LINES_OF_BANDS), 0,
                     stream, *n, b.count, partials);
}

static bool rows_are_aligned(const struct pd_norm *n)
{
    return n->columns % WIDE == 0 && n->ld % WIDE == 0 && pd_is_16_aligned(n->x) && pd_is_16_aligned(n->kept) &&
           pd_is_16_aligned(n->weight) && pd_is_16_aligned(n->other_weight) && pd_is_16_aligned(n->bias);
}

/* Rotates the first elements of heads in place: a kernel of its own, since pairs of norms are the halves of a head. */
static pd_status turn_part(void *stream, const struct pd_norm *n, void *x, bool inverse, struct pd_error *err)
{
    const struct pd_rope rope = {.rows = n->rows / n->heads,
                                 .heads = n->heads,
                                 .head_size = static_cast<uint32_t>(n->columns),
                                 .dtype = n->dtype,
                                 .x = x,
                                 .ld = n->ld,
                                 .positions = n->positions,
                                 .cos_sin = n->cos_sin,
                                 .inverse = inverse,
                                 .from = NULL,
                                 .ld_from = 0,
                                 .rotated = n->rotated};
    return pd_cuda_rope(stream, &rope, err);
}

static pd_status norm_forward(void *stream, const struct pd_norm *n, struct pd_error *err)
{
    const bool aligned = rows_are_aligned(n) && pd_is_16_aligned(n->out);
    const unsigned blocks = pd_blocks(n->rows, ROWS), threads = ROWS * PD_LANES;
    PD_WITH_DTYPE(n->dtype, D, {
        if (n->heads && aligned) return PD_LAUNCH(err, (forward_heads<D, WIDE / 2>), blocks, threads, 0, stream, *n);
        if (n->heads) return PD_LAUNCH(err, (forward_heads<D, 1>), blocks, threads, 0, stream, *n);
        if (aligned) return PD_LAUNCH(err, (forward<D, WIDE>), blocks, threads, 0, stream, *n);
        return PD_LAUNCH(err, (forward<D, 1>), blocks, threads, 0, stream, *n);
    });
}

static bool turns_part(const struct pd_norm *n)
{
    return n->positions && n->rotated && n->rotated < n->columns;
}

pd_status pd_cuda_norm_forward(void *stream, const struct pd_norm *n, struct pd_error *err)
{
    struct pd_norm whole = *n;
    if (!turns_part(n)) return norm_forward(stream, n, err);
    whole.positions = NULL;
    PD_TRY(norm_forward(stream, &whole, err));
    return turn_part(stream, n, n->out, false, err);
}

static pd_status norm_backward(void *stream, const struct pd_norm *n, struct pd_cuda_workspace workspace,
                               struct pd_error *err)
{
    const bool aligned =
        rows_are_aligned(n) && pd_is_16_aligned(n->dout) && pd_is_16_aligned(n->dresidual) && pd_is_16_aligned(n->dx);
    const bands b = bands_of(n);
    PD_CHECK(n->heads == 0 || n->columns <= PD_THREADS);
    PD_CHECK(workspace.bytes >= pd_cuda_norm_workspace_bytes(n));
    PD_WITH_DTYPE(n->dtype, D, return launch_bands<D>(stream, n, b, static_cast<float *>(workspace.data), aligned, err));
}

pd_status pd_cuda_norm_backward(void *stream, const struct pd_norm *n, struct pd_cuda_workspace workspace,
                                struct pd_error *err)
{
    struct pd_norm whole = *n;
    if (!turns_part(n)) return norm_backward(stream, n, workspace, err);
    whole.positions = NULL;
    PD_TRY(turn_part(stream, n, n->dx, true, err)); /* dout is dx */
    return norm_backward(stream, &whole, workspace, err);
}
