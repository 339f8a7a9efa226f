/* What leaves a GPU for the host and for files, on streams that do nothing before somebody waits: spans that go and
 * come back through few buffers, and updates on the host. */
#include "offload/host_update.h"
#include "offload/spill.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(expression)                                                          \
    do {                                                                        \
        struct pd_error err_ = {0}, *err = &err_;                               \
        cr_assert_eq((expression), PD_OK, "%s: %s", #expression, err->message); \
    } while (0)

enum { SPANS = 9, BUFFERS = 3, ROUNDS = 3, N = 30011 };
#define LARGEST (UINT64_C(5) << 16)

struct rig {
    struct pd_dev *dev;
    struct pd_stream *compute, *in, *out;
};

static void rig_init(struct rig *r)
{
    OK(pd_dev_open_cuda(0, &r->dev, err));
    OK(pd_dev_enter(r->dev, err));
    OK(pd_dev_stream_new(r->dev, &r->compute, err));
    OK(pd_dev_stream_new(r->dev, &r->in, err));
    OK(pd_dev_stream_new(r->dev, &r->out, err));
}

static void rig_deinit(struct rig *r)
{
    pd_dev_stream_free(r->dev, r->compute);
    pd_dev_stream_free(r->dev, r->in);
    pd_dev_stream_free(r->dev, r->out);
    pd_dev_close(r->dev);
}

static struct pd_span take(struct rig *r, enum pd_dev_place place, uint64_t bytes)
{
    struct pd_span span;
    OK(pd_dev_alloc(r->dev, place, bytes, &span, err));
    return span;
}

static void working_copy(struct rig *r, struct pd_span to, struct pd_span from, uint64_t bytes)
{
    OK(pd_dev_copy(r->dev, r->compute, to, 0, from, 0, bytes, err));
}

/* ---- spans ---- */

static uint8_t value_of(uint32_t round, uint32_t span, uint64_t i)
{
    return (uint8_t)(round * 57u + span * 31u + i * 7u + (i >> 8));
}

struct spans {
    struct rig rig;
    uint64_t bytes[SPANS];
    struct pd_span buffers[BUFFERS], host[SPANS]; /* host: what compute brings in, and where it puts what came back */
    uint32_t in_buffer[BUFFERS];                  /* span + 1; 0: none */
    struct pd_spill *spill;
};

static struct pd_span free_buffer(struct spans *s, uint32_t turn, uint32_t span)
{
    const uint32_t b = turn % BUFFERS;
    if (s->in_buffer[b]) OK(pd_spill_wait(s->spill, s->in_buffer[b] - 1, err));
    s->in_buffer[b] = span + 1;
    return s->buffers[b];
}

static void go(struct spans *s, uint32_t round)
{
    for (uint32_t span = 0; span < SPANS; span++) {
        const struct pd_span buffer = free_buffer(s, span, span);
        for (uint64_t i = 0; i < s->bytes[span]; i++)
            ((uint8_t *)s->host[span].data)[i] = value_of(round, span, i);
        working_copy(&s->rig, buffer, s->host[span], s->bytes[span]);
        OK(pd_spill_write(s->spill, span, buffer.data, err));
    }
    for (uint32_t b = 0; b < BUFFERS; b++)
        (void)free_buffer(s, b, 0);
    OK(pd_dev_stream_sync(s->rig.dev, s->rig.compute, err));
}

/* Descending, one ahead. */
static void come_back(struct spans *s, uint32_t round)
{
    struct pd_span there[SPANS];
    memset(s->in_buffer, 0, sizeof s->in_buffer);
    for (uint32_t span = 0; span < SPANS; span++)
        memset(s->host[span].data, 0, s->bytes[span]);
    for (uint32_t turn = 0; turn <= SPANS; turn++) {
        const uint32_t next = SPANS - 1 - turn, now = next + 1;
        if (turn < SPANS) {
            there[next] = s->buffers[turn % BUFFERS];
            OK(pd_spill_wait(s->spill, next, err)); /* it may be on its way out */
            OK(pd_spill_read(s->spill, next, there[next].data, err));
        }
        if (turn == 0) continue;
        OK(pd_spill_wait(s->spill, now, err));
        OK(pd_dev_stream_sync(s->rig.dev, s->rig.in, err)); /* copies get ahead of compute, as far as they may */
        working_copy(&s->rig, s->host[now], there[now], s->bytes[now]);
    }
    OK(pd_dev_stream_sync(s->rig.dev, s->rig.compute, err));
    for (uint32_t span = 0; span < SPANS; span++)
        for (uint64_t i = 0; i < s->bytes[span]; i++)
            cr_assert_eq(((uint8_t *)s->host[span].data)[i], value_of(round, span, i), "round %u, span %u, byte %lu", round,
                         span, i);
}

static void check_spans(bool in_files)
{
    struct spans s = {.in_buffer = {0}};
    char path[] = "/tmp/perdure-simt-offload-XXXXXX";
    struct pd_vfs *vfs;
    rig_init(&s.rig);
    for (uint32_t i = 0; i < SPANS; i++)
        s.bytes[i] = i == 4 ? LARGEST : 1000 + i * 20011;
    for (uint32_t i = 0; i < SPANS; i++)
        s.host[i] = take(&s.rig, PD_DEV_HOST, LARGEST);
    for (uint32_t b = 0; b < BUFFERS; b++)
        s.buffers[b] = take(&s.rig, PD_DEV_DEVICE, LARGEST);
    const uint64_t bytes = in_files ? pd_spill_staging_bytes(s.bytes, SPANS) : pd_spill_memory_bytes(s.bytes, SPANS);
    struct pd_span far = take(&s.rig, PD_DEV_HOST, bytes);
    OK(pd_vfs_new_auto(&vfs, err));
    cr_assert_not_null(mkdtemp(path));
    char file[80];
    snprintf(file, sizeof file, "%s/spill", path);
    const struct pd_spill_device device = {.dev = s.rig.dev,
                                           .compute = s.rig.compute,
                                           .copies_in = s.rig.in,
                                           .copies_out = s.rig.out,
                                           .memory = in_files ? NULL : far.data,
                                           .staging = in_files ? far.data : NULL};
    const struct pd_spill_options options = {
        .vfs = vfs, .path = file, .block_bytes = 65536, .span_bytes = s.bytes, .span_count = SPANS, .device = &device};
    OK(pd_spill_new(&options, &s.spill, err));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        go(&s, round);
        come_back(&s, round);
    }
    pd_spill_free(s.spill);
    pd_vfs_free(vfs);
    rmdir(path);
    pd_dev_free(s.rig.dev, &far);
    for (uint32_t i = 0; i < SPANS; i++)
        pd_dev_free(s.rig.dev, &s.host[i]);
    for (uint32_t b = 0; b < BUFFERS; b++)
        pd_dev_free(s.rig.dev, &s.buffers[b]);
    rig_deinit(&s.rig);
}

