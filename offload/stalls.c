#include "offload/stalls.h"

#include "ckpt/base/clock.h"

#include <stdlib.h>
#include <string.h>

struct pair {
    struct pd_event *begin, *end;
};

struct pd_stalls {
    struct pd_dev *dev; /* NULL: the host */
    struct pd_stream *compute;
    struct pair *pairs; /* (capacity) */
    uint32_t count, capacity;
    uint64_t begin_ns, sum_ns; /* for the host */
};

pd_status pd_stalls_new(struct pd_dev *dev, struct pd_stream *compute, struct pd_stalls **ret_stalls, struct pd_error *err)
{
    struct pd_stalls *s = calloc(1, sizeof *s);
    if (!s) PD_FAIL(err, PD_NO_MEMORY, "no memory for times of waiting");
    s->dev = dev;
    s->compute = compute;
    *ret_stalls = s;
    return PD_OK;
}

void pd_stalls_free(struct pd_stalls *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->capacity; i++) {
        pd_dev_event_free(s->dev, s->pairs[i].begin);
        pd_dev_event_free(s->dev, s->pairs[i].end);
    }
    free(s->pairs);
    free(s);
}

static pd_status record(struct pd_stalls *s, struct pd_event **event, struct pd_error *err)
{
    if (!*event) PD_TRY(pd_dev_event_new(s->dev, event, err));
    return pd_dev_event_record(s->dev, *event, s->compute, err);
}

pd_status pd_stalls_begin(struct pd_stalls *s, struct pd_error *err)
{
    s->begin_ns = pd_clock_monotonic_ns(NULL);
    if (!s->dev) return PD_OK;
    if (s->count == s->capacity) {
        const uint32_t capacity = s->capacity ? 2 * s->capacity : 64;
        struct pair *grown = realloc(s->pairs, capacity * sizeof *grown);
        if (!grown) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u times of waiting", capacity);
        memset(grown + s->capacity, 0, (capacity - s->capacity) * sizeof *grown);
        s->pairs = grown;
        s->capacity = capacity;
    }
    return record(s, &s->pairs[s->count].begin, err);
}

pd_status pd_stalls_end(struct pd_stalls *s, struct pd_error *err)
{
    if (s->dev) return record(s, &s->pairs[s->count++].end, err);
    s->sum_ns += pd_clock_monotonic_ns(NULL) - s->begin_ns;
    return PD_OK;
}

pd_status pd_stalls_take(struct pd_stalls *s, uint64_t *ret_ns, struct pd_error *err)
{
    double seconds, sum = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        PD_TRY(pd_dev_event_seconds(s->dev, s->pairs[i].begin, s->pairs[i].end, &seconds, err));
        sum += seconds;
    }
    *ret_ns = s->sum_ns + (uint64_t)(sum * 1e9);
    pd_stalls_forget(s);
    return PD_OK;
}

void pd_stalls_forget(struct pd_stalls *s)
{
    s->count = 0;
    s->sum_ns = 0;
}
