/* The channel between ranks that share memory: one byte stream per pair, staged in the sender's mailbox.
 *
 *   mailbox of s   divided into rings of equal size, one per receiver (staging.h)
 *   stream         messages in the order of operations, each aligned to 8: a header (struct pipe_head), then the bytes
 *
 *   invariants  taken <= written <= taken + capacity; only the sender writes `written`, only the receiver `taken` */
#pragma once

#include "trainer/comm/progress.h"

struct pd_pipe {
    alignas(PD_CACHE_LINE) _Atomic uint64_t written; /* bytes since the start */
    alignas(PD_CACHE_LINE) _Atomic uint64_t taken;
};

/* Moves as many bytes as it can without waiting. Rings hold only copies, so a failure needs no cleanup. */
PD_MUST_USE pd_status pd_pipes_progress(struct pd_progress *engine, bool *ret_has_moved, struct pd_error *err);
