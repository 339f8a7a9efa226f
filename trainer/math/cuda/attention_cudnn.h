/* Attention of whole sequences by cuDNN, opened where it is installed: what our kernels are measured beside, and numerics
 * fast's where PERDURE_ATTENTION=cudnn asks for it. Backward is the way of cuDNN that repeats its bits, whose workspace
 * grows with the square of the sequence; it is allocated here, once a stream and size, and kept.
 *
 *   errors   PD_UNSUPPORTED: a build without its headers, no library, no engine for these sizes; PD_DEVICE_LOST
 *   threads  any */
#pragma once

#include "trainer/math/operations.h"

/* Whether it is a call of the kind that is handed on: 16-bit, whole, one document a sequence, all query heads of its
 * key-value heads. Sizes are not looked at. */
bool pd_cudnn_attention_takes(const struct pd_attention *attention);
/* Operands as in trainer/math/cuda/kernels.h; backward reads out and lse, and writes delta. */
PD_MUST_USE pd_status pd_cudnn_attention_forward(void *stream, const struct pd_attention *attention, struct pd_error *err);
PD_MUST_USE pd_status pd_cudnn_attention_backward(void *stream, const struct pd_attention *attention, struct pd_error *err);
