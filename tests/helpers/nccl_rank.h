/* Ranks as threads, each with a late device of its own, whose communicator is NCCL's caller over the library that stands in.
 */
#pragma once

#include "tests/helpers/fake_nccl.h"
#include "tests/helpers/late_device.h"
#include "trainer/comm/nccl.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

/* A function of the library that stands in. */
static inline void fake(const char *name, void *ret_function)
{
    void *found = dlsym(dlopen(FAKE_NCCL, RTLD_NOW), name);
    cr_assert_not_null(found);
    memcpy(ret_function, &found, sizeof found);
}

static bool is_meant; /* all ranks say the same */

struct rank {
    struct pd_dev dev;
    struct pd_stream *compute;
    struct pd_device_spans *spans;
    struct pd_comm *comm;
};

static uint32_t rank_multiprocessors; /* of every device; 0: not known */

static inline pd_status rank_open(struct pd_comm *control, struct rank *r, struct pd_error *err)
{
    *r = (struct rank){.dev = {.ops = &late_ops, .index = control->rank, .multiprocessors = rank_multiprocessors}};
    PD_TRY(pd_dev_stream_new(&r->dev, &r->compute, err));
    pd_status st = pd_comm_new_nccl(control, &r->dev, r->compute, r->spans, true, &r->comm, &is_meant, err);
    if (st) pd_dev_stream_free(&r->dev, r->compute);
    return st;
}

static inline void rank_close(struct rank *r)
{
    pd_comm_free(r->comm);
    pd_dev_stream_free(&r->dev, r->compute);
}

static inline pd_status run(uint32_t size, pd_status (*rank_main)(struct pd_comm *, void *, struct pd_error *),
                            void *context, struct pd_error *err)
{
    setenv("PERDURE_NCCL", FAKE_NCCL, 1);
    return pd_comm_run_local(size, 1, rank_main, context, err);
}
