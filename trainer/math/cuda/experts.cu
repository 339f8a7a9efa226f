/* Routes tokens to experts, and computes what stands between their products. Formulas, order of sums and bits are as in
 * cpu_experts.c. Only z_loss is summed in another order, which changes losses and gradients of weights. */
#include "trainer/math/cuda/each.h"
#include "trainer/math/cuda/functions.h"

#include "ckpt/tensor/tensor.h"

#define WIDE 8

/* ---- routing: a warp has a row ---- */

#define ROUTE_WARPS 4u
#define GROUPS_MAX (PD_EXPERTS_MAX / 2)

/* A value with its place. The larger value wins, then the lower place; no value (count) never does. */
struct best {
    float value;
    uint32_t at;
};

PD_DEVICE bool is_better(const best &a, const best &b, uint32_t count)
{
    if (a.at == count) return false;
    return b.at == count || a.value > b.value || (a.value == b.value && a.at < b.at);
}

/* The largest that is not taken, the first of equal ones. As in a loop over places, NaN is largest if no value comes before
 * it, and else never. All lanes get the place. */
PD_DEVICE uint32_t best_of(const float *values, const uint8_t *is_taken, uint32_t count)
{
    const uint32_t lane = threadIdx.x % PD_WARP;
    uint32_t first = count;
    best mine = {0.0f, count};
    for (uint32_t i = lane; i < count; i += PD_WARP) {
        if (is_taken[i]) continue;
        if (first == count) first = i;
        const best other = {values[i], i};
        if (values[i] == values[i] && is_better(other, mine, count)) mine = other;
    }
    for (int half = 16; half >= 1; half /= 2) {
        const best other = {__shfl_xor_sync(PD_WARP_ALL, mine.value, half), __shfl_xor_sync(PD_WARP_ALL, mine.at, half)};
        const uint32_t before = __shfl_xor_sync(PD_WARP_ALL, first, half);
        if (is_better(other, mine, count)) mine = other;
        first = before < first ? before : first;
    }
    return first == count || values[first] != values[first] ? first : mine.at;
}

/* What a warp works in. */
struct route_work {
    float ranks[PD_EXPERTS_MAX], sums[GROUPS_MAX];
    uint8_t is_taken[PD_EXPERTS_MAX], is_kept[GROUPS_MAX];
};

/* Sum of n values, a chain in ascending order; all lanes get it. */
PD_DEVICE float chain_of(const float *values, uint32_t n)
{
    float sum = 0.0f;
    __syncwarp();
    if (threadIdx.x % PD_WARP == 0)
        for (uint32_t i = 0; i < n; i++)
            sum = sum + values[i];
    return __shfl_sync(PD_WARP_ALL, sum, 0);
}

PD_DEVICE float route_scores(const pd_route &r, const float *logits, float *scores, route_work &w)
{
    const uint32_t lane = threadIdx.x % PD_WARP;
    for (uint32_t e = lane; e < r.experts; e += PD_WARP)
        w.is_taken[e] = 0;
    __syncwarp();
    const float max = logits[best_of(logits, w.is_taken, r.experts)];
    for (uint32_t e = lane; e < r.experts; e += PD_WARP)
        w.ranks[e] = pd_exp(logits[e] - max);
    const float sum = chain_of(w.ranks, r.experts);
    for (uint32_t e = lane; e < r.experts; e += PD_WARP)
        scores[e] = r.is_sigmoid ? pd_sigmoid(logits[e]) : __fdiv_rn(w.ranks[e], sum);
    return max + pd_log(sum);
}

/* The largest of a group, as best_of finds it; `but` is left out. */
PD_DEVICE uint32_t best_of_group(const float *values, uint32_t count, uint32_t but)
{
    uint32_t at = count;
    for (uint32_t i = 0; i < count; i++)
        if (i != but && (at == count || values[i] > values[at])) at = i;
    return at;
}

