/* NVIDIA GPUs behind the device table. The only file here that includes the CUDA runtime. */
#include "ckpt/base/cpu.h"
#include "ckpt/base/thread.h"
#include "offload/device.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TOUCH_BYTES (UINT64_C(64) << 20) /* pinned memory of this size and more is touched by several threads */
#define TOUCHERS_MAX 8u
#define CAPABILITY_MIN 8 /* tools/cmake/cuda.cmake compiles for nothing older */

struct pd_stream {
    cudaStream_t stream;
};
struct pd_event {
    cudaEvent_t event;
};

static pd_status status_of(cudaError_t code)
{
    switch (code) {
    case cudaErrorMemoryAllocation:
        return PD_NO_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
        return PD_UNSUPPORTED;
    default:
        return PD_DEVICE_LOST;
    }
}

/* Clears the thread's error, which the next kernel launch would report otherwise. Sticky errors of the device remain. */
#define CUDA_TRY(err, call, ...)                                                                                \
    do {                                                                                                        \
        cudaError_t cuda_code_ = (call);                                                                        \
        if (cuda_code_ != cudaSuccess) {                                                                        \
            (void)cudaGetLastError();                                                                           \
            pd_status cuda_st_ = pd_error_set((err), status_of(cuda_code_), PD_WHERE, 0, "%.*s: %s",            \
                                              (int)strcspn(#call, "("), #call, cudaGetErrorString(cuda_code_)); \
            return pd_error_context((err), cuda_st_, __VA_ARGS__);                                              \
        }                                                                                                       \
    } while (0)

/* Clears an error that is not reported. */
static void forget(cudaError_t code)
{
    if (code != cudaSuccess) (void)cudaGetLastError();
}

/* Call in every slot: a thread that has not selected a device uses GPU 0, and its first call, even with another GPU's
 * stream or event, creates a context there, which takes some hundred MiB a process. */
static pd_status select_device(struct pd_dev *dev, struct pd_error *err)
{
    CUDA_TRY(err, cudaSetDevice((int)dev->index), "GPU %u", dev->index);
    return PD_OK;
}

/* ---- pinned memory ---- */

static pd_status cuda_lock(struct pd_dev *dev, void *data, uint64_t bytes, struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaHostRegister(data, bytes, cudaHostRegisterPortable),
             "GPU %u: pinning %llu bytes: ulimit -l and the memory of the machine bound pinned memory", dev->index,
             (unsigned long long)bytes);
    return PD_OK;
}

static void cuda_unlock(struct pd_dev *dev, void *data, uint64_t bytes)
{
    (void)bytes;
    forget(cudaSetDevice((int)dev->index));
    forget(cudaHostUnregister(data));
}

struct touched {
    volatile char *data;
    uint64_t bytes;
};

static void *touch(void *context)
{
    const struct touched *t = context;
    for (uint64_t at = 0; at < t->bytes; at += 4096)
        t->data[at] = 0;
    return NULL;
}

/* Zeroing pages takes most of the time, and cudaHostAlloc does it in one thread. Touched by the caller's node: threads
 * start on the cores of the thread that starts them. */
static void touch_all(char *data, uint64_t bytes)
{
    struct touched parts[TOUCHERS_MAX];
    pthread_t threads[TOUCHERS_MAX];
    const uint32_t cores = pd_cpu_cores(), count = cores < TOUCHERS_MAX ? cores : TOUCHERS_MAX;
    const uint64_t part = bytes / count / 4096 * 4096;
    uint32_t started = 0;
    for (uint32_t i = 0; i < count; i++)
        parts[i] = (struct touched){data + i * part, i + 1 < count ? part : bytes - i * part};
    while (started + 1 < count && !pd_thread_start(&threads[started], NULL, touch, &parts[started]))
        started++;
    for (uint32_t i = started; i < count; i++)
        touch(&parts[i]);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static pd_status alloc_touched(struct pd_dev *dev, uint64_t bytes, void **ret_data, struct pd_error *err)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        PD_FAIL(err, PD_NO_MEMORY, "GPU %u: no %llu bytes of host memory", dev->index, (unsigned long long)bytes);
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* only advice: may fail */
    touch_all(data, bytes);
    const pd_status st = cuda_lock(dev, data, bytes, err);
    if (st) munmap(data, bytes);
    *ret_data = data;
    return st;
}

static pd_status alloc_pinned(struct pd_dev *dev, uint64_t bytes, void **ret_data, struct pd_error *err)
{
    if (bytes >= TOUCH_BYTES) return alloc_touched(dev, bytes, ret_data, err);
    CUDA_TRY(err, cudaHostAlloc(ret_data, bytes, cudaHostAllocPortable), "GPU %u: %llu bytes of pinned memory", dev->index,
             (unsigned long long)bytes);
    return PD_OK;
}

static void free_pinned(struct pd_dev *dev, struct pd_span *span)
{
    if (span->bytes < TOUCH_BYTES) {
        forget(cudaFreeHost(span->data));
        return;
    }
    cuda_unlock(dev, span->data, span->bytes);
    munmap(span->data, span->bytes);
}

/* ---- memory ---- */

static pd_status cuda_alloc(struct pd_dev *dev, enum pd_dev_place place, uint64_t bytes, struct pd_span *ret_span,
                            struct pd_error *err)
{
    void *data;
    PD_TRY(select_device(dev, err));
    if (place == PD_DEV_HOST)
        PD_TRY(alloc_pinned(dev, bytes, &data, err));
    else
        CUDA_TRY(err, cudaMalloc(&data, bytes), "GPU %u: %llu bytes of device memory", dev->index,
                 (unsigned long long)bytes);
    *ret_span = (struct pd_span){data, bytes, place == PD_DEV_HOST};
    return PD_OK;
}

static void cuda_free(struct pd_dev *dev, struct pd_span *span)
{
    forget(cudaSetDevice((int)dev->index));
    if (span->is_host)
        free_pinned(dev, span);
    else
        forget(cudaFree(span->data));
}

static pd_status cuda_memory(struct pd_dev *dev, struct pd_dev_memory *ret_memory, struct pd_error *err)
{
    size_t free_bytes, total_bytes;
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaMemGetInfo(&free_bytes, &total_bytes), "GPU %u", dev->index);
    *ret_memory = (struct pd_dev_memory){total_bytes, free_bytes};
    return PD_OK;
}

