/* The CPU as a device: its memory is host memory, its streams complete at once. */
#include "ckpt/base/cpu.h"
#include "offload/device.h"

#include "ckpt/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct pd_stream {
    char unused;
};
struct pd_event {
    uint64_t passed_ns;
};

static pd_status cpu_alloc(struct pd_dev *dev, enum pd_dev_place place, uint64_t bytes, struct pd_span *ret_span,
                           struct pd_error *err)
{
    (void)dev;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) PD_FAIL(err, PD_NO_MEMORY, "CPU: no memory for %llu bytes", (unsigned long long)bytes);
    *ret_span = (struct pd_span){data, bytes, place == PD_DEV_HOST};
    return PD_OK;
}

static void cpu_free(struct pd_dev *dev, struct pd_span *span)
{
    (void)dev;
    munmap(span->data, span->bytes);
}

static pd_status cpu_memory(struct pd_dev *dev, struct pd_dev_memory *ret_memory, struct pd_error *err)
{
    (void)dev, (void)err;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *ret_memory =
        (struct pd_dev_memory){(uint64_t)sysconf(_SC_PHYS_PAGES) * page, (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page};
    return PD_OK;
}

static pd_status cpu_stream_new(struct pd_dev *dev, bool goes_first, struct pd_stream **ret_stream, struct pd_error *err)
{
    (void)dev, (void)goes_first;
    struct pd_stream *stream = malloc(sizeof *stream);
    if (!stream) PD_FAIL(err, PD_NO_MEMORY, "CPU: no memory for a stream");
    *ret_stream = stream;
    return PD_OK;
}

static void cpu_stream_free(struct pd_dev *dev, struct pd_stream *stream)
{
    (void)dev;
    free(stream);
}

static pd_status cpu_stream_sync(struct pd_dev *dev, struct pd_stream *stream, struct pd_error *err)
{
    (void)dev, (void)stream, (void)err;
    return PD_OK;
}

static void *cpu_stream_handle(struct pd_dev *dev, struct pd_stream *stream)
{
    (void)dev, (void)stream;
    return NULL;
}

static pd_status cpu_enter(struct pd_dev *dev, struct pd_error *err)
{
    (void)dev, (void)err;
    return PD_OK;
}

/* Nothing to do: no other device reads CPU memory asynchronously. */
static pd_status cpu_lock(struct pd_dev *dev, void *data, uint64_t bytes, struct pd_error *err)
{
    (void)dev, (void)data, (void)bytes, (void)err;
    return PD_OK;
}

static void cpu_unlock(struct pd_dev *dev, void *data, uint64_t bytes)
{
    (void)dev, (void)data, (void)bytes;
}

static pd_status cpu_copy(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, struct pd_span src,
                          struct pd_error *err)
{
    (void)dev, (void)stream, (void)err;
    memmove(dst.data, src.data, src.bytes);
    return PD_OK;
}

static pd_status cpu_fill(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, uint8_t value,
                          struct pd_error *err)
{
    (void)dev, (void)stream, (void)err;
    memset(dst.data, value, dst.bytes);
    return PD_OK;
}

static pd_status cpu_event_new(struct pd_dev *dev, struct pd_event **ret_event, struct pd_error *err)
{
    (void)dev;
    struct pd_event *event = malloc(sizeof *event);
    if (!event) PD_FAIL(err, PD_NO_MEMORY, "CPU: no memory for an event");
    *ret_event = event;
    return PD_OK;
}

static void cpu_event_free(struct pd_dev *dev, struct pd_event *event)
{
    (void)dev;
    free(event);
}

/* All work on the stream is already done, so an event has passed as soon as it exists. */
static pd_status cpu_event_record(struct pd_dev *dev, struct pd_event *event, struct pd_stream *stream, struct pd_error *err)
{
    event->passed_ns = pd_clock_monotonic_ns(NULL);
    return cpu_stream_sync(dev, stream, err);
}

static pd_status cpu_event_wait(struct pd_dev *dev, struct pd_stream *stream, struct pd_event *event, struct pd_error *err)
{
    (void)event;
    return cpu_stream_sync(dev, stream, err);
}

static pd_status cpu_event_sync(struct pd_dev *dev, struct pd_event *event, struct pd_error *err)
{
    (void)event;
    return cpu_stream_sync(dev, NULL, err);
}

static pd_status cpu_event_passed(struct pd_dev *dev, struct pd_event *event, bool *ret_passed, struct pd_error *err)
{
    (void)dev, (void)event, (void)err;
    *ret_passed = true;
    return PD_OK;
}

static pd_status cpu_event_seconds(struct pd_dev *dev, struct pd_event *begin, struct pd_event *end, double *ret_seconds,
                                   struct pd_error *err)
{
    *ret_seconds = (double)(end->passed_ns - begin->passed_ns) * 1e-9;
    return cpu_stream_sync(dev, NULL, err);
}

static void cpu_close(struct pd_dev *dev)
{
    free(dev);
}

static const struct pd_dev_ops cpu_ops = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = cpu_free,
    .memory = cpu_memory,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .stream_sync = cpu_stream_sync,
    .stream_handle = cpu_stream_handle,
    .enter = cpu_enter,
    .lock = cpu_lock,
    .unlock = cpu_unlock,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .event_passed = cpu_event_passed,
    .event_seconds = cpu_event_seconds,
    .close = cpu_close,
};

pd_status pd_dev_open_cpu(struct pd_dev **ret_dev, struct pd_error *err)
{
    struct pd_dev *dev = calloc(1, sizeof *dev);
    if (!dev) PD_FAIL(err, PD_NO_MEMORY, "CPU: no memory for a device");
    dev->ops = &cpu_ops;
    snprintf(dev->description, sizeof dev->description, "CPU, %u threads", pd_cpu_cores());
    *ret_dev = dev;
    return PD_OK;
}
