/* Arithmetic on sizes that come from outside. Each returns true and sets *ret when the result fits, false otherwise
 * (*ret untouched), so that a length read from a file can never wrap into a small allocation. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

static inline bool pd_checked_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t result;
    if (__builtin_add_overflow(a, b, &result)) return false;
    *ret = result;
    return true;
}

static inline bool pd_checked_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t result;
    if (__builtin_mul_overflow(a, b, &result)) return false;
    *ret = result;
    return true;
}

/* The next multiple of `align`, which is a power of two. */
static inline bool pd_checked_align_u64(uint64_t value, uint64_t align, uint64_t *ret)
{
    uint64_t raised;
    if (!pd_checked_add_u64(value, align - 1, &raised)) return false;
    *ret = raised & ~(align - 1);
    return true;
}

/* For sizes known to be far below 2^64. `unit` is any number above 0. */
static inline uint64_t pd_divide_up(uint64_t value, uint64_t unit)
{
    return value / unit + (value % unit != 0);
}

static inline uint64_t pd_round_up(uint64_t value, uint64_t unit)
{
    return pd_divide_up(value, unit) * unit;
}

static inline uint64_t pd_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t pd_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* True if [start, start + count) lies in [0, size). For offsets read from files. */
static inline bool pd_checked_range(uint64_t start, uint64_t count, uint64_t size)
{
    return start <= size && count <= size - start;
}
