#include "ckpt/io/transfer_ring.h"

static const char user[] = "the ring's user", kernel[] = "the queue";

static void hand_over(struct pd_transfer_slot *slot, enum pd_slot_state state, const char *from, const char *to)
{
    if (from) pd_owner_release(&slot->owner, from);
    if (to) pd_owner_acquire(&slot->owner, to);
    slot->state = state;
}

void pd_transfer_ring_init(struct pd_transfer_ring *ring, struct pd_queue *queue, struct pd_transfer_slot *slots,
                           uint32_t count, void *buffers, uint64_t slot_bytes)
{
    PD_CHECK(count > 0);
    *ring = (struct pd_transfer_ring){.queue = queue, .slots = slots, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = (struct pd_transfer_slot){.number = i};
        if (buffers) slots[i].buffer = (unsigned char *)buffers + i * slot_bytes;
    }
}

struct pd_transfer_slot *pd_transfer_ring_take(struct pd_transfer_ring *ring)
{
    for (uint32_t i = 0; i < ring->count; i++) {
        struct pd_transfer_slot *slot = &ring->slots[(ring->next + i) % ring->count];
        if (slot->state != PD_SLOT_FREE) continue;
        hand_over(slot, PD_SLOT_HELD, NULL, user);
        ring->next = (slot->number + 1) % ring->count;
        return slot;
    }
    return NULL;
}

pd_status pd_transfer_ring_take_written(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot,
                                        struct pd_error *err)
{
    for (;;) {
        struct pd_transfer_slot *slot = pd_transfer_ring_take(ring);
        if (slot) {
            *ret_slot = slot;
            return PD_OK;
        }
        PD_TRY(pd_transfer_ring_next(ring, &slot, err));
        PD_CHECK(slot && slot->transfer.is_write);
        pd_transfer_ring_release(ring, slot);
        PD_TRY(pd_transfer_error(&slot->transfer, err));
    }
}

pd_status pd_transfer_ring_submit(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot,
                                  const struct pd_transfer *transfer, struct pd_error *err)
{
    PD_CHECK(slot->state == PD_SLOT_HELD);
    slot->transfer = *transfer;
    slot->transfer.user = slot;
    if (!slot->transfer.data) slot->transfer.data = slot->buffer;
    hand_over(slot, PD_SLOT_IN_FLIGHT, user, kernel);
    struct pd_transfer *sent = &slot->transfer;
    return pd_queue_submit(ring->queue, &sent, 1, err);
}

/* *ret_slot NULL: nothing is in flight on the queue. */
static pd_status reap(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot, struct pd_error *err)
{
    struct pd_transfer *done = NULL;
    uint32_t count = 0;
    PD_TRY(pd_queue_reap(ring->queue, &done, 1, &count, err));
    *ret_slot = count ? done->user : NULL;
    if (count) (*ret_slot)->state = PD_SLOT_DONE;
    return PD_OK;
}

pd_status pd_transfer_ring_next(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot, struct pd_error *err)
{
    struct pd_transfer_slot *slot = NULL;
    for (uint32_t i = 0; !slot && i < ring->count; i++)
        if (ring->slots[i].state == PD_SLOT_DONE) slot = &ring->slots[i];
    if (!slot) PD_TRY(reap(ring, &slot, err));
    if (slot) hand_over(slot, PD_SLOT_HELD, kernel, user);
    *ret_slot = slot;
    return PD_OK;
}

pd_status pd_transfer_ring_wait(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot, struct pd_error *err)
{
    while (slot->state != PD_SLOT_DONE) {
        struct pd_transfer_slot *came = NULL;
        PD_TRY(reap(ring, &came, err));
        PD_CHECK(came);
    }
    hand_over(slot, PD_SLOT_HELD, kernel, user);
    return PD_OK;
}

void pd_transfer_ring_release(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot)
{
    PD_CHECK(slot == &ring->slots[slot->number] && slot->state == PD_SLOT_HELD);
    hand_over(slot, PD_SLOT_FREE, user, NULL);
}

pd_status pd_transfer_ring_drain(struct pd_transfer_ring *ring, pd_status st, struct pd_error *err)
{
    for (struct pd_transfer_slot *came = NULL;;) {
        const pd_status reaped = reap(ring, &came, NULL);
        PD_CHECK(reaped == PD_OK);
        if (!came) break;
    }
    for (uint32_t i = 0; i < ring->count; i++) {
        struct pd_transfer_slot *slot = &ring->slots[i];
        if (slot->state == PD_SLOT_DONE && !st) st = pd_transfer_error(&slot->transfer, err);
        if (slot->state != PD_SLOT_FREE) hand_over(slot, PD_SLOT_FREE, slot->state == PD_SLOT_HELD ? user : kernel, NULL);
    }
    return st;
}
