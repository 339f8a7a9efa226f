/* Causal attention without tensor cores: any head size up to 256, any dtype, fp32 throughout. Each element is the same sum
 * as in the CPU backend (cpu_attention.c, cpu_attention_backward.c), with the same order and functions, so the bits are
 * equal; forward uses the same steps of 64 keys. fp32 uses these kernels, and tests compare the tensor core kernels with
 * them.
 *
 * A block has ROWS queries of one head in shared memory as fp32, all operands (rows, D + 1). Each thread computes some of
 * the output elements, each as one chain. */
#include "trainer/math/cuda/attention_plain.h"

#include <float.h>

/* ---- forward ---- */

template <uint32_t ROWS> struct forward_space {
    float *q, *kv, *o; /* (ROWS, D + 1), (PD_ATTENTION_STEP, D + 1), (ROWS, D + 1) */
    float *p;          /* (ROWS, PD_ATTENTION_STEP + 1) */
    float *max, *sum, *rescale;
};

#define P_ROW (PD_ATTENTION_STEP + 1)

template <uint32_t ROWS> PD_DEVICE forward_space<ROWS> forward_space_of(float *shared, uint32_t d)
{
    forward_space<ROWS> s;
    s.q = shared;
    s.kv = s.q + ROWS * pd_plain_row(d);
    s.o = s.kv + PD_ATTENTION_STEP * pd_plain_row(d);
    s.p = s.o + ROWS * pd_plain_row(d);
    s.max = s.p + ROWS * P_ROW;
    s.sum = s.max + ROWS;
    s.rescale = s.sum + ROWS;
    return s;
}

static constexpr size_t forward_bytes(uint32_t d, uint32_t rows)
{
    return ((2 * rows + PD_ATTENTION_STEP) * (d + 1) + rows * (P_ROW + 3)) * sizeof(float);
}

#define ROWS_OF(d) ((d) > PD_PLAIN_LONG ? 8u : 16u)
static_assert(forward_bytes(PD_PLAIN_LONG, ROWS_OF(PD_PLAIN_LONG)) <= PD_SHARED_EVERYWHERE &&
                  forward_bytes(PD_ATTENTION_HEAD_MAX, ROWS_OF(PD_ATTENTION_HEAD_MAX)) <= PD_SHARED_EVERYWHERE,
              "some GPUs have less");

template <enum pd_dtype T, uint32_t ROWS>
PD_DEVICE void forward_start(const pd_attention &a, const pd_plain_place &p, const forward_space<ROWS> &s)
{
    const uint32_t d = a.head_size;
    const uint64_t ld = (uint64_t)a.heads * d;
    pd_plain_load<T>(s.q, ROWS, a.q, p.row * a.ld_qkv + p.head * d, a.ld_qkv, p.count, d);
    pd_plain_load<PD_F32>(s.o, ROWS, a.acc, p.row * ld + p.head * d, ld, a.first_part ? 0 : p.count, d);
    if (threadIdx.x < ROWS) {
        const bool carried = !a.first_part && threadIdx.x < p.count;
        const uint64_t at = (p.row + threadIdx.x) * a.heads + p.head;
        s.max[threadIdx.x] = carried ? a.max[at] : -FLT_MAX;
        s.sum[threadIdx.x] = carried ? a.sum[at] : 0.0f;
    }
}

template <uint32_t ROWS>
PD_DEVICE void forward_scores(const pd_attention &a, const pd_plain_place &p, const forward_space<ROWS> &s, uint32_t k)
{
    const uint32_t row = pd_plain_row(a.head_size);
    for (uint32_t i = threadIdx.x; i < ROWS * PD_ATTENTION_STEP; i += PD_PLAIN_THREADS) {
        const uint32_t r = i / PD_ATTENTION_STEP, key = i % PD_ATTENTION_STEP;
        const float x = __fmul_rn(pd_plain_dot(s.kv + key * row, s.q + r * row, a.head_size), a.scale);
        s.p[r * P_ROW + key] = pd_plain_sees(a, p.sequence, p.r + r, k + key) ? x : -INFINITY;
    }
}

/* One thread per query: the maximum and the factor; then all threads P; then one thread per query its sum, ascending. */
template <uint32_t ROWS> PD_DEVICE void forward_softmax(const forward_space<ROWS> &s)
{
    const uint32_t r = threadIdx.x;
    if (r < ROWS) {
        float old = s.max[r], max = old;
        for (uint32_t key = 0; key < PD_ATTENTION_STEP; key++)
            max = s.p[r * P_ROW + key] > max ? s.p[r * P_ROW + key] : max;
        s.max[r] = max;
        s.rescale[r] = pd_exp(__fsub_rn(old, max));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < ROWS * PD_ATTENTION_STEP; i += PD_PLAIN_THREADS) {
        float *x = s.p + i / PD_ATTENTION_STEP * P_ROW + i % PD_ATTENTION_STEP;
        *x = pd_exp(__fsub_rn(*x, s.max[i / PD_ATTENTION_STEP]));
    }
    __syncthreads();
    if (r < ROWS) {
        float sum = 0.0f;
        for (uint32_t key = 0; key < PD_ATTENTION_STEP; key++)
            sum = __fadd_rn(sum, s.p[r * P_ROW + key]);
        s.sum[r] = __fmaf_rn(s.sum[r], s.rescale[r], sum);
    }
}

template <uint32_t ROWS> PD_DEVICE void forward_apply(const forward_space<ROWS> &s, uint32_t d)
{
    for (uint32_t i = threadIdx.x; i < ROWS * d; i += PD_PLAIN_THREADS) {
        const uint32_t r = i / d, column = i % d;
        float *o = s.o + r * pd_plain_row(d) + column, sum = __fmul_rn(*o, s.rescale[r]);
        for (uint32_t key = 0; key < PD_ATTENTION_STEP; key++)
            sum = __fmaf_rn(s.kv[key * pd_plain_row(d) + column], s.p[r * P_ROW + key], sum);
        *o = sum;
    }
}

