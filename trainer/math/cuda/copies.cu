/* By the CUDA runtime, or the one of tests/simt. */
#include "trainer/math/cuda/copies.h"

#include "trainer/math/cuda/grid.h"

static pd_status check(cudaError_t code, const char *what, struct pd_error *err)
{
    if (code == cudaSuccess) return PD_OK;
    (void)cudaGetLastError(); /* which the next kernel's launch would meet */
    return pd_error_set(err, PD_DEVICE_LOST, PD_WHERE, 0, "GPU: %s: %s", what, cudaGetErrorString(code));
}

pd_status pd_cuda_copy(void *stream, void *dst, const void *src, uint64_t bytes, struct pd_error *err)
{
    return check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)), "copying", err);
}

pd_status pd_cuda_sync(void *stream, struct pd_error *err)
{
    return check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for its work", err);
}
