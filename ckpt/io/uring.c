/* io_uring for bulk transfers; plain system calls do everything else (posix.c).
 *
 * Fallbacks, in order: registered buffers -> (ENOMEM under a small memlock limit; EOPNOTSUPP of kernels before 6.5 for
 * memory mapped from a file, such as CUDA's pinned memory) unregistered buffers -> (EINVAL of old kernels) no set-up
 * flags -> (EPERM, ENOSYS, EACCES) a thread pool. The VFS tests a small ring when it is created. If the buffers or the
 * ring of one queue are refused, only that queue falls back, and the description says so.
 *
 *   invariants  1. every ring first carries a NOP: a kernel may let a process set a ring up and not let it enter it
 *               2. one thread at a time uses a queue, and it goes to another thread only while nothing is in flight: the
 *                  kernel cancels the requests of a thread that ends
 *               3. every transfer given to a ring comes back exactly once: complete, short and continued, or failed
 */
#include "ckpt/io/uring.h"
#include "ckpt/base/log.h"
#include "ckpt/io/threads.h"

#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES_MAX (UINT64_C(1) << 30) /* most bytes of one registered buffer */
#define BUFFERS_MAX 1024u
#define CALL_BYTES_MAX (UINT64_C(1) << 30)

struct pd_uring {
    pthread_mutex_t mutex;         /* guards `threads` */
    struct pd_io_threads *threads; /* for queues without a ring */
    uint32_t thread_count;         /* do not use rings; 0: use them */
    unsigned refusals;
    unsigned flags;               /* set-up flags that this kernel accepts */
    int refused;                  /* errno that rules out rings; 0: none */
    bool is_old;                  /* the kernel does not know the flags */
    _Atomic bool is_unregistered; /* some queue has unregistered buffers, as the description says */
};

struct uring_queue {
    struct pd_uring *vfs;
    struct io_uring ring;
    char *buffers;
    uint64_t buffer_bytes; /* only if registered */
    uint32_t unsubmitted;
};

/* ---- the ladder ---- */

static const unsigned flag_rungs[] = {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};

static int ring_init(const struct pd_uring *vfs, unsigned depth, unsigned flags, struct io_uring *ring)
{
    if (vfs->refusals & PD_URING_REFUSE_RING) return EPERM;
    if (vfs->refusals & PD_URING_REFUSE_MEMORY) return ENOMEM;
    if ((vfs->refusals & PD_URING_REFUSE_FLAGS) && flags) return EINVAL;
    return -io_uring_queue_init(depth, ring, flags);
}

/* Sends a NOP through the ring. Returns 0, or the errno that rules it out. */
static int ring_try(struct io_uring *ring)
{
    struct __kernel_timespec limit = {.tv_sec = 10};
    struct io_uring_cqe *cqe = NULL;
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (!sqe) return EIO;
    io_uring_prep_nop(sqe);
    int result;
    do {
        result = io_uring_submit_and_wait_timeout(ring, &cqe, 1, &limit, NULL);
    } while (result == -EINTR);
    if (result < 0) return -result;
    if (!cqe) return ETIMEDOUT;
    result = -cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return result;
}

static int register_buffers(const struct pd_uring *vfs, struct io_uring *ring, char *data, uint64_t bytes)
{
    if (vfs->refusals & PD_URING_REFUSE_BUFFERS) return ENOMEM;
    struct iovec vectors[BUFFERS_MAX];
    unsigned count = 0;
    for (uint64_t at = 0; at < bytes; at += BUFFER_BYTES_MAX) {
        if (count == BUFFERS_MAX) return E2BIG;
        uint64_t left = bytes - at;
        vectors[count++] = (struct iovec){data + at, left < BUFFER_BYTES_MAX ? left : BUFFER_BYTES_MAX};
    }
    return count ? -io_uring_register_buffers(ring, vectors, count) : 0;
}

