/* Causal attention, backward, without tensor cores: see attention_plain.cu. Two passes as in attention_pair.h; which
 * positions share a block or a step does not affect the bits. */
#include "trainer/math/cuda/attention_plain.h"

#define STAYING 16u /* positions */

/* Operands as fp32: staying and passing, P and dS (STAYING, PASSING + 1), sums. */
template <uint32_t PASSING> struct space {
    float *stays[2], *passes[2], *p, *ds, *sums[2];
    float *lse, *delta; /* of the queries */
};

#define P_ROW (PASSING + 1)

template <uint32_t PASSING> PD_DEVICE space<PASSING> space_of(float *shared, uint32_t d)
{
    const uint32_t row = pd_plain_row(d);
    space<PASSING> s;
    s.stays[0] = shared;
    s.stays[1] = s.stays[0] + STAYING * row;
    s.passes[0] = s.stays[1] + STAYING * row;
    s.passes[1] = s.passes[0] + PASSING * row;
    s.sums[0] = s.passes[1] + PASSING * row;
    s.sums[1] = s.sums[0] + STAYING * row;
    s.p = s.sums[1] + STAYING * row;
    s.ds = s.p + STAYING * P_ROW;
    s.lse = s.ds + STAYING * P_ROW;
    s.delta = s.lse + PASSING;
    return s;
}

static constexpr size_t space_bytes(uint32_t d, uint32_t passing)
{
    return ((4 * STAYING + 2 * passing) * (d + 1) + 2 * STAYING * (passing + 1) + 2 * passing) * sizeof(float);
}

#define PASSING_OF(d) ((d) > PD_PLAIN_LONG ? 16u : 32u)
static_assert(space_bytes(PD_PLAIN_LONG, PASSING_OF(PD_PLAIN_LONG)) <= PD_SHARED_EVERYWHERE &&
                  space_bytes(PD_ATTENTION_HEAD_MAX, PASSING_OF(PD_ATTENTION_HEAD_MAX)) <= PD_SHARED_EVERYWHERE,
              "some GPUs have less");

/* lse and delta of queries from r on. */
template <uint32_t PASSING>
PD_DEVICE void states_load(const pd_attention &a, const space<PASSING> &s, uint32_t sequence, uint32_t head, uint32_t r)
{
    if (threadIdx.x >= PASSING) return;
    const uint64_t at = ((uint64_t)sequence * a.heads + head) * a.length + r + threadIdx.x;
    const bool there = r + threadIdx.x < a.length;
    s.lse[threadIdx.x] = there ? a.lse[at] : 0.0f;
    s.delta[threadIdx.x] = there ? a.delta[at] : 0.0f;
}

/* P and dS for query r and key k; `stay` and `pass` are rows of the staying and passing sides. */
template <uint32_t PASSING>
PD_DEVICE void pair(const pd_attention &a, const space<PASSING> &s, uint32_t sequence, uint32_t stay, uint32_t pass,
                    uint32_t r, uint32_t k, uint32_t query)
{
    const uint32_t row = pd_plain_row(a.head_size);
    const float score = pd_plain_dot(s.stays[0] + stay * row, s.passes[0] + pass * row, a.head_size);
    const float dp = pd_plain_dot(s.stays[1] + stay * row, s.passes[1] + pass * row, a.head_size);
    const float p = pd_exp(__fmaf_rn(score, a.scale, __fsub_rn(0.0f, s.lse[query])));
    const bool seen = pd_plain_sees(a, sequence, r, k);
    s.p[stay * P_ROW + pass] = seen ? p : 0.0f;
    s.ds[stay * P_ROW + pass] = seen ? __fmul_rn(p, __fsub_rn(dp, s.delta[query])) : 0.0f;
}

