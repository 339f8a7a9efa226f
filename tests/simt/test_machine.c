/* The machine of tests/simt behind the device table: what it does late, what it refuses, what it finds. Settings are read
 * once a process, and every test is one. */
#include "offload/device.h"
#include "trainer/math/cuda/copies.h"
#include "trainer/math/cuda/kernels.h"

#include "tests/simt/simt_order.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3000, BYTES = N * 4 };

struct gpu {
    struct pd_dev *dev;
    struct pd_stream *stream, *other;
    void *handle, *other_handle;
    struct pd_event *event;
    struct pd_span device, more, host;
};

static void start(struct gpu *g, const char *streams, uint32_t index)
{
    struct pd_error err = {0};
    if (streams) setenv("PERDURE_SIMT_STREAMS", streams, 1);
    cr_assert_eq(pd_dev_open_cuda(index, &g->dev, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_dev_enter(g->dev, &err), PD_OK);
    cr_assert_eq(pd_dev_stream_new(g->dev, &g->stream, &err), PD_OK);
    cr_assert_eq(pd_dev_stream_new(g->dev, &g->other, &err), PD_OK);
    cr_assert_eq(pd_dev_event_new(g->dev, &g->event, &err), PD_OK);
    cr_assert_eq(pd_dev_alloc(g->dev, PD_DEV_DEVICE, BYTES, &g->device, &err), PD_OK);
    cr_assert_eq(pd_dev_alloc(g->dev, PD_DEV_DEVICE, BYTES, &g->more, &err), PD_OK);
    cr_assert_eq(pd_dev_alloc(g->dev, PD_DEV_HOST, BYTES, &g->host, &err), PD_OK);
    g->handle = pd_dev_stream_handle(g->dev, g->stream);
    g->other_handle = pd_dev_stream_handle(g->dev, g->other);
    for (int i = 0; i < N; i++)
        ((float *)g->host.data)[i] = (float)i;
}

static void finish(struct gpu *g)
{
    struct pd_error err;
    (void)!pd_dev_stream_sync(g->dev, g->stream, &err); /* a lost one says so again */
    (void)!pd_dev_stream_sync(g->dev, g->other, &err);
    pd_dev_free(g->dev, &g->device);
    pd_dev_free(g->dev, &g->more);
    pd_dev_free(g->dev, &g->host);
    pd_dev_event_free(g->dev, g->event);
    pd_dev_stream_free(g->dev, g->stream);
    pd_dev_stream_free(g->dev, g->other);
    pd_dev_close(g->dev);
}

#define OK(call)                                                         \
    do {                                                                 \
        struct pd_error err_ = {0};                                      \
        const pd_status st_ = (call);                                    \
        cr_assert_eq(st_, PD_OK, "%s: %d %s", #call, st_, err_.message); \
    } while (0)

/* On the first stream. */
static void copy(struct gpu *g, void *dst, const void *src)
{
    OK(pd_cuda_copy(g->handle, dst, src, BYTES, &err_));
}

static void passed(struct gpu *g)
{
    OK(pd_dev_stream_sync(g->dev, g->stream, &err_));
}

/* Cross-entropy of a row of 100 logits, 0 to 99: on the device the target, behind it the loss. */
static void start_loss(struct gpu *g, int32_t target)
{
    struct pd_cross_entropy l = {.rows = 1, .vocab = 100, .ld = 100, .chunks = 1, .dtype = PD_F32};
    static int32_t kept; /* a source is lent until the copy has happened */
    kept = target;
    OK(pd_cuda_copy(g->handle, g->device.data, g->host.data, BYTES, &err_));
    OK(pd_cuda_copy(g->handle, g->more.data, &kept, sizeof kept, &err_));
    l.logits = g->device.data;
    l.targets = g->more.data;
    l.losses = (float *)g->more.data + 1;
    OK(pd_cuda_cross_entropy(g->handle, &l, &err_));
    memset(&l, 0xff, sizeof l);
}

/* ---- places ---- */

Test(machine, copies_go_between_all_places)
{
    struct gpu g;
    struct pd_span back;
    static float pageable[N], registered[N];
    start(&g, NULL, 0);
    OK(pd_dev_alloc(g.dev, PD_DEV_HOST, BYTES, &back, &err_));
    OK(pd_dev_lock(g.dev, registered, BYTES, &err_));
    copy(&g, pageable, g.host.data);
    copy(&g, g.device.data, pageable);
    copy(&g, g.more.data, g.device.data);
    copy(&g, registered, g.more.data);
    copy(&g, g.device.data, registered);
    copy(&g, back.data, g.device.data);
    passed(&g);
    cr_assert_eq(memcmp(back.data, g.host.data, BYTES), 0);
    pd_dev_unlock(g.dev, registered, BYTES);
    pd_dev_free(g.dev, &back);
    finish(&g);
}

Test(machine, copies_end_where_their_memory_ends)
{
    struct gpu g;
    struct pd_error err;
    start(&g, NULL, 0);
    char *device = g.device.data, *host = g.host.data;
    cr_assert_eq(pd_cuda_copy(g.handle, device + 4, host, BYTES, &err), PD_DEVICE_LOST);
    cr_assert_eq(pd_cuda_copy(g.handle, device, host + 4, BYTES, &err), PD_DEVICE_LOST);
    cr_assert_eq(pd_cuda_copy(g.handle, device + 4, device, 8, &err), PD_DEVICE_LOST, "it overlaps itself");
    cr_assert(strstr(err.message, "invalid argument"), "%s", err.message);
    OK(pd_cuda_copy(g.handle, device + 4, host, BYTES - 4, &err_));
    finish(&g);
}

Test(machine, memory_is_registered_once)
{
    struct gpu g;
    struct pd_error err;
    static _Alignas(4096) char mine[3 * 4096];
    start(&g, NULL, 0);
    OK(pd_dev_lock(g.dev, mine + 4096, 4096, &err_));
    cr_assert_neq(pd_dev_lock(g.dev, mine, sizeof mine, &err), PD_OK);
    cr_assert(strstr(err.message, "already mapped"), "%s", err.message);
    cr_assert_neq(pd_dev_lock(g.dev, mine + 8000, 100, &err), PD_OK);
    OK(pd_dev_lock(g.dev, mine + 8192, 100, &err_));
    cr_assert_neq(pd_dev_lock(g.dev, mine + 8292, 100, &err), PD_OK, "the page is locked");
    pd_dev_unlock(g.dev, mine + 4096, 4096);
    OK(pd_dev_lock(g.dev, mine, 8192, &err_));
    finish(&g);
}

/* ---- late ---- */

/* A source that changes before its copy is waited for: what has arrived before the wait, and behind it. */
static void change_a_lent_source(const char *streams, float before, float changed)
{
    struct gpu g;
    float back[N] = {0}, *host;
    start(&g, streams, 0);
    host = g.host.data;
    copy(&g, g.device.data, host);
    host[7] = -1;
    copy(&g, back, g.device.data);
    cr_assert_eq(back[5], before);
    passed(&g);
    cr_assert_eq(back[5], 5.0f);
    cr_assert_eq(back[7], changed);
    finish(&g);
}

Test(machine, what_nobody_waits_for_has_not_happened)
{
    change_a_lent_source(NULL, 0.0f, -1.0f);
}

Test(machine, at_once_where_it_is_asked_for)
{
    change_a_lent_source("now", 5.0f, 7.0f);
}

/* A kernel on one stream reads what another stream copies in; with the event, or without. */
static float sum_of(struct gpu *g, bool with_event)
{
    float back[N];
    OK(pd_dev_fill(g->dev, g->stream, g->more, 0, &err_));
    OK(pd_cuda_copy(g->other_handle, g->device.data, g->host.data, BYTES, &err_));
    OK(pd_dev_event_record(g->dev, g->event, g->other, &err_));
    if (with_event) OK(pd_dev_event_wait(g->dev, g->stream, g->event, &err_));
    OK(pd_cuda_add(g->handle, N, g->more.data, g->device.data, &err_));
    copy(g, back, g->more.data);
    passed(g);
    return back[N - 1];
}

Test(machine, a_missing_event_shows_as_wrong_data)
{
    struct gpu g;
    start(&g, NULL, 0);
    cr_assert(isnan(sum_of(&g, false)));
    cr_assert_eq(sum_of(&g, true), (float)(N - 1));
    finish(&g);
}

Test(machine, events_are_enough_whatever_the_gpu_does_first)
{
    static const char *const seeds[] = {"late", "now", "1", "2", "3", "4", "5", "6"};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        const pid_t child = fork();
        if (child == 0) {
            struct gpu g;
            start(&g, seeds[i], 0);
            for (int times = 0; times < 20; times++)
                if (sum_of(&g, true) != (float)(N - 1)) _exit(1); /* an abort would be a crash of this test */
            finish(&g);
            _exit(0);
        }
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "streams %s", seeds[i]);
    }
}

