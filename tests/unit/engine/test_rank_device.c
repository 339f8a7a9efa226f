/* Streams of a rank: made when they are asked for and not before. The device counts. */
#include "trainer/engine/rank_device.h"

#include "ckpt/base/log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pd_stream {
    uint32_t syncs;
};

struct counting {
    struct pd_dev dev; /* first */
    uint32_t made, freed, synced, closed, unlocked;
};

static struct counting *counts_of(struct pd_dev *dev)
{
    return (struct counting *)dev;
}

static pd_status stream_new(struct pd_dev *dev, bool goes_first, struct pd_stream **ret_stream, struct pd_error *err)
{
    (void)err;
    cr_assert_not(goes_first);
    counts_of(dev)->made++;
    *ret_stream = calloc(1, sizeof **ret_stream);
    return PD_OK;
}

static void stream_free(struct pd_dev *dev, struct pd_stream *stream)
{
    counts_of(dev)->freed++;
    free(stream);
}

static pd_status stream_sync(struct pd_dev *dev, struct pd_stream *stream, struct pd_error *err)
{
    (void)err;
    counts_of(dev)->synced++;
    stream->syncs++;
    return PD_OK;
}

static pd_status refuse_lock(struct pd_dev *dev, void *data, uint64_t bytes, struct pd_error *err)
{
    (void)dev, (void)data, (void)bytes;
    PD_FAIL(err, PD_NO_MEMORY, "no more");
}

static pd_status grant_lock(struct pd_dev *dev, void *data, uint64_t bytes, struct pd_error *err)
{
    (void)dev, (void)data, (void)bytes, (void)err;
    return PD_OK;
}

static void unlock(struct pd_dev *dev, void *data, uint64_t bytes)
{
    (void)data, (void)bytes;
    counts_of(dev)->unlocked++;
}

static void close_device(struct pd_dev *dev)
{
    counts_of(dev)->closed++;
}

static const struct pd_dev_ops granting = {.stream_new = stream_new,
                                           .stream_free = stream_free,
                                           .stream_sync = stream_sync,
                                           .lock = grant_lock,
                                           .unlock = unlock,
                                           .close = close_device},
                               refusing = {.stream_new = stream_new,
                                           .stream_free = stream_free,
                                           .stream_sync = stream_sync,
                                           .lock = refuse_lock,
                                           .unlock = unlock,
                                           .close = close_device};

static struct pd_rank_device open_counting(struct counting *c, const struct pd_dev_ops *ops)
{
    struct pd_rank_device d = {.dev = &c->dev};
    c->dev.ops = ops;
    cr_assert_eq(pd_dev_stream_new(d.dev, &d.compute, NULL), PD_OK);
    return d;
}

Test(rank_device, streams_are_made_once_and_when_they_are_asked_for)
{
    struct counting c = {.made = 0};
    struct pd_rank_device d = open_counting(&c, &granting);
    struct pd_stream *streams[PD_STREAM_COUNT], *again;
    for (int i = 0; i < PD_STREAM_COUNT; i++) {
        cr_assert_eq(c.made, 1 + (uint32_t)i, "%u streams before stream %d", c.made, i);
        cr_assert_eq(pd_rank_device_stream(&d, (enum pd_rank_stream)i, &streams[i], NULL), PD_OK);
        cr_assert_eq(pd_rank_device_stream(&d, (enum pd_rank_stream)i, &again, NULL), PD_OK);
        cr_assert_eq(again, streams[i]);
        for (int j = 0; j < i; j++)
            cr_assert_neq(streams[j], streams[i], "streams %d and %d", j, i);
        pd_rank_device_quiet(&d);
        cr_assert_eq(streams[i]->syncs, 1, "stream %d", i);
    }
    pd_rank_device_close(&d);
    cr_assert_eq(c.made, 1 + (uint32_t)PD_STREAM_COUNT);
    cr_assert_eq(c.freed, c.made);
    cr_assert_eq(c.closed, 1);
}

Test(rank_device, one_that_nobody_asked_for_is_not_waited_for_nor_freed)
{
    struct counting c = {.made = 0};
    struct pd_rank_device d = open_counting(&c, &granting);
    struct pd_stream *stream;
    cr_assert_eq(pd_rank_device_stream(&d, PD_STREAM_SAVES, &stream, NULL), PD_OK);
    pd_rank_device_quiet(&d);
    pd_rank_device_close(&d);
    cr_assert_eq(c.made, 2);
    cr_assert_eq(c.synced, 2);
    cr_assert_eq(c.freed, 2);
}

static uint32_t said;

