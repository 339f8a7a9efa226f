/* Kernels register at the start of the program, each with its function on the host. The linker sends those calls here
 * (--wrap, in CMakeLists.txt), so the list is complete whatever a kernel is called and wherever it is launched. */
#include "trainer/math/cuda/grid.h"

#ifdef PD_SIMT /* where nothing is loaded */

extern "C" uint32_t pd_cuda_kernel_count(void)
{
    return 0;
}

extern "C" pd_status pd_cuda_kernels_load(struct pd_error *err)
{
    (void)err;
    return PD_OK;
}

#else

#define KERNELS_MAX 4096u
#define REGISTERED                                                                                                          \
    void **binary, const char *function, char *device_function, const char *name, int threads, uint3 *thread, uint3 *block, \
        dim3 *block_dim, dim3 *grid_dim, int *warp

static const void *kernels[KERNELS_MAX];
static uint32_t kernel_count; /* written before main */

extern "C" void __real___cudaRegisterFunction(REGISTERED);

extern "C" void __wrap___cudaRegisterFunction(REGISTERED)
{
    PD_CHECK(kernel_count < KERNELS_MAX);
    kernels[kernel_count++] = function;
    __real___cudaRegisterFunction(binary, function, device_function, name, threads, thread, block, block_dim, grid_dim,
                                  warp);
}

extern "C" uint32_t pd_cuda_kernel_count(void)
{
    return kernel_count;
}

extern "C" pd_status pd_cuda_kernels_load(struct pd_error *err)
{
    struct cudaFuncAttributes attributes;
    for (uint32_t i = 0; i < kernel_count; i++) {
        const cudaError_t code = cudaFuncGetAttributes(&attributes, kernels[i]);
        (void)cudaGetLastError(); /* else the next launch would report it */
        /* Code for another architecture, which no launch here asks for. */
        if (code == cudaSuccess || code == cudaErrorInvalidDeviceFunction || code == cudaErrorNoKernelImageForDevice)
            continue;
        PD_FAIL(err, code == cudaErrorMemoryAllocation ? PD_NO_MEMORY : PD_DEVICE_LOST, "loading kernels: %s",
                cudaGetErrorString(code));
    }
    return PD_OK;
}

#endif
