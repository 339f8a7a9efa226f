/* Where the time of a device goes: spans on its streams, between two events each.
 *
 *   const uint32_t span = pd_device_spans_begin(spans, stream, PD_LANE_COMPUTE, "attention", block);
 *   ...                                                     what is put on the stream
 *   pd_device_spans_end(spans, span, stream);
 *   pd_device_spans_collect(spans, err);                    once a step
 *
 * Collected spans are added up by lane and name, and written into the trace of the process where one is open
 * (ckpt/base/trace.h): one lane a stream, in which spans follow each other. Names and lanes are string constants.
 *
 *   shares   at any time one span answers for the device: that of compute; where there is none, the one at work that began
 *            first. What spans answer for adds up to the time in which there was one, so the rest of a step is what stood
 *            between them
 *   cost     two events a span; NULL for `spans` makes all of it do nothing
 *   errors   an event that cannot be had or recorded loses its span; collect says what the device says
 *   threads  any, where a stream has one caller at a time; collect: one */
#pragma once

#include "offload/device.h"

#define PD_LANE_COMPUTE "GPU compute"
#define PD_LANE_PARAMETERS_IN "GPU parameters in"
#define PD_LANE_PARAMETERS_OUT "GPU parameters out"
#define PD_LANE_GRADIENTS_IN "GPU gradients in"
#define PD_LANE_GRADIENTS_OUT "GPU gradients out"
#define PD_LANE_ACTIVATIONS_IN "GPU activations in"
#define PD_LANE_ACTIVATIONS_OUT "GPU activations out"
#define PD_LANE_OPTIMIZER_IN "GPU optimizer in"   /* what an update on the host made; state to update */
#define PD_LANE_OPTIMIZER_OUT "GPU optimizer out" /* gradients for it; state */
#define PD_LANE_SAVES "GPU saves"
#define PD_LANE_GATHERS "GPU gathers"     /* through the memory of the host; NCCL has lanes of its own */
#define PD_LANE_EXCHANGES "GPU exchanges" /* likewise */

#define PD_LANE_HOST "host" /* of notes */

struct pd_device_spans;

/* compute: what it is given answers before all else; collect waits for it. capacity: spans between two collects; more are
 * lost and counted. Both are used while it lives. */
PD_MUST_USE pd_status pd_device_spans_new(struct pd_dev *dev, struct pd_stream *compute, uint32_t capacity,
                                          struct pd_device_spans **ret_spans, struct pd_error *err);
void pd_device_spans_free(struct pd_device_spans *spans); /* NULL is fine */

uint32_t pd_device_spans_begin(struct pd_device_spans *spans, struct pd_stream *stream, const char *lane, const char *name,
                               uint64_t value);
void pd_device_spans_end(struct pd_device_spans *spans, uint32_t span, struct pd_stream *stream);
/* A copy of src to dst, which are equally long, and the span of it; a copy alone where `spans` is NULL. Several threads may
 * give copies to one stream this way. */
PD_MUST_USE pd_status pd_device_spans_copy(struct pd_device_spans *spans, struct pd_dev *dev, struct pd_stream *stream,
                                           const char *lane, const char *name, struct pd_span dst, struct pd_span src,
                                           struct pd_error *err);
/* What the host did from begin_ns (pd_trace_now) until now for the device, which waited: for shares alone. */
void pd_device_spans_note(struct pd_device_spans *spans, const char *lane, const char *name, uint64_t begin_ns);
/* Those that are not ended yet are left to the next time. */
PD_MUST_USE pd_status pd_device_spans_collect(struct pd_device_spans *spans, struct pd_error *err);

/* Sums by lane and name, in the order of their first appearance, since new or clear. */
struct pd_device_share {
    const char *lane, *name;
    double seconds;  /* of its spans, whatever ran beside them */
    double answered; /* of these, what they answer for */
    uint64_t count;
};
#define PD_DEVICE_SHARES_MAX 96u
uint32_t pd_device_spans_shares(const struct pd_device_spans *spans, struct pd_device_share ret[PD_DEVICE_SHARES_MAX]);
uint64_t pd_device_spans_lost(const struct pd_device_spans *spans);
/* Seconds that collecting took, which no span answers for. */
double pd_device_spans_collecting(const struct pd_device_spans *spans);
void pd_device_spans_clear(struct pd_device_spans *spans);
