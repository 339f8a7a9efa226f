/* A VFS whose queues fail to submit: at the n-th time the transfers go down all the same, and then the queue says EIO, as a
 * ring does that fails behind entries it has taken.
 *
 *   threads  any, once the first queue has been opened; end after everybody has stopped */
#pragma once

#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

struct failing_submit {
    struct pd_vfs *vfs;
    const struct pd_vfs_ops *inner;
    struct pd_vfs_ops ops;
    const struct pd_queue_ops *inner_queue;
    struct pd_queue_ops queue_ops;
    uint64_t nth; /* counts from 1; 0: never */
    atomic_ullong submits;
};

static inline int failing_submit_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    struct failing_submit *f =
        (struct failing_submit *)((char *)(uintptr_t)queue->ops - offsetof(struct failing_submit, queue_ops));
    const int result = f->inner_queue->submit(queue, transfers, count);
    return ++f->submits == f->nth ? EIO : result;
}

static inline int failing_submit_open(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    struct failing_submit *f =
        (struct failing_submit *)((char *)(uintptr_t)queue->vfs->ops - offsetof(struct failing_submit, ops));
    const int result = f->inner->queue_open(queue, buffers, buffer_bytes);
    if (result) return result;
    if (!f->inner_queue) {
        f->inner_queue = queue->ops;
        f->queue_ops = *queue->ops;
        f->queue_ops.submit = failing_submit_submit;
    }
    queue->ops = &f->queue_ops;
    return 0;
}

static inline void failing_submit_begin(struct failing_submit *f, struct pd_vfs *vfs)
{
    *f = (struct failing_submit){.vfs = vfs, .inner = vfs->ops, .ops = *vfs->ops};
    f->ops.queue_open = failing_submit_open;
    vfs->ops = &f->ops;
}

static inline void failing_submit_arm(struct failing_submit *f, uint64_t nth)
{
    f->nth = nth;
    f->submits = 0;
}

static inline bool failing_submit_fired(const struct failing_submit *f)
{
    return f->nth && f->submits >= f->nth;
}

static inline void failing_submit_end(struct failing_submit *f)
{
    f->vfs->ops = f->inner;
}
