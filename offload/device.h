/* A device for offload and trainer: memory, streams, events, copies. A backend is one constant table, every slot filled.
 *
 * Work on one stream runs in order; work on two streams is ordered only by events. CPU streams complete at once, so both
 * backends keep one contract: after pd_dev_stream_sync all work given to the stream has completed.
 *
 *   ownership  a span belongs to whoever allocated it until pd_dev_free; a span lent to a stream must not be touched or
 *              freed before the stream has passed it
 *   errors     PD_NO_MEMORY; PD_DEVICE_LOST: nothing on this device can be trusted any more. Failed work on a stream is
 *              reported by the next wait at the latest
 *   threads    one caller per stream; allocation from any thread
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct pd_dev;
struct pd_stream;
struct pd_event;

struct pd_span {
    void *data; /* in the device's address space, or pinned host memory */
    uint64_t bytes;
    bool is_host; /* allocated with PD_DEV_HOST */
};

enum pd_dev_place { PD_DEV_DEVICE, PD_DEV_HOST /* pinned if the device needs it */ };

struct pd_dev_memory {
    uint64_t total_bytes, free_bytes;
};

struct pd_dev_ops {
    const char *name;
    pd_status (*alloc)(struct pd_dev *, enum pd_dev_place, uint64_t bytes, struct pd_span *ret_span, struct pd_error *);
    void (*free)(struct pd_dev *, struct pd_span *);
    pd_status (*memory)(struct pd_dev *, struct pd_dev_memory *ret_memory, struct pd_error *);
    pd_status (*stream_new)(struct pd_dev *, bool goes_first, struct pd_stream **ret_stream, struct pd_error *);
    void (*stream_free)(struct pd_dev *, struct pd_stream *);
    pd_status (*stream_sync)(struct pd_dev *, struct pd_stream *, struct pd_error *);
    void *(*stream_handle)(struct pd_dev *, struct pd_stream *);
    pd_status (*enter)(struct pd_dev *, struct pd_error *);
    pd_status (*lock)(struct pd_dev *, void *data, uint64_t bytes, struct pd_error *);
    void (*unlock)(struct pd_dev *, void *data, uint64_t bytes);
    pd_status (*copy)(struct pd_dev *, struct pd_stream *, struct pd_span dst, struct pd_span src, struct pd_error *);
    pd_status (*fill)(struct pd_dev *, struct pd_stream *, struct pd_span dst, uint8_t value, struct pd_error *);
    pd_status (*event_new)(struct pd_dev *, struct pd_event **ret_event, struct pd_error *);
    void (*event_free)(struct pd_dev *, struct pd_event *);
    pd_status (*event_record)(struct pd_dev *, struct pd_event *, struct pd_stream *, struct pd_error *);
    pd_status (*event_wait)(struct pd_dev *, struct pd_stream *, struct pd_event *,
                            struct pd_error *);                                     /* the stream waits */
    pd_status (*event_sync)(struct pd_dev *, struct pd_event *, struct pd_error *); /* the caller waits */
    pd_status (*event_passed)(struct pd_dev *, struct pd_event *, bool *ret_passed, struct pd_error *);
    pd_status (*event_seconds)(struct pd_dev *, struct pd_event *begin, struct pd_event *end, double *ret_seconds,
                               struct pd_error *);
    void (*close)(struct pd_dev *);
};

struct pd_dev {
    const struct pd_dev_ops *ops;
    uint32_t index;
    char description[96];     /* "CPU, 2 threads", "NVIDIA H100 80GB HBM3" */
    uint32_t capability;      /* of a GPU: 90 is compute capability 9.0; 0: CPU */
    char identity[33];        /* of a GPU, independent of the index a process sees; "": unknown */
    uint32_t multiprocessors; /* of a GPU; 0: unknown */
};

/* Call once, before the process starts threads or opens devices. Sets CUDA_DEVICE_MAX_CONNECTIONS unless the environment
 * does: a rank has more streams than the driver's eight default queues, and streams that share a queue wait for each
 * other (CUDA Programming Guide, "CUDA Environment Variables"). */
