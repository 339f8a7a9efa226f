/* The channel between processes of one host: one stream of bytes a pair, staged in the sender's mailbox.
 *
 *   mailbox of s   cut into one ring a receiver, of equal size (staging.h)
 *   stream         messages in the order of operations, each from a multiple of 8: a head (operation, bytes), then the bytes
 *
 *   invariants  taken <= written <= taken + capacity; the sender alone writes `written`, the receiver alone `taken` */
#pragma once

#include "trainer/comm/progress.h"

struct pd_pipe {
    alignas(PD_CACHE_LINE) _Atomic uint64_t written; /* bytes since the start */
    alignas(PD_CACHE_LINE) _Atomic uint64_t taken;
};

extern const struct pd_channel_ops pd_channel_pipe;
