#include "trainer/engine/rank_device.h"

#include "ckpt/base/log.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/random_bits.h"
#include "trainer/engine/numa.h"
#include "trainer/math/math_cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "device"

#define SPANS_MAX (1u << 16) /* per step; more are counted as lost */

static bool is_left_out(uint32_t index, const char *left_out)
{
    char identity[33];
    if (!left_out || !*left_out) return false;
    pd_dev_cuda_identity(index, identity);
    return identity[0] && strstr(left_out, identity);
}

/* The rank_here-th GPU not left out, starting over after the last. */
static uint32_t choose_gpu(uint32_t count, uint32_t rank_here, const char *left_out)
{
    uint32_t usable = 0;
    for (uint32_t i = 0; i < count; i++)
        usable += !is_left_out(i, left_out);
    if (!usable) return rank_here % count;
    uint32_t index = 0;
    for (uint32_t before = rank_here % usable; is_left_out(index, left_out) || before--;)
        index++;
    return index;
}

bool pd_rank_device_is_spare(const struct pd_rank_device *d, uint32_t ranks_here, const char *left_out)
{
    uint32_t others = 0;
    for (uint32_t i = 0; i < pd_dev_cuda_count(); i++)
        others += i != d->dev->index && !is_left_out(i, left_out);
    return others >= ranks_here;
}

/* Before anything is allocated or a thread is started. */
static void bind_to_node(uint32_t gpu)
{
    char address[16];
    struct pd_numa_place place;
    pd_dev_cuda_pci(gpu, address);
    pd_numa_find(NULL, address, &place);
    if (pd_numa_bind(&place))
        pd_log(PD_LOG_INFO, MODULE, "bound to NUMA node %d, cores %s, as GPU %u (%s)", place.node, place.cpus, gpu, address);
    else if (place.node >= 0)
        pd_log(PD_LOG_INFO, MODULE, "not bound to NUMA node %d of GPU %u: this process may not use its cores %s", place.node,
               gpu, place.cpus);
}

pd_status pd_rank_device_open(enum pd_device_choice choice, uint32_t rank_here, const char *left_out,
                              struct pd_rank_device *ret_device, struct pd_error *err)
{
    struct pd_rank_device device = {0};
    const uint32_t count = choice == PD_DEVICE_CPU ? 0 : pd_dev_cuda_count();
    *ret_device = device;
    if (!count && choice != PD_DEVICE_GPU) return PD_OK;
    if (count) bind_to_node(choose_gpu(count, rank_here, left_out));
    pd_status st = pd_dev_open_cuda(count ? choose_gpu(count, rank_here, left_out) : 0, &device.dev, err);
    if (!st) st = pd_dev_enter(device.dev, err);
    if (!st) st = pd_math_cuda_load(err);
    if (!st) st = pd_dev_stream_new(device.dev, &device.compute, err);
    if (st) {
        pd_rank_device_close(&device);
        return pd_error_context(err, st, "run.device is %s; run.device=cpu needs no GPU",
                                choice == PD_DEVICE_GPU ? "gpu" : "auto");
    }
    *ret_device = device;
    return PD_OK;
}

pd_status pd_rank_device_stream(struct pd_rank_device *d, enum pd_rank_stream which, struct pd_stream **ret_stream,
                                struct pd_error *err)
{
    PD_CHECK(d->dev && which < PD_STREAM_COUNT);
    if (!d->streams[which]) PD_TRY(pd_dev_stream_new(d->dev, &d->streams[which], err));
    *ret_stream = d->streams[which];
    return PD_OK;
}

pd_status pd_rank_device_watch(struct pd_rank_device *d, struct pd_error *err)
{
    const char *of_test = getenv("PERDURE_TEST_SPANS");
    uint64_t capacity;
    if (!of_test || !pd_parse_u64(of_test, &capacity) || capacity > SPANS_MAX) capacity = SPANS_MAX;
    return d->dev ? pd_device_spans_new(d->dev, d->compute, (uint32_t)capacity, &d->spans, err) : PD_OK;
}

void pd_rank_device_close(struct pd_rank_device *d)
{
    struct pd_error ignored;
    if (d->spans) (void)!pd_device_spans_collect(d->spans, &ignored); /* of a save after the last step */
    pd_device_spans_free(d->spans);
    for (int i = 0; i < PD_STREAM_COUNT; i++)
        pd_dev_stream_free(d->dev, d->streams[i]);
    pd_dev_stream_free(d->dev, d->compute);
    pd_dev_close(d->dev);
    *d = (struct pd_rank_device){0};
}

static pd_status map(void *context, bool is_host, uint64_t bytes, void **ret_data, struct pd_error *err)
{
    const struct pd_rank_device *d = context;
    struct pd_span span;
    pd_status st = pd_dev_alloc(d->dev, is_host ? PD_DEV_HOST : PD_DEV_DEVICE, bytes, &span, err);
    if (st == PD_NO_MEMORY && is_host) { /* as often as it is tried */
        return pd_error_context(err, pd_error_change(err, PD_INVALID),
                                "the host has too little memory for this rank's pinned buffers; use fewer ranks per host, "
                                "or keep more of offload.* on the device or on nvme");
    }
    PD_TRY(st);
    if (is_host)
        memset(span.data, 0, bytes);
    else
        st = pd_dev_fill(d->dev, d->compute, span, 0, err);
    if (!st) st = pd_dev_stream_sync(d->dev, d->compute, err);
    if (st) {
        pd_dev_free(d->dev, &span);
        return st;
    }
    *ret_data = span.data;
    return PD_OK;
}

