/* Where the time of a process goes: a file of JSON that ui.perfetto.dev and chrome://tracing show.
 *
 *   const uint64_t begin = pd_trace_begin();
 *   ...
 *   pd_trace_end(begin, "comm", "exchange", bytes);
 *
 * A span lies on the thread that ends it, under the name that the thread has, of the rank it works for; spans of a thread
 * nest because calls do. What overlaps (transfers in flight) is asynchronous: pd_trace_end_async, on any thread. Times are
 * those of the monotonic clock, so that files of processes of one host fit together.
 *
 * A thread writes out what it has when its buffer is full, and when it ends a span a second or more after it last did: what
 * is killed leaves an array without its end, which both of them load, short of what each thread did since.
 *
 *   cost      off: a load and a branch. On: two looks at the clock and a store, and what is written out
 *   memory    PD_TRACE_BUFFER_EVENTS of 48 bytes a thread that ever ended a span, until the trace is closed
 *   disk      PD_TRACE_EVENTS_MAX events; what comes later is counted, and the file says how many
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
/* Writes what is left. PD_OK where none is open.   errors  PD_IO, PD_NO_SPACE: the file is not whole */
PD_MUST_USE pd_status pd_trace_close(struct pd_error *err);

extern atomic_bool pd_trace_is_on;
uint64_t pd_trace_now(void);

static inline uint64_t pd_trace_begin(void)
{
    return atomic_load_explicit(&pd_trace_is_on, memory_order_relaxed) ? pd_trace_now() : 0; /* 0: no span */
}

/* category and name live as long as the program; value: bytes, a step, a block. */
void pd_trace_record(uint64_t begin, const char *category, const char *name, uint64_t value, bool is_async);

/* A span of something that is no thread, a device's stream: it lies in a lane of the rank under this name. At most
 * PD_TRACE_LANES of all ranks; the name lives as long as the program. */
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
