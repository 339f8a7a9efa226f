/* A device of threads: each stream is one, which carries out what it was given in order, a while later. What is not ordered
 * by an event happens in any order, so a wait that was forgotten shows as wrong bytes. Only what communicators need. */
#pragma once

#include "ckpt/base/clock.h"
#include "offload/device.h"
#include "tests/helpers/fake_nccl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct late_call {
    void (*call)(void *argument);
    void *argument;
    struct late_call *next;
};

struct pd_stream {
    struct fake_stream face; /* first: how the fake library puts its work here */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct late_call *head, *tail;
    uint64_t given, done, nap_ns;
    bool is_closing;
};
static _Atomic uint32_t late_goes_first; /* streams whose kernels go first */

struct pd_event {
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t recorded, passed, passed_ns;
};

static inline void *late_main(void *argument)
{
    struct pd_stream *s = argument;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->head && !s->is_closing)
            pthread_cond_wait(&s->change, &s->lock);
        struct late_call *c = s->head;
        if (!c) break;
        s->head = c->next;
        if (!s->head) s->tail = NULL;
        const struct timespec nap = {.tv_nsec = (long)(s->nap_ns * (s->done % 4))};
        pthread_mutex_unlock(&s->lock);
        nanosleep(&nap, NULL);
        c->call(c->argument);
        free(c);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static inline void late_put(void *stream, void (*call)(void *argument), void *argument)
{
    struct pd_stream *s = stream;
    struct late_call *c = malloc(sizeof *c);
    *c = (struct late_call){call, argument, NULL};
    pthread_mutex_lock(&s->lock);
    if (s->tail)
        s->tail->next = c;
    else
        s->head = c;
    s->tail = c;
    s->given++;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

static inline pd_status late_stream_new(struct pd_dev *dev, bool goes_first, struct pd_stream **ret_stream,
                                        struct pd_error *err)
{
    struct pd_stream *s = calloc(1, sizeof *s);
    (void)err;
    late_goes_first += goes_first;
    s->face.put = late_put;
    s->face.device = dev->index;
    s->nap_ns = 30000;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    PD_CHECK(pthread_create(&s->thread, NULL, late_main, s) == 0);
    *ret_stream = s;
    return PD_OK;
}

static inline void late_stream_free(struct pd_dev *dev, struct pd_stream *s)
{
    (void)dev;
    pthread_mutex_lock(&s->lock);
    s->is_closing = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free(s);
}

static inline pd_status late_stream_sync(struct pd_dev *dev, struct pd_stream *s, struct pd_error *err)
{
    (void)dev, (void)err;
    pthread_mutex_lock(&s->lock);
    const uint64_t given = s->given;
    while (s->done < given)
        pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return PD_OK;
}

static inline void *late_stream_handle(struct pd_dev *dev, struct pd_stream *s)
{
    (void)dev;
    return s;
}

static inline pd_status late_enter(struct pd_dev *dev, struct pd_error *err)
{
    (void)dev, (void)err;
    return PD_OK;
}

struct late_work {
    struct pd_event *event;
    uint64_t number;
    void *dst;
    const void *src;
    uint64_t bytes;
};

static inline struct late_work *late_work(struct late_work w)
{
    struct late_work *work = malloc(sizeof *work);
    *work = w;
    return work;
}

static inline void late_copy_now(void *argument)
{
    struct late_work *w = argument;
    memcpy(w->dst, w->src, w->bytes);
    free(w);
}

static inline pd_status late_alloc(struct pd_dev *dev, enum pd_dev_place place, uint64_t bytes, struct pd_span *ret_span,
                                   struct pd_error *err)
{
    void *data = malloc(bytes);
    (void)dev;
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)bytes);
    *ret_span = (struct pd_span){data, bytes, place == PD_DEV_HOST};
    return PD_OK;
}

static inline void late_free(struct pd_dev *dev, struct pd_span *span)
{
    (void)dev;
    free(span->data);
}