static void listen(void *context, const char *line, size_t bytes)
{
    (void)context;
    said += memmem(line, bytes, "not pinned", strlen("not pinned")) != NULL;
}

Test(rank_device, locking_that_is_refused_is_said_once)
{
    struct counting c = {.made = 0}, other = {.made = 0};
    struct pd_rank_device refused = open_counting(&c, &refusing), granted = open_counting(&other, &granting);
    struct pd_comm_memory memory;
    char page[64];
    pd_log_set_sink(listen, NULL);
    cr_assert_eq(pd_rank_device_memory(&refused, PD_STREAM_EXCHANGES, &memory, NULL), PD_OK);
    for (int i = 0; i < 3; i++)
        cr_assert_not(memory.lock(memory.context, page, sizeof page));
    cr_assert_eq(said, 1);
    cr_assert_eq(pd_rank_device_memory(&granted, PD_STREAM_EXCHANGES, &memory, NULL), PD_OK);
    cr_assert(memory.lock(memory.context, page, sizeof page));
    memory.unlock(memory.context, page, sizeof page);
    cr_assert_eq(other.unlocked, 1);
    cr_assert_eq(said, 1);
    cr_assert_eq(other.made, 2, "compute and transfers");
    pd_rank_device_close(&refused);
    pd_rank_device_close(&granted);
}

/* Which GPU of which host, and where to look; of nothing else. */
Test(rank_device, a_lost_device_has_a_next_command)
{
    struct counting c = {.made = 0};
    struct pd_rank_device d = open_counting(&c, &granting);
    const struct pd_rank_device none = {.dev = NULL};
    struct pd_error err;
    char host[64], expected[200];
    cr_assert_eq(gethostname(host, sizeof host), 0);
    d.dev->index = 3;
    snprintf(d.dev->description, sizeof d.dev->description, "NVIDIA H100");
    snprintf(expected, sizeof expected,
             "an illegal address; nothing on GPU 3 (NVIDIA H100) of %s can be trusted now: ", host);
    pd_error_set(&err, PD_DEVICE_LOST, "", 0, "an illegal address");
    cr_assert_eq(pd_rank_device_explain_lost(&d, PD_DEVICE_LOST, &err), PD_DEVICE_LOST);
    cr_expect_eq(strncmp(err.message, expected, strlen(expected)), 0, "%s", err.message);
    cr_expect(strstr(err.message, "perdure doctor"), "%s", err.message);
    pd_error_set(&err, PD_DEVICE_LOST, "", 0, "no such device");
    cr_assert_eq(pd_rank_device_explain_lost(&none, PD_DEVICE_LOST, &err), PD_DEVICE_LOST);
    cr_expect_eq(strncmp(err.message, "no such device; nothing on the GPU of ", 38), 0, "%s", err.message);
    pd_error_set(&err, PD_IO, "", 0, "a disk");
    cr_assert_eq(pd_rank_device_explain_lost(&d, PD_IO, &err), PD_IO);
    cr_expect_str_eq(err.message, "a disk");
    memset(err.message, 'x', sizeof err.message - 1);
    cr_assert_eq(pd_rank_device_explain_lost(&d, PD_DEVICE_LOST, &err), PD_DEVICE_LOST);
    cr_expect_eq(err.message[sizeof err.message - 2], 'x');
    pd_rank_device_close(&d);
}

/* Numbers of one value would cost a GPU less power. A last part is shorter than what is copied at once. */
Test(rank_device, numbers_of_either_sign_and_many_values)
{
    enum { COUNT = (3 << 19) + 77 };
    static uint16_t halves[COUNT];
    static bool is_there[1 << 16];
    struct pd_rank_device d = {.dev = NULL};
    uint32_t values = 0, negative = 0;
    cr_assert_eq(pd_dev_open_cpu(&d.dev, NULL), PD_OK);
    cr_assert_eq(pd_dev_stream_new(d.dev, &d.compute, NULL), PD_OK);
    cr_assert_eq(pd_rank_device_randomize(&d, (struct pd_span){halves, sizeof halves, false}, PD_BF16, NULL), PD_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bits = (uint32_t)halves[i] << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        cr_assert((x >= 0.5f && x < 1) || (x <= -0.5f && x > -1), "number %u is %g", i, (double)x);
        values += !is_there[halves[i]];
        is_there[halves[i]] = true;
        negative += x < 0;
    }
    cr_expect_eq(values, 256);
    cr_expect(negative > COUNT / 3 && negative < 2 * (COUNT / 3));
    pd_rank_device_close(&d);
}