/* sums (STAYING, D) += weights (STAYING, PASSING) times rows that pass, ascending. */
template <uint32_t PASSING> PD_DEVICE void apply(float *sums, const float *weights, const float *rows, uint32_t d)
{
    const uint32_t row = pd_plain_row(d);
    for (uint32_t i = threadIdx.x; i < STAYING * d; i += PD_PLAIN_THREADS) {
        const uint32_t r = i / d, column = i % d;
        float sum = sums[r * row + column];
        for (uint32_t pass = 0; pass < PASSING; pass++)
            sum = __fmaf_rn(weights[r * P_ROW + pass], rows[pass * row + column], sum);
        sums[r * row + column] = sum;
    }
}

/* ---- dQ ---- */

template <enum pd_dtype T, uint32_t PASSING>
static __global__ void __launch_bounds__(PD_PLAIN_THREADS) attention_queries_plain(const pd_attention a)
{
    PD_SHARED_DYNAMIC(shared);
    const uint32_t d = a.head_size;
    const space<PASSING> s = space_of<PASSING>(reinterpret_cast<float *>(shared), d);
    const pd_plain_place p = pd_plain_place_of(a, blockIdx.x, STAYING);
    const pd_attention_span seen = pd_attention_keys_seen(a, p.sequence, p.r, p.count, PASSING);
    const uint64_t ld = (uint64_t)a.heads * d, at = p.row * ld + p.head * d;
    pd_plain_load<T>(s.stays[0], STAYING, a.q, p.row * a.ld_qkv + p.head * d, a.ld_qkv, p.count, d);
    pd_plain_load<T>(s.stays[1], STAYING, a.dout, at, ld, p.count, d);
    pd_plain_load<PD_F32>(s.sums[0], STAYING, a.dq_acc, at, ld, a.first_part ? 0 : p.count, d);
    states_load(a, s, p.sequence, p.head, p.r);
    for (uint32_t tile = seen.begin; tile < seen.end; tile++) {
        const uint32_t k = tile * PASSING, keys = pd_attention_count(a.key_length, tile, PASSING);
        const uint64_t key = (p.key_row + k) * a.ld_kv + p.kv * d;
        __syncthreads();
        pd_plain_load<T>(s.passes[0], PASSING, a.k, key, a.ld_kv, keys, d);
        pd_plain_load<T>(s.passes[1], PASSING, a.v, key, a.ld_kv, keys, d);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < STAYING * PASSING; i += PD_PLAIN_THREADS)
            pair(a, s, p.sequence, i / PASSING, i % PASSING, p.r + i / PASSING, k + i % PASSING, i / PASSING);
        __syncthreads();
        apply<PASSING>(s.sums[0], s.ds, s.passes[0], d);
    }
    __syncthreads();
    if (a.last_part)
        pd_plain_store<T>(s.sums[0], a.dq, p.row * a.ld_dq + p.head * d, a.ld_dq, p.count, d, nullptr, a.scale);
    else
        pd_plain_store<PD_F32>(s.sums[0], a.dq_acc, at, ld, p.count, d, nullptr, 1.0f);
}

template <uint32_t PASSING> static pd_status queries_launch(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    const uint64_t items = (uint64_t)((a->length + STAYING - 1) / STAYING) * a->sequences * a->heads;
    PD_WITH_DTYPE(a->dtype, T,
                  return PD_LAUNCH(err, (attention_queries_plain<T, PASSING>), static_cast<unsigned>(items),
                                   PD_PLAIN_THREADS, space_bytes(a->head_size, PASSING), stream, *a));
}

pd_status pd_attention_plain_queries(void *stream, const struct pd_attention *a, struct pd_cuda_workspace,
                                     struct pd_error *err)
{
    return a->head_size > PD_PLAIN_LONG ? queries_launch<PASSING_OF(PD_ATTENTION_HEAD_MAX)>(stream, a, err)
                                        : queries_launch<PASSING_OF(PD_PLAIN_LONG)>(stream, a, err);
}

/* ---- dK, dV ---- */