Test(offload, spans_on_the_host)
{
    check_spans(false);
}

Test(offload, spans_in_files)
{
    check_spans(true);
}

/* What neither compute nor the spill itself brought into a span goes out with it. */
Test(offload, spans_that_others_bring_in)
{
    const uint64_t bytes = LARGEST;
    struct rig r;
    struct pd_stream *others;
    struct pd_spill *spill;
    rig_init(&r);
    OK(pd_dev_stream_new(r.dev, &others, err));
    struct pd_span made = take(&r, PD_DEV_HOST, bytes), there = take(&r, PD_DEV_DEVICE, bytes),
                   far = take(&r, PD_DEV_HOST, pd_spill_memory_bytes(&bytes, 1));
    const struct pd_spill_device device = {
        .dev = r.dev, .compute = r.compute, .copies_in = r.in, .copies_out = r.out, .others = others, .memory = far.data};
    const struct pd_spill_options options = {.block_bytes = 65536, .span_bytes = &bytes, .span_count = 1, .device = &device};
    OK(pd_spill_new(&options, &spill, err));
    for (uint64_t i = 0; i < bytes; i++)
        ((uint8_t *)made.data)[i] = value_of(1, 2, i);
    OK(pd_dev_copy(r.dev, others, there, 0, made, 0, bytes, err));
    OK(pd_spill_write(spill, 0, there.data, err));
    OK(pd_spill_wait(spill, 0, err));
    OK(pd_dev_stream_sync(r.dev, r.compute, err));
    cr_assert_eq(memcmp(far.data, made.data, bytes), 0);
    pd_spill_free(spill);
    pd_dev_stream_free(r.dev, others);
    pd_dev_free(r.dev, &made);
    pd_dev_free(r.dev, &there);
    pd_dev_free(r.dev, &far);
    rig_deinit(&r);
}

