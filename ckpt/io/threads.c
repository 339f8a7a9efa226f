/* One job list for all queues of a VFS. Each queue has its own list of finished transfers, so that its owner sleeps and
 * wakes alone. Workers call the VFS's read and write slots, so this engine works over any table. */
#include "ckpt/io/threads.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/thread.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One thread at a time touches a transfer and its buffer: the submitter until it is in the first list, then the worker
 * that took it, then, once it is in the second list, the queue's owner. */
struct pd_io_threads {
    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t wake;
    struct pd_transfer *head, *tail; /* submitted, not taken; for all queues */
    bool stopping;
    const struct pd_io_join *join; /* constant */
    uint32_t wanted, started;
    pthread_t *workers;
};

struct thread_queue {
    struct pd_io_threads *threads;
    struct pd_transfer *held, *held_tail; /* of the owner alone: submitted, not yet in the engine's list */
    uint64_t held_bytes, moving_bytes;    /* moving: in the engine's list, or taken, or not reaped */
    pthread_mutex_t mutex;                /* guards the list */
    pthread_cond_t finished;
    struct pd_transfer *head, *tail; /* finished, not reaped */
};

static void list_append(struct pd_transfer **head, struct pd_transfer **tail, struct pd_transfer *transfer)
{
    transfer->internal.next = NULL;
    if (*tail)
        (*tail)->internal.next = transfer;
    else
        *head = transfer;
    *tail = transfer;
}

static struct pd_transfer *list_take(struct pd_transfer **head, struct pd_transfer **tail)
{
    struct pd_transfer *transfer = *head;
    if (!transfer) return NULL;
    *head = transfer->internal.next;
    if (!*head) *tail = NULL;
    return transfer;
}

/* A chain that contains a read ends at a multiple of bytes_max at the latest: where objects are stored in parts of so many
 * bytes, a request that touches two of them costs the server twice the work. */
static uint64_t chain_limit(const struct pd_io_join *join, const struct pd_transfer *read)
{
    return pd_round_up(read->offset + read->bytes, join->bytes_max);
}

/* Moves reads that continue where `chain` ends, from any queue, from the list to the end of the chain. A read may begin
 * before that end, since neighbours share a page. The shared bytes are copied from the read that reached farthest so far,
 * and internal.moved counts them. */
static void take_adjacent(struct pd_io_threads *threads, struct pd_transfer *chain)
{
    struct pd_transfer *last = chain, *farthest = chain, *before = NULL, *t = threads->head;
    uint64_t end = chain->offset + chain->bytes;
    const uint64_t limit = chain_limit(threads->join, chain);
    for (uint32_t count = 1; t && count < PD_IO_JOIN_PIECES_MAX;) {
        const uint64_t t_end = t->offset + t->bytes, both_end = t_end > end ? t_end : end;
        const bool goes_on =
            !t->is_write && t->file == chain->file && t->offset >= farthest->offset && t->offset <= end && both_end <= limit;
        if (!goes_on) {
            before = t;
            t = t->internal.next;
            continue;
        }
        *(before ? &before->internal.next : &threads->head) = t->internal.next;
        if (threads->tail == t) threads->tail = before;
        last = last->internal.next = t;
        t->internal.next = NULL;
        t->internal.moved = t_end > end ? end - t->offset : t->bytes;
        if (t_end > end) farthest = t;
        end = both_end;
        count++;
        before = NULL;
        t = threads->head; /* its successor may have been submitted before it */
    }
}

static int read_chain(const struct pd_io_threads *threads, struct pd_transfer *chain)
{
    struct iovec pieces[PD_IO_JOIN_PIECES_MAX];
    const struct pd_transfer *farthest = chain;
    uint32_t count = 0;
    for (const struct pd_transfer *t = chain; t; t = t->internal.next) {
        const uint64_t shared = t == chain ? 0 : t->internal.moved;
        if (shared < t->bytes) pieces[count++] = (struct iovec){(char *)t->data + shared, t->bytes - shared};
    }
    const int result = threads->join->read(chain->file, chain->offset, pieces, count);
    for (const struct pd_transfer *t = chain->internal.next; t && !result; t = t->internal.next) {
        memcpy(t->data, (const char *)farthest->data + (t->offset - farthest->offset), t->internal.moved);
        if (t->internal.moved < t->bytes) farthest = t;
    }
    return result;
}

