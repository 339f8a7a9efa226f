/* Loads cuBLASLt when there is a GPU. Linking it would cost every process 200 MiB, also without a GPU, and the program could
 * not start on a machine without the library. Its functions are members of pd_cublaslt, under their own names.
 *
 *   errors   PD_UNSUPPORTED: not installed, or lacks a function; the message says which and what to do
 *   threads  any */
#pragma once

#include "ckpt/base/status.h"

#include <cublasLt.h>

#define PD_CUBLASLT_FUNCTIONS(X)             \
    X(cublasLtCreate)                        \
    X(cublasLtDestroy)                       \
    X(cublasLtGetStatusName)                 \
    X(cublasLtMatmul)                        \
    X(cublasLtMatmulAlgoCheck)               \
    X(cublasLtMatmulAlgoConfigGetAttribute)  \
    X(cublasLtMatmulAlgoGetHeuristic)        \
    X(cublasLtMatmulDescInit_internal)       \
    X(cublasLtMatmulDescSetAttribute)        \
    X(cublasLtMatmulPreferenceInit_internal) \
    X(cublasLtMatmulPreferenceSetAttribute)  \
    X(cublasLtMatrixLayoutInit_internal)     \
    X(cublasLtMatrixLayoutSetAttribute)

struct pd_cublaslt {
#define PD_MEMBER(NAME) __typeof__(NAME) *NAME;
    PD_CUBLASLT_FUNCTIONS(PD_MEMBER)
#undef PD_MEMBER
};
extern struct pd_cublaslt pd_cublaslt;

/* Call before any use. The library stays loaded until the process ends. */
PD_MUST_USE pd_status pd_cublaslt_load(struct pd_error *err);
