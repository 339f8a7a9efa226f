/* Where the time of a device goes: spans on its streams, between two events each.
 *
 *   const uint32_t span = pd_device_spans_begin(spans, stream, "GPU compute", "attention", block);
 *   ...                                                     what is put on the stream
 *   pd_device_spans_end(spans, span, stream);
 *   pd_device_spans_collect(spans, err);                    once a step
 *
 * Collected spans are added up by name, and written into the trace of the process where one is open (ckpt/base/trace.h): one
 * lane a stream. Names and lanes are string constants.
 *
 *   cost     two events a span; NULL for `spans` makes begin and end do nothing
 *   errors   an event that cannot be had or recorded loses its span; collect says what the device says
 *   threads  any; collect: one, while no span is open */
#ifndef PD_OFFLOAD_DEVICE_SPANS_H
#define PD_OFFLOAD_DEVICE_SPANS_H

#include "offload/device.h"

struct pd_device_spans;

/* capacity: spans between two collects; more are lost and counted. The stream is used while it collects. */
PD_MUST_USE pd_status pd_device_spans_new(struct pd_dev *dev, struct pd_stream *stream, uint32_t capacity,
                                          struct pd_device_spans **ret_spans, struct pd_error *err);
void pd_device_spans_free(struct pd_device_spans *spans); /* NULL is fine */

uint32_t pd_device_spans_begin(struct pd_device_spans *spans, struct pd_stream *stream, const char *lane, const char *name,
                               uint64_t value);
void pd_device_spans_end(struct pd_device_spans *spans, uint32_t span, struct pd_stream *stream);
PD_MUST_USE pd_status pd_device_spans_collect(struct pd_device_spans *spans, struct pd_error *err);

/* Sums by name, in the order of their first appearance, since new or clear. */
struct pd_device_share {
    const char *name;
    double seconds;
    uint64_t count;
};
#define PD_DEVICE_SHARES_MAX 64u
uint32_t pd_device_spans_shares(const struct pd_device_spans *spans, struct pd_device_share ret[PD_DEVICE_SHARES_MAX]);
uint64_t pd_device_spans_lost(const struct pd_device_spans *spans);
void pd_device_spans_clear(struct pd_device_spans *spans);

#endif