/* Finds the flags this kernel accepts; returns 0, or the errno that rules out rings. */
static int find_rung(struct pd_uring *vfs)
{
    int result = 0;
    for (size_t i = 0; i < sizeof flag_rungs / sizeof *flag_rungs; i++) {
        struct io_uring ring;
        result = ring_init(vfs, 8, flag_rungs[i], &ring);
        if (!result) {
            result = ring_try(&ring);
            io_uring_queue_exit(&ring);
        }
        vfs->flags = flag_rungs[i];
        if (result != EINVAL) return result;
        vfs->is_old = true;
    }
    return result;
}

/* ---- rings of queues ---- */

/* Returns advice on how to make the kernel register buffers. */
static const char *remedy(int reason)
{
    return reason == EOPNOTSUPP ? "from Linux 6.5 on they may lie in CUDA's memory" : "raise the memlock limit";
}

/* Returns advice on how to make the kernel allow rings. */
static const char *ring_remedy(int reason)
{
    switch (reason) {
    case ENOMEM:
        return "raise the memlock limit (ulimit -l)";
    case EMFILE:
        return "raise the limit of open files (ulimit -n)";
    default:
        return "set kernel.io_uring_disabled=0 and allow io_uring_setup and io_uring_enter in the container's seccomp "
               "profile";
    }
}

/* Warns once a process, since ranks may be threads. */
static void log_unregistered(struct pd_vfs *vfs, uint64_t bytes, int reason)
{
    static _Atomic bool said;
    struct pd_uring *mine = vfs->context;
    char text[64];
    const char *why = strerror_r(reason, text, sizeof text);
    if (atomic_exchange(&mine->is_unregistered, true)) return;
    pd_vfs_set_description(vfs, "io_uring, unregistered buffers (%" PRIu64 " MiB: %s; %s)", bytes >> 20, why,
                           remedy(reason));
    if (!atomic_exchange(&said, true))
        pd_log_warn("io",
                    "io_uring cannot register our buffers (%s): transfers work but take a little more CPU time; to change "
                    "that: %s%s",
                    why, remedy(reason), reason == EOPNOTSUPP ? "" : " (ulimit -l)");
}

static int ring_make(struct pd_vfs *vfs, struct uring_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    struct pd_uring *mine = vfs->context;
    if (mine->refusals & PD_URING_REFUSE_LATER) return EMFILE;
    int result = ring_init(mine, vfs->queue_depth, mine->flags, &queue->ring);
    if (result) return result;
    result = ring_try(&queue->ring);
    if (result) {
        io_uring_queue_exit(&queue->ring);
        return result;
    }
    if (buffer_bytes == 0) return 0;
    const bool is_mapped = mine->refusals & PD_URING_REFUSE_MAPPED;
    result = is_mapped ? EOPNOTSUPP : register_buffers(mine, &queue->ring, buffers, buffer_bytes);
    queue->buffers = buffers;
    queue->buffer_bytes = result ? 0 : buffer_bytes;
    if (result) log_unregistered(vfs, buffer_bytes, result);
    return 0;
}

/* ---- transfers ---- */

/* Index of the registered buffer that contains all the bytes, or -1. */
static int buffer_find(const struct uring_queue *queue, const char *data, uint64_t bytes)
{
    if (data < queue->buffers || queue->buffer_bytes == 0) return -1;
    uint64_t at = (uint64_t)(data - queue->buffers);
    if (at > queue->buffer_bytes || bytes > queue->buffer_bytes - at) return -1;
    uint64_t first = at / BUFFER_BYTES_MAX, last = (at + bytes - 1) / BUFFER_BYTES_MAX;
    return first == last ? (int)first : -1;
}

/* The ring has `depth` entries and at most `depth` transfers are in flight, so an entry is always free once the kernel
 * has taken the earlier ones. */