static void unmap(void *context, bool is_host, void *data, uint64_t bytes)
{
    const struct pd_rank_device *d = context;
    struct pd_span span = {data, bytes, is_host};
    pd_dev_free(d->dev, &span);
}

struct pd_arena_source pd_rank_device_source(struct pd_rank_device *d)
{
    return (struct pd_arena_source){map, unmap, d};
}

/* A number in [0.5, 1) or its negative. */
static void put_random(enum pd_dtype dtype, void *data, uint64_t i)
{
    const uint32_t bits = pd_random_bits(7, i), sign = bits & 0x80000000u, low = bits & 0x7fffffu;
    if (dtype == PD_F32)
        ((uint32_t *)data)[i] = sign | 0x3f000000u | low;
    else
        ((uint16_t *)data)[i] =
            (uint16_t)(sign >> 16 | (dtype == PD_BF16 ? 0x3f00u | (low & 0x7fu) : 0x3800u | (low & 0x3ffu)));
}

pd_status pd_rank_device_randomize(struct pd_rank_device *d, struct pd_span numbers, enum pd_dtype dtype,
                                   struct pd_error *err)
{
    const uint64_t most = UINT64_C(1) << 20, bytes = numbers.bytes < most ? numbers.bytes : most;
    struct pd_span block;
    PD_TRY(pd_dev_alloc(d->dev, PD_DEV_HOST, bytes, &block, err));
    for (uint64_t i = 0; i < bytes / pd_dtype_bytes(dtype); i++)
        put_random(dtype, block.data, i);
    pd_status st = PD_OK;
    for (uint64_t at = 0; at < numbers.bytes && !st; at += bytes) {
        const uint64_t left = numbers.bytes - at;
        st = pd_dev_copy(d->dev, d->compute, numbers, at, block, 0, left < bytes ? left : bytes, err);
    }
    if (!st) st = pd_dev_stream_sync(d->dev, d->compute, err);
    pd_dev_free(d->dev, &block);
    return st;
}

void pd_rank_device_quiet(struct pd_rank_device *d)
{
    struct pd_error ignored;
    if (d->compute) (void)!pd_dev_stream_sync(d->dev, d->compute, &ignored);
    for (int i = 0; i < PD_STREAM_COUNT; i++)
        if (d->streams[i]) (void)!pd_dev_stream_sync(d->dev, d->streams[i], &ignored);
}

pd_status pd_rank_device_sync(struct pd_rank_device *d, struct pd_error *err)
{
    return d->dev ? pd_dev_stream_sync(d->dev, d->compute, err) : PD_OK;
}

static pd_status ready(void *way, struct pd_error *err)
{
    return pd_rank_device_sync(((struct pd_rank_way *)way)->device, err);
}

static pd_status rank_device_copy(void *way, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    const struct pd_rank_way *w = way;
    const struct pd_span to = {dst, bytes, false}, from = {(void *)(uintptr_t)src, bytes, false};
    PD_TRY(pd_dev_enter(w->device->dev, err));
    PD_TRY(pd_device_spans_copy(w->device->spans, w->device->dev, w->stream, w->lane, w->name, to, from, err));
    return pd_dev_stream_sync(w->device->dev, w->stream, err);
}

static bool lock(void *way, void *data, uint64_t bytes)
{
    struct pd_rank_device *d = ((struct pd_rank_way *)way)->device;
    struct pd_error err;
    if (!pd_dev_lock(d->dev, data, bytes, &err)) return true;
    if (!atomic_exchange(&d->has_refused, true))
        pd_log(PD_LOG_WARN, MODULE, "exchanges go through memory that is not pinned, which is slower: %s", err.message);
    return false;
}

static void unlock(void *way, void *data, uint64_t bytes)
{
    pd_dev_unlock(((struct pd_rank_way *)way)->device->dev, data, bytes);
}

pd_status pd_rank_device_memory(struct pd_rank_device *d, enum pd_rank_stream which, struct pd_comm_memory *ret_memory,
                                struct pd_error *err)
{
    PD_CHECK(which == PD_STREAM_GATHERS || which == PD_STREAM_EXCHANGES);
    const bool gathers = which == PD_STREAM_GATHERS;
    struct pd_rank_way *way = gathers ? &d->gathers : &d->exchanges;
    struct pd_stream *stream;
    PD_TRY(pd_rank_device_stream(d, which, &stream, err));
    *way = (struct pd_rank_way){d, stream, gathers ? PD_LANE_GATHERS : PD_LANE_EXCHANGES,
                                gathers ? "gather of parameters" : "exchange"};
    *ret_memory = (struct pd_comm_memory){ready, rank_device_copy, lock, unlock, way};
    return PD_OK;
}

pd_status pd_rank_device_explain_lost(const struct pd_rank_device *d, pd_status status, struct pd_error *err)
{
    char host[64] = "this host", which[160] = "the GPU";
    if (status != PD_DEVICE_LOST || !err) return status;
    if (gethostname(host, sizeof host)) snprintf(host, sizeof host, "this host");
    host[sizeof host - 1] = '\0';
    if (d->dev) snprintf(which, sizeof which, "GPU %u (%s)", d->dev->index, d->dev->description);
    const size_t at = strlen(err->message);
    snprintf(err->message + at, sizeof err->message - at,
             "; nothing on %s of %s can be trusted now: nvidia-smi -q and the kernel's log (dmesg | grep Xid) say what "
             "happened, perdure doctor whether it opens again; then run the same command again",
             which, host);
    return status;
}
