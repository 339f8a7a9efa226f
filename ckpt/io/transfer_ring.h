/* A ring of slots over one queue. Each slot is one transfer, with one buffer if the user has buffers.
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
    unsigned char *buffer; /* or NULL; owner: the user from take to submit and from next to release, else the kernel */
    struct pd_owner owner; /* of slot and buffer */
    enum pd_slot_state state;
    uint32_t number; /* of the slot in its ring */
};

struct pd_transfer_ring {
    struct pd_queue *queue;         /* borrowed; nothing else may be in flight on it while the ring is in use */
    struct pd_transfer_slot *slots; /* (count), the user's */
    uint32_t count, next;           /* next: slot where take starts to look */
};

/* Slot i gets bytes [i * slot_bytes, (i + 1) * slot_bytes) of `buffers`; NULL: slots have no buffers. */
void pd_transfer_ring_init(struct pd_transfer_ring *ring, struct pd_queue *queue, struct pd_transfer_slot *slots,
                           uint32_t count, void *buffers, uint64_t slot_bytes);
/* Returns a free slot, or NULL. If slots are released in the order they were taken, their numbers come in order too. */
struct pd_transfer_slot *pd_transfer_ring_take(struct pd_transfer_ring *ring);
/* For a write-only ring: if no slot is free, waits for a write to end. Returns the error of a failed write. */
PD_MUST_USE pd_status pd_transfer_ring_take_written(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot,
                                                    struct pd_error *err);
/* Submits a held slot's transfer: file, offset, bytes, is_write, what; and data, unless it is the slot's buffer.
 *   errors  of the queue. The slot is in flight even then; drain takes it back. */
PD_MUST_USE pd_status pd_transfer_ring_submit(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot,
                                              const struct pd_transfer *transfer, struct pd_error *err);
/* Waits for any slot in flight and holds it; NULL if none is. pd_transfer_error gives its result. */
PD_MUST_USE pd_status pd_transfer_ring_next(struct pd_transfer_ring *ring, struct pd_transfer_slot **ret_slot,
                                            struct pd_error *err);
/* Waits for this slot, which is in flight, and holds it. */
PD_MUST_USE pd_status pd_transfer_ring_wait(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot,
                                            struct pd_error *err);
void pd_transfer_ring_release(struct pd_transfer_ring *ring, struct pd_transfer_slot *slot);
/* Waits until nothing is in flight and frees all slots. `st` is how the work with the ring ended; if it is PD_OK, returns
 * the first error of a transfer that nobody has looked at. Ends the process if the queue cannot be reaped, since the
 * kernel would go on using the buffers. */
PD_MUST_USE pd_status pd_transfer_ring_drain(struct pd_transfer_ring *ring, pd_status st, struct pd_error *err);
