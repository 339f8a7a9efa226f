/* Copies in the order of a stream, and waiting for one.
 *   errors  PD_DEVICE_LOST, also for what a kernel before it did wrong while it ran */
#ifndef PD_TRAINER_MATH_CUDA_COPIES_H
#define PD_TRAINER_MATH_CUDA_COPIES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ckpt/base/status.h"

/* Between any two places of device and host memory. */
PD_MUST_USE pd_status pd_cuda_copy(void *stream, void *dst, const void *src, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_cuda_sync(void *stream, struct pd_error *err);

#ifdef __cplusplus
}
#endif

#endif
