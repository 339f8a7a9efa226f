/* Graphs of cuDNN's backend, as far as attention needs them. The first error is kept and what comes after does nothing, so
 * that a graph reads as its formulas. Tensors have four sizes.
 *
 *   source  cuDNN 9 backend API reference */
#pragma once

#include "ckpt/base/status.h"

#include <cudnn.h>

#define PD_CUDNN_MADE_MAX 128
#define PD_CUDNN_OPERATIONS_MAX 32

struct pd_cudnn_graph {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t made[PD_CUDNN_MADE_MAX], operations[PD_CUDNN_OPERATIONS_MAX];
    cudnnBackendDescriptor_t plan;
    uint32_t made_count, operation_count;
    int64_t next_uid;
    int64_t workspace_bytes;
    pd_status st;
    struct pd_error *err;
};

struct pd_cudnn_tensor {
    cudnnBackendDescriptor_t descriptor;
    int64_t sizes[4], strides[4];
};

/* Before anything else of this header: opens the library. The handle is the caller's. */
PD_MUST_USE pd_status pd_cudnn_open(cudnnHandle_t *ret_handle, struct pd_error *err);

void pd_cudnn_graph_init(struct pd_cudnn_graph *graph, cudnnHandle_t handle, struct pd_error *err);
void pd_cudnn_graph_deinit(struct pd_cudnn_graph *graph);

/* uid 0: inside the graph. */
struct pd_cudnn_tensor pd_cudnn_tensor(struct pd_cudnn_graph *graph, int64_t uid, cudnnDataType_t type,
                                       const int64_t sizes[4], const int64_t strides[4]);
/* One fp32 number, given by pointer to host memory. */
struct pd_cudnn_tensor pd_cudnn_scalar(struct pd_cudnn_graph *graph, int64_t uid);
/* Inside the graph, dense. */
struct pd_cudnn_tensor pd_cudnn_inside(struct pd_cudnn_graph *graph, cudnnDataType_t type, const int64_t sizes[4]);
/* The last two sizes exchanged: the same memory. */
struct pd_cudnn_tensor pd_cudnn_turned(struct pd_cudnn_graph *graph, int64_t uid, cudnnDataType_t type,
                                       const struct pd_cudnn_tensor *of);

/* Operations; y is made before. b, t NULL: none; axis below 0: none. */
void pd_cudnn_matmul(struct pd_cudnn_graph *graph, const struct pd_cudnn_tensor *a, const struct pd_cudnn_tensor *b,
                     const struct pd_cudnn_tensor *c);
struct pd_cudnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis;
    const struct pd_cudnn_tensor *x, *b, *t, *y;
};
void pd_cudnn_pointwise(struct pd_cudnn_graph *graph, const struct pd_cudnn_pointwise *operation);
void pd_cudnn_reduction(struct pd_cudnn_graph *graph, cudnnReduceTensorOp_t operator, const struct pd_cudnn_tensor * x,
                        const struct pd_cudnn_tensor *y);
void pd_cudnn_reshape(struct pd_cudnn_graph *graph, const struct pd_cudnn_tensor *x, const struct pd_cudnn_tensor *y);

/* Finds an engine; afterwards everything but the plan is gone. */
PD_MUST_USE pd_status pd_cudnn_graph_build(struct pd_cudnn_graph *graph, const char *what);
PD_MUST_USE pd_status pd_cudnn_graph_run(struct pd_cudnn_graph *graph, void *stream, uint32_t count, const int64_t *uids,
                                         void *const *data, void *workspace, struct pd_error *err);
