/* A CPU backend of chosen instruction set and thread count, and arrays that exist in an operation's dtype and in float64. */
#pragma once

#include "ckpt/base/half.h"
#include "trainer/math/math.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_INLINE static inline __attribute__((unused))

struct fixture {
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
};

TEST_INLINE struct fixture fixture_new(enum pd_isa isa, unsigned threads)
{
    struct fixture f = {0};
    struct pd_error err;
    struct pd_arena *dry = NULL;
    struct pd_memory_plan plan;
    cr_assert_eq(pd_thread_pool_new(threads, &f.pool, &err), PD_OK);
    cr_assert_eq(pd_arena_new_dry(&dry, &err), PD_OK);
    struct pd_math *none = NULL;
    cr_assert_eq(pd_math_cpu_new(f.pool, threads, isa, dry, &none, &err), PD_OK);
    cr_assert_null(none, "a dry arena gives no backend");
    pd_arena_usage(dry, &plan);
    pd_arena_free(dry);
    cr_assert_eq(pd_arena_new(&plan, &f.arena, &err), PD_OK);
    cr_assert_eq(pd_math_cpu_new(f.pool, threads, isa, f.arena, &f.math, &err), PD_OK);
    return f;
}

TEST_INLINE void fixture_free(struct fixture *f)
{
    pd_math_free(f->math);
    pd_arena_free(f->arena);
    pd_thread_pool_free(f->pool);
}

/* xorshift64*; the seed of a test is in its failure messages through the sizes. */
TEST_INLINE uint64_t random_u64(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* Roughly normal with deviation 1. */
TEST_INLINE double random_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(random_u64(state) >> 11) * 0x1p-53;
    return sum - 6;
}

TEST_INLINE double value_get(enum pd_dtype dtype, const void *data, size_t i)
{
    if (dtype == PD_F32) return (double)((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return (double)(dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half));
}

TEST_INLINE void value_put(enum pd_dtype dtype, void *data, size_t i, double x)
{
    if (dtype == PD_F32)
        ((float *)data)[i] = (float)x;
    else
        ((uint16_t *)data)[i] = dtype == PD_BF16 ? pd_bf16_from_f32((float)x) : pd_f16_from_f32((float)x);
}

/* One array twice: `data` as the operation sees it, `exact` the same values in float64. */
struct array {
    enum pd_dtype dtype;
    size_t count;
    void *data;
    double *exact;
};

TEST_INLINE struct array array_new(enum pd_dtype dtype, size_t count)
{
    struct array a = {dtype, count, calloc(count + 1, pd_dtype_bytes(dtype)), calloc(count + 1, sizeof(double))};
    cr_assert(a.data && a.exact);
    return a;
}

TEST_INLINE struct array array_random(enum pd_dtype dtype, size_t count, double deviation, uint64_t *state)
{
    struct array a = array_new(dtype, count);
    for (size_t i = 0; i < count; i++) {
        value_put(dtype, a.data, i, deviation * random_normal(state));
        a.exact[i] = value_get(dtype, a.data, i);
    }
    return a;
}

TEST_INLINE void array_free(struct array *a)
{
    free(a->data);
    free(a->exact);
}

/* The largest relative error of one rounding. */
TEST_INLINE double rounding_of(enum pd_dtype dtype)
{
    return dtype == PD_F32 ? 0x1p-24 : dtype == PD_BF16 ? 0x1p-8 : 0x1p-11;
}

/* `data` against `exact`: one rounding of each element, plus `slack` fp32 roundings of the largest magnitude around. */
TEST_INLINE void array_check(const struct array *a, double slack, const char *what)
{
    double largest = 0;
    for (size_t i = 0; i < a->count; i++)
        largest = fmax(largest, fabs(a->exact[i]));
    for (size_t i = 0; i < a->count; i++) {
        double got = value_get(a->dtype, a->data, i), want = a->exact[i];
        double bound =
            1.01 * rounding_of(a->dtype) * fabs(want) + slack * 0x1p-24 * largest + 0x1p-24 * (a->dtype == PD_F16);
        cr_assert(fabs(got - want) <= bound, "%s, %s: element %zu of %zu is %.9g, not %.9g: off by %.3g, bound %.3g", what,
                  pd_dtype_name(a->dtype), i, a->count, got, want, fabs(got - want), bound);
    }
}

static const enum pd_dtype all_dtypes[] = {PD_F32, PD_BF16, PD_F16};

#define MUST(call)                                                 \
    do {                                                           \
        struct pd_error err = {0};                                 \
        cr_assert_eq((call), PD_OK, "%s: %s", #call, err.message); \
    } while (0)