static pd_status cuda_stream_new(struct pd_dev *dev, bool goes_first, struct pd_stream **ret_stream, struct pd_error *err)
{
    cudaStream_t raw;
    int least, greatest;
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaDeviceGetStreamPriorityRange(&least, &greatest), "GPU %u", dev->index);
    CUDA_TRY(err, cudaStreamCreateWithPriority(&raw, cudaStreamNonBlocking, goes_first ? greatest : least), "GPU %u",
             dev->index);
    struct pd_stream *stream = malloc(sizeof *stream);
    if (!stream) {
        forget(cudaStreamDestroy(raw));
        PD_FAIL(err, PD_NO_MEMORY, "GPU %u: no memory for a stream", dev->index);
    }
    stream->stream = raw;
    *ret_stream = stream;
    return PD_OK;
}

static void cuda_stream_free(struct pd_dev *dev, struct pd_stream *stream)
{
    forget(cudaSetDevice((int)dev->index));
    forget(cudaStreamDestroy(stream->stream));
    free(stream);
}

static pd_status cuda_stream_sync(struct pd_dev *dev, struct pd_stream *stream, struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaStreamSynchronize(stream->stream), "GPU %u", dev->index);
    return PD_OK;
}

static void *cuda_stream_handle(struct pd_dev *dev, struct pd_stream *stream)
{
    (void)dev;
    return stream->stream;
}

static pd_status cuda_copy(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, struct pd_span src,
                           struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaMemcpyAsync(dst.data, src.data, src.bytes, cudaMemcpyDefault, stream->stream), "GPU %u", dev->index);
    return PD_OK;
}

