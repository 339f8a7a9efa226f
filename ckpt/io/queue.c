/* The wrappers of queues. A transfer is in one of three places: with the implementation (counted by in_flight), on the done
 * list, or with the caller. A transfer that a wrapper refuses goes to the done list without being sent. */
#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/trace.h"
#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

pd_status pd_queue_open(struct pd_vfs *vfs, void *buffers, uint64_t buffer_bytes, struct pd_queue **ret_queue,
                        struct pd_error *err)
{
    struct pd_queue *queue = calloc(1, sizeof *queue);
    int result = queue ? 0 : ENOMEM;
    if (queue) {
        *queue = (struct pd_queue){.vfs = vfs, .depth = vfs->queue_depth};
        result = vfs->ops->queue_open(queue, buffers, buffers ? buffer_bytes : 0);
    }
    if (result) {
        free(queue);
        PD_FAIL_ERRNO(err, result, "opening an I/O queue of depth %" PRIu32, vfs->queue_depth);
    }
    *ret_queue = queue;
    return PD_OK;
}

void pd_queue_close(struct pd_queue *queue)
{
    if (!queue) return;
    pd_queue_close(queue->remote);
    PD_CHECK(queue->in_flight == 0); /* buffers in flight belong to the kernel */
    queue->ops->close(queue);
    free(queue);
}

uint32_t pd_queue_depth(const struct pd_queue *queue)
{
    return queue->depth;
}

static void append_done(struct pd_queue *queue, struct pd_transfer *transfer)
{
    transfer->internal.next = NULL;
    if (queue->done_tail)
        queue->done_tail->internal.next = transfer;
    else
        queue->done_head = transfer;
    queue->done_tail = transfer;
}

static void set_result(struct pd_transfer *transfer, int result)
{
    bool ended = result == PD_MOVE_END_OF_FILE;
    transfer->sys_errno = ended ? 0 : result;
    transfer->status = ended ? PD_CORRUPT : pd_status_from_errno(result);
}

void pd_queue_finish(struct pd_queue *queue, struct pd_transfer *transfer, int result)
{
    PD_CHECK(queue->in_flight > 0);
    queue->in_flight--;
    const char *what = transfer->what ? transfer->what : transfer->is_write ? "write" : "read";
    pd_trace_end_async(transfer->internal.trace_begin, "io", what, transfer->bytes);
    if (!result)
        atomic_fetch_add(transfer->is_write ? &queue->vfs->bytes_written : &queue->vfs->bytes_read, transfer->bytes);
    set_result(transfer, result);
    append_done(queue, transfer);
}

/* Reasons not to send a transfer at all; the synchronous calls have the same ones. */
static int check_transfer(const struct pd_queue *queue, const struct pd_transfer *transfer)
{
    const struct pd_file *file = transfer->file;
    PD_CHECK(file && file->vfs == queue->vfs);
    if (transfer->is_write && atomic_load(&file->sync_failed)) return EIO;
    if (transfer->offset > INT64_MAX || transfer->bytes > INT64_MAX - transfer->offset) return EINVAL;
    uint64_t place = transfer->offset | transfer->bytes | (uintptr_t)transfer->data;
    return atomic_load(&file->direct) && place % PD_VFS_ALIGN != 0 ? EINVAL : 0;
}

/* Submits as many valid transfers as fit, in one call. */
static int submit_some(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count, uint32_t *ret_taken)
{
    uint32_t space = queue->depth - queue->in_flight, batch = 0;
    while (batch < count && batch < space) {
        struct pd_transfer *transfer = transfers[batch];
        transfer->internal.queue = queue;
        transfer->internal.moved = 0;
        transfer->internal.trace_begin = pd_trace_begin();
        int refused = check_transfer(queue, transfer);
        if (refused || transfer->bytes == 0) {
            if (batch > 0) break;
            set_result(transfer, refused);
            append_done(queue, transfer);
            *ret_taken = 1;
            return 0;
        }
        batch++;
    }
    *ret_taken = batch;
    queue->in_flight += batch;
    int result;
    PD_ON_STORAGE(result = queue->ops->submit(queue, transfers, batch));
    return result;
}

static int reap_some(struct pd_queue *queue, bool wait)
{
    if (!wait) return queue->ops->reap(queue, false);
    int result;
    PD_ON_STORAGE(result = queue->ops->reap(queue, true));
    return result;
}

