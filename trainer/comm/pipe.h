/* The channel between ranks that share memory: one stream of bytes a pair, staged in the sender's mailbox.
 *
 *   mailbox of s   cut into one ring a receiver, of equal size (staging.h)
 *   stream         messages in the order of operations, each from a multiple of 8: a head (struct pipe_head), then the bytes
 *
 *   invariants  taken <= written <= taken + capacity; the sender alone writes `written`, the receiver alone `taken` */
#pragma once

#include "trainer/comm/progress.h"

struct pd_pipe {
    alignas(PD_CACHE_LINE) _Atomic uint64_t written; /* bytes since the start */
    alignas(PD_CACHE_LINE) _Atomic uint64_t taken;
};

/* Moves what can be moved without waiting. A ring holds copies only: after a failure nothing is to be taken back. */
PD_MUST_USE pd_status pd_pipes_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err);
