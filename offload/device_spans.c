/* A span takes a slot from a stack, and collecting it returns the slot. */
#include "offload/device_spans.h"

#include "ckpt/base/trace.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_SPAN UINT32_MAX
#define AT_WORK_MAX 64u /* lanes, and notes of the host, that run at the same time */

enum state { UNUSED, OPEN, ENDED, NOTED, LOST };

struct span {
    struct pd_event *begin, *end; /* created once, reused */
    const char *lane, *name;
    uint64_t value, begin_ns, end_ns; /* in ns, for NOTED */
    enum state state;
    bool is_compute;
};

/* A collected span, in seconds since the base. */
struct interval {
    uint32_t share;
    bool is_compute;
};

struct edge {
    double at;
    uint32_t interval;
    bool is_end;
};

struct pd_device_spans {
    struct pd_dev *dev;
    struct pd_stream *compute;
    struct pd_event *base; /* recorded at base_ns of the host's clock */
    uint64_t base_ns;
    uint32_t capacity;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    uint32_t share_count;
    double collecting;
    struct interval *intervals; /* (capacity) */
    struct edge *edges;         /* (2,capacity) */
    uint32_t interval_count;

    pthread_mutex_t giving;      /* held while a copy and its events are enqueued */
    pthread_mutex_t lock;        /* guards the members below */
    struct span *spans;          /* (capacity) */
    uint32_t *unused;            /* (capacity) free slot numbers, the next one last */
    uint32_t unused_count, high; /* high: slots from there on were never used */
    uint64_t lost;
};

/* Matches the clocks of host and device at an event on an idle stream. */
static pd_status set_base(struct pd_device_spans *s, struct pd_error *err)
{
    PD_TRY(pd_dev_stream_sync(s->dev, s->compute, err));
    PD_TRY(pd_dev_event_record(s->dev, s->base, s->compute, err));
    PD_TRY(pd_dev_event_sync(s->dev, s->base, err));
    s->base_ns = pd_trace_now();
    return PD_OK;
}

static void all_unused(struct pd_device_spans *s)
{
    for (uint32_t i = 0; i < s->capacity; i++)
        s->unused[i] = s->capacity - 1 - i;
    s->unused_count = s->capacity;
    s->high = 0;
}

static pd_status device_spans_build(struct pd_device_spans *s, struct pd_error *err)
{
    s->spans = calloc(s->capacity, sizeof *s->spans);
    s->unused = calloc(s->capacity, sizeof *s->unused);
    s->intervals = calloc(s->capacity, sizeof *s->intervals);
    s->edges = calloc(2ull * s->capacity, sizeof *s->edges);
    if (!s->spans || !s->unused || !s->intervals || !s->edges)
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %u spans of a device", s->capacity);
    all_unused(s);
    PD_TRY(pd_dev_event_new(s->dev, &s->base, err));
    return set_base(s, err);
}

pd_status pd_device_spans_new(struct pd_dev *dev, struct pd_stream *compute, uint32_t capacity,
                              struct pd_device_spans **ret_spans, struct pd_error *err)
{
    struct pd_device_spans *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for spans of a device");
    s->dev = dev;
    s->compute = compute;
    s->capacity = capacity;
    pthread_mutex_init(&s->giving, NULL);
    pthread_mutex_init(&s->lock, NULL);
    const pd_status st = device_spans_build(s, err);
    if (st)
        pd_device_spans_free(s);
    else
        *ret_spans = s;
    return st;
}

void pd_device_spans_free(struct pd_device_spans *s)
{
    if (!s) return;
    for (uint32_t i = 0; s->spans && i < s->capacity; i++) {
        pd_dev_event_free(s->dev, s->spans[i].begin);
        pd_dev_event_free(s->dev, s->spans[i].end);
    }
    pd_dev_event_free(s->dev, s->base);
    pthread_mutex_destroy(&s->giving);
    pthread_mutex_destroy(&s->lock);
    free(s->spans);
    free(s->unused);
    free(s->intervals);
    free(s->edges);
    free(s);
}

/* ---- spans ---- */