Test(machine, an_event_brings_what_is_before_it_and_no_more)
{
    struct gpu g;
    float first[N] = {0}, second[N] = {0};
    start(&g, NULL, 0);
    copy(&g, g.device.data, g.host.data);
    copy(&g, first, g.device.data);
    OK(pd_dev_event_record(g.dev, g.event, g.stream, &err_));
    copy(&g, second, g.device.data);
    OK(pd_dev_event_sync(g.dev, g.event, &err_));
    cr_assert_eq(first[9], 9.0f);
    cr_assert_eq(second[9], 0.0f);
    passed(&g);
    cr_assert_eq(second[9], 9.0f);
    finish(&g);
}

Test(machine, two_streams_may_wait_for_each_other_in_turn)
{
    struct gpu g;
    struct pd_event *there;
    float back[N];
    start(&g, NULL, 0);
    OK(pd_dev_event_new(g.dev, &there, &err_));
    OK(pd_dev_fill(g.dev, g.stream, g.device, 0, &err_));
    copy(&g, g.more.data, g.host.data);
    for (int i = 0; i < 40; i++) {
        struct pd_stream *one = i % 2 ? g.other : g.stream, *next = i % 2 ? g.stream : g.other;
        struct pd_event *event = i % 2 ? there : g.event;
        OK(pd_cuda_add(pd_dev_stream_handle(g.dev, one), N, g.device.data, g.more.data, &err_));
        OK(pd_dev_event_record(g.dev, event, one, &err_));
        OK(pd_dev_event_wait(g.dev, next, event, &err_));
    }
    copy(&g, back, g.device.data);
    passed(&g);
    cr_assert_eq(back[3], 120.0f);
    pd_dev_event_free(g.dev, there);
    finish(&g);
}

