#include "offload/device.h"

#include <stdlib.h>

void pd_dev_prepare(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* the maximum */
}

pd_status pd_dev_alloc(struct pd_dev *dev, enum pd_dev_place place, uint64_t bytes, struct pd_span *ret_span,
                       struct pd_error *err)
{
    if (bytes == 0) {
        *ret_span = (struct pd_span){NULL, 0, place == PD_DEV_HOST};
        return PD_OK;
    }
    return dev->ops->alloc(dev, place, bytes, ret_span, err);
}

void pd_dev_free(struct pd_dev *dev, struct pd_span *span)
{
    if (span->bytes) dev->ops->free(dev, span);
    *span = (struct pd_span){0};
}

pd_status pd_dev_memory(struct pd_dev *dev, struct pd_dev_memory *ret_memory, struct pd_error *err)
{
    return dev->ops->memory(dev, ret_memory, err);
}

pd_status pd_dev_stream_new(struct pd_dev *dev, struct pd_stream **ret_stream, struct pd_error *err)
{
    return dev->ops->stream_new(dev, false, ret_stream, err);
}

pd_status pd_dev_stream_new_first(struct pd_dev *dev, struct pd_stream **ret_stream, struct pd_error *err)
{
    return dev->ops->stream_new(dev, true, ret_stream, err);
}

void pd_dev_stream_free(struct pd_dev *dev, struct pd_stream *stream)
{
    if (stream) dev->ops->stream_free(dev, stream);
}

pd_status pd_dev_stream_sync(struct pd_dev *dev, struct pd_stream *stream, struct pd_error *err)
{
    return dev->ops->stream_sync(dev, stream, err);
}

void *pd_dev_stream_handle(struct pd_dev *dev, struct pd_stream *stream)
{
    return dev->ops->stream_handle(dev, stream);
}

pd_status pd_dev_enter(struct pd_dev *dev, struct pd_error *err)
{
    return dev->ops->enter(dev, err);
}

pd_status pd_dev_lock(struct pd_dev *dev, void *data, uint64_t bytes, struct pd_error *err)
{
    return bytes ? dev->ops->lock(dev, data, bytes, err) : PD_OK;
}

void pd_dev_unlock(struct pd_dev *dev, void *data, uint64_t bytes)
{
    if (bytes) dev->ops->unlock(dev, data, bytes);
}

static struct pd_span part_of(struct pd_span span, uint64_t offset, uint64_t bytes)
{
    PD_CHECK(offset <= span.bytes && bytes <= span.bytes - offset);
    return (struct pd_span){(char *)span.data + offset, bytes, span.is_host};
}

pd_status pd_dev_copy(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, uint64_t dst_offset,
                      struct pd_span src, uint64_t src_offset, uint64_t bytes, struct pd_error *err)
{
    struct pd_span to = part_of(dst, dst_offset, bytes), from = part_of(src, src_offset, bytes);
    return bytes ? dev->ops->copy(dev, stream, to, from, err) : PD_OK;
}

pd_status pd_dev_fill(struct pd_dev *dev, struct pd_stream *stream, struct pd_span dst, uint8_t value, struct pd_error *err)
{
    return dst.bytes ? dev->ops->fill(dev, stream, dst, value, err) : PD_OK;
}

pd_status pd_dev_event_new(struct pd_dev *dev, struct pd_event **ret_event, struct pd_error *err)
{
    return dev->ops->event_new(dev, ret_event, err);
}

void pd_dev_event_free(struct pd_dev *dev, struct pd_event *event)
{
    if (event) dev->ops->event_free(dev, event);
}

pd_status pd_dev_event_record(struct pd_dev *dev, struct pd_event *event, struct pd_stream *stream, struct pd_error *err)
{
    return dev->ops->event_record(dev, event, stream, err);
}

pd_status pd_dev_event_wait(struct pd_dev *dev, struct pd_stream *stream, struct pd_event *event, struct pd_error *err)
{
    return dev->ops->event_wait(dev, stream, event, err);
}

pd_status pd_dev_event_sync(struct pd_dev *dev, struct pd_event *event, struct pd_error *err)
{
    return dev->ops->event_sync(dev, event, err);
}

pd_status pd_dev_event_passed(struct pd_dev *dev, struct pd_event *event, bool *ret_passed, struct pd_error *err)
{
    return dev->ops->event_passed(dev, event, ret_passed, err);
}

pd_status pd_dev_event_seconds(struct pd_dev *dev, struct pd_event *begin, struct pd_event *end, double *ret_seconds,
                               struct pd_error *err)
{
    return dev->ops->event_seconds(dev, begin, end, ret_seconds, err);
}

void pd_dev_close(struct pd_dev *dev)
{
    if (dev) dev->ops->close(dev);
}
