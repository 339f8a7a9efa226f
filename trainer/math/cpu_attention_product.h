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

/* As many rows as fit in registers. In plain C a fused multiply-add may be a function call, so it uses few. */
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