PD_DEVICE void leave_groups(const pd_route &r, route_work &w)
{
    const uint32_t lane = threadIdx.x % PD_WARP, each = r.experts / r.groups;
    for (uint32_t g = lane; g < r.groups; g += PD_WARP) {
        const float *ranks = w.ranks + g * each;
        const uint32_t first = best_of_group(ranks, each, each);
        w.sums[g] = ranks[first] + ranks[best_of_group(ranks, each, first)];
        w.is_kept[g] = 0;
    }
    __syncwarp();
    for (uint32_t i = 0; i < r.groups_kept; i++) {
        const uint32_t g = best_of(w.sums, w.is_kept, r.groups);
        __syncwarp();
        if (lane == 0) w.is_kept[g] = 1;
        __syncwarp();
    }
    for (uint32_t e = lane; e < r.experts; e += PD_WARP)
        w.is_taken[e] = !w.is_kept[e / each];
    __syncwarp();
}

PD_DEVICE float chosen_sum(const pd_route &r, const float *scores, const int32_t *choice)
{
    float sum = 0.0f;
    for (uint32_t j = 0; j < r.per_token; j++)
        sum = sum + scores[choice[j]];
    return sum + 1e-20f;
}

static __global__ void route_rows(pd_route r)
{
    PD_SHARED(route_work, all, [ROUTE_WARPS]);
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROUTE_WARPS + threadIdx.x / PD_WARP;
    const uint32_t lane = threadIdx.x % PD_WARP;
    if (row >= r.rows) return;
    route_work &w = all[threadIdx.x / PD_WARP];
    float *scores = r.scores + row * r.experts, *weights = r.weights + row * r.per_token;
    int32_t *choice = r.choice + row * r.per_token;
    const float lse = route_scores(r, r.logits + row * r.experts, scores, w);
    if (lane == 0) r.lse[row] = lse;
    __syncwarp();
    for (uint32_t e = lane; e < r.experts; e += PD_WARP)
        w.ranks[e] = r.bias ? scores[e] + r.bias[e] : scores[e];
    __syncwarp();
    if (r.groups_kept < r.groups) leave_groups(r, w);
    for (uint32_t j = 0; j < r.per_token; j++) {
        const uint32_t at = best_of(w.ranks, w.is_taken, r.experts);
        __syncwarp();
        if (lane == 0) choice[j] = static_cast<int32_t>(at), w.is_taken[at] = 1;
        __syncwarp();
    }
    const float sum = r.renormalise ? chosen_sum(r, scores, choice) : 1.0f;
    for (uint32_t j = lane; j < r.per_token; j += PD_WARP)
        weights[j] = r.scale * __fdiv_rn(scores[choice[j]], sum);
}

static __global__ void route_gradients(pd_route r)
{
    PD_SHARED(float, all, [ROUTE_WARPS][PD_EXPERTS_MAX]);
    PD_SHARED(float, all_terms, [ROUTE_WARPS][PD_EXPERTS_MAX]);
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROUTE_WARPS + threadIdx.x / PD_WARP;
    const uint32_t lane = threadIdx.x % PD_WARP;
    if (row >= r.rows) return;
    float *d = all[threadIdx.x / PD_WARP], *terms = all_terms[threadIdx.x / PD_WARP];
    const float *scores = r.scores + row * r.experts, *dweights = r.dweights + row * r.per_token;
    const float *logits = r.logits + row * r.experts;
    const int32_t *choice = r.choice + row * r.per_token;
    float *out = r.dlogits + row * r.experts;
    const float sum = r.renormalise ? chosen_sum(r, scores, choice) : 1.0f, factor = __fdiv_rn(r.scale, sum);
    float mean = 0.0f;
    for (uint32_t j = 0; j < r.per_token && r.renormalise; j++)
        mean = mean + dweights[j] * __fdiv_rn(scores[choice[j]], sum);
    for (uint32_t e = lane; e < r.experts; e += PD_WARP)
        d[e] = r.balance ? r.balance[e] : 0.0f;
    __syncwarp();
    for (uint32_t j = lane; j < r.per_token; j += PD_WARP)
        d[choice[j]] = d[choice[j]] + factor * (dweights[j] - mean);
    __syncwarp();
    float sum_of_all = 0.0f;
    if (!r.is_sigmoid) {
        for (uint32_t e = lane; e < r.experts; e += PD_WARP)
            terms[e] = d[e] * scores[e];
        sum_of_all = chain_of(terms, r.experts);
    }
    const float lse = r.lse[row], z = 2.0f * r.z * lse;
    for (uint32_t e = lane; e < r.experts; e += PD_WARP) {
        const float s = scores[e];
        float x = r.is_sigmoid ? d[e] * (s * (1.0f - s)) : s * (d[e] - sum_of_all);
        if (r.z != 0.0f) x = x + z * (r.is_sigmoid ? pd_exp(logits[e] - lse) : s);
        out[e] = x;
    }
}