static int enqueue(struct uring_queue *queue, struct pd_transfer *transfer)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);
    if (!sqe) {
        int taken = io_uring_submit(&queue->ring);
        if (taken < 0) return -taken;
        queue->unsubmitted -= (uint32_t)taken;
        sqe = io_uring_get_sqe(&queue->ring);
    }
    if (!sqe) return EBUSY;
    uint64_t moved = transfer->internal.moved, left = transfer->bytes - moved, offset = transfer->offset + moved;
    char *data = (char *)transfer->data + moved;
    unsigned bytes = (unsigned)(left < CALL_BYTES_MAX ? left : CALL_BYTES_MAX);
    int fd = transfer->file->fd, buffer = buffer_find(queue, data, bytes);
    if (transfer->is_write && buffer >= 0)
        io_uring_prep_write_fixed(sqe, fd, data, bytes, offset, buffer);
    else if (transfer->is_write)
        io_uring_prep_write(sqe, fd, data, bytes, offset);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, fd, data, bytes, offset, buffer);
    else
        io_uring_prep_read(sqe, fd, data, bytes, offset);
    transfer->internal.was_direct = atomic_load(&transfer->file->direct);
    io_uring_sqe_set_data(sqe, transfer);
    queue->unsubmitted++;
    return 0;
}

/* On EAGAIN and EBUSY completions must be reaped first; the prepared entries are submitted with the next one. */
static int flush(struct uring_queue *queue)
{
    while (queue->unsubmitted) {
        int taken = io_uring_submit(&queue->ring);
        if (taken == -EINTR) continue;
        if (taken == -EAGAIN || taken == -EBUSY || taken == 0) return 0;
        if (taken < 0) return -taken;
        queue->unsubmitted -= (uint32_t)taken;
    }
    return 0;
}

/* A transfer that the ring does not accept comes back as failed, so that everything submitted is reaped. */
static void enqueue_or_finish(struct pd_queue *queue, struct pd_transfer *transfer)
{
    int result = enqueue(queue->context, transfer);
    if (result) pd_queue_finish(queue, transfer, result);
}

static int queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        enqueue_or_finish(queue, transfers[i]);
    return flush(queue->context);
}

/* Handles one completion: finishes the transfer, or continues a short one. */
static void complete(struct pd_queue *queue, struct pd_transfer *transfer, int result)
{
    const struct uring_queue *mine = queue->context;
    if (transfer->internal.was_direct && mine->vfs->refusals & PD_URING_REFUSE_DIRECT) result = -EINVAL;
    if (result < 0) {
        bool again = result == -EINTR || result == -EAGAIN ||
                     pd_file_fall_back(transfer->file, transfer->internal.was_direct, -result);
        if (again)
            enqueue_or_finish(queue, transfer);
        else
            pd_queue_finish(queue, transfer, -result);
        return;
    }
    uint64_t left = transfer->bytes - transfer->internal.moved;
    uint64_t progress = pd_file_progress(transfer->file, (uint64_t)result, left);
    transfer->internal.moved += progress;
    if (transfer->internal.moved == transfer->bytes)
        pd_queue_finish(queue, transfer, 0);
    else if (progress == 0)
        pd_queue_finish(queue, transfer, transfer->is_write ? EIO : PD_MOVE_END_OF_FILE);
    else
        enqueue_or_finish(queue, transfer);
}

static int reap_ready(struct pd_queue *queue)
{
    struct uring_queue *mine = queue->context;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&mine->ring, &cqe) == 0 && cqe) {
        struct pd_transfer *transfer = io_uring_cqe_get_data(cqe);
        int moved = cqe->res;
        io_uring_cqe_seen(&mine->ring, cqe);
        complete(queue, transfer, moved);
    }
    return flush(mine);
}

