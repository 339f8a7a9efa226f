/* Kernels on the host beside the CPU backend: operands twice, outputs poisoned, whole arrays compared. */
#pragma once

#include "tests/simt/simt_order.h"
#include "tests/unit/math/fixture.h"
#include "trainer/math/cuda/kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#define GUARD 0u /* behind an array is memory that nobody may read or write */
#else
#define GUARD 16u /* elements after an array that nobody may write */
#endif

static const uint64_t some_orders[] = {0, 1, 77};
enum { SOME_ORDERS = 3 };

/* An array of n elements that begins `shift` elements behind an aligned address; poison or random values. */
struct buffer {
    enum pd_dtype dtype;
    size_t count, shift;
    char *base;
    void *data;
};

TEST_INLINE struct buffer buffer_new(enum pd_dtype dtype, size_t count, size_t shift)
{
    const size_t bytes = pd_dtype_bytes(dtype);
    struct buffer r = {.dtype = dtype, .count = count, .shift = shift};
    void *base = NULL;
    cr_assert_eq(posix_memalign(&base, 64, (shift + count + GUARD) * bytes), 0);
    r.base = base;
    r.data = r.base + shift * bytes;
    memset(r.base, 0xfb, (shift + count + GUARD) * bytes);
    return r;
}

TEST_INLINE struct buffer buffer_random(enum pd_dtype dtype, size_t count, size_t shift, double deviation, uint64_t *seed)
{
    struct buffer r = buffer_new(dtype, count, shift);
    for (size_t i = 0; i < count; i++)
        value_put(dtype, r.data, i, deviation * random_normal(seed));
    return r;
}

TEST_INLINE struct buffer buffer_copy(const struct buffer *of)
{
    struct buffer r = buffer_new(of->dtype, of->count, of->shift);
    memcpy(r.data, of->data, of->count * pd_dtype_bytes(of->dtype));
    return r;
}

TEST_INLINE void buffer_free(struct buffer *r)
{
    free(r->base);
    *r = (struct buffer){0};
}

/* Guards too. */
TEST_INLINE void buffers_equal(const struct buffer *got, const struct buffer *want, const char *what)
{
    const size_t bytes = pd_dtype_bytes(want->dtype), all = want->count + GUARD;
    if (memcmp(got->data, want->data, all * bytes) == 0) return;
    for (size_t i = 0; i < all; i++) {
        const char *a = (const char *)got->data + i * bytes, *b = (const char *)want->data + i * bytes;
        cr_assert(memcmp(a, b, bytes) == 0, "%s, %s: element %zu of %zu is %.9g, not %.9g", what, pd_dtype_name(want->dtype),
                  i, want->count, value_get(want->dtype, got->data, i), value_get(want->dtype, want->data, i));
    }
}

/* Norm of the difference over the norm of what is wanted; a guard that was written is a failure. */
TEST_INLINE void buffer_near(const struct buffer *got, const double *want, double tolerance, const char *what)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < got->count; i++) {
        double d = value_get(got->dtype, got->data, i) - want[i];
        difference += d * d;
        size += want[i] * want[i];
    }
    double error = sqrt(difference) / (sqrt(size) + 1e-30);
    cr_assert(error <= tolerance, "%s, %s, %zu elements: relative error %.3g, at most %.3g", what, pd_dtype_name(got->dtype),
              got->count, error, tolerance);
    for (size_t i = 0; i < GUARD * pd_dtype_bytes(got->dtype); i++) {
        const unsigned char *guard = (const unsigned char *)got->data + got->count * pd_dtype_bytes(got->dtype);
        cr_assert_eq(guard[i], 0xfb, "%s: written beyond its end", what);
    }
}
