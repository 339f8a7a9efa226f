/* Runs of operations that are kept: recorded, queued, queued again, dropped after a failure. */
#include "offload/device.h"
#include "trainer/math/cuda/copies.h"
#include "trainer/math/cuda/graphs.h"
#include "trainer/math/cuda/kernels.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { N = 70 };

static struct pd_dev *dev;
static struct pd_stream *stream;
static struct pd_span sum, term, seen;
static struct pd_cuda_graphs *graphs;
static struct pd_error err;

#define PARTS(...) .parts = {__VA_ARGS__}, .count = sizeof(const void *[]){__VA_ARGS__} / sizeof(void *)
#define KEY(...)           \
    {                      \
        PARTS(__VA_ARGS__) \
    }
#define RARE(...)                           \
    {                                       \
        PARTS(__VA_ARGS__), .is_rare = true \
    }
#define DONE(call) cr_assert_eq(call, PD_OK, "%s", err.message)

static void open_device(void)
{
    DONE(pd_dev_open_cuda(0, &dev, &err));
    DONE(pd_dev_enter(dev, &err));
    DONE(pd_dev_stream_new(dev, &stream, &err));
    DONE(pd_dev_alloc(dev, PD_DEV_DEVICE, N * sizeof(float), &sum, &err));
    DONE(pd_dev_alloc(dev, PD_DEV_DEVICE, N * sizeof(float), &term, &err));
    DONE(pd_dev_alloc(dev, PD_DEV_HOST, N * sizeof(float), &seen, &err));
    float *ones = seen.data;
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    DONE(pd_dev_fill(dev, stream, sum, 0, &err));
    DONE(pd_dev_copy(dev, stream, term, 0, seen, 0, N * sizeof(float), &err));
    DONE(pd_dev_stream_sync(dev, stream, &err));
    DONE(pd_cuda_graphs_new(pd_dev_stream_handle(dev, stream), &graphs, &err));
}

static void close_device(void)
{
    pd_cuda_graphs_free(graphs);
    pd_dev_free(dev, &sum);
    pd_dev_free(dev, &term);
    pd_dev_free(dev, &seen);
    pd_dev_stream_free(dev, stream);
    pd_dev_close(dev);
}

static void add(void)
{
    DONE(pd_cuda_add(pd_dev_stream_handle(dev, stream), N, sum.data, PD_F32, term.data, false, &err));
}

static float value(void)
{
    DONE(pd_dev_copy(dev, stream, seen, 0, sum, 0, N * sizeof(float), &err));
    DONE(pd_dev_stream_sync(dev, stream, &err));
    return ((const float *)seen.data)[N - 1];
}

/* Of what is free the driver may not know: the answer that is refused, counted from 1; 0: none. */
static int refused_answer;

__typeof__(cudaMemGetInfo) __real_cudaMemGetInfo, __wrap_cudaMemGetInfo;

cudaError_t __wrap_cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    const bool is_refused = refused_answer == 1;
    refused_answer -= refused_answer > 0;
    return is_refused ? cudaErrorMemoryAllocation : __real_cudaMemGetInfo(free_bytes, total_bytes);
}

/* `times` additions as one run under `key`; whether they were kept before. */
static bool run(const struct pd_math_key *key, int times, bool is_whole)
{
    bool is_done;
    DONE(pd_cuda_graphs_begin(graphs, key, &is_done, &err));
    for (int i = 0; i < times && !is_done; i++)
        add();
    bool again = false;
    if (!is_done) DONE(pd_cuda_graphs_end(graphs, is_whole, &again, &err));
    for (int i = 0; i < times && again; i++)
        add();
    return is_done;
}

Test(graphs, a_run_is_recorded_when_it_comes_again, .init = open_device, .fini = close_device)
{
    const struct pd_math_key two = KEY(&sum, &term), three = KEY(&sum, &term, &seen);
    cr_assert_not(run(&two, 2, true), "new: queued as it comes");
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 0);
    cr_assert_eq(value(), 2);
    cr_assert_not(run(&two, 2, true), "recorded, and queued");
    cr_assert_eq(value(), 4);
    cr_assert(run(&two, 99, true), "kept");
    add();
    cr_assert(run(&two, 99, true));
    cr_assert_eq(value(), 9);
    cr_assert_not(run(&three, 3, true), "another key");
    cr_assert_not(run(&three, 3, true));
    cr_assert(run(&three, 99, true));
    cr_assert(run(&two, 99, true));
    cr_assert_eq(value(), 20);
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 2);
}

/* By what the device says is free, which is what the plan's estimate is held against. */
Test(graphs, what_they_take_is_told, .init = open_device, .fini = close_device)
{
    const struct pd_math_key two = KEY(&sum, &term), three = KEY(&sum, &term, &seen);
    for (int times = 0; times < 3; times++) {
        (void)run(&two, 2, true);
        (void)run(&three, 3, true);
    }
    const struct pd_cuda_graphs_held held = pd_cuda_graphs_hold(graphs), none = pd_cuda_graphs_hold(NULL);
    cr_assert_eq(held.count, 2);
    cr_assert_eq(held.nodes, 5);
    cr_assert_eq(held.bytes, 5 * 10240, "%llu", (unsigned long long)held.bytes);
    cr_assert_eq(none.count + none.nodes + none.bytes, 0);
    cr_assert_eq(value(), 15);
}

