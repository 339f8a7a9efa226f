/* A ring of slots over one queue. Each slot is one transfer, and one buffer where the user has buffers.
 *
 *            take            submit                 next, wait            release
 *    free ──────────▶ held ──────────▶ in flight ──────────────▶ held ──────────────▶ free
 *                      ▲                    │ (came back while another one was waited for: done, until next or wait)
 *                      └──── submit again ──┘
 *
 * The hazard: the kernel may read or write a buffer in flight until its completion is reaped. That also holds when
 * submitting fails, since the transfer may have been handed over before the failure.
 *
 *   invariants  1. a slot counts as in flight before the queue sees its transfer, and is not handed out until it is back
 *               2. after drain nothing is in flight, whatever failed: only then may slots and buffers go out of scope
 *   threads     one: the queue's
 */
#pragma once

#include "ckpt/base/owner.h"
#include "ckpt/io/vfs.h"

enum pd_slot_state { PD_SLOT_FREE, PD_SLOT_HELD, PD_SLOT_IN_FLIGHT, PD_SLOT_DONE };

struct pd_transfer_slot {
    struct pd_transfer transfer;
    unsigned char *buffer; /* or NULL; who has it: the user from take to submit and from next to release, else the kernel */
    struct pd_owner owner; /* of slot and buffer */
    enum pd_slot_state state;
    uint32_t number; /* of the slot in its ring */
};

struct pd_transfer_ring {
    struct pd_queue *queue;         /* borrowed; nothing else may be in flight on it while the ring is in use */
    struct pd_transfer_slot *slots; /* (count), the user's */
    uint32_t count, next;           /* next: the slot at which take begins to look */
};

/* Slot i gets the bytes of `buffers` from i * slot_bytes on; NULL: slots have no buffers. */
void pd_transfer_ring_init(struct pd_transfer_ring *ring, struct pd_queue *queue, struct pd_transfer_slot *slots,
                           uint32_t count, void *buffers, uint64_t slot_bytes);
/* A free slot, or NULL. Slots that are released in the order in which they were taken come in the order of their numbers. */
struct pd_transfer_slot *pd_transfer_ring_take(struct pd_transfer_ring *ring);
/* For a ring that only writes: waits for a write to end where no slot is free. A write that failed is the result. */
PD_MUST_USE pd_status pd_transfer_ring_take_written(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot,
                                                    struct pd_error *err);
/* Sends a held slot's transfer: file, offset, bytes, is_write, what; and data, where that is not the slot's buffer.
 *   errors  of the queue. The slot is in flight all the same: drain takes it back. */
PD_MUST_USE pd_status pd_transfer_ring_submit(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot,
                                              const struct pd_transfer *transfer, struct pd_error *err);
/* Waits for any slot that is in flight and holds it; NULL: there is none. How its transfer went: pd_transfer_error. */
PD_MUST_USE pd_status pd_transfer_ring_next(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot,
                                            struct pd_error *err);
/* Waits for this slot, which is in flight, and holds it. */
PD_MUST_USE pd_status pd_transfer_ring_wait(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot,
                                            struct pd_error *err);
void pd_transfer_ring_release(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot);
/* Waits until nothing is in flight and frees all slots. `st` is how the work with the ring ended: where that is PD_OK, the
 * result is that of the first transfer nobody has looked at. A queue that cannot be reaped ends the process, since the
 * kernel would go on using the buffers. */
PD_MUST_USE pd_status pd_transfer_ring_drain(struct pd_transfer_ring *ring, pd_status st, struct pd_error *err);