template <enum pd_dtype T, uint32_t ROWS>
PD_DEVICE void forward_finish(const pd_attention &a, const pd_plain_place &p, const forward_space<ROWS> &s)
{
    const uint32_t d = a.head_size, r = threadIdx.x;
    const uint64_t ld = (uint64_t)a.heads * d, at = p.row * ld + p.head * d, state = (p.row + r) * a.heads + p.head;
    if (!a.last_part) {
        pd_plain_store<PD_F32>(s.o, a.acc, at, ld, p.count, d, nullptr, 1.0f);
        if (r < p.count) a.max[state] = s.max[r];
        if (r < p.count) a.sum[state] = s.sum[r];
        return;
    }
    if (r < ROWS) s.rescale[r] = __fdiv_rn(1.0f, s.sum[r]);
    if (r < p.count)
        a.lse[((uint64_t)p.sequence * a.heads + p.head) * a.length + p.r + r] = __fadd_rn(s.max[r], pd_log(s.sum[r]));
    __syncthreads();
    pd_plain_store<T>(s.o, a.out, at, ld, p.count, d, s.rescale, 1.0f);
}

template <enum pd_dtype T, uint32_t ROWS>
static __global__ void __launch_bounds__(PD_PLAIN_THREADS) attention_forward_plain(const pd_attention a)
{
    PD_SHARED_DYNAMIC(shared);
    const uint32_t d = a.head_size;
    const forward_space<ROWS> s = forward_space_of<ROWS>(reinterpret_cast<float *>(shared), d);
    const pd_plain_place p = pd_plain_place_of(a, blockIdx.x, ROWS);
    const pd_attention_span seen = pd_attention_keys_seen(a, p.sequence, p.r, p.count, PD_ATTENTION_STEP);
    forward_start<T>(a, p, s);
    for (uint32_t kb = seen.begin; kb < seen.end; kb++) {
        const uint32_t k = kb * PD_ATTENTION_STEP, keys = pd_attention_count(a.key_length, kb, PD_ATTENTION_STEP);
        const uint64_t at = (p.key_row + k) * a.ld_kv + p.kv * d;
        __syncthreads();
        pd_plain_load<T>(s.kv, PD_ATTENTION_STEP, a.k, at, a.ld_kv, keys, d);
        __syncthreads();
        forward_scores(a, p, s, k);
        __syncthreads();
        pd_plain_load<T>(s.kv, PD_ATTENTION_STEP, a.v, at, a.ld_kv, keys, d);
        forward_softmax(s);
        __syncthreads();
        forward_apply(s, d);
    }
    __syncthreads();
    forward_finish<T>(a, p, s);
}

template <uint32_t ROWS> static pd_status forward_launch(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    const uint64_t items = (uint64_t)((a->length + ROWS - 1) / ROWS) * a->sequences * a->heads;
    PD_WITH_DTYPE(a->dtype, T,
                  return PD_LAUNCH(err, (attention_forward_plain<T, ROWS>), static_cast<unsigned>(items), PD_PLAIN_THREADS,
                                   forward_bytes(a->head_size, ROWS), stream, *a));
}

pd_status pd_attention_plain_forward(void *stream, const struct pd_attention *a, struct pd_cuda_workspace,
                                     struct pd_error *err)
{
    return a->head_size > PD_PLAIN_LONG ? forward_launch<ROWS_OF(PD_ATTENTION_HEAD_MAX)>(stream, a, err)
                                        : forward_launch<ROWS_OF(PD_PLAIN_LONG)>(stream, a, err);
}

/* ---- delta ---- */

/* Sum i belongs to head i % heads of row i / heads. Few numbers exceed 32 bits, and a 64-bit division is slow. */
PD_DEVICE void delta_put(const pd_attention &a, uint64_t i, float sum)
{
    const uint64_t row = i >> 32 ? i / a.heads : (uint32_t)i / a.heads, head = i - row * a.heads;
    const uint64_t sequence = row >> 32 ? row / a.length : (uint32_t)row / a.length;
    a.delta[(sequence * a.heads + head) * a.length + (row - sequence * a.length)] = sum;
}

/* Half a warp a (row, head): 16 lanes, then their tree. */
template <enum pd_dtype T>
static __global__ void __launch_bounds__(PD_PLAIN_THREADS) attention_delta_plain(const pd_attention a, const uint64_t sums)
{
    const uint64_t i = ((uint64_t)blockIdx.x * PD_PLAIN_THREADS + threadIdx.x) / 16;
    float sum = 0.0f;
    for (uint32_t column = threadIdx.x % 16; i < sums && column < a.head_size; column += 16)
        sum = __fmaf_rn(pd_get<T>(a.dout, i * a.head_size + column), pd_get<T>(a.out, i * a.head_size + column), sum);
    for (uint32_t other = 8; other > 0; other /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(PD_WARP_ALL, sum, (int)other));
    if (i < sums && threadIdx.x % 16 == 0) delta_put(a, i, sum);
}

pd_status pd_attention_plain_delta(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    const uint64_t sums = (uint64_t)a->sequences * a->length * a->heads;
    PD_WITH_DTYPE(a->dtype, T,
                  return PD_LAUNCH(err, attention_delta_plain<T>, pd_blocks(sums * 16, PD_PLAIN_THREADS), PD_PLAIN_THREADS,
                                   0, stream, *a, sums));
}