static int queue_reap(struct pd_queue *queue, bool wait)
{
    struct uring_queue *mine = queue->context;
    uint32_t before = queue->in_flight;
    int result = reap_ready(queue);
    while (!result && wait && queue->in_flight == before) {
        int taken = io_uring_submit_and_wait(&mine->ring, 1);
        if (taken >= 0) mine->unsubmitted -= (uint32_t)taken;
        if (taken < 0 && taken != -EINTR && taken != -EAGAIN && taken != -EBUSY) return -taken;
        result = reap_ready(queue);
    }
    return result;
}

static void queue_close(struct pd_queue *queue)
{
    struct uring_queue *mine = queue->context;
    io_uring_queue_exit(&mine->ring);
    free(mine);
}

static const struct pd_queue_ops queue_ops = {
    .name = "io_uring",
    .submit = queue_submit,
    .reap = queue_reap,
    .close = queue_close,
};

static void describe_threads(struct pd_vfs *vfs, int reason)
{
    char text[64];
    pd_vfs_set_description(vfs, "threads (io_uring: %s; %s)", strerror_r(reason, text, sizeof text), ring_remedy(reason));
}

/* If a ring is refused now (descriptors, memory), the queue becomes slower, but the save does not fail. */
static int fall_to_threads(struct pd_uring *uring, struct pd_queue *queue, int reason)
{
    pthread_mutex_lock(&uring->mutex);
    int result = 0;
    if (!uring->threads) {
        result = pd_io_threads_new(PD_IO_THREADS_DEFAULT, NULL, &uring->threads, NULL) ? ENOMEM : 0;
        describe_threads(queue->vfs, reason);
    }
    pthread_mutex_unlock(&uring->mutex);
    return result ? result : pd_io_threads_queue_open(uring->threads, queue);
}

int pd_uring_queue_open(struct pd_uring *uring, struct pd_queue *queue, void *buffers, uint64_t buffer_bytes)
{
    if (uring->refused || uring->thread_count) return fall_to_threads(uring, queue, uring->refused);
    struct uring_queue *mine = calloc(1, sizeof *mine);
    if (!mine) return ENOMEM;
    mine->vfs = uring;
    int result = ring_make(queue->vfs, mine, buffers, buffer_bytes);
    if (result) {
        free(mine);
        return fall_to_threads(uring, queue, result);
    }
    queue->context = mine;
    queue->ops = &queue_ops;
    return 0;
}

/* ---- all queues of a VFS ---- */

void pd_uring_free(struct pd_uring *uring)
{
    pd_io_threads_free(uring->threads);
    pthread_mutex_destroy(&uring->mutex);
    free(uring);
}

pd_status pd_uring_new(uint32_t thread_count, unsigned refusals, struct pd_uring **ret_uring, struct pd_error *err)
{
    struct pd_uring *uring = calloc(1, sizeof *uring);
    if (!uring) PD_FAIL_ERRNO(err, ENOMEM, "opening the disk");
    uring->thread_count = thread_count;
    uring->refusals = refusals;
    pthread_mutex_init(&uring->mutex, NULL);
    if (!thread_count) uring->refused = find_rung(uring);
    pd_status st = thread_count ? pd_io_threads_new(thread_count, NULL, &uring->threads, err) : PD_OK;
    if (st)
        pd_uring_free(uring);
    else
        *ret_uring = uring;
    return st;
}

void pd_uring_describe(const struct pd_uring *uring, struct pd_vfs *vfs)
{
    static _Atomic bool said; /* once a process, since every rank of a test opens VFSs */
    char text[64];
    if (uring->thread_count)
        pd_vfs_set_description(vfs, "threads (%" PRIu32 ")", uring->thread_count);
    else if (!uring->refused)
        pd_vfs_set_description(vfs, "io_uring%s", uring->is_old ? ", no set-up flags (kernel before 5.19)" : "");
    else
        describe_threads(vfs, uring->refused);
    if (uring->refused && !atomic_exchange(&said, true))
        pd_log_warn("io", "io_uring is refused here (%s): threads move the data; to change that, %s",
                    strerror_r(uring->refused, text, sizeof text), ring_remedy(uring->refused));
}