pd_status pd_cuda_route_forward(void *stream, const struct pd_route *route, struct pd_error *err)
{
    return PD_LAUNCH(err, route_rows, pd_blocks(route->rows, ROUTE_WARPS), ROUTE_WARPS * PD_WARP, 0, stream, *route);
}

pd_status pd_cuda_route_backward(void *stream, const struct pd_route *route, struct pd_error *err)
{
    return PD_LAUNCH(err, route_gradients, pd_blocks(route->rows, ROUTE_WARPS), ROUTE_WARPS * PD_WARP, 0, stream, *route);
}

/* ---- slots: a block has an expert ---- */

#define SLOT_THREADS 256u
#define SLOT_WARPS (SLOT_THREADS / PD_WARP)

struct slot_job {
    uint64_t rows;
    uint32_t experts, per_token, ranks, pieces;
    const int32_t *choice;
    const float *weights;
    int32_t *slots, *tokens, *first;
    float *slot_weights;
};

struct piece_rows {
    uint32_t first[PD_SLOT_PIECES_MAX + 1];
};

PD_DEVICE uint64_t slot_place(uint32_t experts, uint32_t ranks, uint32_t expert)
{
    return expert % ranks * static_cast<uint64_t>(experts / ranks) + expert / ranks;
}

/* Which of a row's choices this expert is; per_token: none. */
PD_DEVICE uint32_t choice_of(const slot_job &o, uint64_t row, uint32_t expert)
{
    uint32_t j = 0;
    while (j < o.per_token && o.choice[row * o.per_token + j] != static_cast<int32_t>(expert))
        j++;
    return j;
}

/* A block has an expert's rows of one piece. */
static __global__ void slot_numbers(slot_job o, piece_rows rows)
{
    PD_SHARED(unsigned, count, [1]);
    const uint32_t expert = blockIdx.x, piece = blockIdx.y;
    unsigned mine = 0;
    if (threadIdx.x == 0) count[0] = 0;
    __syncthreads();
    for (uint64_t row = rows.first[piece] + threadIdx.x; row < rows.first[piece + 1]; row += SLOT_THREADS)
        mine += choice_of(o, row, expert) < o.per_token;
    if (mine) atomicAdd(&count[0], mine);
    __syncthreads();
    if (threadIdx.x == 0)
        o.first[slot_place(o.experts, o.ranks, expert) * o.pieces + piece + 1] = static_cast<int32_t>(count[0]);
}

/* One block: numbers become the sums of those before. */
static __global__ void slot_sums(uint64_t count, int32_t *first)
{
    PD_SHARED(int32_t, sums, [2][SLOT_THREADS]);
    int32_t before = 0;
    if (threadIdx.x == 0) first[0] = 0;
    for (uint64_t begin = 0; begin < count; begin += SLOT_THREADS) {
        const uint64_t i = begin + threadIdx.x;
        unsigned side = 0;
        sums[0][threadIdx.x] = i < count ? first[i + 1] : 0;
        __syncthreads();
        for (unsigned by = 1; by < SLOT_THREADS; by *= 2) {
            sums[!side][threadIdx.x] = sums[side][threadIdx.x] + (threadIdx.x >= by ? sums[side][threadIdx.x - by] : 0);
            side = !side;
            __syncthreads();
        }
        if (i < count) first[i + 1] = before + sums[side][threadIdx.x];
        before += sums[side][SLOT_THREADS - 1];
        __syncthreads();
    }
}

