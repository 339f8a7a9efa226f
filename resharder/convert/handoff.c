#include "resharder/convert/handoff.h"

void handoff_init(struct handoff *h, uint32_t slots)
{
    *h = (struct handoff){.slots = slots};
    (void)pthread_mutex_init(&h->mutex, NULL);
    (void)pthread_cond_init(&h->changed, NULL);
}

void handoff_deinit(struct handoff *h)
{
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->mutex);
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

void handoff_over(struct handoff *h, pd_status status, const struct pd_error *error)
{
    pthread_mutex_lock(&h->mutex);
    h->status = status;
    h->error = *error;
    h->is_over = true;
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

void handoff_leave(struct handoff *h)
{
    pthread_mutex_lock(&h->mutex);
    h->leaves = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
}