static void finish_transfer(struct pd_transfer *transfer, int result)
{
    struct thread_queue *queue = transfer->internal.queue->context;
    pthread_mutex_lock(&queue->mutex);
    transfer->sys_errno = result; /* the owner's thread reads it in pd_queue_finish */
    list_append(&queue->head, &queue->tail, transfer);
    pthread_cond_signal(&queue->finished);
    pthread_mutex_unlock(&queue->mutex);
}

static void run_chain(const struct pd_io_threads *threads, struct pd_transfer *chain)
{
    int result = chain->internal.next ? read_chain(threads, chain) : PD_MOVE_END_OF_FILE;
    const bool is_alone = result == PD_MOVE_END_OF_FILE; /* of several: the end is in one of them */
    for (struct pd_transfer *t = chain, *next; t; t = next) {
        uint64_t moved = 0;
        next = t->internal.next;
        if (is_alone) result = pd_file_move(t->file, t->is_write, t->offset, t->data, t->bytes, &moved);
        finish_transfer(t, result);
    }
}

static void *worker_main(void *argument)
{
    struct pd_io_threads *threads = argument;
    pthread_mutex_lock(&threads->mutex);
    for (;;) {
        struct pd_transfer *transfer = list_take(&threads->head, &threads->tail);
        if (transfer) {
            transfer->internal.next = NULL;
            if (threads->join && !transfer->is_write) take_adjacent(threads, transfer);
            pthread_mutex_unlock(&threads->mutex);
            run_chain(threads, transfer);
            pthread_mutex_lock(&threads->mutex);
        } else if (threads->stopping) {
            break;
        } else {
            pthread_cond_wait(&threads->wake, &threads->mutex);
        }
    }
    pthread_mutex_unlock(&threads->mutex);
    return NULL;
}

pd_status pd_io_threads_new(uint32_t thread_count, const struct pd_io_join *join, struct pd_io_threads **ret_threads,
                            struct pd_error *err)
{
    if (thread_count == 0 || thread_count > 256)
        PD_FAIL(err, PD_INVALID, "%" PRIu32 " I/O threads are outside 1..256", thread_count);
    struct pd_io_threads *threads = calloc(1, sizeof *threads);
    pthread_t *workers = calloc(thread_count, sizeof *workers);
    if (!threads || !workers) {
        free(threads);
        free(workers);
        PD_FAIL_ERRNO(err, ENOMEM, "starting %" PRIu32 " I/O threads", thread_count);
    }
    threads->wanted = thread_count;
    threads->join = join;
    threads->workers = workers;
    pthread_mutex_init(&threads->mutex, NULL);
    pthread_cond_init(&threads->wake, NULL);
    *ret_threads = threads;
    return PD_OK;
}

void pd_io_threads_free(struct pd_io_threads *threads)
{
    if (!threads) return;
    pthread_mutex_lock(&threads->mutex);
    threads->stopping = true;
    pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->mutex);
    for (uint32_t i = 0; i < threads->started; i++)
        pthread_join(threads->workers[i], NULL);
    pthread_cond_destroy(&threads->wake);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->workers);
    free(threads);
}

/* One worker is enough: only failing to start the first is an error. */
static int start_workers(struct pd_io_threads *threads)
{
    int result = 0;
    pthread_mutex_lock(&threads->mutex);
    while (threads->started < threads->wanted && !result) {
        result = pd_thread_start(&threads->workers[threads->started], NULL, worker_main, threads);
        if (!result) threads->started++;
    }
    uint32_t started = threads->started;
    pthread_mutex_unlock(&threads->mutex);
    return started ? 0 : result;
}