/* Pieces ascend in rows, so an expert's rows of all its pieces ascend. */
static __global__ void slot_places(slot_job o)
{
    PD_SHARED(unsigned, counts, [SLOT_WARPS]);
    const uint32_t expert = blockIdx.x, warp = threadIdx.x / PD_WARP, lane = threadIdx.x % PD_WARP;
    int32_t next = o.first[slot_place(o.experts, o.ranks, expert) * o.pieces];
    for (uint64_t begin = 0; begin < o.rows; begin += SLOT_THREADS) {
        const uint64_t row = begin + threadIdx.x;
        const uint32_t j = row < o.rows ? choice_of(o, row, expert) : o.per_token;
        const unsigned have = __ballot_sync(PD_WARP_ALL, j < o.per_token);
        if (lane == 0) counts[warp] = static_cast<unsigned>(__popc(have));
        __syncthreads();
        unsigned before = 0, all = 0;
        for (unsigned i = 0; i < SLOT_WARPS; i++) {
            before += i < warp ? counts[i] : 0;
            all += counts[i];
        }
        if (j < o.per_token) {
            const uint64_t from = row * o.per_token + j;
            const int32_t slot = next + static_cast<int32_t>(before) + __popc(have & ((1u << lane) - 1u));
            o.slots[from] = slot;
            o.tokens[slot] = static_cast<int32_t>(row);
            o.slot_weights[slot] = o.weights[from];
        }
        next += static_cast<int32_t>(all);
        __syncthreads();
    }
}

pd_status pd_cuda_slot_order(void *stream, const struct pd_slot_order *o, struct pd_error *err)
{
    const slot_job job = {o->rows,    o->experts, o->per_token, o->ranks, o->pieces,      o->choice,
                          o->weights, o->slots,   o->tokens,    o->first, o->slot_weights};
    const uint64_t count = static_cast<uint64_t>(o->experts) * o->pieces;
    piece_rows rows;
    for (uint32_t i = 0; i <= PD_SLOT_PIECES_MAX; i++)
        rows.first[i] = static_cast<uint32_t>(o->piece_rows[i < o->pieces ? i : o->pieces]);
    PD_TRY(PD_LAUNCH(err, slot_numbers, dim3(o->experts, o->pieces), SLOT_THREADS, 0, stream, job, rows));
    PD_TRY(PD_LAUNCH(err, slot_sums, 1, SLOT_THREADS, 0, stream, count, o->first));
    return PD_LAUNCH(err, slot_places, o->experts, SLOT_THREADS, 0, stream, job);
}

struct counts {
    uint32_t experts, ranks, pieces;
    const int32_t *first;
    int32_t *tokens;

    template <int N> __device__ void at(uint64_t i) const
    {
        static_assert(N == 1, "no vectors");
        const uint32_t expert = static_cast<uint32_t>(i % experts), piece = static_cast<uint32_t>(i / experts);
        const uint64_t place = slot_place(experts, ranks, expert) * pieces + piece;
        tokens[i] = first[place + 1] - first[place];
    }
};

pd_status pd_cuda_slot_counts(void *stream, uint32_t experts, uint32_t ranks, uint32_t pieces, const int32_t *first,
                              int32_t *tokens, struct pd_error *err)
{
    const uint64_t n = static_cast<uint64_t>(experts) * pieces;
    return pd_each_launch<1>(stream, n, true, counts{experts, ranks, pieces, first, tokens}, err);
}

struct surplus {
    uint32_t experts;
    double slots;
    float scale, unit;
    const int32_t *tokens;
    float *out;

    template <int N> __device__ void at(uint64_t e) const
    {
        static_assert(N == 1, "no vectors");
        const float whole = static_cast<float>(__dadd_rn(__dmul_rn(static_cast<double>(tokens[e]), experts), -slots));
        out[e] = __fdiv_rn(scale * whole, unit);
    }
};

pd_status pd_cuda_slot_surplus(void *stream, uint32_t experts, double slots, float scale, const int32_t *tokens, float *out,
                               struct pd_error *err)
{
    float unit = 1;
    while (unit < static_cast<float>(experts))
        unit *= 2;
    return pd_each_launch<1>(stream, experts, true, surplus{experts, slots, scale, unit, tokens, out}, err);
}

/* ---- losses ---- */

#define LOSS_THREADS 256u

static __global__ void balance_losses(pd_router_losses l)
{
    PD_SHARED(double, terms, [PD_EXPERTS_MAX]);
    for (uint32_t e = threadIdx.x; e < l.experts; e += LOSS_THREADS) {
        double scores = 0.0, tokens = 0.0;
        for (uint32_t p = 0; p < l.pieces; p++) {
            scores = __dadd_rn(scores, static_cast<double>(l.scores[static_cast<uint64_t>(p) * l.experts + e]));
            tokens = __dadd_rn(tokens, static_cast<double>(l.tokens[static_cast<uint64_t>(p) * l.experts + e]));
        }
        terms[e] = __dmul_rn(tokens / l.rows, scores / l.rows);
        if (l.balance) l.balance[e] = static_cast<float>(__dmul_rn(l.factor, tokens) / l.rows);
    }
    __syncthreads();
    if (threadIdx.x) return;
    double sum = 0.0;
    for (uint32_t e = 0; e < l.experts; e++)
        sum = __dadd_rn(sum, terms[e]);
    *l.balance_loss = __dmul_rn(sum, l.experts);
}

