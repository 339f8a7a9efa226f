/* Records where a process spends its time, as a JSON file for ui.perfetto.dev and chrome://tracing.
 *
 *   const uint64_t begin = pd_trace_begin();
 *   ...
 *   pd_trace_end(begin, "comm", "exchange", bytes);
 *
 * A span is shown on the thread that ends it, under that thread's name and rank; spans of a thread nest as calls do. Use
 * pd_trace_end_async, on any thread, for operations that overlap (transfers in flight). Times are from the monotonic
 * clock, so files of several processes on one host line up.
 *
 * A thread writes its events when its buffer is full, and when it ends a span at least a second after its last write. A
 * killed process leaves an array without its end, which both viewers load; only events since the last writes are missing.
 *
 *   cost      off: a load and a branch. On: two clock reads and a store, plus writing the file
 *   memory    PD_TRACE_BUFFER_EVENTS of 48 bytes for each thread that ended a span, until the trace is closed
 *   disk      PD_TRACE_EVENTS_MAX events; later ones are only counted, and the file says how many
 *   threads   any; open and close while no other thread ends spans */
#pragma once

#include "ckpt/base/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PD_TRACE_BUFFER_EVENTS 4096u
#define PD_TRACE_EVENTS_MAX (UINT64_C(4) << 20)
#define PD_TRACE_WRITE_NS UINT64_C(1000000000)

/* Replaces the file. */
PD_MUST_USE pd_status pd_trace_open(const char *path, struct pd_error *err);
/* Writes the remaining events. PD_OK if none is open.   errors  PD_IO, PD_NO_SPACE: the file is incomplete */
PD_MUST_USE pd_status pd_trace_close(struct pd_error *err);

extern atomic_bool pd_trace_is_on;
uint64_t pd_trace_now(void);

static inline uint64_t pd_trace_begin(void)
{
    return atomic_load_explicit(&pd_trace_is_on, memory_order_relaxed) ? pd_trace_now() : 0; /* 0: no span */
}

/* category and name are not copied: they must live as long as the program. value: bytes, a step, a block. */
void pd_trace_record(uint64_t begin, const char *category, const char *name, uint64_t value, bool is_async);

/* Records a span of a device stream rather than a thread. It is shown in a lane of the rank with this name. All ranks
 * share PD_TRACE_LANES; the name must live as long as the program. */
#define PD_TRACE_LANES 256u
void pd_trace_record_lane(const char *lane, uint64_t begin, uint64_t end, const char *category, const char *name,
                          uint64_t value);

static inline void pd_trace_end(uint64_t begin, const char *category, const char *name, uint64_t value)
{
    if (begin) pd_trace_record(begin, category, name, value, false);
}

static inline void pd_trace_end_async(uint64_t begin, const char *category, const char *name, uint64_t value)
{
    if (begin) pd_trace_record(begin, category, name, value, true);
}