Test(machine, operands_are_taken_when_a_kernel_is_launched)
{
    struct gpu g;
    float back[N];
    start(&g, NULL, 0);
    start_loss(&g, 3);
    copy(&g, back, g.more.data);
    passed(&g);
    cr_assert(fabsf(back[1] - 96.4587f) < 1e-3f, "%g", (double)back[1]);
    finish(&g);
}

/* ---- who touches what ---- */

enum touch { BY_THE_HOST, AFTER_IT_WAS_FREED, FROM_ANOTHER_GPU };

static void touch_wrongly(enum touch how)
{
    struct gpu g, second;
    setenv("PERDURE_SIMT_GPUS", "2", 1);
    start(&g, NULL, 0);
    copy(&g, g.device.data, g.host.data);
    passed(&g); /* its memory was open meanwhile */
    if (how == BY_THE_HOST) _exit(((volatile char *)g.device.data)[1000]);
    if (how == AFTER_IT_WAS_FREED) {
        OK(pd_cuda_add(g.handle, N, g.more.data, g.device.data, &err_));
        pd_dev_free(g.dev, &g.device);
        passed(&g);
    }
    if (how == FROM_ANOTHER_GPU) {
        start(&second, NULL, 1);
        OK(pd_cuda_add(second.handle, N, second.more.data, g.device.data, &err_));
        passed(&second);
    }
    _exit(0);
}

