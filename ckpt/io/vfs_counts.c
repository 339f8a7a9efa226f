/* The VFS's own table is copied, and five slots of the copy count before they hand on to the original: files, queues and
 * context stay those of the implementation. A slot finds its counts through the table, which lies inside them. */
#include "ckpt/io/vfs_counts.h"
#include "ckpt/base/clock.h"
#include "ckpt/io/vfs_ops.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RING_NAME "io_uring" /* queues of others move through the write slot, which counts already */

struct pd_vfs_counts {
    struct pd_vfs *vfs;
    const struct pd_vfs_ops *inner;
    struct pd_vfs_ops ops;
    pthread_mutex_t mutex;                  /* guards the two that follow until they are set, which is once */
    const struct pd_queue_ops *inner_queue; /* of rings */
    struct pd_queue_ops queue_ops;
    _Atomic uint64_t bytes_written, flushes, bytes_read;
    _Atomic uint32_t flush_milliseconds;
};

static struct pd_vfs_counts *counts_of(const struct pd_vfs *vfs)
{
    return (struct pd_vfs_counts *)((char *)(uintptr_t)vfs->ops - offsetof(struct pd_vfs_counts, ops));
}

static int count_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved)
{
    struct pd_vfs_counts *counts = counts_of(file->vfs);
    const int result = counts->inner->write(file, offset, data, bytes, ret_moved);
    if (!result) atomic_fetch_add(&counts->bytes_written, *ret_moved);
    return result;
}

static int count_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved)
{
    struct pd_vfs_counts *counts = counts_of(file->vfs);
    const int result = counts->inner->read(file, offset, data, bytes, ret_moved);
    if (!result) atomic_fetch_add(&counts->bytes_read, *ret_moved);
    return result;
}

static void count_flush(struct pd_vfs_counts *counts)
{
    const uint32_t milliseconds = atomic_load(&counts->flush_milliseconds);
    atomic_fetch_add(&counts->flushes, 1);
    if (milliseconds) pd_clock_sleep_ns(NULL, milliseconds * UINT64_C(1000000));
}

static int count_sync(struct pd_file *file)
{
    struct pd_vfs_counts *counts = counts_of(file->vfs);
    count_flush(counts);
    return counts->inner->sync(file);
}

static int count_sync_dir(struct pd_vfs *vfs, const char *path)
{
    struct pd_vfs_counts *counts = counts_of(vfs);
    count_flush(counts);
    return counts->inner->sync_dir(vfs, path);
}

static int count_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    struct pd_vfs_counts *counts = counts_of(queue->vfs);
    for (uint32_t i = 0; i < count; i++)
        atomic_fetch_add(transfers[i]->is_write ? &counts->bytes_written : &counts->bytes_read, transfers[i]->bytes);
    return counts->inner_queue->submit(queue, transfers, count);
}

static int count_queue_open(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    struct pd_vfs_counts *counts = counts_of(queue->vfs);
    const int result = counts->inner->queue_open(queue, buffers, buffer_bytes);
    if (result || strcmp(queue->ops->name, RING_NAME) != 0) return result;
    pthread_mutex_lock(&counts->mutex);
    if (!counts->inner_queue) {
        counts->inner_queue = queue->ops;
        counts->queue_ops = *queue->ops;
        counts->queue_ops.submit = count_submit;
    }
    pthread_mutex_unlock(&counts->mutex);
    PD_CHECK(counts->inner_queue == queue->ops);
    queue->ops = &counts->queue_ops;
    return 0;
}

pd_status pd_vfs_counts_begin(struct pd_vfs *vfs, struct pd_vfs_counts **ret_counts, struct pd_error *err)
{
    struct pd_vfs_counts *counts = calloc(1, sizeof *counts);
    if (!counts) PD_FAIL(err, PD_NO_MEMORY, "no memory to count what goes through a VFS");
    counts->vfs = vfs;
    counts->inner = vfs->ops;
    counts->ops = *vfs->ops;
    counts->ops.write = count_write;
    counts->ops.read = count_read;
    counts->ops.sync = count_sync;
    counts->ops.sync_dir = count_sync_dir;
    counts->ops.queue_open = count_queue_open;
    pthread_mutex_init(&counts->mutex, NULL);
    vfs->ops = &counts->ops;
    *ret_counts = counts;
    return PD_OK;
}

void pd_vfs_counts_end(struct pd_vfs_counts *counts)
{
    if (!counts) return;
    counts->vfs->ops = counts->inner;
    pthread_mutex_destroy(&counts->mutex);
    free(counts);
}

struct pd_vfs_counted pd_vfs_counts_now(struct pd_vfs_counts *counts)
{
    return (struct pd_vfs_counted){atomic_load(&counts->bytes_written), atomic_load(&counts->flushes),
                                   atomic_load(&counts->bytes_read)};
}

void pd_vfs_counts_slow_flushes(struct pd_vfs_counts *counts, uint32_t milliseconds)
{
    atomic_store(&counts->flush_milliseconds, milliseconds);
}
