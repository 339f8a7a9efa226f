/* The small matrix product used by attention: every element is one chain of fused multiply-adds in ascending k. */
#pragma once

#include "trainer/math/simd.h"

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

/* A tile of TILE_ROWS rows and TILE_VECTORS vectors of 16 columns stays in registers. In plain C a fused multiply-add may be a
 * function call, so it uses few. */
#if PD_ISA_LEVEL == 2
#define TILE_ROWS 8u
#define TILE_VECTORS 2u
#elif PD_ISA_LEVEL == 1
#define TILE_ROWS 6u
#define TILE_VECTORS 1u
#else
#define TILE_ROWS 1u
#define TILE_VECTORS 1u
#endif

V16_INLINE void product_tile(const struct product *p, uint32_t i, uint32_t j, const uint32_t rows, const uint32_t vectors)
{
    v16 sum[TILE_ROWS][TILE_VECTORS];
    float *c = p->c + (uint64_t)i * p->c_ld + j;
    const float *a = p->a + (uint64_t)i * p->a_row, *b = p->b + j;
    const uint64_t a_row = p->a_row, a_column = p->a_column, b_ld = p->b_ld, c_ld = p->c_ld;
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t v = 0; v < vectors; v++)
            sum[r][v] = p->add ? v16_load(c + r * c_ld + 16 * v) : v16_zero();
    for (uint32_t k = p->k; k > 0; k--) {
        v16 column[TILE_VECTORS];
        for (uint32_t v = 0; v < vectors; v++)
            column[v] = v16_load(b + 16 * v);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            v16 row = v16_set1(a[r * a_row]);
            for (uint32_t v = 0; v < vectors; v++)
                sum[r][v] = v16_fma(row, column[v], sum[r][v]);
        }
        a += a_column;
        b += b_ld;
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t v = 0; v < vectors; v++)
            v16_store(c + r * c_ld + 16 * v, sum[r][v]);
}

/* All rows of some columns. */
V16_INLINE void product_columns(const struct product *p, uint32_t j, const uint32_t vectors)
{
    uint32_t i = 0;
    for (; i + TILE_ROWS <= p->m; i += TILE_ROWS)
        product_tile(p, i, j, TILE_ROWS, vectors);
#define TAIL(n) \
    if (n < TILE_ROWS && p->m - i == n) product_tile(p, i, j, n < TILE_ROWS ? n : 0, vectors)
    TAIL(1);
    TAIL(2);
    TAIL(3);
    TAIL(4);
    TAIL(5);
    TAIL(6);
    TAIL(7);
#undef TAIL
}

static __attribute__((noinline, unused)) void product_run(const struct product *p)
{
    uint32_t j = 0;
    for (; TILE_VECTORS > 1 && j + 16 * TILE_VECTORS <= p->n; j += 16 * TILE_VECTORS)
        product_columns(p, j, TILE_VECTORS);
    for (; j < p->n; j += 16)
        product_columns(p, j, 1);
}