void pd_dev_prepare(void);
PD_MUST_USE pd_status pd_dev_open_cpu(struct pd_dev **ret_dev, struct pd_error *err);
/* PD_UNSUPPORTED in builds without CUDA and on machines without a driver or a device; the message says which. */
PD_MUST_USE pd_status pd_dev_open_cuda(uint32_t index, struct pd_dev **ret_dev, struct pd_error *err);
/* Returns pd_dev.identity of a GPU without opening it; "" if unknown. */
uint32_t pd_dev_cuda_count(void);
/* As struct pd_dev has it, of a GPU that is not opened for it; "" where that is not known. */
void pd_dev_cuda_identity(uint32_t index, char ret_identity[33]);
/* "0000:17:00.0", of a GPU that is not opened for it; "" where that is not known. */
void pd_dev_cuda_pci(uint32_t index, char ret_address[16]);
/* Whether one GPU can read and write the other's memory directly, over NVLink or PCIe. Opens neither. */
bool pd_dev_cuda_reaches(uint32_t index, uint32_t other);
/* Returns the memory of a GPU that this process has not opened, and leaves the GPU as it was. For a process that starts
 * others there. As slow as opening.   errors  PD_UNSUPPORTED, PD_DEVICE_LOST, PD_NO_MEMORY: not even enough for this call */
PD_MUST_USE pd_status pd_dev_cuda_memory(uint32_t index, char ret_name[96], struct pd_dev_memory *ret_memory,
                                         struct pd_error *err);

/* Checked wrappers, one per slot: copies must have equal lengths and stay within their spans. */
PD_MUST_USE pd_status pd_dev_alloc(struct pd_dev *dev, enum pd_dev_place place, uint64_t bytes, struct pd_span *ret_span,
                                   struct pd_error *err);
void pd_dev_free(struct pd_dev *dev, struct pd_span *span); /* an empty span is fine; the span becomes empty */
PD_MUST_USE pd_status pd_dev_memory(struct pd_dev *dev, struct pd_dev_memory *ret_memory, struct pd_error *err);
PD_MUST_USE pd_status pd_dev_stream_new(struct pd_dev *dev, struct pd_stream **ret_stream, struct pd_error *err);
/* As above, with high priority: its waiting kernels start before kernels of other streams. Copies are not affected. */
PD_MUST_USE pd_status pd_dev_stream_new_first(struct pd_dev *dev, struct pd_stream **ret_stream, struct pd_error *err);
void pd_dev_stream_free(struct pd_dev *dev, struct pd_stream *stream);
PD_MUST_USE pd_status pd_dev_stream_sync(struct pd_dev *dev, struct pd_stream *stream, struct pd_error *err);
/* Returns the stream's handle for device libraries: a cudaStream_t; NULL on the CPU. Borrowed. */
void *pd_dev_stream_handle(struct pd_dev *dev, struct pd_stream *stream);
/* Makes this the device of the calling thread's launches. Each launching thread calls it once. */
PD_MUST_USE pd_status pd_dev_enter(struct pd_dev *dev, struct pd_error *err);
/* Pins existing host memory as a whole, so that copies from and to it run asynchronously. Not needed for spans of
 * PD_DEV_HOST. Pass unlock the same range, before the memory is freed. */
PD_MUST_USE pd_status pd_dev_lock(struct pd_dev *dev, void *data, uint64_t bytes, struct pd_error *err);
void pd_dev_unlock(struct pd_dev *dev, void *data, uint64_t bytes);
/* Copies `bytes` from src + src_offset to dst + dst_offset, between any two places. */
PD_MUST_USE pd_status pd_dev_copy(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, uint64_t dst_offset,
                                  struct pd_span src, uint64_t src_offset, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_dev_fill(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, uint8_t value,
                                  struct pd_error *err);
PD_MUST_USE pd_status pd_dev_event_new(struct pd_dev *dev, struct pd_event **ret_event, struct pd_error *err);
void pd_dev_event_free(struct pd_dev *dev, struct pd_event *event);
PD_MUST_USE pd_status pd_dev_event_record(struct pd_dev *dev, struct pd_event *event, struct pd_stream *stream,
                                          struct pd_error *err);
PD_MUST_USE pd_status pd_dev_event_wait(struct pd_dev *dev, struct pd_stream *stream, struct pd_event *event,
                                        struct pd_error *err);
PD_MUST_USE pd_status pd_dev_event_sync(struct pd_dev *dev, struct pd_event *event, struct pd_error *err);
/* Returns whether the stream has passed the event, without waiting. */
PD_MUST_USE pd_status pd_dev_event_passed(struct pd_dev *dev, struct pd_event *event, bool *ret_passed,
                                          struct pd_error *err);
/* Returns the time between two recorded events; waits for both. */
PD_MUST_USE pd_status pd_dev_event_seconds(struct pd_dev *dev, struct pd_event *begin, struct pd_event *end,
                                           double *ret_seconds, struct pd_error *err);
void pd_dev_close(struct pd_dev *dev); /* NULL is fine */
