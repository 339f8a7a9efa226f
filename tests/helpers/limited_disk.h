/* A VFS onto a disk of a chosen speed: reads and writes take their turns at so many bytes a second, whoever asks. Of VFSs
 * whose queues move through the read and write slots: that of threads, the simulated disk.
 *
 *   threads  the VFS's; begin before anybody else uses it, end after everybody has stopped */
#pragma once

#include "ckpt/base/clock.h"
#include "ckpt/io/vfs_ops.h"

#include <stddef.h>

struct limited_disk {
    struct pd_vfs *vfs;
    const struct pd_vfs_ops *inner;
    struct pd_vfs_ops ops;
    double bytes_per_second; /* 0: no limit */
    pthread_mutex_t mutex;
    uint64_t busy_until_ns;
    _Atomic uint64_t bytes_read, bytes_written, reads;
    _Atomic uint64_t crossings; /* reads of bytes on both sides of a multiple of 2 MiB */
};

static inline struct limited_disk *limited_disk_of(const struct pd_file *file)
{
    return (struct limited_disk *)((char *)(uintptr_t)file->vfs->ops - offsetof(struct limited_disk, ops));
}

static inline void limited_disk_wait(struct limited_disk *d, uint64_t bytes)
{
    if (d->bytes_per_second <= 0) return;
    pthread_mutex_lock(&d->mutex);
    const uint64_t now = pd_clock_monotonic_ns(NULL), start = d->busy_until_ns > now ? d->busy_until_ns : now;
    const uint64_t end = d->busy_until_ns = start + (uint64_t)((double)bytes * 1e9 / d->bytes_per_second);
    pthread_mutex_unlock(&d->mutex);
    pd_clock_sleep_ns(end - now);
}

static inline int limited_disk_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    struct limited_disk *d = limited_disk_of(file);
    limited_disk_wait(d, bytes);
    const int result = d->inner->read(file, offset, data, bytes, ret_moved);
    atomic_fetch_add(&d->bytes_read, *ret_moved);
    atomic_fetch_add(&d->reads, 1);
    if (bytes && offset >> 21 != (offset + bytes - 1) >> 21) atomic_fetch_add(&d->crossings, 1);
    return result;
}

static inline int limited_disk_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes,
                                     uint64_t *ret_moved)
{
    struct limited_disk *d = limited_disk_of(file);
    limited_disk_wait(d, bytes);
    const int result = d->inner->write(file, offset, data, bytes, ret_moved);
    atomic_fetch_add(&d->bytes_written, *ret_moved);
    return result;
}

static inline void limited_disk_begin(struct limited_disk *d, struct pd_vfs *vfs, double bytes_per_second)
{
    *d = (struct limited_disk){.vfs = vfs, .inner = vfs->ops, .ops = *vfs->ops, .bytes_per_second = bytes_per_second};
    pthread_mutex_init(&d->mutex, NULL);
    d->ops.read = limited_disk_read;
    d->ops.write = limited_disk_write;
    vfs->ops = &d->ops;
}

static inline void limited_disk_end(struct limited_disk *d)
{
    d->vfs->ops = d->inner;
    pthread_mutex_destroy(&d->mutex);
}
