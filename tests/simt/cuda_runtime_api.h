/* The CUDA runtime, as far as perdure calls it, over GPUs that run on the host: kernels of simt.h, memory and streams of
 * machine.h. Compiled in place of NVIDIA's header; names and meanings are those of the CUDA Runtime API reference.
 *
 *   where it is stricter   an operation on a stream happens as late as it may, or as early, or in between (machine.h); so do
 *                          copies from and to memory that is not pinned, which "might be synchronous"
 *                          a copy may not run over the end of the allocation that it begins in, on either side
 *                          memory that is freed while operations on it are under way is gone when they happen
 *                          no page of memory is registered twice */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorLaunchFailure = 719,
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

#define cudaStreamNonBlocking 1u
#define cudaHostAllocPortable 1u
#define cudaHostRegisterPortable 1u
#define cudaEventDisableTiming 2u

typedef struct {
    char bytes[16];
} cudaUUID_t;
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    size_t sharedMemPerBlockOptin;
    int multiProcessorCount;
    int pciBusID, pciDeviceID, pciDomainID; /* bus 16 + number */
    int major, minor;
};

const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError(void); /* of the calling thread, which forgets it; that a GPU is lost it does not forget */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device); /* of the calling thread */
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void); /* of a device that nothing is on: aborts otherwise */

cudaError_t cudaMalloc(void **data, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *data);

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t ld_dst, const void *src, size_t ld_src, size_t bytes, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);

/* A failure is noted for its thread until cudaGetLastError, which every launch of a kernel asks: one that nobody looked at
 * is the next kernel's. SIMT_RUNTIME: for the runtime itself. */
cudaError_t simt_noted(cudaError_t code);
#ifndef SIMT_RUNTIME
#define cudaGetDeviceCount(...) simt_noted(cudaGetDeviceCount(__VA_ARGS__))
#define cudaGetDeviceProperties(...) simt_noted(cudaGetDeviceProperties(__VA_ARGS__))
#define cudaDeviceCanAccessPeer(...) simt_noted(cudaDeviceCanAccessPeer(__VA_ARGS__))
#define cudaGetDevice(...) simt_noted(cudaGetDevice(__VA_ARGS__))
#define cudaSetDevice(...) simt_noted(cudaSetDevice(__VA_ARGS__))
#define cudaDeviceSynchronize(...) simt_noted(cudaDeviceSynchronize(__VA_ARGS__))
#define cudaDeviceReset(...) simt_noted(cudaDeviceReset(__VA_ARGS__))
#define cudaMalloc(...) simt_noted(cudaMalloc(__VA_ARGS__))
#define cudaFree(...) simt_noted(cudaFree(__VA_ARGS__))
#define cudaMemGetInfo(...) simt_noted(cudaMemGetInfo(__VA_ARGS__))
#define cudaHostAlloc(...) simt_noted(cudaHostAlloc(__VA_ARGS__))
#define cudaFreeHost(...) simt_noted(cudaFreeHost(__VA_ARGS__))
#define cudaHostRegister(...) simt_noted(cudaHostRegister(__VA_ARGS__))
#define cudaHostUnregister(...) simt_noted(cudaHostUnregister(__VA_ARGS__))
#define cudaDeviceGetStreamPriorityRange(...) simt_noted(cudaDeviceGetStreamPriorityRange(__VA_ARGS__))
#define cudaStreamCreateWithPriority(...) simt_noted(cudaStreamCreateWithPriority(__VA_ARGS__))
#define cudaStreamDestroy(...) simt_noted(cudaStreamDestroy(__VA_ARGS__))
#define cudaStreamSynchronize(...) simt_noted(cudaStreamSynchronize(__VA_ARGS__))
#define cudaStreamQuery(...) simt_noted(cudaStreamQuery(__VA_ARGS__))
#define cudaStreamWaitEvent(...) simt_noted(cudaStreamWaitEvent(__VA_ARGS__))
#define cudaMemcpyAsync(...) simt_noted(cudaMemcpyAsync(__VA_ARGS__))
#define cudaMemcpy2DAsync(...) simt_noted(cudaMemcpy2DAsync(__VA_ARGS__))
#define cudaMemsetAsync(...) simt_noted(cudaMemsetAsync(__VA_ARGS__))
#define cudaEventCreate(...) simt_noted(cudaEventCreate(__VA_ARGS__))
#define cudaEventCreateWithFlags(...) simt_noted(cudaEventCreateWithFlags(__VA_ARGS__))
#define cudaEventDestroy(...) simt_noted(cudaEventDestroy(__VA_ARGS__))
#define cudaEventRecord(...) simt_noted(cudaEventRecord(__VA_ARGS__))
#define cudaEventQuery(...) simt_noted(cudaEventQuery(__VA_ARGS__))
#define cudaEventSynchronize(...) simt_noted(cudaEventSynchronize(__VA_ARGS__))
#define cudaEventElapsedTime(...) simt_noted(cudaEventElapsedTime(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
