/* Copies in stream order, and waiting for a stream or for a point in it.
 *   errors  PD_DEVICE_LOST, also for failures of earlier kernels */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "ckpt/base/status.h"

/* pd_cuda_copy and pd_cuda_copy_rows, between any two places of device and host memory, are declared in kernels.h. */
PD_MUST_USE pd_status pd_cuda_sync(void *stream, struct pd_error *err);

/* Events in a list that owns them: created one by one, freed together once nothing records or waits for them. */
struct pd_cuda_event;
PD_MUST_USE pd_status pd_cuda_event_new(struct pd_cuda_event **list, void **ret_event, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_event_record(void *event, void *stream, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_event_wait(void *event, struct pd_error *err); /* the host waits */
void pd_cuda_events_free(struct pd_cuda_event *list);                        /* NULL is fine */

#ifdef __cplusplus
}
#endif