template <enum pd_dtype T, uint32_t PASSING>
static __global__ void __launch_bounds__(PD_PLAIN_THREADS) attention_keys_plain(const pd_attention a)
{
    PD_SHARED_DYNAMIC(shared);
    const uint32_t d = a.head_size;
    const space<PASSING> s = space_of<PASSING>(reinterpret_cast<float *>(shared), d);
    const pd_keys_place p = pd_keys_place_of(a, blockIdx.x, STAYING, 0);
    const pd_attention_span seeing = pd_attention_queries_seeing(a, p.sequence, p.tile * STAYING, p.count, PASSING);
    const uint32_t carried = a.first_part ? 0 : p.count;
    const uint64_t ld = (uint64_t)a.heads * d, acc = p.row * ld + p.head * d, row = (uint64_t)p.sequence * a.length;
    const uint64_t key = p.row * a.ld_kv + p.kv * d, at = p.row * a.ld_dkv + p.kv * d;
    pd_plain_load<T>(s.stays[0], STAYING, a.k, key, a.ld_kv, p.count, d);
    pd_plain_load<T>(s.stays[1], STAYING, a.v, key, a.ld_kv, p.count, d);
    pd_plain_load<PD_F32>(s.sums[0], STAYING, a.dk_acc, acc, ld, carried, d);
    pd_plain_load<PD_F32>(s.sums[1], STAYING, a.dv_acc, acc, ld, carried, d);
    for (uint32_t tile = seeing.begin; tile < seeing.end; tile++) {
        const uint32_t r = tile * PASSING, count = pd_attention_count(a.length, tile, PASSING);
        __syncthreads();
        pd_plain_load<T>(s.passes[0], PASSING, a.q, (row + r) * a.ld_qkv + p.head * d, a.ld_qkv, count, d);
        pd_plain_load<T>(s.passes[1], PASSING, a.dout, (row + r) * ld + p.head * d, ld, count, d);
        states_load(a, s, p.sequence, p.head, r);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < STAYING * PASSING; i += PD_PLAIN_THREADS)
            pair(a, s, p.sequence, i / PASSING, i % PASSING, r + i % PASSING, p.tile * STAYING + i / PASSING, i % PASSING);
        __syncthreads();
        apply<PASSING>(s.sums[0], s.ds, s.passes[0], d);
        apply<PASSING>(s.sums[1], s.p, s.passes[1], d);
    }
    __syncthreads();
    if (!a.last_part) {
        pd_plain_store<PD_F32>(s.sums[0], a.dk_acc, acc, ld, p.count, d, nullptr, 1.0f);
        pd_plain_store<PD_F32>(s.sums[1], a.dv_acc, acc, ld, p.count, d, nullptr, 1.0f);
    } else if (a.kv_partial) {
        pd_plain_store<PD_F32>(s.sums[0], a.dk, at, a.ld_dkv, p.count, d, nullptr, 1.0f);
        pd_plain_store<PD_F32>(s.sums[1], a.dv, at, a.ld_dkv, p.count, d, nullptr, 1.0f);
    } else {
        pd_plain_store<T>(s.sums[0], a.dk, at, a.ld_dkv, p.count, d, nullptr, a.scale);
        pd_plain_store<T>(s.sums[1], a.dv, at, a.ld_dkv, p.count, d, nullptr, 1.0f);
    }
}

template <uint32_t PASSING> static pd_status keys_launch(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    PD_WITH_DTYPE(a->dtype, T,
                  return PD_LAUNCH(err, (attention_keys_plain<T, PASSING>),
                                   static_cast<unsigned>(pd_attention_keys_items(a, STAYING)), PD_PLAIN_THREADS,
                                   space_bytes(a->head_size, PASSING), stream, *a));
}

pd_status pd_attention_plain_keys(void *stream, const struct pd_attention *a, struct pd_cuda_workspace, struct pd_error *err)
{
    return a->head_size > PD_PLAIN_LONG ? keys_launch<PASSING_OF(PD_ATTENTION_HEAD_MAX)>(stream, a, err)
                                        : keys_launch<PASSING_OF(PD_PLAIN_LONG)>(stream, a, err);
}