/* Nothing is added to what graphs take then, and the next kernel's launch meets no failure. */
Test(graphs, a_refused_answer_about_memory_is_nobody_elses, .init = open_device, .fini = close_device)
{
    const struct pd_math_key keys[] = {KEY(&sum), KEY(&sum, &term)};
    for (int answer = 1; answer <= 2; answer++) {
        cr_assert_not(run(&keys[answer - 1], 1, true));
        refused_answer = answer;
        cr_assert_not(run(&keys[answer - 1], 1, true), "recorded");
        cr_assert_eq(refused_answer, 0, "it was asked");
        add();
    }
    cr_assert_eq(value(), 6);
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 2);
    cr_assert_eq(pd_cuda_graphs_hold(graphs).bytes, 0);
}

Test(graphs, a_rare_run_takes_what_is_kept_and_is_not_kept, .init = open_device, .fini = close_device)
{
    const struct pd_math_key usual = KEY(&sum, &term), rare = RARE(&sum, &term), alone = RARE(&term);
    for (int i = 0; i < 3; i++) {
        cr_assert_not(run(&rare, 1, true));
        cr_assert_not(run(&alone, 1, true));
    }
    cr_assert_not(run(&usual, 1, true), "nobody noted it");
    cr_assert_not(run(&rare, 1, true));
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 0);
    cr_assert_not(run(&usual, 1, true), "recorded");
    cr_assert(run(&rare, 99, true), "kept");
    cr_assert_eq(value(), 10);
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 1);
}

Test(graphs, a_run_that_failed_is_neither_queued_nor_kept, .init = open_device, .fini = close_device)
{
    const struct pd_math_key key = KEY(&sum);
    cr_assert_not(run(&key, 1, true));
    cr_assert_not(run(&key, 5, false));
    cr_assert_eq(value(), 1);
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 0);
    cr_assert_not(run(&key, 5, true), "recorded anew");
    cr_assert_eq(value(), 6);
}

enum offence { TAKES_MEMORY, GIVES_IT_BACK, ASKS_AN_EVENT, WAITS_FOR_A_STREAM };

static pd_status offend(enum offence how, struct pd_stream *other, struct pd_event *event)
{
    struct pd_span span;
    bool passed;
    switch (how) {
    case TAKES_MEMORY:
        return pd_dev_alloc(dev, PD_DEV_DEVICE, 4096, &span, &err);
    case GIVES_IT_BACK:
        pd_dev_free(dev, &term);
        return PD_DEVICE_LOST;
    case ASKS_AN_EVENT:
        return pd_dev_event_passed(dev, event, &passed, &err);
    default:
        return pd_dev_stream_sync(dev, other, &err);
    }
}

/* CUDA C++ Programming Guide, "Prohibited and Unhandled Operations"; cudaThreadExchangeStreamCaptureMode. */
Test(graphs, a_thread_that_records_waits_for_nothing_and_takes_no_memory, .init = open_device, .fini = close_device)
{
    const struct pd_math_key key = KEY(&sum);
    struct pd_stream *other;
    struct pd_event *event;
    bool is_done, again;
    DONE(pd_dev_stream_new(dev, &other, &err));
    DONE(pd_dev_event_new(dev, &event, &err));
    cr_assert_not(run(&key, 1, true));
    for (int how = TAKES_MEMORY; how <= WAITS_FOR_A_STREAM; how++) {
        const struct pd_span kept = term;
        DONE(pd_cuda_graphs_begin(graphs, &key, &is_done, &err));
        add();
        cr_assert_eq(offend((enum offence)how, other, event), PD_DEVICE_LOST, "%d", how);
        cr_assert_eq(pd_cuda_graphs_end(graphs, true, &again, &err), PD_DEVICE_LOST, "%d", how);
        cr_assert(strstr(err.message, "recording a block") && strstr(err.message, "during capture"), "%s", err.message);
        term = kept;
        add();
    }
    cr_assert_eq(value(), 5);
    cr_assert_not(run(&key, 1, true), "recorded anew");
    cr_assert_eq(value(), 6);
    pd_dev_event_free(dev, event);
    pd_dev_stream_free(dev, other);
}

/* Beyond their number runs go one by one, with the same sums. */
Test(graphs, there_is_an_end_to_what_is_kept, .init = open_device, .fini = close_device)
{
    static char names[PD_CUDA_GRAPHS_MAX + 2];
    for (uint32_t i = 0; i < 2 * (PD_CUDA_GRAPHS_MAX + 2); i++) {
        const struct pd_math_key key = KEY(&names[i / 2]);
        cr_assert_not(run(&key, 1, true));
    }
    cr_assert_eq(value(), 2 * (PD_CUDA_GRAPHS_MAX + 2));
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, PD_CUDA_GRAPHS_MAX);
    const struct pd_math_key first = KEY(&names[0]), last = KEY(&names[PD_CUDA_GRAPHS_MAX + 1]);
    cr_assert(run(&first, 99, true));
    cr_assert_not(run(&last, 1, true));
    cr_assert_eq(value(), 2 * PD_CUDA_GRAPHS_MAX + 6);
}

