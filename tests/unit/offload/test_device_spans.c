/* Spans on the CPU's device, whose streams and events keep the same contract, and on one whose time the test tells. */
#include "offload/device_spans.h"

#include "ckpt/base/trace.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct pd_dev *dev;
static struct pd_stream *stream;
static struct pd_error err;

static void open_device(void)
{
    cr_assert_eq(pd_dev_open_cpu(&dev, &err), PD_OK);
    cr_assert_eq(pd_dev_stream_new(dev, &stream, &err), PD_OK);
}

static void close_device(void)
{
    pd_dev_stream_free(dev, stream);
    pd_dev_close(dev);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void one(struct pd_device_spans *spans, const char *name)
{
    const uint32_t span = pd_device_spans_begin(spans, stream, "GPU compute", name, 0);
    nap();
    pd_device_spans_end(spans, span, stream);
}

Test(device_spans, times_are_added_by_name, .init = open_device, .fini = close_device)
{
    struct pd_device_spans *spans;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    cr_assert_eq(pd_device_spans_new(dev, stream, 8, &spans, &err), PD_OK);
    for (int round = 0; round < 3; round++) {
        one(spans, "attention");
        one(spans, "norm");
        one(spans, "attention");
        cr_assert_eq(pd_device_spans_collect(spans, &err), PD_OK, "%s", err.message);
    }
    cr_assert_eq(pd_device_spans_shares(spans, shares), 2);
    cr_assert_str_eq(shares[0].name, "attention");
    cr_assert_eq(shares[0].count, 6);
    cr_assert_geq(shares[0].seconds, 6 * 0.002);
    cr_assert_str_eq(shares[1].name, "norm");
    cr_assert_eq(shares[1].count, 3);
    pd_device_spans_clear(spans);
    cr_assert_eq(pd_device_spans_shares(spans, shares), 0);
    pd_device_spans_free(spans);
}

Test(device_spans, what_does_not_fit_is_counted, .init = open_device, .fini = close_device)
{
    struct pd_device_spans *spans;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    cr_assert_eq(pd_device_spans_new(dev, stream, 2, &spans, &err), PD_OK);
    for (int i = 0; i < 5; i++)
        one(spans, "GEMM");
    cr_assert_eq(pd_device_spans_collect(spans, &err), PD_OK);
    cr_assert_eq(pd_device_spans_lost(spans), 3);
    cr_assert_eq(pd_device_spans_shares(spans, shares), 1);
    cr_assert_eq(shares[0].count, 2);
    pd_device_spans_free(spans);
}

Test(device_spans, none_costs_nothing, .init = open_device, .fini = close_device)
{
    const uint32_t span = pd_device_spans_begin(NULL, stream, "GPU compute", "norm", 0);
    pd_device_spans_end(NULL, span, stream);
    pd_device_spans_free(NULL);
}

/* ---- a device whose time the test tells ---- */

struct pd_event {
    double at;
};

static double now;

static pd_status told_event_new(struct pd_dev *d, struct pd_event **ret_event, struct pd_error *error)
{
    (void)d, (void)error;
    *ret_event = calloc(1, sizeof **ret_event);
    return PD_OK;
}

static void told_event_free(struct pd_dev *d, struct pd_event *event)
{
    (void)d;
    free(event);
}

static pd_status told_record(struct pd_dev *d, struct pd_event *event, struct pd_stream *s, struct pd_error *error)
{
    (void)d, (void)s, (void)error;
    event->at = now;
    return PD_OK;
}

static pd_status told_event_sync(struct pd_dev *d, struct pd_event *event, struct pd_error *error)
{
    (void)d, (void)event, (void)error;
    return PD_OK;
}

static pd_status told_stream_sync(struct pd_dev *d, struct pd_stream *s, struct pd_error *error)
{
    (void)d, (void)s, (void)error;
    return PD_OK;
}

static pd_status told_seconds(struct pd_dev *d, struct pd_event *begin, struct pd_event *end, double *ret_seconds,
                              struct pd_error *error)
{
    (void)d, (void)error;
    *ret_seconds = end->at - begin->at;
    return PD_OK;
}

static const struct pd_dev_ops told_ops = {.name = "told",
                                           .stream_sync = told_stream_sync,
                                           .event_new = told_event_new,
                                           .event_free = told_event_free,
                                           .event_record = told_record,
                                           .event_sync = told_event_sync,
                                           .event_seconds = told_seconds};
static struct pd_dev told = {.ops = &told_ops};
static struct pd_stream *const streams[] = {(struct pd_stream *)&now, (struct pd_stream *)&told,
                                            (struct pd_stream *)&streams};
enum { COMPUTE, IN, OUT };

static uint32_t begin_at(struct pd_device_spans *spans, double at, int which, const char *name)
{
    static const char *const lanes[] = {PD_LANE_COMPUTE, PD_LANE_PARAMETERS_IN, PD_LANE_PARAMETERS_OUT};
    now = at;
    return pd_device_spans_begin(spans, streams[which], lanes[which], name, 0);
}

static void end_at(struct pd_device_spans *spans, double at, int which, uint32_t span)
{
    now = at;
    pd_device_spans_end(spans, span, streams[which]);
}

static void expect_share(const struct pd_device_share *share, const char *lane, const char *name, double seconds,
                         double answered)
{
    cr_assert_str_eq(share->lane, lane);
    cr_assert_str_eq(share->name, name);
    cr_assert_float_eq(share->seconds, seconds, 1e-12, "%s: %g s", name, share->seconds);
    cr_assert_float_eq(share->answered, answered, 1e-12, "%s answers for %g s", name, share->answered);
}

/*  compute   [1   3]              [6 7]
 *  in           [2      5]
 *  out               [4         6.5]
 *  answers    c  c   i  i   o     c      one at a time, and six of the seven seconds in all */
Test(device_spans, one_answers_at_a_time)
{
    struct pd_device_spans *spans;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    now = 0;
    cr_assert_eq(pd_device_spans_new(&told, streams[COMPUTE], 8, &spans, &err), PD_OK);
    const uint32_t first = begin_at(spans, 1, COMPUTE, "GEMM"), in = begin_at(spans, 2, IN, "parameters");
    end_at(spans, 3, COMPUTE, first);
    const uint32_t out = begin_at(spans, 4, OUT, "parameters");
    end_at(spans, 5, IN, in);
    const uint32_t second = begin_at(spans, 6, COMPUTE, "GEMM");
    end_at(spans, 6.5, OUT, out);
    end_at(spans, 7, COMPUTE, second);
    cr_assert_eq(pd_device_spans_collect(spans, &err), PD_OK);
    cr_assert_eq(pd_device_spans_shares(spans, shares), 3, "one name in two lanes is two shares");
    expect_share(&shares[0], PD_LANE_COMPUTE, "GEMM", 3, 3);
    expect_share(&shares[1], PD_LANE_PARAMETERS_IN, "parameters", 3, 2);
    expect_share(&shares[2], PD_LANE_PARAMETERS_OUT, "parameters", 2.5, 1);
    pd_device_spans_free(spans);
}

Test(device_spans, one_that_is_open_is_left_to_the_next_time)
{
    struct pd_device_spans *spans;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    now = 0;
    cr_assert_eq(pd_device_spans_new(&told, streams[COMPUTE], 2, &spans, &err), PD_OK);
    const uint32_t open = begin_at(spans, 1, IN, "parameters");
    for (int step = 0; step < 3; step++) {
        end_at(spans, 2 + step + 0.5, COMPUTE, begin_at(spans, 2 + step, COMPUTE, "GEMM"));
        cr_assert_eq(pd_device_spans_collect(spans, &err), PD_OK);
    }
    end_at(spans, 6, IN, open);
    cr_assert_eq(pd_device_spans_collect(spans, &err), PD_OK);
    cr_assert_eq(pd_device_spans_lost(spans), 0);
    cr_assert_eq(pd_device_spans_shares(spans, shares), 2);
    expect_share(&shares[0], PD_LANE_COMPUTE, "GEMM", 1.5, 1.5);
    expect_share(&shares[1], PD_LANE_PARAMETERS_IN, "parameters", 5, 5);
    pd_device_spans_free(spans);
}

Test(device_spans, what_the_host_did_is_a_share, .init = open_device, .fini = close_device)
{
    struct pd_device_spans *spans;
    struct pd_device_share shares[PD_DEVICE_SHARES_MAX];
    cr_assert_eq(pd_device_spans_new(dev, stream, 8, &spans, &err), PD_OK);
    const uint64_t begin_ns = pd_trace_now();
    nap();
    pd_device_spans_note(spans, PD_LANE_HOST, "optimizer", begin_ns);
    cr_assert_eq(pd_device_spans_collect(spans, &err), PD_OK);
    cr_assert_eq(pd_device_spans_shares(spans, shares), 1);
    cr_assert_str_eq(shares[0].lane, PD_LANE_HOST);
    cr_assert_geq(shares[0].answered, 0.002);
    pd_device_spans_free(spans);
}
