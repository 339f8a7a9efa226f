/* How long a rank stood still for others: by the host's clock where it computes itself, and between two events on the stream
 * of its device, which goes on with what it was given while the host waits, and waits while the host goes on.
 *
 *   usage    begin, whatever waits, end; and so on; then take
 *   memory   two events of a device for each wait between two takes, made once
 *   threads  one caller
 */
#pragma once

#include "offload/device.h"

struct pd_stalls;

/* dev NULL: the host. Both are borrowed. */
PD_MUST_USE pd_status pd_stalls_new(struct pd_dev *dev, struct pd_stream *compute, struct pd_stalls **ret_stalls,
                                    struct pd_error *err);
void pd_stalls_free(struct pd_stalls *stalls); /* NULL is fine */

PD_MUST_USE pd_status pd_stalls_begin(struct pd_stalls *stalls, struct pd_error *err);
PD_MUST_USE pd_status pd_stalls_end(struct pd_stalls *stalls, struct pd_error *err);
/* Since the last take or forget. Waits until the device has passed the last end. */
PD_MUST_USE pd_status pd_stalls_take(struct pd_stalls *stalls, uint64_t *ret_ns, struct pd_error *err);
void pd_stalls_forget(struct pd_stalls *stalls);
