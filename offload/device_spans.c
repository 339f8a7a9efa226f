#include "offload/device_spans.h"

#include "ckpt/base/trace.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_SPAN UINT32_MAX

struct span {
    struct pd_event *begin, *end; /* made once, used again */
    const char *lane, *name;
    uint64_t value;
    bool is_ended;
};

struct pd_device_spans {
    struct pd_dev *dev;
    struct pd_stream *stream;
    struct pd_event *base; /* at base_ns of the host's clock */
    uint64_t base_ns;
    uint32_t capacity;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    uint32_t share_count;

    pthread_mutex_t lock; /* guards what follows */
    struct span *spans;   /* (capacity) */
    uint32_t count;
    uint64_t lost;
};

/* The host's clock and the device's meet in an event that nothing is in front of. */
static pd_status set_base(struct pd_device_spans *s, struct pd_error *err)
{
    PD_TRY(pd_dev_stream_sync(s->dev, s->stream, err));
    PD_TRY(pd_dev_event_record(s->dev, s->base, s->stream, err));
    PD_TRY(pd_dev_event_sync(s->dev, s->base, err));
    s->base_ns = pd_trace_now();
    return PD_OK;
}

pd_status pd_device_spans_new(struct pd_dev *dev, struct pd_stream *stream, uint32_t capacity,
                              struct pd_device_spans **ret_spans, struct pd_error *err)
{
    struct pd_device_spans *s = calloc(1, sizeof *s);
    if (s) s->spans = calloc(capacity, sizeof *s->spans);
    if (!s || !s->spans) {
        free(s);
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u spans of a device", capacity);
    }
    s->dev = dev;
    s->stream = stream;
    s->capacity = capacity;
    pthread_mutex_init(&s->lock, NULL);
    pd_status st = pd_dev_event_new(dev, &s->base, err);
    if (!st) st = set_base(s, err);
    if (st) {
        pd_device_spans_free(s);
        return st;
    }
    *ret_spans = s;
    return PD_OK;
}

void pd_device_spans_free(struct pd_device_spans *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->capacity; i++) {
        pd_dev_event_free(s->dev, s->spans[i].begin);
        pd_dev_event_free(s->dev, s->spans[i].end);
    }
    pd_dev_event_free(s->dev, s->base);
    pthread_mutex_destroy(&s->lock);
    free(s->spans);
    free(s);
}

static uint32_t take(struct pd_device_spans *s)
{
    pthread_mutex_lock(&s->lock);
    const uint32_t number = s->count < s->capacity ? s->count++ : NO_SPAN;
    s->lost += number == NO_SPAN;
    pthread_mutex_unlock(&s->lock);
    return number;
}

static bool is_recorded(struct pd_device_spans *s, struct pd_event **event, struct pd_stream *stream)
{
    if (!*event && pd_dev_event_new(s->dev, event, NULL)) return false;
    return !pd_dev_event_record(s->dev, *event, stream, NULL);
}

uint32_t pd_device_spans_begin(struct pd_device_spans *s, struct pd_stream *stream, const char *lane, const char *name,
                               uint64_t value)
{
    const uint32_t number = s ? take(s) : NO_SPAN;
    if (number == NO_SPAN) return NO_SPAN;
    struct span *span = &s->spans[number];
    span->lane = lane;
    span->name = name;
    span->value = value;
    span->is_ended = false;
    return is_recorded(s, &span->begin, stream) ? number : NO_SPAN;
}

void pd_device_spans_end(struct pd_device_spans *s, uint32_t number, struct pd_stream *stream)
{
    if (number == NO_SPAN) return;
    struct span *span = &s->spans[number];
    span->is_ended = is_recorded(s, &span->end, stream);
}

static void add(struct pd_device_spans *s, const char *name, double seconds)
{
    uint32_t i = 0;
    while (i < s->share_count && strcmp(s->shares[i].name, name) != 0)
        i++;
    if (i == PD_DEVICE_SHARES_MAX) return;
    if (i == s->share_count) s->shares[s->share_count++] = (struct pd_device_share){.name = name};
    s->shares[i].seconds += seconds;
    s->shares[i].count++;
}

static pd_status collect_one(struct pd_device_spans *s, const struct span *span, struct pd_error *err)
{
    double begin, seconds;
    PD_TRY(pd_dev_event_seconds(s->dev, s->base, span->begin, &begin, err));
    PD_TRY(pd_dev_event_seconds(s->dev, span->begin, span->end, &seconds, err));
    add(s, span->name, seconds);
    const uint64_t begin_ns = s->base_ns + (uint64_t)(begin * 1e9);
    pd_trace_record_lane(span->lane, begin_ns, begin_ns + (uint64_t)(seconds * 1e9), "gpu", span->name, span->value);
    return PD_OK;
}

/* A new base each time: differences of events lose digits as they grow. */
pd_status pd_device_spans_collect(struct pd_device_spans *s, struct pd_error *err)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->spans[i].is_ended) PD_TRY(collect_one(s, &s->spans[i], err));
    s->count = 0;
    return set_base(s, err);
}

uint32_t pd_device_spans_shares(const struct pd_device_spans *s, struct pd_device_share ret[PD_DEVICE_SHARES_MAX])
{
    memcpy(ret, s->shares, s->share_count * sizeof *ret);
    return s->share_count;
}

uint64_t pd_device_spans_lost(const struct pd_device_spans *s)
{
    return s->lost;
}

void pd_device_spans_clear(struct pd_device_spans *s)
{
    s->share_count = 0;
    s->lost = 0;
}
