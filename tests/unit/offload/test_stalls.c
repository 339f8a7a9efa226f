/* How long a rank stood still: on a device that is late, where the host goes on at once, and on the host. */
#include "offload/stalls.h"
#include "tests/helpers/late_device.h"

#include <criterion/criterion.h>

enum { NAP_NS = 5000000, WAITS = 100 };

static struct pd_error err;

static void sleep_now(void *argument)
{
    (void)argument;
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* The compute stream waits for another as it does for NCCL: the host only says so. */
Test(stalls, a_stream_that_waits_stands_still)
{
    struct pd_dev dev = {.ops = &late_ops};
    struct pd_stream *compute, *other;
    struct pd_stalls *stalls;
    struct pd_event *sent;
    uint64_t ns;
    cr_assert_eq(pd_dev_stream_new(&dev, &compute, &err), PD_OK);
    cr_assert_eq(pd_dev_stream_new(&dev, &other, &err), PD_OK);
    cr_assert_eq(pd_dev_event_new(&dev, &sent, &err), PD_OK);
    cr_assert_eq(pd_stalls_new(&dev, compute, &stalls, &err), PD_OK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < WAITS; i++) {
            if (i < 4) late_put(other, sleep_now, NULL);
            cr_assert_eq(pd_dev_event_record(&dev, sent, other, &err), PD_OK);
            cr_assert_eq(pd_stalls_begin(stalls, &err), PD_OK);
            cr_assert_eq(pd_dev_event_wait(&dev, compute, sent, &err), PD_OK);
            cr_assert_eq(pd_stalls_end(stalls, &err), PD_OK);
            cr_assert_eq(pd_dev_stream_sync(&dev, compute, &err), PD_OK);
        }
        cr_assert_eq(pd_stalls_take(stalls, &ns, &err), PD_OK);
        cr_assert_geq(ns, 2 * (uint64_t)NAP_NS, "stood still for %llu ns", (unsigned long long)ns);
    }
    cr_assert_eq(pd_stalls_take(stalls, &ns, &err), PD_OK);
    cr_assert_eq(ns, 0, "nothing was waited for since");
    pd_stalls_free(stalls);
    pd_dev_stream_free(&dev, compute);
    pd_dev_stream_free(&dev, other);
}

Test(stalls, a_host_that_waits_stands_still)
{
    struct pd_stalls *stalls;
    uint64_t ns;
    cr_assert_eq(pd_stalls_new(NULL, NULL, &stalls, &err), PD_OK);
    cr_assert_eq(pd_stalls_begin(stalls, &err), PD_OK);
    sleep_now(NULL);
    cr_assert_eq(pd_stalls_end(stalls, &err), PD_OK);
    cr_assert_eq(pd_stalls_take(stalls, &ns, &err), PD_OK);
    cr_assert_geq(ns, (uint64_t)NAP_NS);
    pd_stalls_free(stalls);
}
