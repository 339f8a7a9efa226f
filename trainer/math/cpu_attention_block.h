/* What forward and backward attention share: blocks of 64 positions, brought to fp32 once and multiplied by a small product
 * whose every element is one chain of fused multiply-adds.
 *
 *   "rows"  a block as (64, D'), D' = D rounded up to 16, zeros in the padding
 *   "lanes" a block transposed to (D, 64): positions are vector lanes; zeros beyond the sequence
 *
 * Block 64 is part of the forward bits (the running maximum advances by blocks of keys); backward does not depend on it. */
#ifndef PD_TRAINER_MATH_CPU_ATTENTION_BLOCK_H
#define PD_TRAINER_MATH_CPU_ATTENTION_BLOCK_H

#include "trainer/math/cpu_ops.h"
#include "trainer/math/simd_math.h"

#include <math.h>

#define BLOCK 64u
#define BLOCK_VECTORS (BLOCK / 16u)
#define D_MAX PD_CPU_HEAD_SIZE_MAX

/* One head of one sequence. */
struct head {
    const struct pd_attention *a;
    uint32_t sequence, index;   /* query head */
    uint32_t d, padded, blocks; /* D, D', blocks of the sequence */
};

V16_INLINE struct head head_of(const struct pd_attention *a, uint64_t sequence, uint64_t index)
{
    uint32_t padded = (a->head_size + 15u) / 16u * 16u, blocks = (a->length + BLOCK - 1u) / BLOCK;
    return (struct head){a, (uint32_t)sequence, (uint32_t)index, a->head_size, padded, blocks};
}

V16_INLINE uint32_t head_kv(const struct head *h)
{
    return h->index / (h->a->heads / h->a->kv_heads);
}

/* Positions in block b. */
V16_INLINE uint32_t block_count(const struct head *h, uint32_t b)
{
    uint32_t left = h->a->length - b * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

/* Index of the first element of position b * BLOCK in an array with rows `ld` apart and heads of D. */
V16_INLINE uint64_t block_at(const struct head *h, uint32_t b, uint64_t ld, uint32_t head)
{
    return ((uint64_t)h->sequence * h->a->length + (uint64_t)b * BLOCK) * ld + (uint64_t)head * h->d;
}

/* Index into lse and delta. */
V16_INLINE uint64_t row_at(const struct head *h, uint32_t b)
{
    return ((uint64_t)h->sequence * h->a->heads + h->index) * h->a->length + (uint64_t)b * BLOCK;
}

V16_INLINE uint32_t first_visible(const struct head *h, uint32_t position)
{
    if (!h->a->first) return 0;
    return (uint32_t)h->a->first[(uint64_t)h->sequence * h->a->length + position];
}

/* The first block of keys that any query of block b sees: `first` ascends. */
V16_INLINE uint32_t first_block(const struct head *h, uint32_t b)
{
    return first_visible(h, b * BLOCK) / BLOCK;
}

/* Whether some query of block qb does not see some key of block kb. */
V16_INLINE bool block_is_cut(const struct head *h, uint32_t qb, uint32_t kb)
{
    if (qb == kb) return true;
    return first_visible(h, qb * BLOCK + block_count(h, qb) - 1) > kb * BLOCK;
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

/* C (m,n) = or += A B with A[i][k] = a[i * row + k * column], B (k, n) and C dense with ld; n a multiple of 16. */
struct product {
    uint32_t m, n, k;
    const float *a;
    uint32_t a_row, a_column;
    const float *b;
    uint32_t b_ld;
    float *c;
    uint32_t c_ld;
    bool add;
};

/* As many rows as there are registers for sums. Plain C has none to offer, and a fused multiply-add may be a call there. */
#if PD_ISA_LEVEL == 2
#define TILE_ROWS 12u
#elif PD_ISA_LEVEL == 1
#define TILE_ROWS 6u
#else
#define TILE_ROWS 1u
#endif

V16_INLINE void product_tile(const struct product *p, uint32_t i, uint32_t j, const uint32_t rows)
{
    v16 sum[TILE_ROWS];
    float *c = p->c + (uint64_t)i * p->c_ld + j;
    const float *a = p->a + (uint64_t)i * p->a_row, *b = p->b + j;
    const uint64_t a_row = p->a_row, a_column = p->a_column, b_ld = p->b_ld, c_ld = p->c_ld;
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++)
        sum[r] = p->add ? v16_load(c + r * c_ld) : v16_zero();
    for (uint32_t k = p->k; k > 0; k--) {
        v16 column = v16_load(b);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++)
            sum[r] = v16_fma(v16_set1(a[r * a_row]), column, sum[r]);
        a += a_column;
        b += b_ld;
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++)
        v16_store(c + r * c_ld, sum[r]);
}

V16_INLINE void product_tail(const struct product *p, uint32_t i, uint32_t j)
{
#define TAIL(n) \
    if (n < TILE_ROWS && p->m - i == n) product_tile(p, i, j, n < TILE_ROWS ? n : 0)
    TAIL(1);
    TAIL(2);
    TAIL(3);
    TAIL(4);
    TAIL(5);
    TAIL(6);
    TAIL(7);
    TAIL(8);
    TAIL(9);
    TAIL(10);
    TAIL(11);
#undef TAIL
}

static __attribute__((noinline, unused)) void product_run(const struct product *p)
{
    for (uint32_t j = 0; j < p->n; j += 16) {
        uint32_t i = 0;
        for (; i + TILE_ROWS <= p->m; i += TILE_ROWS)
            product_tile(p, i, j, TILE_ROWS);
        product_tail(p, i, j);
    }
}

#endif
