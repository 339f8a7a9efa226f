/* Matrix products (GEMMs) on the GPU.
 *
 * gemm_cublaslt.c calls cuBLASLt. The algorithm is the heuristic's choice, never a timing's; it is looked up once a shape
 * and then fixed for the run. Bias and residual are added in fp32 in the epilogue and rounded once. What cuBLASLt does not
 * take (operands of two types, no k, some alignments) or has no algorithm for goes to gemm_plain.cu, which is many times
 * slower: a warning says so once a shape, and the shapes are counted. gemm_alone.c sends everything to gemm_plain.cu, in
 * builds without cuBLASLt and in tests on the host.
 *
 *   invariant  the library does not split k, and reduces nothing in a workspace. A product into fp32 with k of 4,096 and
 *              more whose tiles leave multiprocessors idle is made in two or four parts of k, which are then added up in one
 *              order: by the shape alone. Shapes are the same under every layout as long as virtual_tp and virtual_sp are 1.
 *              Where they are not, `any_shape` looks the algorithm up by operand types, transposes and k alone, for m and n
 *              of PD_CUDA_CANONICAL, so that no cut of m or n changes it, and nothing is made in parts
 *   fast       k may be split where it is a multiple of 128; partial sums stay fp32, so a split that adds them up in the
 *              result (INPLACE) is admitted only where the result is fp32. Codes of a forward pass, E4M3 on both sides,
 *              are summed with cuBLASLt's fast accumulation
 *   errors     PD_DEVICE_LOST, PD_NO_MEMORY. A GEMM is queued when the call returns; what fails later shows where the stream
 *              is waited for
 *   threads    one caller */
#pragma once

#include "trainer/math/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PD_CUDA_GEMM_LIBRARY_BYTES (UINT64_C(32) << 20) /* cuBLASLt's workspace */
#define PD_CUDA_GEMM_TILES 132u                         /* of 128 x 128 sums, in all parts of k: an H100's multiprocessors */
#define PD_CUDA_GEMM_WORKSPACE_BYTES (PD_CUDA_GEMM_LIBRARY_BYTES + PD_CUDA_GEMM_TILES * (UINT64_C(64) << 10))
#define PD_CUDA_CANONICAL 4096u

struct pd_cuda_gemms;

struct pd_cuda_gemms_options {
    bool invariant, any_shape;
    void *workspace; /* (PD_CUDA_GEMM_WORKSPACE_BYTES) device, borrowed: the library's, then partial sums */
};

pd_status pd_cuda_gemms_new(const struct pd_cuda_gemms_options *options, struct pd_cuda_gemms **ret_gemms,
                            struct pd_error *err);
void pd_cuda_gemms_free(struct pd_cuda_gemms *gemms); /* NULL is fine */
/* Queues a GEMM; operands as struct pd_gemm says.   stream  cudaStream_t */
pd_status pd_cuda_gemms_run(struct pd_cuda_gemms *gemms, void *stream, const struct pd_gemm *gemm, struct pd_error *err);
/* Shapes so far that the plain kernel multiplied though there is cuBLASLt. */
uint32_t pd_cuda_gemms_plain_shapes(const struct pd_cuda_gemms *gemms);
const char *pd_cuda_gemms_name(void); /* what multiplies, for people */

#ifdef __cplusplus
}
#endif