/* A block has a piece: chains of rows by thread, then a tree of threads. */
static __global__ void z_losses(const float *lse, double rows, double *z, piece_rows pieces)
{
    PD_SHARED(double, sums, [LOSS_THREADS]);
    double sum = 0.0;
    for (uint64_t r = pieces.first[blockIdx.x] + threadIdx.x; r < pieces.first[blockIdx.x + 1]; r += LOSS_THREADS)
        sum = __dadd_rn(sum, __dmul_rn(static_cast<double>(lse[r]), static_cast<double>(lse[r])));
    sums[threadIdx.x] = sum;
    for (unsigned half = LOSS_THREADS / 2; half >= 1; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] = __dadd_rn(sums[threadIdx.x], sums[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) z[blockIdx.x] = sums[0] / rows;
}

pd_status pd_cuda_router_losses(void *stream, const struct pd_router_losses *l, struct pd_error *err)
{
    piece_rows rows = {};
    for (uint32_t i = 0; i <= PD_SLOT_PIECES_MAX && l->z_pieces; i++)
        rows.first[i] = static_cast<uint32_t>(l->z_rows[i < l->z_pieces ? i : l->z_pieces]);
    struct pd_router_losses device = *l;
    device.z_rows = NULL; /* host memory */
    PD_TRY(PD_LAUNCH(err, balance_losses, 1, LOSS_THREADS, 0, stream, device));
    return PD_LAUNCH(err, z_losses, l->z_pieces, LOSS_THREADS, 0, stream, l->lse, l->rows, l->z_loss, rows);
}

/* One warp; NaN as in a loop over values. */
static __global__ void range_of(uint64_t n, const float *values, float *range)
{
    float low = values[0], high = values[0];
    for (uint64_t i = threadIdx.x; i < n; i += PD_WARP) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    for (int half = 16; half >= 1; half /= 2) {
        const float other_low = __shfl_xor_sync(PD_WARP_ALL, low, half),
                    other_high = __shfl_xor_sync(PD_WARP_ALL, high, half);
        low = other_low < low ? other_low : low;
        high = other_high > high ? other_high : high;
    }
    if (threadIdx.x == 0) *range = high - low;
}

pd_status pd_cuda_value_range(void *stream, uint64_t n, const float *values, float *range, struct pd_error *err)
{
    return PD_LAUNCH(err, range_of, 1, PD_WARP, 0, stream, n, values, range);
}

/* ---- rows of tokens ---- */

template <typename Word> struct gathered {
    uint64_t words; /* of a row */
    const int32_t *from;
    const void *src;
    void *dst;

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        static_assert(N == 1, "no vectors");
        const uint64_t source = static_cast<uint64_t>(from[row]);
        static_cast<Word *>(dst)[row * words + column] = static_cast<const Word *>(src)[source * words + column];
    }
    template <int N> __device__ void at(uint64_t i) const
    {
        at<N>(i / words, i % words);
    }
};

/* Short rows share blocks. */
template <typename Word>
static pd_status gather_launch(void *stream, uint64_t rows, uint64_t bytes, const int32_t *from, const void *src, void *dst,
                               struct pd_error *err)
{
    const uint64_t words = bytes / sizeof(Word);
    const gathered<Word> operation = {words, from, src, dst};
    if (words < PD_WARP) return pd_each_launch<1>(stream, rows * words, true, operation, err);
    return pd_each_row_launch<1>(stream, rows, words, true, operation, err);
}

pd_status pd_cuda_gather_rows(void *stream, uint64_t rows, uint64_t bytes, const int32_t *from, const void *src, void *dst,
                              struct pd_error *err)
{
    const uint64_t all = reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst) | bytes;
    if (all % sizeof(uint4) == 0) return gather_launch<uint4>(stream, rows, bytes, from, src, dst, err);
    if (all % sizeof(uint32_t) == 0) return gather_launch<uint32_t>(stream, rows, bytes, from, src, dst, err);
    if (all % sizeof(uint16_t) == 0) return gather_launch<uint16_t>(stream, rows, bytes, from, src, dst, err);
    return gather_launch<uint8_t>(stream, rows, bytes, from, src, dst, err);
}

