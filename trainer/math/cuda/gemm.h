/* Matrix products (GEMMs) on the GPU.
 *
 * gemm_cublaslt.c calls cuBLASLt. The heuristic chooses the algorithm, never a timing; it is chosen once per shape and kept
 * for the run. Bias and residual are added in fp32 in the epilogue and rounded once. If cuBLASLt does not support the
 * operands (two types, no k, some alignments) or has no algorithm, gemm_plain.cu computes the product, many times slower;
 * each such shape is counted, with one warning. gemm_alone.c always uses gemm_plain.cu, in builds without cuBLASLt and in
 * tests on the host.
 *
 *   invariant  the library neither splits k nor reduces in a workspace. A product into fp32 with k of 4,096 and more whose
 *              tiles leave multiprocessors idle is computed in two or four parts of k, added up in a fixed order that
 *              depends only on the shape. With virtual_tp and virtual_sp 1, shapes are the same under every layout.
 *              Otherwise `any_shape` chooses the algorithm by operand types, transposes and k alone, for m and n of
 *              PD_CUDA_CANONICAL, so that cutting m or n does not change it, and k has no parts
 *   varies     products of experts, whose rows data decides: cuBLASLt, one call an expert. The algorithm is the one for the next
 *              power of two rows, so bits depend on an expert's own rows alone. A grouped call (cublasGemmGroupedBatchedEx)
 *              chooses for the whole group, which layout.ep changes, and does not say whether it splits k
 *   fast       k may be split if it is a multiple of 128. Partial sums stay fp32, so a split that sums in the result
 *              (INPLACE) needs an fp32 result. Codes of a forward pass, E4M3 on both sides, use cuBLASLt's fast accumulation
 *   errors     PD_DEVICE_LOST, PD_NO_MEMORY. A GEMM is queued when the call returns; later failures appear when the stream
 *              is waited for
 *   threads    one caller */
#pragma once

#include "trainer/math/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PD_CUDA_GEMM_LIBRARY_BYTES (UINT64_C(32) << 20) /* cuBLASLt's workspace */
#define PD_CUDA_GEMM_TILES 132u                         /* 128 x 128 tiles in all parts of k: an H100's multiprocessors */
#define PD_CUDA_GEMM_WORKSPACE_BYTES (PD_CUDA_GEMM_LIBRARY_BYTES + PD_CUDA_GEMM_TILES * (UINT64_C(64) << 10))
#define PD_CUDA_CANONICAL 4096u

struct pd_cuda_gemms;

struct pd_cuda_gemms_options {
    bool invariant, any_shape;
    uint32_t multiprocessors; /* that products may take; 0: all. Part of what an algorithm is chosen by */
    void *workspace;          /* (PD_CUDA_GEMM_WORKSPACE_BYTES) device, borrowed: cuBLASLt's, then partial sums */
};

pd_status pd_cuda_gemms_new(const struct pd_cuda_gemms_options *options, struct pd_cuda_gemms **ret_gemms,
                            struct pd_error *err);
void pd_cuda_gemms_free(struct pd_cuda_gemms *gemms); /* NULL is fine */
/* Queues a GEMM; operands as in struct pd_gemm. stream cudaStream_t */
pd_status pd_cuda_gemms_run(struct pd_cuda_gemms *gemms, void *stream, const struct pd_gemm *gemm, struct pd_error *err);
/* Number of shapes so far that the plain kernel computed in spite of cuBLASLt. */
uint32_t pd_cuda_gemms_plain_shapes(const struct pd_cuda_gemms *gemms);
const char *pd_cuda_gemms_name(void); /* the GEMM implementation, for people */

#ifdef __cplusplus
}
#endif
