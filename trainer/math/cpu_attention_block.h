/* Shared by forward and backward attention: fp32 blocks of 64 positions of one head, and which queries see which keys.
 *
 *   "rows"  a block as (64, D'), D' = D rounded up to 16, zero-padded
 *   "lanes" a block transposed to (D, 64): positions are vector lanes; zeros beyond the sequence
 *
 * Blocks are counted from the start of a part of the sequence, separately for queries and keys; a whole sequence is one
 * part. The block size 64 affects the forward bits (the running maximum advances by blocks of keys), not the backward bits.
 */
#pragma once

#include "trainer/math/cpu_attention_product.h"
#include "trainer/math/cpu_ops.h"
#include "trainer/math/simd_math.h"

#include <math.h>

#define BLOCK 64u
#define D_MAX PD_CPU_HEAD_SIZE_MAX

/* Rows of one sequence in an array: positions [start, start + length) are in rows from `row` on. */
struct span {
    uint64_t row;
    uint32_t start, length, blocks;
};

V16_INLINE struct span span_of(uint64_t sequence, uint32_t start, uint32_t length)
{
    return (struct span){sequence * length, start, length, (length + BLOCK - 1u) / BLOCK};
}

/* Positions in block b. */
V16_INLINE uint32_t block_count(const struct span *s, uint32_t b)
{
    uint32_t left = s->length - b * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

V16_INLINE uint32_t block_start(const struct span *s, uint32_t b)
{
    return s->start + b * BLOCK;
}

V16_INLINE uint32_t block_last(const struct span *s, uint32_t b)
{
    return block_start(s, b) + block_count(s, b) - 1;
}

/* The block that holds `position`; 0 if it is before the span, `blocks` if after. */
V16_INLINE uint32_t block_holding(const struct span *s, uint32_t position)
{
    if (position <= s->start) return 0;
    uint32_t b = (position - s->start) / BLOCK;
    return b < s->blocks ? b : s->blocks;
}

/* One query head of one sequence. */
struct head {
    const struct pd_attention *a;
    uint32_t sequence, index, kv;
    uint32_t d, padded; /* D, D' */
    struct span queries, keys;
};

V16_INLINE struct head head_of(const struct pd_attention *a, uint64_t sequence, uint64_t index)
{
    uint32_t padded = (a->head_size + 15u) / 16u * 16u, kv = ((uint32_t)index + a->group_offset) / a->group;
    return (struct head){a,
                         (uint32_t)sequence,
                         (uint32_t)index,
                         kv,
                         a->head_size,
                         padded,
                         span_of(sequence, a->query_start, a->length),
                         span_of(sequence, a->key_start, a->key_length)};
}

/* Query heads of this call that read key-value head `kv`: the first, and one past the last. */
V16_INLINE uint32_t heads_begin(const struct pd_attention *a, uint32_t kv)
{
    return kv == 0 ? 0 : kv * a->group - a->group_offset;
}

V16_INLINE uint32_t heads_end(const struct pd_attention *a, uint32_t kv)
{
    uint32_t end = (kv + 1) * a->group - a->group_offset;
    return end < a->heads ? end : a->heads;
}

/* Index of the first element of block b in an array with rows `ld` apart and heads of D. */
V16_INLINE uint64_t block_at(const struct span *s, uint32_t b, uint64_t ld, uint32_t head, uint32_t d)
{
    return (s->row + (uint64_t)b * BLOCK) * ld + (uint64_t)head * d;
}

V16_INLINE uint64_t query_at(const struct head *h, uint32_t qb, uint64_t ld)
{
    return block_at(&h->queries, qb, ld, h->index, h->d);
}

V16_INLINE uint64_t key_at(const struct head *h, uint32_t kb, uint64_t ld)
{
    return block_at(&h->keys, kb, ld, h->kv, h->d);
}

/* Index into lse and delta. */
V16_INLINE uint64_t row_at(const struct head *h, uint32_t qb)
{
    return ((uint64_t)h->sequence * h->a->heads + h->index) * h->a->length + (uint64_t)qb * BLOCK;
}

/* First key visible to query `r` of this call's span. */
V16_INLINE uint32_t first_visible(const struct head *h, uint32_t r)
{
    return h->a->first ? (uint32_t)h->a->first[h->queries.row + r] : 0;
}

/* Key blocks that some query of block qb sees, [begin, end); `first` ascends. */
V16_INLINE uint32_t keys_begin(const struct head *h, uint32_t qb)
{
    return block_holding(&h->keys, first_visible(h, qb * BLOCK));
}

V16_INLINE uint32_t keys_end(const struct head *h, uint32_t qb)
{
    uint32_t last = block_last(&h->queries, qb);
    if (last < h->keys.start) return 0;
    uint32_t b = block_holding(&h->keys, last);
    return b < h->keys.blocks ? b + 1 : b;
}

/* Whether some query of block qb cannot see some key of block kb. */
V16_INLINE bool block_is_cut(const struct head *h, uint32_t qb, uint32_t kb)
{
    if (block_last(&h->keys, kb) > block_start(&h->queries, qb)) return true;
    return first_visible(h, qb * BLOCK + block_count(&h->queries, qb) - 1) > block_start(&h->keys, kb);
}

V16_INLINE void rows_load_as(enum pd_dtype dtype, const void *src, uint64_t at, uint64_t ld, const struct head *h,
                             uint32_t count, float *dst)
{
    for (uint32_t r = 0; r < count; r++) {
        float *to = dst + (uint64_t)r * h->padded;
        V16_FOR(i, w, h->d, v16_store(to + i, v16_get_part(dtype, src, at + r * ld + i, w)));
    }
}

/* (count, D) -> rows (count, D') */
V16_INLINE void rows_load(const void *src, uint64_t at, uint64_t ld, const struct head *h, uint32_t count, float *dst)
{
    PD_FOR_DTYPE(h->a->dtype, rows_load_as, src, at, ld, h, count, dst);
}

/* rows (count, D') -> lanes (D, 64) */
V16_INLINE void rows_to_lanes(const float *rows, const struct head *h, uint32_t count, float *dst)
{
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t i = 0; i < h->d; i++)
            dst[i * BLOCK + r] = rows[r * h->padded + i];
    for (uint32_t r = count; r < BLOCK; r++)
        for (uint32_t i = 0; i < h->d; i++)
            dst[i * BLOCK + r] = 0.0f;
}

V16_INLINE void lanes_to_rows(const float *lanes, const struct head *h, uint32_t count, float *dst)
{
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t i = 0; i < h->d; i++)
            dst[r * h->padded + i] = lanes[i * BLOCK + r];
}

V16_INLINE void rows_store_as(enum pd_dtype dtype, const float *rows, const struct head *h, uint32_t count, float scale,
                              void *dst, uint64_t at, uint64_t ld)
{
    for (uint32_t r = 0; r < count; r++) {
        const float *from = rows + (uint64_t)r * h->padded;
        V16_FOR(i, w, h->d, v16_put_part(dtype, dst, at + r * ld + i, w, v16_mul(v16_load(from + i), v16_set1(scale))));
    }
}

/* rows (count, D') times scale, rounded -> (count, D) */
V16_INLINE void rows_store(const float *rows, const struct head *h, uint32_t count, float scale, void *dst, uint64_t at,
                           uint64_t ld)
{
    PD_FOR_DTYPE(h->a->dtype, rows_store_as, rows, h, count, scale, dst, at, ld);
}