static void open_device_with_two_graphs(void)
{
    setenv("PERDURE_SIMT_GRAPHS", "2", 1);
    open_device();
}

/* Out of memory for a graph is no lost GPU: what was recorded is queued again, and so is all that comes later. */
Test(graphs, without_memory_for_another_runs_go_one_by_one, .init = open_device_with_two_graphs, .fini = close_device)
{
    static char names[4];
    for (int i = 0; i < 4; i++) {
        const struct pd_math_key key = KEY(&names[i]);
        for (int times = 0; times < 3; times++)
            (void)run(&key, 1, true);
    }
    cr_assert_eq(value(), 12);
    cr_assert_eq(pd_cuda_graphs_hold(graphs).count, 2);
    const struct pd_math_key first = KEY(&names[0]), third = KEY(&names[2]);
    cr_assert(run(&first, 1, true));
    cr_assert_not(run(&third, 1, true));
    cr_assert_eq(value(), 14);
}

/* Attention's blocks take items by a counter that the last of them leaves at 0: a run that is queued again, and what comes
 * between, finds it so. */
enum { LENGTH = 130, HEADS = 2, ROW = HEADS * 64, OUT_BYTES = LENGTH * ROW * 2 };

static void attend(const struct pd_attention *a, struct pd_cuda_workspace workspace)
{
    DONE(pd_cuda_attention_forward(pd_dev_stream_handle(dev, stream), a, workspace, &err));
}

static void check_out(struct pd_span out, struct pd_span host, const void *want, const char *when)
{
    DONE(pd_dev_copy(dev, stream, host, 0, out, 0, OUT_BYTES, &err));
    DONE(pd_dev_fill(dev, stream, out, 0xff, &err));
    DONE(pd_dev_stream_sync(dev, stream, &err));
    cr_assert_eq(memcmp(host.data, want, OUT_BYTES), 0, "%s", when);
}

Test(graphs, of_attention_find_every_item_again, .init = open_device, .fini = close_device)
{
    struct pd_span on[3], host; /* q, k and v in one; out; lse and the counter */
    static uint16_t want[OUT_BYTES / 2];
    setenv("PERDURE_ATTENTION", "wgmma", 1);
    for (int i = 0; i < 3; i++)
        DONE(pd_dev_alloc(dev, PD_DEV_DEVICE, i ? OUT_BYTES : 3 * OUT_BYTES, &on[i], &err));
    DONE(pd_dev_alloc(dev, PD_DEV_HOST, 3 * OUT_BYTES, &host, &err));
    for (uint32_t i = 0; i < 3 * OUT_BYTES / 2; i++)
        ((uint16_t *)host.data)[i] = (uint16_t)(0x3c00u + i * 40503u % 1024u);
    DONE(pd_dev_copy(dev, stream, on[0], 0, host, 0, 3 * OUT_BYTES, &err));
    DONE(pd_dev_fill(dev, stream, on[2], 0, &err));
    const struct pd_cuda_workspace workspace = {NULL, 0, (uint32_t *)on[2].data + LENGTH * HEADS};
    const struct pd_math_key key = KEY(&sum, &term);
    const uint16_t *q = on[0].data;
    const struct pd_attention a = {.sequences = 1,
                                   .length = LENGTH,
                                   .heads = HEADS,
                                   .kv_heads = HEADS,
                                   .head_size = 64,
                                   .ld_qkv = 3 * ROW,
                                   .dtype = PD_BF16,
                                   .scale = 0.125f,
                                   .q = q,
                                   .k = q + ROW,
                                   .v = q + 2 * ROW,
                                   .out = on[1].data,
                                   .lse = on[2].data};
    attend(&a, workspace);
    DONE(pd_dev_copy(dev, stream, host, 0, on[1], 0, OUT_BYTES, &err));
    DONE(pd_dev_stream_sync(dev, stream, &err));
    memcpy(want, host.data, OUT_BYTES);
    for (int time = 0; time < 4; time++) {
        bool is_done, again = false;
        DONE(pd_cuda_graphs_begin(graphs, &key, &is_done, &err));
        cr_assert_eq(is_done, time > 1);
        if (!is_done) attend(&a, workspace);
        if (!is_done) DONE(pd_cuda_graphs_end(graphs, true, &again, &err));
        check_out(on[1], host, want, "in a run that is kept");
        attend(&a, workspace);
        check_out(on[1], host, want, "after it");
    }
    for (int i = 0; i < 3; i++)
        pd_dev_free(dev, &on[i]);
    pd_dev_free(dev, &host);
}
