/* Shared by the attention kernels: operands with all defaults filled in, which queries see which keys, and the tree over
 * query heads. Kernels take `struct pd_attention` by value, resolved.
 *
 * A tile is a run of positions of one head, counted from the start of a part of the sequence, separately for queries and
 * keys. Skipping tiles does not change results: a query adds exact zeros for keys it cannot see. */
#pragma once

#include "trainer/math/cuda/grid.h"
#include "trainer/math/cuda/kernels.h"

#define PD_ATTENTION_HEAD_MAX 256u
/* Keys per step of the running maximum; affects the forward bits. */
#define PD_ATTENTION_STEP 64u

PD_DEVICE uint32_t pd_attention_count(uint32_t length, uint32_t tile, uint32_t rows)
{
    uint32_t left = length - tile * rows;
    return left < rows ? left : rows;
}

/* First visible key of query r of this call, or of the last query if r is beyond it. */
PD_DEVICE uint32_t pd_attention_first(const struct pd_attention &a, uint32_t sequence, uint32_t r)
{
    r = r < a.length ? r : a.length - 1;
    return a.first ? (uint32_t)a.first[(uint64_t)sequence * a.length + r] : 0;
}

/* Positions of this call's keys that query r can see. */
struct pd_attention_seen {
    uint32_t first, last;
};

PD_DEVICE pd_attention_seen pd_attention_seen_by(const struct pd_attention &a, uint32_t sequence, uint32_t r)
{
    const uint32_t position = a.query_start + r, end = a.key_start + a.key_length;
    return {pd_attention_first(a, sequence, r), position < end ? position : end - 1};
}

/* Tiles [begin, end) of the passing side that a tile of the other side needs. */
struct pd_attention_span {
    uint32_t begin, end;
};

/* Key tiles of `step` keys that some query of [r, r + count) sees; `first` ascends. */
PD_DEVICE pd_attention_span pd_attention_keys_seen(const struct pd_attention &a, uint32_t sequence, uint32_t r,
                                                   uint32_t count, uint32_t step)
{
    uint32_t tiles = (a.key_length + step - 1) / step, first = pd_attention_first(a, sequence, r);
    uint32_t last = a.query_start + r + count - 1;
    if (last < a.key_start) return {0, 0};
    uint32_t begin = first > a.key_start ? (first - a.key_start) / step : 0, end = (last - a.key_start) / step + 1;
    end = end < tiles ? end : tiles;
    return {begin < end ? begin : end, end};
}

/* Query tiles of `step` queries that see some key of [k, k + count), counted from the start of the part. */
PD_DEVICE pd_attention_span pd_attention_queries_seeing(const struct pd_attention &a, uint32_t sequence, uint32_t k,
                                                        uint32_t count, uint32_t step)
{
    uint32_t tiles = (a.length + step - 1) / step, key = a.key_start + k, last = key + count - 1;
    uint32_t begin = key > a.query_start ? (key - a.query_start) / step : 0, end = tiles;
    begin = begin < tiles ? begin : tiles;
    for (uint32_t low = begin; low < end;) {
        uint32_t middle = (low + end) / 2;
        if (pd_attention_first(a, sequence, middle * step) <= last)
            low = middle + 1;
        else
            end = middle;
    }
    return {begin, end};
}

/* Whether some query of [r, r + count) cannot see some key of [k, k + keys): only then the pairs are tested. */
PD_DEVICE bool pd_attention_cut(const struct pd_attention &a, uint32_t sequence, uint32_t r, uint32_t count, uint32_t k,
                                uint32_t keys)
{
    uint32_t key = a.key_start + k;
    if (k + keys > a.key_length || key + keys - 1 > a.query_start + r) return true;
    return pd_attention_first(a, sequence, r + count - 1) > key;
}

/* Query heads of this call that read key-value head `kv`: the first, and one past the last. */
PD_DEVICE uint32_t pd_attention_heads_begin(const struct pd_attention &a, uint32_t kv)
{
    return kv == 0 ? 0 : kv * a.group - a.group_offset;
}

PD_DEVICE uint32_t pd_attention_heads_end(const struct pd_attention &a, uint32_t kv)
{
    uint32_t end = (kv + 1) * a.group - a.group_offset;
    return end < a.heads ? end : a.heads;
}

/* Leaf of the tree over query heads: (chunk, head inside the chunk and the key-value head), read as one number. */
PD_DEVICE uint64_t pd_attention_tree_key(const struct pd_attention &a, uint32_t kv, uint32_t head)
{
    uint32_t place = head / a.head_chunk, begin = pd_attention_heads_begin(a, kv), chunk = place * a.head_chunk;
    return (uint64_t)place << 32 | (head - (begin > chunk ? begin : chunk));
}

#define PD_ATTENTION_LEVELS_MAX 8u
#define PD_ATTENTION_GROUP_MAX 64u

/* Alternative kernels for one computation. Tensor cores: bf16 and fp16 with heads of 64 and 128; wgmma needs capability 9.0.
 * The keys pass computes dk and dv of one query head; for several, it writes terms for pd_attention_join. */
#define PD_ATTENTION_PASS(name, pass)                                                         \
    pd_status pd_attention_##name##_##pass(void *stream, const struct pd_attention *resolved, \
                                           struct pd_cuda_workspace workspace, struct pd_error *err);
#define PD_ATTENTION_WAY(name)       \
    PD_ATTENTION_PASS(name, forward) \
    PD_ATTENTION_PASS(name, queries) \
    PD_ATTENTION_PASS(name, keys)
PD_ATTENTION_WAY(tiles)
PD_ATTENTION_WAY(wgmma)
PD_ATTENTION_WAY(plain)
pd_status pd_attention_plain_delta(void *stream, const struct pd_attention *a, struct pd_error *err);
/* Queries and keys of a whole sequence in one pass. If last_part is false, leaves a tree's terms in dk_acc and dv_acc. Uses
 * the whole workspace. Same bits as the two passes. */
pd_status pd_attention_wgmma_once(void *stream, const struct pd_attention *resolved, struct pd_cuda_workspace workspace,
                                  struct pd_error *err);
uint64_t pd_attention_wgmma_once_workspace(const struct pd_attention *resolved);
/* dk, dv = the tree over query heads of the terms dk_acc, dv_acc, as left by the keys pass of the last part. */
pd_status pd_attention_join(void *stream, const struct pd_attention *resolved, struct pd_error *err);