static pd_status cuda_fill(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, uint8_t value,
                           struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaMemsetAsync(dst.data, value, dst.bytes, stream->stream), "GPU %u", dev->index);
    return PD_OK;
}

static pd_status cuda_event_new(struct pd_dev *dev, struct pd_event **ret_event, struct pd_error *err)
{
    cudaEvent_t raw;
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaEventCreate(&raw), "GPU %u", dev->index);
    struct pd_event *event = malloc(sizeof *event);
    if (!event) {
        forget(cudaEventDestroy(raw));
        PD_FAIL(err, PD_NO_MEMORY, "GPU %u: no memory for an event", dev->index);
    }
    event->event = raw;
    *ret_event = event;
    return PD_OK;
}

static void cuda_event_free(struct pd_dev *dev, struct pd_event *event)
{
    forget(cudaSetDevice((int)dev->index));
    forget(cudaEventDestroy(event->event));
    free(event);
}

static pd_status cuda_event_record(struct pd_dev *dev, struct pd_event *event, struct pd_stream *stream,
                                   struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaEventRecord(event->event, stream->stream), "GPU %u", dev->index);
    return PD_OK;
}

static pd_status cuda_event_wait(struct pd_dev *dev, struct pd_stream *stream, struct pd_event *event, struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaStreamWaitEvent(stream->stream, event->event, 0), "GPU %u", dev->index);
    return PD_OK;
}

static pd_status cuda_event_sync(struct pd_dev *dev, struct pd_event *event, struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    CUDA_TRY(err, cudaEventSynchronize(event->event), "GPU %u", dev->index);
    return PD_OK;
}

static pd_status cuda_event_passed(struct pd_dev *dev, struct pd_event *event, bool *ret_passed, struct pd_error *err)
{
    PD_TRY(select_device(dev, err));
    const cudaError_t code = cudaEventQuery(event->event);
    *ret_passed = code == cudaSuccess;
    if (code != cudaErrorNotReady) CUDA_TRY(err, code, "GPU %u", dev->index);
    (void)cudaGetLastError(); /* clears "not ready", which counts as an error */
    return PD_OK;
}

static pd_status cuda_event_seconds(struct pd_dev *dev, struct pd_event *begin, struct pd_event *end, double *ret_seconds,
                                    struct pd_error *err)
{
    float milliseconds;
    PD_TRY(cuda_event_sync(dev, begin, err));
    PD_TRY(cuda_event_sync(dev, end, err));
    CUDA_TRY(err, cudaEventElapsedTime(&milliseconds, begin->event, end->event), "GPU %u", dev->index);
    *ret_seconds = (double)milliseconds * 1e-3;
    return PD_OK;
}

static void cuda_close(struct pd_dev *dev)
{
    free(dev);
}

static const struct pd_dev_ops cuda_ops = {
    .name = "cuda",
    .alloc = cuda_alloc,
    .free = cuda_free,
    .memory = cuda_memory,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .stream_sync = cuda_stream_sync,
    .stream_handle = cuda_stream_handle,
    .enter = select_device,
    .lock = cuda_lock,
    .unlock = cuda_unlock,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_passed = cuda_event_passed,
    .event_seconds = cuda_event_seconds,
    .close = cuda_close,
};

/* For a missing driver the runtime reports one that is too old. */
static pd_status check_driver(struct pd_error *err)
{
    int count;
    if (cudaGetDeviceCount(&count) != cudaErrorInsufficientDriver) return PD_OK;
    (void)cudaGetLastError();
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library) return dlclose(library), PD_OK;
    PD_FAIL(err, PD_UNSUPPORTED, "no NVIDIA driver (libcuda.so.1); see: perdure doctor");
}

