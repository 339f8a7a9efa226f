/* dK and dV from terms: adds up the query heads' gradients of their key-value head in a tree over query heads
 * (pd_attention_tree_key), with the rounding of keys_finish (attention_sums.h). A thread has N columns of dK or of dV of one
 * key. */
#include "trainer/math/cuda/attention_place.h"
#include "trainer/math/cuda/element.h"

#define WIDE 4
#define LOADS 4 /* terms in flight at once */

template <int N> struct columns {
    float x[N];
};

/* Sums that wait for their neighbour, in registers: every index is a constant of an unrolled loop. */
template <int N> struct waiting_sums {
    columns<N> sums[PD_ATTENTION_LEVELS_MAX];
    uint64_t keys[PD_ATTENTION_LEVELS_MAX];
    uint32_t depth;
};

/* `head` has the newest term. As on the CPU (cpu_attention_tree.h), lower pairs on the stack meet higher up in the tree:
 * first adds those that no later term can come between. */
template <int N>
PD_DEVICE void grow(const pd_attention &a, uint32_t kv, uint32_t head, uint32_t end, columns<N> &sum,
                    waiting_sums<N> &waiting)
{
    const bool last = head + 1 == end;
    uint64_t key = pd_attention_tree_key(a, kv, head);
    const uint64_t next = last ? 0 : pd_attention_tree_key(a, kv, head + 1);
#pragma unroll
    for (int level = PD_ATTENTION_LEVELS_MAX - 1; level >= 0; level--) {
        if (level + 1u != waiting.depth || (!last && (waiting.keys[level] ^ key) >= (key ^ next))) continue;
#pragma unroll
        for (int j = 0; j < N; j++)
            sum.x[j] = waiting.sums[level].x[j] + sum.x[j];
        key = waiting.keys[level];
        waiting.depth = static_cast<uint32_t>(level);
    }
    if (last) return;
#pragma unroll
    for (uint32_t level = 0; level < PD_ATTENTION_LEVELS_MAX; level++)
        if (level == waiting.depth) {
            waiting.sums[level] = sum;
            waiting.keys[level] = key;
        }
    waiting.depth++;
}

template <enum pd_dtype T, int N>
PD_DEVICE void put(const pd_attention &a, uint64_t row, uint32_t kv, uint32_t column, bool is_key, const columns<N> &sum)
{
    void *dst = is_key ? a.dk : a.dv;
    const uint64_t at = row * a.ld_dkv + (uint64_t)kv * a.head_size + column;
    const float scale = is_key ? a.scale : 1.0f;
    float rounded[N];
    if (a.kv_partial) return pd_put_n<PD_F32, N>(dst, at, sum.x);
    for (int j = 0; j < N; j++)
        rounded[j] = sum.x[j] * scale;
    pd_put_n<T, N>(dst, at, rounded);
}

template <enum pd_dtype T, int N> static __global__ void attention_join(const pd_attention a)
{
    const uint32_t each = a.head_size / N, kv = blockIdx.y, end = pd_attention_heads_end(a, kv);
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * PD_THREADS + threadIdx.x, row = i / each;
    const uint32_t column = static_cast<uint32_t>(i % each) * N;
    const bool is_key = blockIdx.z == 0;
    const float *terms = (is_key ? a.dk_acc : a.dv_acc) + row * a.heads * a.head_size + column;
    waiting_sums<N> waiting;
    columns<N> sum = {};
    uint32_t head = pd_attention_heads_begin(a, kv);
    if (row >= static_cast<uint64_t>(a.sequences) * a.key_length) return;
    waiting.depth = 0;
    const auto load = [&](uint64_t h) {
        columns<N> term;
        pd_get_n<PD_F32, N>(terms, h * a.head_size, term.x);
        return term;
    };
    pd_in_order<LOADS>(head, end, 1, load, [&](const columns<N> &term) {
        sum = term;
        grow(a, kv, head, end, sum, waiting);
        head++;
    });
    put<T, N>(a, row, kv, column, is_key, sum);
}

template <enum pd_dtype T, int N>
static pd_status join_launch(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    const uint64_t items = static_cast<uint64_t>(a->sequences) * a->key_length * (a->head_size / N);
    const dim3 grid(pd_blocks(items, PD_THREADS), a->kv_heads, 2);
    return PD_LAUNCH(err, (attention_join<T, N>), grid, PD_THREADS, 0, stream, *a);
}

static bool is_wide(const struct pd_attention *a)
{
    return a->head_size % WIDE == 0 && a->ld_dkv % WIDE == 0 && pd_is_16_aligned(a->dk_acc) && pd_is_16_aligned(a->dv_acc) &&
           pd_is_16_aligned(a->dk) && pd_is_16_aligned(a->dv);
}

pd_status pd_attention_join(void *stream, const struct pd_attention *a, struct pd_error *err)
{
    PD_WITH_DTYPE(a->dtype, T, {
        if (is_wide(a)) return join_launch<T, WIDE>(stream, a, err);
        return join_launch<T, 1>(stream, a, err);
    });
}
