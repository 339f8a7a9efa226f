/* Matrix products on the GPU.
 *
 * gemm_cublaslt.c: cuBLASLt, the algorithm by its heuristic and never by timing, looked up once a shape and then fixed for
 * the run. Bias and residual are added in fp32 inside the product's epilogue and rounded once. Products that cuBLASLt does
 * not take (operands of two types, no k, alignment it refuses) go to gemm_plain.cu. gemm_alone.c, for builds without
 * cuBLASLt and for tests on the host, sends all of them there.
 *
 * invariant   no split of k, no reduction in a workspace. Shapes are the same under every layout as long as virtual_tp and
 *             virtual_sp are 1. Where they are not, `any_shape` takes the algorithm by operand types, transposes and k
 *             alone, for m and n of PD_CUDA_CANONICAL, so that no cut of m or n changes it.
 * fast        algorithms that split k too, where k is a multiple of 128; partial sums stay fp32
 *
 *   errors   PD_DEVICE_LOST, PD_NO_MEMORY; a product is queued when its call returns, and fails where the stream is waited
 * for threads  one caller */
#ifndef PD_TRAINER_MATH_CUDA_GEMM_H
#define PD_TRAINER_MATH_CUDA_GEMM_H

#include "trainer/math/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PD_CUDA_GEMM_WORKSPACE_BYTES (UINT64_C(32) << 20)
#define PD_CUDA_CANONICAL 4096u

struct pd_cuda_products;

struct pd_cuda_products_options {
    bool invariant, any_shape;
    void *workspace; /* device, borrowed */
    uint64_t workspace_bytes;
};

pd_status pd_cuda_products_new(const struct pd_cuda_products_options *options, struct pd_cuda_products **ret_products,
                               struct pd_error *err);
void pd_cuda_products_free(struct pd_cuda_products *products); /* NULL is fine */
/* Queues a product; operands as struct pd_gemm says.   stream  cudaStream_t */
pd_status pd_cuda_products_run(struct pd_cuda_products *products, void *stream, const struct pd_gemm *gemm,
                               struct pd_error *err);

#ifdef __cplusplus
}
#endif

#endif