static pd_status submit_local(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count,
                              struct pd_error *err)
{
    int result = 0;
    for (uint32_t done = 0; !result && done < count;) {
        uint32_t taken = 0;
        if (queue->in_flight == queue->depth) result = reap_some(queue, true);
        if (!result) result = submit_some(queue, transfers + done, count - done, &taken);
        done += taken;
    }
    if (result) PD_FAIL_ERRNO(err, result, "submitting %" PRIu32 " transfers to the %s queue", count, queue->ops->name);
    return PD_OK;
}

/* Transfers for remote files go to the remote VFS's queue, which this one owns. */
pd_status pd_queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count, struct pd_error *err)
{
    for (uint32_t done = 0, same = 0; done < count; done += same) {
        struct pd_vfs *vfs = transfers[done]->file->vfs;
        for (same = 0; done + same < count && transfers[done + same]->file->vfs == vfs;)
            same++;
        const bool is_remote = vfs != queue->vfs;
        if (is_remote && !queue->remote) PD_TRY(pd_queue_open(vfs, NULL, 0, &queue->remote, err));
        PD_TRY(submit_local(is_remote ? queue->remote : queue, transfers + done, same, err));
    }
    return PD_OK;
}

static pd_status reap(struct pd_queue *queue, bool wait, struct pd_transfer **ret_done, uint32_t capacity,
                      uint32_t *ret_count, struct pd_error *err)
{
    PD_CHECK(capacity > 0);
    if (queue->in_flight > 0) {
        int result = reap_some(queue, wait && queue->done_head == NULL);
        if (result) PD_FAIL_ERRNO(err, result, "reaping from the %s queue", queue->ops->name);
    }
    uint32_t count = 0;
    while (count < capacity && queue->done_head) {
        struct pd_transfer *transfer = queue->done_head;
        queue->done_head = transfer->internal.next;
        if (!queue->done_head) queue->done_tail = NULL;
        ret_done[count++] = transfer;
    }
    *ret_count = count;
    return PD_OK;
}

static bool has_any(const struct pd_queue *queue)
{
    return queue->in_flight || queue->done_head;
}

/* With transfers in both queues we cannot sleep on one, as the other may finish first: poll them in turn. */
static pd_status reap_either(struct pd_queue *queue, bool wait, struct pd_transfer **ret_done, uint32_t capacity,
                             uint32_t *ret_count, struct pd_error *err)
{
    struct pd_queue *remote = queue->remote;
    if (!remote || !has_any(remote)) return reap(queue, wait, ret_done, capacity, ret_count, err);
    if (!has_any(queue)) return reap(remote, wait, ret_done, capacity, ret_count, err);
    for (;;) {
        PD_TRY(reap(queue, false, ret_done, capacity, ret_count, err));
        if (!*ret_count) PD_TRY(reap(remote, false, ret_done, capacity, ret_count, err));
        if (*ret_count || !wait) return PD_OK;
        pd_clock_sleep_ns(100000);
    }
}

pd_status pd_queue_reap(struct pd_queue *queue, struct pd_transfer **ret_done, uint32_t capacity, uint32_t *ret_count,
                        struct pd_error *err)
{
    return reap_either(queue, true, ret_done, capacity, ret_count, err);
}

pd_status pd_queue_poll(struct pd_queue *queue, struct pd_transfer **ret_done, uint32_t capacity, uint32_t *ret_count,
                        struct pd_error *err)
{
    return reap_either(queue, false, ret_done, capacity, ret_count, err);
}

pd_status pd_transfer_error(const struct pd_transfer *transfer, struct pd_error *err)
{
    if (transfer->status == PD_OK) return PD_OK;
    const char *what = transfer->is_write ? "write" : "read", *path = transfer->file->path;
    if (transfer->status == PD_CORRUPT)
        PD_FAIL(err, PD_CORRUPT, "read %s: the file ends before the %" PRIu64 " bytes at %" PRIu64, path, transfer->bytes,
                transfer->offset);
    pd_error_set(err, transfer->status, PD_WHERE, transfer->sys_errno, "%s %s: %" PRIu64 " bytes at %" PRIu64, what, path,
                 transfer->bytes, transfer->offset);
    return pd_vfs_explain(transfer->file->vfs, transfer->status, err);
}
