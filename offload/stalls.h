/* Measures how long a rank waited for others: by the host's clock if the host computes, else between two events on the
 * device's stream, since host and device wait independently.
 *
 *   usage    begin, the waiting call, end; repeat; then take
 *   memory   two device events for each wait between two takes, created once
 *   threads  one caller
 */
#pragma once

#include "offload/device.h"

struct pd_stalls;

/* dev NULL: measures the host. Both are borrowed. */
PD_MUST_USE pd_status pd_stalls_new(struct pd_dev *dev, struct pd_stream *compute, struct pd_stalls **ret_stalls,
                                    struct pd_error *err);
void pd_stalls_free(struct pd_stalls *stalls); /* NULL is fine */

PD_MUST_USE pd_status pd_stalls_begin(struct pd_stalls *stalls, struct pd_error *err);
PD_MUST_USE pd_status pd_stalls_end(struct pd_stalls *stalls, struct pd_error *err);
/* Returns the time since the last take or forget. Waits until the device has passed the last end. */
PD_MUST_USE pd_status pd_stalls_take(struct pd_stalls *stalls, uint64_t *ret_ns, struct pd_error *err);
void pd_stalls_forget(struct pd_stalls *stalls);