static struct span *device_spans_take(struct pd_device_spans *s, const struct span *what, uint32_t *ret_number)
{
    struct span *span = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->unused_count) {
        const uint32_t number = *ret_number = s->unused[--s->unused_count];
        span = &s->spans[number];
        const struct span events = *span;
        *span = *what;
        span->begin = events.begin;
        span->end = events.end;
        if (number >= s->high) s->high = number + 1;
    }
    s->lost += !span;
    pthread_mutex_unlock(&s->lock);
    return span;
}

static void set_state(struct pd_device_spans *s, struct span *span, enum state state)
{
    pthread_mutex_lock(&s->lock);
    span->state = state;
    pthread_mutex_unlock(&s->lock);
}

static bool is_recorded(struct pd_device_spans *s, struct pd_event **event, struct pd_stream *stream)
{
    if (!*event && pd_dev_event_new(s->dev, event, NULL)) return false;
    return !pd_dev_event_record(s->dev, *event, stream, NULL);
}

uint32_t pd_device_spans_begin(struct pd_device_spans *s, struct pd_stream *stream, const char *lane, const char *name,
                               uint64_t value)
{
    uint32_t number = NO_SPAN;
    if (!s) return NO_SPAN;
    const struct span what = {.lane = lane, .name = name, .value = value, .state = OPEN, .is_compute = stream == s->compute};
    struct span *span = device_spans_take(s, &what, &number);
    if (!span) return NO_SPAN;
    if (is_recorded(s, &span->begin, stream)) return number;
    set_state(s, span, LOST);
    return NO_SPAN;
}

void pd_device_spans_end(struct pd_device_spans *s, uint32_t number, struct pd_stream *stream)
{
    if (number == NO_SPAN) return;
    struct span *span = &s->spans[number];
    set_state(s, span, is_recorded(s, &span->end, stream) ? ENDED : LOST);
}

pd_status pd_device_spans_copy(struct pd_device_spans *s, struct pd_dev *dev, struct pd_stream *stream, const char *lane,
                               const char *name, struct pd_span dst, struct pd_span src, struct pd_error *err)
{
    if (!s) return pd_dev_copy(dev, stream, dst, 0, src, 0, src.bytes, err);
    pthread_mutex_lock(&s->giving);
    const uint32_t span = pd_device_spans_begin(s, stream, lane, name, src.bytes);
    const pd_status st = pd_dev_copy(dev, stream, dst, 0, src, 0, src.bytes, err);
    pd_device_spans_end(s, span, stream);
    pthread_mutex_unlock(&s->giving);
    return st;
}

void pd_device_spans_note(struct pd_device_spans *s, const char *lane, const char *name, uint64_t begin_ns)
{
    uint32_t number;
    if (!s) return;
    const struct span what = {.lane = lane, .name = name, .state = NOTED, .begin_ns = begin_ns, .end_ns = pd_trace_now()};
    (void)device_spans_take(s, &what, &number);
}

/* ---- shares ---- */

/* The last share collects everything beyond the maximum. */
static uint32_t share_of(struct pd_device_spans *s, const struct span *span)
{
    uint32_t i = 0;
    while (i < s->share_count && (strcmp(s->shares[i].name, span->name) != 0 || strcmp(s->shares[i].lane, span->lane) != 0))
        i++;
    if (i == PD_DEVICE_SHARES_MAX) return PD_DEVICE_SHARES_MAX - 1;
    if (i == s->share_count) s->shares[s->share_count++] = (struct pd_device_share){.lane = span->lane, .name = span->name};
    return i;
}

static int by_time(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->is_end != y->is_end) return x->is_end ? -1 : 1; /* an end comes before a begin at the same time */
    return (x->interval > y->interval) - (x->interval < y->interval);
}

/* at_work: in order of begin. */
static const struct interval *answering(const struct pd_device_spans *s, const uint32_t *at_work, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (s->intervals[at_work[i]].is_compute) return &s->intervals[at_work[i]];
    return &s->intervals[at_work[0]];
}

static uint32_t without(uint32_t *at_work, uint32_t count, uint32_t interval)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++)
        if (at_work[i] != interval) at_work[left++] = at_work[i];
    return left;
}

