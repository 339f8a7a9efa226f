/* The channel between threads of one process: the receiver copies from the sender's pieces to its own, nothing is staged.
 *
 *   states of an offer (sender, receiver)
 *     EMPTY -> OFFERED (sender) -> TAKING (receiver) -> EMPTY (receiver)
 *              OFFERED -> EMPTY (sender withdraws)
 *   sums   the receiver takes the offers of all its peers at once and reads them side by side; one that it cannot have yet
 *          makes it give the others back (TAKING -> OFFERED)
 */
#pragma once

#include "trainer/comm/progress.h"

enum pd_offer_state { PD_OFFER_EMPTY, PD_OFFER_OFFERED, PD_OFFER_TAKING };

struct pd_offer {
    alignas(PD_CACHE_LINE) _Atomic uint32_t state;
    uint64_t sequence;
    struct pd_cursor cursor; /* a copy of the sender's */
};

extern const struct pd_channel_ops pd_channel_direct;
