/* Spans on the CPU's device, whose streams and events keep the same contract. */
#include "offload/device_spans.h"

#include <criterion/criterion.h>
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
        one(spans, "product");
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
