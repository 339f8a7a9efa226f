/* cuBLASLt, opened when a GPU is there. Linked, it would take 200 MiB of every process, on machines without a GPU too, and
 * a machine without it could not start the program. Whoever calls it includes this.
 *
 *   errors   PD_UNSUPPORTED: it is not installed, or lacks a function; the message says which and what to do
 *   threads  any */
#ifndef PD_TRAINER_MATH_CUDA_CUBLASLT_LOAD_H
#define PD_TRAINER_MATH_CUDA_CUBLASLT_LOAD_H

#include "ckpt/base/status.h"

#include <cublasLt.h>

/* Before any call of cuBLASLt. The library stays open as long as the process lives. */
PD_MUST_USE pd_status pd_cublaslt_load(struct pd_error *err);

#endif