template <enum pd_dtype D> struct combined {
    struct pd_combine c;

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        const int32_t *slots = c.slots + row * c.per_token;
        float sum[N];
        for (int i = 0; i < N; i++)
            sum[i] = 0.0f;
        for (uint32_t j = 0; j < c.per_token && c.parts; j++) {
            float part[N];
            pd_get_n<D, N>(c.parts, static_cast<uint64_t>(slots[j]) * c.columns + column, part);
            for (int i = 0; i < N; i++)
                sum[i] = sum[i] + part[i];
        }
        pd_put_n<PD_F32, N>(c.out, row * c.columns + column, sum);
    }
};

pd_status pd_cuda_combine(void *stream, const struct pd_combine *c, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(c->parts) && pd_is_16_aligned(c->out);
    PD_WITH_DTYPE(c->dtype, D, return pd_each_row_launch<WIDE>(stream, c->rows, c->columns, aligned, combined<D>{*c}, err));
}

/* ---- SwiGLU times the weight of the row ---- */

template <enum pd_dtype D> struct weighted {
    struct pd_weighted_swiglu s;

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        const uint64_t from = 2 * row * s.columns + column;
        const float weight = s.weights[row];
        float gate[N], up[N];
        pd_get_n<D, N>(s.gate_up, from, gate);
        pd_get_n<D, N>(s.gate_up, from + s.columns, up);
        for (int j = 0; j < N; j++)
            up[j] = ((gate[j] * pd_sigmoid(gate[j])) * up[j]) * weight;
        pd_put_n<D, N>(s.out, row * s.columns + column, up);
    }
};

pd_status pd_cuda_weighted_swiglu_forward(void *stream, const struct pd_weighted_swiglu *s, struct pd_error *err)
{
    const bool aligned = pd_is_16_aligned(s->gate_up) && pd_is_16_aligned(s->out);
    PD_WITH_DTYPE(s->dtype, D, return pd_each_row_launch<WIDE>(stream, s->rows, s->columns, aligned, weighted<D>{*s}, err));
}

#define WEIGHTED_ROWS (PD_THREADS / PD_LANES) /* of a block; sixteen threads have a row */

template <enum pd_dtype D> static __global__ void weighted_gradients(pd_weighted_swiglu s)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * WEIGHTED_ROWS + threadIdx.x / PD_LANES;
    const unsigned lane = threadIdx.x % PD_LANES;
    const bool has_row = row < s.rows;
    const uint64_t from = 2 * row * s.columns, from_out = row * s.columns;
    const float weight = has_row ? s.weights[row] : 0.0f;
    for (uint32_t chunk = 0; chunk < s.chunks; chunk++) {
        const uint64_t begin = chunk * s.chunk < s.columns ? chunk * s.chunk : s.columns,
                       end = begin + s.chunk < s.columns ? begin + s.chunk : s.columns;
        float sum = 0.0f;
        for (uint64_t i = begin + lane; i < end && has_row; i += PD_LANES) {
            const float gate = pd_get<D>(s.gate_up, from + i), up = pd_get<D>(s.gate_up, from + s.columns + i),
                        dout = pd_get<D>(s.dout, from_out + i), scaled = dout * weight;
            const float logistic = pd_sigmoid(gate), silu = gate * logistic,
                        slope = logistic * __fmaf_rn(gate, 1.0f - logistic, 1.0f);
            sum = __fmaf_rn(dout, silu * up, sum);
            pd_put<D>(s.dgate_up, from + i, (scaled * up) * slope);
            pd_put<D>(s.dgate_up, from + s.columns + i, scaled * silu);
        }
        sum = pd_lanes_sum(sum);
        if (has_row && lane == 0) s.dweights[chunk * s.rows + row] = sum;
    }
}

pd_status pd_cuda_weighted_swiglu_backward(void *stream, const struct pd_weighted_swiglu *s, struct pd_error *err)
{
    PD_WITH_DTYPE(
        s->dtype, D,
        return PD_LAUNCH(err, weighted_gradients<D>, pd_blocks(s->rows, WEIGHTED_ROWS), PD_THREADS, 0, stream, *s));
}