static inline pd_status late_copy(struct pd_dev *dev, struct pd_stream *s, struct pd_span dst, struct pd_span src,
                                  struct pd_error *err)
{
    (void)dev, (void)err;
    late_put(s, late_copy_now, late_work((struct late_work){.dst = dst.data, .src = src.data, .bytes = src.bytes}));
    return PD_OK;
}

static inline pd_status late_event_new(struct pd_dev *dev, struct pd_event **ret_event, struct pd_error *err)
{
    struct pd_event *e = calloc(1, sizeof *e);
    (void)dev, (void)err;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->change, NULL);
    *ret_event = e;
    return PD_OK;
}

/* Work that names it may still be on a stream: it stays. */
static inline void late_event_free(struct pd_dev *dev, struct pd_event *event)
{
    (void)dev, (void)event;
}

static inline void late_pass(void *argument)
{
    struct late_work *w = argument;
    pthread_mutex_lock(&w->event->lock);
    if (w->event->passed < w->number) w->event->passed = w->number;
    w->event->passed_ns = pd_clock_monotonic_ns(NULL);
    pthread_cond_broadcast(&w->event->change);
    pthread_mutex_unlock(&w->event->lock);
    free(w);
}

static inline void late_await(struct pd_event *event, uint64_t number)
{
    pthread_mutex_lock(&event->lock);
    while (event->passed < number)
        pthread_cond_wait(&event->change, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

static inline void late_await_now(void *argument)
{
    struct late_work *w = argument;
    late_await(w->event, w->number);
    free(w);
}

static inline uint64_t late_recorded(struct pd_event *event, uint64_t add)
{
    pthread_mutex_lock(&event->lock);
    const uint64_t number = event->recorded += add;
    pthread_mutex_unlock(&event->lock);
    return number;
}

static inline pd_status late_event_record(struct pd_dev *dev, struct pd_event *event, struct pd_stream *s,
                                          struct pd_error *err)
{
    (void)dev, (void)err;
    late_put(s, late_pass, late_work((struct late_work){.event = event, .number = late_recorded(event, 1)}));
    return PD_OK;
}

static inline pd_status late_event_wait(struct pd_dev *dev, struct pd_stream *s, struct pd_event *event,
                                        struct pd_error *err)
{
    (void)dev, (void)err;
    late_put(s, late_await_now, late_work((struct late_work){.event = event, .number = late_recorded(event, 0)}));
    return PD_OK;
}

static inline pd_status late_event_sync(struct pd_dev *dev, struct pd_event *event, struct pd_error *err)
{
    (void)dev, (void)err;
    late_await(event, late_recorded(event, 0));
    return PD_OK;
}

static inline pd_status late_event_passed(struct pd_dev *dev, struct pd_event *event, bool *ret_passed, struct pd_error *err)
{
    (void)dev, (void)err;
    pthread_mutex_lock(&event->lock);
    *ret_passed = event->passed == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return PD_OK;
}

static inline pd_status late_event_seconds(struct pd_dev *dev, struct pd_event *begin, struct pd_event *end,
                                           double *ret_seconds, struct pd_error *err)
{
    PD_TRY(late_event_sync(dev, begin, err));
    PD_TRY(late_event_sync(dev, end, err));
    *ret_seconds = ((double)end->passed_ns - (double)begin->passed_ns) * 1e-9;
    return PD_OK;
}

static const struct pd_dev_ops late_ops = {
    .name = "late",
    .alloc = late_alloc,
    .free = late_free,
    .stream_new = late_stream_new,
    .stream_free = late_stream_free,
    .stream_sync = late_stream_sync,
    .stream_handle = late_stream_handle,
    .enter = late_enter,
    .copy = late_copy,
    .event_new = late_event_new,
    .event_free = late_event_free,
    .event_record = late_event_record,
    .event_wait = late_event_wait,
    .event_sync = late_event_sync,
    .event_passed = late_event_passed,
    .event_seconds = late_event_seconds,
};