static void dies_saying(enum touch how, const char *one, const char *two)
{
    int pipe_ends[2], status;
    char text[4096];
    size_t length = 0;
    cr_assert_eq(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], STDERR_FILENO);
        close(pipe_ends[0]);
        touch_wrongly(how);
    }
    close(pipe_ends[1]);
    for (ssize_t got = 1; got > 0 && length < sizeof text - 1; length += (size_t)(got > 0 ? got : 0))
        got = read(pipe_ends[0], text + length, sizeof text - 1 - length);
    text[length] = 0;
    close(pipe_ends[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_neq(status, 0);
    cr_assert(strstr(text, one) && strstr(text, two), "%s", text);
}

Test(machine, who_touches_what_is_not_his_dies_of_it)
{
    dies_saying(BY_THE_HOST, "the host touches byte 1000 of 12000 bytes of device memory", "copy it on a stream");
    dies_saying(AFTER_IT_WAS_FREED, "pd_each", "device memory that was freed");
    dies_saying(FROM_ANOTHER_GPU, "simulated GPU 0", "another GPU's");
}

/* ---- memory opens a part at a time ---- */

Test(machine, an_operation_reaches_all_of_its_memory)
{
    enum { APART = 96 << 10, COPIES = 900 }; /* far more parts than are open at a time */
    struct gpu g;
    struct pd_span wide, back;
    start(&g, NULL, 0);
    OK(pd_dev_alloc(g.dev, PD_DEV_DEVICE, (uint64_t)COPIES * APART, &wide, &err_));
    OK(pd_dev_alloc(g.dev, PD_DEV_HOST, sizeof(float[COPIES]), &back, &err_));
    const float *from = g.host.data;
    for (uint64_t i = 0, to = 0; i < COPIES; i++, to = (to + 401) % COPIES)
        OK(pd_cuda_copy(g.handle, (char *)wide.data + to * APART, from + i, sizeof *from, &err_));
    for (uint64_t i = 0, at = 0; i < COPIES; i++, at = (at + 401) % COPIES)
        OK(pd_cuda_copy(g.handle, (float *)back.data + i, (char *)wide.data + at * APART, sizeof *from, &err_));
    passed(&g);
    cr_assert_eq(memcmp(back.data, from, sizeof(float[COPIES])), 0);
    pd_dev_free(g.dev, &wide);
    pd_dev_free(g.dev, &back);
    finish(&g);
}

static void *wait_deaf(void *context)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    passed(context);
    return NULL;
}

Test(machine, a_thread_that_hears_no_signals_may_wait)
{
    struct gpu g;
    pthread_t thread;
    start(&g, NULL, 0);
    copy(&g, g.device.data, g.host.data);
    cr_assert_eq(pthread_create(&thread, NULL, wait_deaf, &g), 0);
    pthread_join(thread, NULL);
    finish(&g);
}

Test(machine, a_thread_launches_on_the_gpu_that_it_entered)
{
    struct gpu g, second;
    struct pd_error err;
    setenv("PERDURE_SIMT_GPUS", "2", 1);
    cr_assert_eq(pd_dev_cuda_count(), 2);
    start(&g, NULL, 0);
    start(&second, NULL, 1);
    cr_assert_eq(pd_cuda_add(g.handle, N, g.more.data, g.device.data, &err), PD_DEVICE_LOST);
    cr_assert(strstr(err.message, "invalid resource handle"), "%s", err.message);
    OK(pd_cuda_copy(second.handle, second.device.data, g.device.data, BYTES, &err_));
    OK(pd_dev_enter(g.dev, &err_));
    OK(pd_cuda_add(g.handle, N, g.more.data, g.device.data, &err_));
    cr_assert_neq(pd_dev_event_record(second.dev, g.event, second.stream, &err), PD_OK);
    cr_assert_eq(pd_dev_open_cuda(2, &g.dev, &err), PD_UNSUPPORTED);
}