/* The last chain of the held reads, if later reads may complete it and four full requests are moving meanwhile; else NULL. */
static const struct pd_transfer *chain_to_keep(const struct thread_queue *mine)
{
    const struct pd_io_join *join = mine->threads->join;
    const struct pd_transfer *first = mine->held;
    uint64_t end = 0, limit = 0, bytes = 0;
    for (const struct pd_transfer *t = first; t; t = t->internal.next) {
        const uint64_t t_end = t->offset + t->bytes;
        if (t->file != first->file || t->offset > end || t_end > limit) {
            first = t;
            limit = chain_limit(join, t);
            end = bytes = 0;
        }
        end = pd_max_u64(end, t_end);
        bytes += t->bytes;
    }
    return end < limit && mine->moving_bytes + mine->held_bytes - bytes >= 4 * join->bytes_max ? first : NULL;
}

static void release_held(struct thread_queue *mine)
{
    struct pd_io_threads *threads = mine->threads;
    const struct pd_transfer *kept = threads->join ? chain_to_keep(mine) : NULL;
    pthread_mutex_lock(&threads->mutex);
    while (mine->held != kept) {
        struct pd_transfer *transfer = list_take(&mine->held, &mine->held_tail);
        mine->held_bytes -= transfer->bytes;
        mine->moving_bytes += transfer->bytes;
        list_append(&threads->head, &threads->tail, transfer);
        pthread_cond_signal(&threads->wake);
    }
    pthread_mutex_unlock(&threads->mutex);
}

static bool lies_before(const struct pd_transfer *a, const struct pd_transfer *b)
{
    return a->file == b->file ? a->offset <= b->offset : (uintptr_t)a->file < (uintptr_t)b->file;
}

/* Inserts in order of file and offset, which is how take_adjacent finds the next read. */
static void hold(struct thread_queue *mine, struct pd_transfer *t)
{
    struct pd_transfer *before = mine->held_tail && lies_before(mine->held_tail, t) ? mine->held_tail : NULL;
    struct pd_transfer **link = before ? &before->internal.next : &mine->held;
    while (*link && lies_before(*link, t)) {
        before = *link;
        link = &before->internal.next;
    }
    t->internal.next = *link;
    *link = t;
    if (!t->internal.next) mine->held_tail = t;
}

/* If reads are joined, hold them back: idle workers would take each one alone. Release them when the owner waits, or at four
 * full requests. */
static int queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count)
{
    struct thread_queue *mine = queue->context;
    const struct pd_io_join *join = mine->threads->join;
    for (uint32_t i = 0; i < count; i++) {
        if (join)
            hold(mine, transfers[i]);
        else
            list_append(&mine->held, &mine->held_tail, transfers[i]);
        mine->held_bytes += transfers[i]->bytes;
    }
    if (!join || mine->held_bytes >= 4 * join->bytes_max) release_held(mine);
    return 0;
}

static int queue_reap(struct pd_queue *queue, bool wait)
{
    struct thread_queue *mine = queue->context;
    if (mine->held) release_held(mine);
    pthread_mutex_lock(&mine->mutex);
    while (wait && !mine->head)
        pthread_cond_wait(&mine->finished, &mine->mutex);
    for (struct pd_transfer *transfer; (transfer = list_take(&mine->head, &mine->tail));) {
        mine->moving_bytes -= transfer->bytes;
        pd_queue_finish(queue, transfer, transfer->sys_errno);
    }
    pthread_mutex_unlock(&mine->mutex);
    return 0;
}

static void queue_close(struct pd_queue *queue)
{
    struct thread_queue *mine = queue->context;
    pthread_cond_destroy(&mine->finished);
    pthread_mutex_destroy(&mine->mutex);
    free(mine);
}

static const struct pd_queue_ops queue_ops = {
    .name = "threads",
    .submit = queue_submit,
    .reap = queue_reap,
    .close = queue_close,
};

int pd_io_threads_queue_open(struct pd_io_threads *threads, struct pd_queue *queue)
{
    int result = start_workers(threads);
    if (result) return result;
    struct thread_queue *mine = calloc(1, sizeof *mine);
    if (!mine) return ENOMEM;
    mine->threads = threads;
    pthread_mutex_init(&mine->mutex, NULL);
    pthread_cond_init(&mine->finished, NULL);
    queue->context = mine;
    queue->ops = &queue_ops;
    return 0;
}