/* ---- AdamW on the host ---- */

static float number(uint32_t what, uint32_t i)
{
    const uint32_t x = (i * 2654435761u) ^ (what * 40503u);
    return (float)((x ^ x >> 13) % 2000u) / 1000.0f - (what == 2 ? 0.0f : 1.0f);
}

/* Gradients of an update are there once compute has brought them. */
static void one_update(struct rig *r, struct pd_host_update *updates, uint64_t update, struct pd_span gradients,
                       struct pd_span brought, struct pd_span copies, float *const state[3], float *const expected[3],
                       uint16_t *expected_copies)
{
    const struct pd_update_config config = {
        .rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .scale = 1, .step = update};
    const struct pd_update_step step = pd_adamw.prepare(&config);
    struct pd_update_range ranges[3];
    for (uint32_t i = 0; i < N; i++)
        ((float *)brought.data)[i] = number(10 + (uint32_t)update, i);
    const struct pd_update_range whole = {.n = N,
                                          .decay = true,
                                          .state = {expected[0], expected[1], expected[2]},
                                          .grad = brought.data,
                                          .copy = expected_copies,
                                          .copy_dtype = PD_BF16,
                                          .moments = PD_F32};
    pd_update(NULL, PD_ISA_PORTABLE, &step, &whole);
    working_copy(r, gradients, brought, N * sizeof(float));
    const uint64_t ends[] = {0, 17, 20000, N};
    for (int i = 0; i < 3; i++)
        ranges[i] = (struct pd_update_range){.n = ends[i + 1] - ends[i],
                                             .decay = true,
                                             .state = {state[0] + ends[i], state[1] + ends[i], state[2] + ends[i]},
                                             .grad = (float *)gradients.data + ends[i],
                                             .copy = (uint16_t *)copies.data + ends[i],
                                             .copy_dtype = PD_BF16,
                                             .moments = PD_F32};
    OK(pd_host_update_run(updates, &step, ranges, 3, err));
}

Test(offload, updates_on_the_host)
{
    struct rig r;
    struct pd_host_update *updates;
    rig_init(&r);
    struct pd_span gradients = take(&r, PD_DEV_DEVICE, N * 4), copies = take(&r, PD_DEV_DEVICE, N * 2);
    struct pd_span brought = take(&r, PD_DEV_HOST, N * 4), back = take(&r, PD_DEV_HOST, N * 2);
    struct pd_span buffers = take(&r, PD_DEV_HOST, 192 << 10);
    float *state[3], *expected[3];
    uint16_t *expected_copies = calloc(N, 2);
    for (uint32_t k = 0; k < 3; k++) {
        state[k] = malloc(N * 4);
        expected[k] = malloc(N * 4);
        for (uint32_t i = 0; i < N; i++)
            state[k][i] = expected[k][i] = number(k, i);
    }
    const struct pd_host_update_options options = {.dev = r.dev,
                                                   .compute = r.compute,
                                                   .copies_in = r.in,
                                                   .copies_out = r.out,
                                                   .isa = PD_ISA_PORTABLE,
                                                   .copy_dtype = PD_BF16,
                                                   .buffers = buffers.data,
                                                   .buffer_bytes = buffers.bytes};
    OK(pd_host_update_new(&options, &updates, err));
    for (uint64_t update = 1; update < 4; update++) {
        one_update(&r, updates, update, gradients, brought, copies, state, expected, expected_copies);
        working_copy(&r, back, copies, N * 2);
        OK(pd_dev_stream_sync(r.dev, r.compute, err));
        cr_assert_eq(memcmp(back.data, expected_copies, N * 2), 0, "update %lu: other copies", update);
        for (int k = 0; k < 3; k++)
            cr_assert_eq(memcmp(state[k], expected[k], N * 4), 0, "update %lu: other state", update);
    }
    pd_host_update_free(updates);
    struct pd_span *spans[] = {&gradients, &copies, &brought, &back, &buffers};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        pd_dev_free(r.dev, spans[i]);
    for (int k = 0; k < 3; k++) {
        free(state[k]);
        free(expected[k]);
    }
    free(expected_copies);
    rig_deinit(&r);
}
