/* The contract of the device table, on every device this machine has. */
#include "offload/device.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Memory of others that is pinned, time between events. */
static void check_more(struct pd_dev *dev, struct pd_stream *stream)
{
    struct pd_span span, whole;
    struct pd_event *begin, *end;
    double seconds = -1;
    static _Alignas(4096) unsigned char mine[8192];
    cr_assert_eq(pd_dev_enter(dev, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_new(dev, &begin, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_new(dev, &end, NULL), PD_OK);
    cr_assert_eq(pd_dev_lock(dev, mine, sizeof mine, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_record(dev, begin, stream, NULL), PD_OK);
    cr_assert_eq(pd_dev_alloc(dev, PD_DEV_DEVICE, sizeof mine, &span, NULL), PD_OK);
    cr_assert(span.data && span.bytes == sizeof mine && !span.is_host);
    cr_assert_eq(pd_dev_fill(dev, stream, span, 0x5c, NULL), PD_OK);
    whole = (struct pd_span){mine, sizeof mine, true};
    cr_assert_eq(pd_dev_copy(dev, stream, whole, 0, span, 0, sizeof mine, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_record(dev, end, stream, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_seconds(dev, begin, end, &seconds, NULL), PD_OK);
    cr_assert(seconds >= 0 && seconds < 3600);
    cr_assert_eq(pd_dev_stream_sync(dev, stream, NULL), PD_OK);
    for (size_t i = 0; i < sizeof mine; i++)
        cr_assert_eq(mine[i], 0x5c);
    pd_dev_unlock(dev, mine, sizeof mine);
    pd_dev_free(dev, &span);
    pd_dev_event_free(dev, begin);
    pd_dev_event_free(dev, end);
}

static void check_contract(struct pd_dev *dev)
{
    struct pd_span host, device, back;
    struct pd_stream *stream, *other;
    struct pd_event *event;
    struct pd_dev_memory memory;
    cr_assert_eq(pd_dev_memory(dev, &memory, NULL), PD_OK);
    cr_assert(memory.total_bytes >= memory.free_bytes && memory.free_bytes > 0);
    cr_assert_eq(pd_dev_alloc(dev, PD_DEV_HOST, 10000, &host, NULL), PD_OK);
    cr_assert_eq(pd_dev_alloc(dev, PD_DEV_DEVICE, 10000, &device, NULL), PD_OK);
    cr_assert_eq(pd_dev_alloc(dev, PD_DEV_HOST, 10000, &back, NULL), PD_OK);
    cr_assert_eq(pd_dev_stream_new(dev, &stream, NULL), PD_OK);
    cr_assert_eq(pd_dev_stream_new(dev, &other, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_new(dev, &event, NULL), PD_OK);
    for (int i = 0; i < 10000; i++)
        ((unsigned char *)host.data)[i] = (unsigned char)(i * 7);
    cr_assert_eq(pd_dev_fill(dev, stream, device, 0xab, NULL), PD_OK);
    cr_assert_eq(pd_dev_copy(dev, stream, device, 16, host, 1000, 5000, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_record(dev, event, stream, NULL), PD_OK);
    cr_assert_eq(pd_dev_event_wait(dev, other, event, NULL), PD_OK);
    cr_assert_eq(pd_dev_copy(dev, other, back, 0, device, 0, 10000, NULL), PD_OK);
    cr_assert_eq(pd_dev_stream_sync(dev, other, NULL), PD_OK, "first: nothing but its event brings the other stream's");
    cr_assert_eq(pd_dev_event_sync(dev, event, NULL), PD_OK);
    check_more(dev, stream);
    const unsigned char *have = back.data;
    cr_assert_eq(memcmp(have + 16, (unsigned char *)host.data + 1000, 5000), 0);
    for (int i = 0; i < 10000; i++)
        if (i < 16 || i >= 5016) cr_assert_eq(have[i], 0xab);
    pd_dev_event_free(dev, event);
    pd_dev_stream_free(dev, stream);
    pd_dev_stream_free(dev, other);
    pd_dev_free(dev, &host);
    pd_dev_free(dev, &device);
    pd_dev_free(dev, &back);
    cr_assert_eq(back.bytes, 0);
    pd_dev_free(dev, &back);
    pd_dev_close(dev);
}

Test(device, cpu_keeps_the_contract)
{
    struct pd_dev *dev;
    cr_assert_eq(pd_dev_open_cpu(&dev, NULL), PD_OK);
    check_contract(dev);
}

Test(device, cuda_keeps_the_contract_or_says_why_not)
{
    struct pd_dev *dev;
    struct pd_error err = {0};
    if (pd_dev_cuda_count() == 0) {
        cr_assert_eq(pd_dev_open_cuda(0, &dev, &err), PD_UNSUPPORTED);
        cr_assert(strlen(err.message) > 10, "%s", err.message);
        cr_skip_test("no GPU: %s", err.message);
    }
    cr_assert_eq(pd_dev_open_cuda(0, &dev, &err), PD_OK, "%s", err.message);
    cr_assert_eq(strlen(dev->identity), 32);
    check_contract(dev);
}

Test(device, streams_have_queues_of_their_own_unless_told_otherwise)
{
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    pd_dev_prepare();
    cr_assert_str_eq(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    pd_dev_prepare();
    cr_assert_str_eq(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
}