/* Makes the first call that creates a context. */
static pd_status open_context(uint32_t index, struct pd_error *err)
{
    const cudaError_t code = cudaSetDevice((int)index);
    if (code != cudaErrorDevicesUnavailable) CUDA_TRY(err, code, "GPU %u: cudaSetDevice", index);
    if (code == cudaSuccess) return PD_OK;
    (void)cudaGetLastError();
    PD_FAIL(
        err, PD_DEVICE_LOST,
        "GPU %u: %s: another process has it for itself, or is about to end. nvidia-smi names it; several ranks on one GPU "
        "need the compute mode Default (nvidia-smi --query-gpu=compute_mode --format=csv)",
        index, cudaGetErrorString(code));
}

uint32_t pd_dev_cuda_count(void)
{
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    forget(code);
    return code == cudaSuccess && count > 0 ? (uint32_t)count : 0;
}

static void say_identity(const cudaUUID_t *uuid, char ret_text[33])
{
    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        snprintf(ret_text + 2 * i, 3, "%02x", (unsigned char)uuid->bytes[i]);
}

void pd_dev_cuda_identity(uint32_t index, char ret_identity[33])
{
    struct cudaDeviceProp properties;
    const cudaError_t code = cudaGetDeviceProperties(&properties, (int)index);
    forget(code);
    ret_identity[0] = '\0';
    if (code == cudaSuccess) say_identity(&properties.uuid, ret_identity);
}

void pd_dev_cuda_pci(uint32_t index, char ret_address[16])
{
    struct cudaDeviceProp p;
    const cudaError_t code = cudaGetDeviceProperties(&p, (int)index);
    forget(code);
    ret_address[0] = '\0';
    if (code == cudaSuccess)
        snprintf(ret_address, 16, "%04x:%02x:%02x.0", (unsigned)p.pciDomainID & 0xffffu, (unsigned)p.pciBusID & 0xffu,
                 (unsigned)p.pciDeviceID & 0xffu);
}

bool pd_dev_cuda_reaches(uint32_t index, uint32_t other)
{
    int can = 0;
    const cudaError_t code = cudaDeviceCanAccessPeer(&can, (int)index, (int)other);
    forget(code);
    return code == cudaSuccess && can;
}

pd_status pd_dev_open_cuda(uint32_t index, struct pd_dev **ret_dev, struct pd_error *err)
{
    int count = 0;
    struct cudaDeviceProp properties;
    PD_TRY(check_driver(err));
    CUDA_TRY(err, cudaGetDeviceCount(&count), "looking for GPUs");
    if (index >= (uint32_t)count)
        PD_FAIL(err, PD_UNSUPPORTED, "GPU %u: this machine has %d (see: perdure doctor)", index, count);
    CUDA_TRY(err, cudaGetDeviceProperties(&properties, (int)index), "GPU %u", index);
    if (properties.major < CAPABILITY_MIN)
        PD_FAIL(err, PD_UNSUPPORTED, "GPU %u: %s has compute capability %d.%d, and kernels need %d.0; train on CPUs here",
                index, properties.name, properties.major, properties.minor, CAPABILITY_MIN);
    PD_TRY(open_context(index, err));
    struct pd_dev *dev = calloc(1, sizeof *dev);
    if (!dev) PD_FAIL(err, PD_NO_MEMORY, "GPU %u: no memory for a device", index);
    dev->ops = &cuda_ops;
    dev->index = index;
    dev->capability = (uint32_t)(10 * properties.major + properties.minor);
    snprintf(dev->description, sizeof dev->description, "%.90s", properties.name);
    say_identity(&properties.uuid, dev->identity);
    dev->multiprocessors = (uint32_t)properties.multiProcessorCount;
    *ret_dev = dev;
    return PD_OK;
}

pd_status pd_dev_cuda_memory(uint32_t index, char ret_name[96], struct pd_dev_memory *ret_memory, struct pd_error *err)
{
    struct pd_dev *dev;
    PD_TRY(pd_dev_open_cuda(index, &dev, err));
    const pd_status st = cuda_memory(dev, ret_memory, err);
    snprintf(ret_name, 96, "%s", dev->description);
    pd_dev_close(dev);
    forget(cudaDeviceReset()); /* destroys its context and frees that memory */
    return st;
}
