/* Updates on the host for a device: the bits of pd_update in one piece, whatever ranges and buffers. The device is the CPU,
 * whose streams carry everything out at once; tests/simt runs it on streams that do not. */
#include "ckpt/base/half.h"
#include "offload/host_update.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OK(expression)                                                          \
    do {                                                                        \
        struct pd_error err_ = {0}, *err = &err_;                               \
        cr_assert_eq((expression), PD_OK, "%s: %s", #expression, err->message); \
    } while (0)

enum { N = 70001 };

struct arrays {
    float param[N], exp_avg[N], exp_avg_sq[N], grad[N];
    uint16_t copy[N];
};

/* Moments in bf16 fill half of their arrays. */
static void narrow(float *values)
{
    for (int i = 0; i < N; i++) {
        const uint16_t narrow = pd_bf16_from_f32(values[i]);
        memcpy((char *)values + sizeof narrow * (size_t)i, &narrow, sizeof narrow);
    }
}

static void fill(struct arrays *a, enum pd_dtype moments)
{
    uint32_t state = 7;
    for (int i = 0; i < N; i++) {
        float *const values[] = {&a->param[i], &a->exp_avg[i], &a->exp_avg_sq[i], &a->grad[i]};
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            *values[k] = (float)(state >> 9) / (1 << 23) - (k == 2 ? 0.0f : 0.5f);
        }
    }
    memset(a->copy, 0, sizeof a->copy);
    if (moments == PD_F32) return;
    narrow(a->exp_avg);
    narrow(a->exp_avg_sq);
}

/* A tensor of rows of 100 elements, of which a box has 70. */
static struct pd_update_range range_of(struct arrays *a, uint64_t first, uint64_t n, enum pd_dtype moments, bool decay)
{
    const uint64_t bytes = first * pd_dtype_bytes(moments);
    return (struct pd_update_range){.n = n,
                                    .decay = decay,
                                    .state = {a->param + first, (char *)a->exp_avg + bytes, (char *)a->exp_avg_sq + bytes},
                                    .grad = a->grad + first,
                                    .copy = a->copy + first,
                                    .copy_dtype = PD_BF16,
                                    .moments = moments,
                                    .place = {.tensor = 3, .first = first, .origin = 30, .columns = 70, .stride = 100}};
}

/* Ranges of every kind: long ones that are cut, one of one element, one of none. */
static uint32_t ranges_of(struct arrays *a, enum pd_dtype moments, struct pd_update_range *ret)
{
    static const uint64_t ends[] = {40000, 40001, 40001, 53000, N};
    uint64_t first = 0;
    for (uint32_t i = 0; i < 5; first = ends[i++])
        ret[i] = range_of(a, first, ends[i] - first, moments, i % 2 == 0);
    return 5;
}

static void check(uint64_t buffer_bytes, unsigned threads, enum pd_dtype moments)
{
    struct arrays *expected = calloc(1, sizeof *expected), *got = calloc(1, sizeof *got);
    struct pd_update_range ranges[5];
    struct pd_dev *dev;
    struct pd_stream *streams[3];
    struct pd_thread_pool *pool;
    struct pd_host_update *updates;
    enum pd_isa isa;
    fill(expected, moments);
    fill(got, moments);
    OK(pd_isa_resolve(PD_ISA_AUTO, &isa, err));
    OK(pd_dev_open_cpu(&dev, err));
    for (int i = 0; i < 3; i++)
        OK(pd_dev_stream_new(dev, &streams[i], err));
    OK(pd_thread_pool_new(threads, &pool, err));
    const struct pd_host_update_options options = {.dev = dev,
                                                   .compute = streams[0],
                                                   .copies_in = streams[1],
                                                   .copies_out = streams[2],
                                                   .pool = pool,
                                                   .isa = isa,
                                                   .copy_dtype = PD_BF16,
                                                   .buffers = aligned_alloc(4096, buffer_bytes),
                                                   .buffer_bytes = buffer_bytes};
    OK(pd_host_update_new(&options, &updates, err));
    for (uint64_t update = 1; update < 4; update++) {
        const struct pd_update_config config = {
            .rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 0.5, .step = update};
        const struct pd_update_step step = pd_adamw.prepare(&config);
        const uint32_t count = ranges_of(expected, moments, ranges);
        for (uint32_t i = 0; i < count; i++)
            pd_update(NULL, PD_ISA_PORTABLE, &step, &ranges[i]);
        (void)ranges_of(got, moments, ranges);
        OK(pd_host_update_run(updates, &step, ranges, count, err));
        cr_assert_eq(memcmp(expected, got, sizeof *got), 0, "update %lu, %lu bytes of buffers: other bits", update,
                     buffer_bytes);
    }
    pd_host_update_free(updates);
    pd_thread_pool_free(pool);
    for (int i = 0; i < 3; i++)
        pd_dev_stream_free(dev, streams[i]);
    pd_dev_close(dev);
    free(options.buffers);
    free(expected);
    free(got);
}

Test(host_update, bits_do_not_depend_on_buffers)
{
    static const enum pd_dtype moments[] = {PD_F32, PD_BF16};
    for (int i = 0; i < 2; i++) {
        check(UINT64_C(1) << 20, 1, moments[i]); /* everything fits */
        check(UINT64_C(160) << 10, 2, moments[i]);
        check(UINT64_C(320) << 10, 1, moments[i]);
    }
}

/* Nothing to do is done. */
Test(host_update, no_ranges)
{
    struct pd_dev *dev;
    struct pd_stream *stream;
    struct pd_host_update *updates;
    OK(pd_dev_open_cpu(&dev, err));
    OK(pd_dev_stream_new(dev, &stream, err));
    const struct pd_host_update_options options = {.dev = dev,
                                                   .compute = stream,
                                                   .copies_in = stream,
                                                   .copies_out = stream,
                                                   .isa = PD_ISA_PORTABLE,
                                                   .copy_dtype = PD_F32,
                                                   .buffers = aligned_alloc(4096, 1 << 20),
                                                   .buffer_bytes = 1 << 20};
    const struct pd_update_step step = {.rule = &pd_adamw};
    OK(pd_host_update_new(&options, &updates, err));
    OK(pd_host_update_run(updates, &step, NULL, 0, err));
    pd_host_update_free(updates);
    pd_dev_stream_free(dev, stream);
    pd_dev_close(dev);
    free(options.buffers);
}
