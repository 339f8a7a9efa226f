/* Slots that go round between two threads: one fills them, the other takes them in the same order. Whoever fails first ends both.
 *
 *        handoff_free          handoff_fill          handoff_next          (the next handoff_next)
 *   free ────────────▶ filling ────────────▶ filled ────────────▶ taken ───────────────────────▶ free
 *
 *   threads  free, fill, over: the one that fills; next, leave: the other */
#pragma once

#include "ckpt/base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct handoff {
    uint32_t slots;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    uint64_t filled, taken;
    bool holds_slot; /* the taker has slot `taken` */
    bool is_over, leaves;
    pd_status status; /* of the thread that fills, once it is over */
    struct pd_error error;
};

void handoff_init(struct handoff *handoff, uint32_t slots);
void handoff_deinit(struct handoff *handoff);
/* Waits for a slot to fill. False: nobody takes any more. */
bool handoff_free(struct handoff *handoff, uint32_t *ret_slot);
void handoff_fill(struct handoff *handoff);
/* Nothing comes any more. */
void handoff_over(struct handoff *handoff, pd_status status, const struct pd_error *error);
/* Waits for a filled slot, and gives the one before back. *ret_has_one false: that was all.   errors  of handoff_over */
PD_MUST_USE pd_status handoff_next(struct handoff *handoff, uint32_t *ret_slot, bool *ret_has_one, struct pd_error *err);
/* Nothing is taken any more. */
void handoff_leave(struct handoff *handoff);