static void device_spans_add(struct pd_device_spans *s, const struct span *span, double begin, double end, double seconds)
{
    const uint32_t share = share_of(s, span), number = s->interval_count++;
    s->shares[share].seconds += seconds;
    s->shares[share].count++;
    s->intervals[number] = (struct interval){share, span->is_compute};
    s->edges[2 * number] = (struct edge){begin, number, false};
    s->edges[2 * number + 1] = (struct edge){end, number, true};
}

/* ---- collecting ---- */

/* Measures begin and end from the base: rounding keeps them in stream order. */
static pd_status collect_one(struct pd_device_spans *s, const struct span *span, struct pd_error *err)
{
    double begin, end, seconds;
    PD_TRY(pd_dev_event_seconds(s->dev, s->base, span->begin, &begin, err));
    PD_TRY(pd_dev_event_seconds(s->dev, s->base, span->end, &end, err));
    PD_TRY(pd_dev_event_seconds(s->dev, span->begin, span->end, &seconds, err));
    device_spans_add(s, span, begin, end, seconds);
    pd_trace_record_lane(span->lane, s->base_ns + (uint64_t)(int64_t)(begin * 1e9),
                         s->base_ns + (uint64_t)(int64_t)(end * 1e9), "gpu", span->name, span->value);
    return PD_OK;
}

/* A slot is not reused before it is returned, so an ended span can be read without the lock. */
static pd_status collect_ended(struct pd_device_spans *s, uint32_t high, bool *ret_any_open, struct pd_error *err)
{
    for (uint32_t i = 0; i < high; i++) {
        struct span *span = &s->spans[i];
        pthread_mutex_lock(&s->lock);
        const enum state state = span->state;
        pthread_mutex_unlock(&s->lock);
        if (state == OPEN) *ret_any_open = true;
        if (state == OPEN || state == UNUSED) continue;
        if (state == NOTED) {
            const double begin = ((double)span->begin_ns - (double)s->base_ns) * 1e-9,
                         end = ((double)span->end_ns - (double)s->base_ns) * 1e-9;
            device_spans_add(s, span, begin, end, end - begin);
        }
        if (state == ENDED) PD_TRY(collect_one(s, span, err));
        pthread_mutex_lock(&s->lock);
        span->state = UNUSED;
        s->unused[s->unused_count++] = i;
        pthread_mutex_unlock(&s->lock);
    }
    return PD_OK;
}

static pd_status collect(struct pd_device_spans *s, struct pd_error *err)
{
    bool any_open = false;
    s->interval_count = 0;
    pthread_mutex_lock(&s->lock);
    const uint32_t high = s->high;
    pthread_mutex_unlock(&s->lock);
    PD_TRY(collect_ended(s, high, &any_open, err));
    uint32_t at_work[AT_WORK_MAX], count = 0;
    qsort(s->edges, 2ull * s->interval_count, sizeof *s->edges, by_time);
    for (uint32_t i = 0; i < 2 * s->interval_count; i++) {
        const struct edge *e = &s->edges[i];
        if (count) s->shares[answering(s, at_work, count)->share].answered += e->at - e[-1].at;
        if (e->is_end)
            count = without(at_work, count, e->interval);
        else if (count < AT_WORK_MAX)
            at_work[count++] = e->interval;
    }
    if (any_open) return PD_OK;
    pthread_mutex_lock(&s->lock);
    const bool is_empty = s->unused_count == s->capacity;
    if (is_empty) all_unused(s);
    pthread_mutex_unlock(&s->lock);
    return is_empty ? set_base(s, err) : PD_OK; /* a new base, since differences of events lose digits as they grow */
}

pd_status pd_device_spans_collect(struct pd_device_spans *s, struct pd_error *err)
{
    if (!s) return PD_OK;
    PD_TRY(pd_dev_stream_sync(s->dev, s->compute, err));
    const uint64_t begin = pd_trace_now();
    const pd_status st = collect(s, err);
    s->collecting += (double)(pd_trace_now() - begin) * 1e-9;
    return st;
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

double pd_device_spans_collecting(const struct pd_device_spans *s)
{
    return s->collecting;
}

void pd_device_spans_clear(struct pd_device_spans *s)
{
    s->share_count = 0;
    s->lost = 0;
    s->collecting = 0;
}
