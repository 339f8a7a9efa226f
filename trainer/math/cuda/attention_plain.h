/* Shared by the attention kernels without tensor cores. A block keeps positions of one head in shared memory as fp32 rows of
 * D + 1, so that a column spreads over all banks. Threads take turns at the output elements. */
#pragma once

#include "trainer/math/cuda/attention_items.h"
#include "trainer/math/cuda/element.h"
#include "trainer/math/cuda/functions.h"

#define PD_PLAIN_THREADS 256u
/* Longer heads keep half as many rows in shared memory; this does not affect the bits. */
#define PD_PLAIN_LONG 160u

PD_DEVICE uint32_t pd_plain_row(uint32_t d)
{
    return d + 1;
}

/* Loads (count, D), rows ld apart, times scale into rows in shared memory; zeros up to `rows`. */
template <enum pd_dtype T>
PD_DEVICE void pd_plain_load(float *to, uint32_t rows, const void *src, uint64_t at, uint64_t ld, uint32_t count, uint32_t d)
{
    for (uint32_t i = threadIdx.x; i < rows * d; i += PD_PLAIN_THREADS) {
        uint32_t r = i / d, column = i % d;
        to[r * pd_plain_row(d) + column] = r < count ? pd_get<T>(src, at + r * ld + column) : 0.0f;
    }
}

/* Stores rows times scale[r], rounded; scale NULL: times `all`. */
template <enum pd_dtype T>
PD_DEVICE void pd_plain_store(const float *from, void *dst, uint64_t at, uint64_t ld, uint32_t count, uint32_t d,
                              const float *scale, float all)
{
    for (uint32_t i = threadIdx.x; i < count * d; i += PD_PLAIN_THREADS) {
        uint32_t r = i / d, column = i % d;
        pd_put<T>(dst, at + r * ld + column, __fmul_rn(from[r * pd_plain_row(d) + column], scale ? scale[r] : all));
    }
}

PD_DEVICE float pd_plain_dot(const float *x, const float *y, uint32_t d)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < d; i++)
        sum = __fmaf_rn(x[i], y[i], sum);
    return sum;
}

/* The place of a block: queries from `r` of the sequence, row `row` of the arrays. */
struct pd_plain_place {
    uint32_t sequence, head, kv, r, count;
    uint64_t row, key_row;
};

PD_DEVICE pd_plain_place pd_plain_place_of(const pd_attention &a, uint64_t block, uint32_t rows)
{
    const uint32_t tiles = (a.length + rows - 1) / rows;
    const pd_attention_item item = pd_attention_item_of(a, block, tiles, PD_ITEMS_OF_QUERIES);
    const uint32_t r = item.tile * rows;
    return {item.sequence,
            item.head,
            (item.head + a.group_offset) / a.group,
            r,
            pd_attention_count(a.length, item.tile, rows),
            (uint64_t)item.sequence * a.length + r,
            (uint64_t)item.sequence * a.key_length};
}

/* Whether query r of the sequence's part sees key k of its own. */
PD_DEVICE bool pd_plain_sees(const pd_attention &a, uint32_t sequence, uint32_t r, uint32_t k)
{
    const uint32_t key = a.key_start + k;
    return k < a.key_length && r < a.length && key <= a.query_start + r && key >= pd_attention_first(a, sequence, r);
}
