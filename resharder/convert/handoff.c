#include "resharder/convert/handoff.h"

#include "ckpt/base/thread.h"

static void *handoff_run(void *context)
{
    struct handoff *h = context;
    struct pd_reader *reader = NULL;
    struct pd_error error = {0};
    pd_status st = pd_reader_open(h->vfs, h->catalog, h->buffers, h->buffer_bytes, &reader, &error);
    if (!st) st = h->read(h->context, reader, &error);
    if (reader) h->bytes_read += pd_reader_bytes(reader);
    pd_reader_close(reader);
    pthread_mutex_lock(&h->mutex);
    h->status = st;
    h->error = error;
    h->is_over = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}

pd_status handoff_start(struct handoff *h, struct pd_error *err)
{
    h->filled = h->taken = 0;
    h->holds_slot = h->is_over = h->leaves = false;
    (void)pthread_mutex_init(&h->mutex, NULL);
    (void)pthread_cond_init(&h->changed, NULL);
    const int error = pd_thread_start(&h->thread, NULL, handoff_run, h);
    h->runs = !error;
    if (h->runs) return PD_OK;
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->mutex);
    PD_FAIL_THREAD(err, error, "to read what is converted");
}

void handoff_stop(struct handoff *h)
{
    if (!h->runs) return;
    pthread_mutex_lock(&h->mutex);
    h->leaves = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
    (void)pthread_join(h->thread, NULL);
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->mutex);
    h->runs = false;
}

bool handoff_free(struct handoff *h, uint32_t *ret_slot)
{
    pthread_mutex_lock(&h->mutex);
    while (h->filled - h->taken == h->slots && !h->leaves)
        pthread_cond_wait(&h->changed, &h->mutex);
    const bool leaves = h->leaves;
    *ret_slot = (uint32_t)(h->filled % h->slots);
    pthread_mutex_unlock(&h->mutex);
    return !leaves;
}

void handoff_fill(struct handoff *h)
{
    pthread_mutex_lock(&h->mutex);
    h->filled++;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
}

pd_status handoff_next(struct handoff *h, uint32_t *ret_slot, bool *ret_has_one, struct pd_error *err)
{
    pthread_mutex_lock(&h->mutex);
    if (h->holds_slot) {
        h->taken++;
        pthread_cond_broadcast(&h->changed);
    }
    while (h->filled == h->taken && !h->is_over)
        pthread_cond_wait(&h->changed, &h->mutex);
    *ret_has_one = h->holds_slot = h->filled > h->taken;
    *ret_slot = (uint32_t)(h->taken % h->slots);
    const pd_status st = h->holds_slot ? PD_OK : pd_error_pass(err, h->status, &h->error);
    pthread_mutex_unlock(&h->mutex);
    return st;
}
