/* Measures where the time of a device goes: spans on its streams, each between two events.
 *
 *   const uint32_t span = pd_device_spans_begin(spans, stream, PD_LANE_COMPUTE, "attention", block);
 *   ...                                                     enqueue work on the stream
 *   pd_device_spans_end(spans, span, stream);
 *   pd_device_spans_collect(spans, err);                    once a step
 *
 * collect adds spans up by lane and name, and writes them into the process's trace if one is open (ckpt/base/trace.h),
 * one lane for each stream. Names and lanes are string constants.
 *
 *   shares   each moment is attributed to one span: a compute span if one runs, else the running span that began first.
 *            Attributed times add up to the time in which any span ran; the rest of a step is idle time
 *   cost     two events a span; with NULL `spans` all calls do nothing
 *   errors   a span whose event cannot be created or recorded is lost; collect returns the device's error
 *   threads  any, if each stream has one caller at a time; collect: one */
#pragma once

#include "offload/device.h"

#define PD_LANE_COMPUTE "GPU compute"
#define PD_LANE_PARAMETERS_IN "GPU parameters in"
#define PD_LANE_PARAMETERS_OUT "GPU parameters out"
#define PD_LANE_GRADIENTS_IN "GPU gradients in"
#define PD_LANE_GRADIENTS_OUT "GPU gradients out"
#define PD_LANE_ACTIVATIONS_IN "GPU activations in"
#define PD_LANE_ACTIVATIONS_OUT "GPU activations out"
#define PD_LANE_OPTIMIZER_IN "GPU optimizer in"   /* results of a host update; state to update */
#define PD_LANE_OPTIMIZER_OUT "GPU optimizer out" /* gradients for a host update; state */
#define PD_LANE_SAVES "GPU saves"
#define PD_LANE_GATHERS "GPU gathers"     /* through host memory; NCCL has lanes of its own */
#define PD_LANE_EXCHANGES "GPU exchanges" /* likewise */

#define PD_LANE_HOST "host" /* for notes */

struct pd_device_spans;

/* compute: the stream whose spans come first; collect waits for it. capacity: spans between two collects; more are lost
 * and counted. dev and compute are borrowed for its life. */
PD_MUST_USE pd_status pd_device_spans_new(struct pd_dev *dev, struct pd_stream *compute, uint32_t capacity,
                                          struct pd_device_spans **ret_spans, struct pd_error *err);
void pd_device_spans_free(struct pd_device_spans *spans); /* NULL is fine */

uint32_t pd_device_spans_begin(struct pd_device_spans *spans, struct pd_stream *stream, const char *lane, const char *name,
                               uint64_t value);
void pd_device_spans_end(struct pd_device_spans *spans, uint32_t span, struct pd_stream *stream);
/* Copies src to dst, of equal length, and records a span; just copies if `spans` is NULL. Several threads may give copies
 * to one stream this way. */
PD_MUST_USE pd_status pd_device_spans_copy(struct pd_device_spans *spans, struct pd_dev *dev, struct pd_stream *stream,
                                           const char *lane, const char *name, struct pd_span dst, struct pd_span src,
                                           struct pd_error *err);
/* Notes that the device waited for the host from begin_ns (pd_trace_now) until now. Used for shares only. */
void pd_device_spans_note(struct pd_device_spans *spans, const char *lane, const char *name, uint64_t begin_ns);
/* Adds up the spans that have ended; leaves the others to the next call. */
PD_MUST_USE pd_status pd_device_spans_collect(struct pd_device_spans *spans, struct pd_error *err);

/* Sums by lane and name since new or clear, in order of first appearance. */
struct pd_device_share {
    const char *lane, *name;
    double seconds;  /* sum of its spans, including overlaps */
    double answered; /* the part attributed to them */
    uint64_t count;
};
#define PD_DEVICE_SHARES_MAX 96u
uint32_t pd_device_spans_shares(const struct pd_device_spans *spans, struct pd_device_share ret[PD_DEVICE_SHARES_MAX]);
uint64_t pd_device_spans_lost(const struct pd_device_spans *spans);
/* Seconds spent in collect, attributed to no span. */
double pd_device_spans_collecting(const struct pd_device_spans *spans);
void pd_device_spans_clear(struct pd_device_spans *spans);