static void *use(void *gpu)
{
    struct gpu *g = gpu;
    OK(pd_dev_copy(g->dev, g->stream, g->device, 0, g->host, 0, BYTES, &err_));
    OK(pd_dev_event_record(g->dev, g->event, g->stream, &err_));
    OK(pd_dev_event_wait(g->dev, g->other, g->event, &err_));
    OK(pd_dev_fill(g->dev, g->other, g->more, 0, &err_));
    OK(pd_dev_event_sync(g->dev, g->event, &err_));
    finish(g);
    return NULL;
}

/* Contexts of eight ranks on the first GPU would take gigabytes of it. */
Test(machine, threads_that_entered_no_gpu_leave_the_first_alone)
{
    struct gpu g;
    pthread_t thread;
    setenv("PERDURE_SIMT_GPUS", "2", 1);
    start(&g, NULL, 1);
    cr_assert_eq(pthread_create(&thread, NULL, use, &g), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(simt_contexts(), 1u << 1, "%u", simt_contexts());
}

/* A GPU reads pinned memory of the host, and no other. */
Test(machine, a_kernel_is_given_no_memory_of_the_host)
{
    struct gpu g;
    struct pd_error err;
    static _Alignas(4096) float mine[N];
    start(&g, NULL, 0);
    OK(pd_dev_fill(g.dev, g.stream, g.device, 0, &err_));
    cr_assert_eq(pd_cuda_add(g.handle, N, g.device.data, mine, &err), PD_BUG);
    cr_assert(strstr(err.message, "pd_each") && strstr(err.message, "not pinned"), "%s", err.message);
    OK(pd_dev_lock(g.dev, mine, sizeof mine, &err_));
    OK(pd_cuda_add(g.handle, N, g.device.data, mine, &err_));
    passed(&g);
    pd_dev_unlock(g.dev, mine, sizeof mine);
    finish(&g);
}

/* Several threads touch it before it is pinned. */
Test(machine, large_host_memory_is_zero_pinned_and_given_back)
{
    struct gpu g;
    struct pd_span large;
    const uint64_t bytes = (UINT64_C(64) << 20) + 12345;
    start(&g, NULL, 0);
    OK(pd_dev_alloc(g.dev, PD_DEV_HOST, bytes, &large, &err_));
    for (uint64_t i = 0; i < bytes; i += 4096)
        cr_assert_eq(((char *)large.data)[i], 0);
    float *last = (float *)large.data + bytes / sizeof(float) - N;
    OK(pd_dev_fill(g.dev, g.stream, g.device, 0, &err_));
    OK(pd_cuda_add(g.handle, N, g.device.data, last, &err_));
    passed(&g);
    void *was = large.data;
    pd_dev_free(g.dev, &large);
    unsigned char in_core;
    cr_assert(mincore(was, 4096, &in_core) && errno == ENOMEM, "it is still mapped");
    finish(&g);
}

/* The runtime keeps a failure for whoever asks next, and a launch does. */
Test(machine, what_nobody_is_told_of_does_not_fail_the_next_kernel)
{
    struct gpu g;
    static char never_locked[4096];
    start(&g, NULL, 0);
    OK(pd_dev_fill(g.dev, g.stream, g.device, 0, &err_));
    pd_dev_unlock(g.dev, never_locked, sizeof never_locked);
    OK(pd_cuda_add(g.handle, N, g.device.data, g.device.data, &err_));
    struct pd_span again = g.more;
    pd_dev_free(g.dev, &g.more);
    pd_dev_free(g.dev, &again);
    OK(pd_cuda_add(g.handle, N, g.device.data, g.device.data, &err_));
    finish(&g);
}

/* ---- limits and failures ---- */

Test(machine, a_block_has_the_shared_memory_of_its_capability)
{
    struct gpu g;
    struct pd_error err;
    setenv("PERDURE_SIMT_CAPABILITY", "86", 1);
    setenv("PERDURE_ATTENTION", "wgmma", 1);
    start(&g, NULL, 0);
    const struct pd_attention a = {.sequences = 1,
                                   .length = 1,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_size = 64,
                                   .ld_qkv = 64,
                                   .dtype = PD_BF16,
                                   .scale = 1,
                                   .q = g.device.data,
                                   .k = g.device.data,
                                   .v = g.device.data,
                                   .out = g.more.data,
                                   .lse = (float *)g.more.data + 64};
    const struct pd_cuda_workspace workspace = {NULL, 0, g.more.data};
    cr_assert_eq(pd_cuda_attention_forward(g.handle, &a, workspace, &err), PD_DEVICE_LOST);
    cr_assert(strstr(err.message, "a block gets at most 101376"), "%s", err.message);
    finish(&g);
}

Test(machine, memory_ends)
{
    struct gpu g;
    struct pd_error err;
    struct pd_dev_memory before, now;
    struct pd_span span;
    setenv("PERDURE_SIMT_MEMORY", "1M", 1);
    start(&g, NULL, 0);
    OK(pd_dev_memory(g.dev, &before, &err_));
    cr_assert_eq(before.total_bytes, 1u << 20);
    cr_assert_eq(before.free_bytes, (1u << 20) - 2 * 12288);
    cr_assert_eq(pd_dev_alloc(g.dev, PD_DEV_DEVICE, 1u << 20, &span, &err), PD_NO_MEMORY);
    cr_assert(strstr(err.message, "out of memory"), "%s", err.message);
    OK(pd_dev_alloc(g.dev, PD_DEV_DEVICE, 700000, &span, &err_));
    pd_dev_free(g.dev, &span);
    OK(pd_dev_memory(g.dev, &now, &err_));
    cr_assert_eq(now.free_bytes, before.free_bytes);
    finish(&g);
}

Test(machine, a_machine_may_have_no_gpu)
{
    struct pd_dev *dev;
    struct pd_error err;
    setenv("PERDURE_SIMT_GPUS", "0", 1);
    cr_assert_eq(pd_dev_cuda_count(), 0);
    cr_assert_eq(pd_dev_open_cuda(0, &dev, &err), PD_UNSUPPORTED);
}

/* Clusters give a GPU to one process at a time; a rank that ends may still have it when the next begins. */
Test(machine, a_gpu_that_another_process_has_for_itself_is_named_with_its_mode)
{
    struct pd_dev *dev;
    struct pd_error err = {0};
    setenv("PERDURE_SIMT_BUSY", "1", 1);
    cr_assert_eq(pd_dev_open_cuda(0, &dev, &err), PD_DEVICE_LOST, "tried again at a restart");
    cr_assert(strstr(err.message, "another process") && strstr(err.message, "compute_mode"), "%s", err.message);
}

Test(machine, a_kernel_that_breaks_a_rule_costs_the_gpu)
{
    struct gpu g;
    struct pd_error err;
    struct pd_dev_memory memory;
    float back[N] = {0};
    start(&g, NULL, 0);
    start_loss(&g, 3000);
    copy(&g, back, g.device.data);
    cr_assert_eq(pd_dev_stream_sync(g.dev, g.stream, &err), PD_DEVICE_LOST);
    cr_assert(strstr(err.message, "row_kernel") && strstr(err.message, "does not hold"), "%s", err.message);
    cr_assert_eq(back[5], 0.0f, "nothing after it happens");
    cr_assert_eq(pd_dev_memory(g.dev, &memory, &err), PD_DEVICE_LOST);
    cr_assert_eq(pd_cuda_add(g.handle, N, g.more.data, g.device.data, &err), PD_DEVICE_LOST);
    finish(&g);
}

Test(machine, a_gpu_may_be_lost_at_any_operation)
{
    struct gpu g;
    struct pd_error err;
    float back[N] = {0};
    setenv("PERDURE_SIMT_FAIL", "3", 1);
    start(&g, NULL, 0);
    copy(&g, g.device.data, g.host.data);
    copy(&g, back, g.device.data);
    passed(&g);
    cr_assert_eq(back[4], 4.0f);
    copy(&g, g.device.data, g.host.data);
    cr_assert_eq(pd_dev_stream_sync(g.dev, g.stream, &err), PD_DEVICE_LOST);
    cr_assert(strstr(err.message, "PERDURE_SIMT_FAIL"), "%s", err.message);
    finish(&g);
}
