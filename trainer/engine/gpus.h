/* Lists GPUs as the driver reports them, without opening any, so no GPU memory is used. Also looks up facts by a GPU's name.
 *
 *   CUDA_VISIBLE_DEVICES applies (the driver reads it). Without a driver or an NVIDIA GPU, `why_none` has the reason
 *   threads  any */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PD_GPUS_MAX 64u

struct pd_gpu {
    char name[96]; /* "NVIDIA H100 80GB HBM3" */
    uint64_t bytes;
    uint32_t major, minor; /* compute capability */
};

struct pd_gpus {
    struct pd_gpu gpus[PD_GPUS_MAX];
    uint32_t count;
    uint32_t driver;    /* newest CUDA version it supports: 13000 is 13.0; 0: no driver */
    char why_none[160]; /* "" if there is one */
};

void pd_gpus_find(struct pd_gpus *ret_gpus);

/* Dense bf16 GEMM rate in operations per second, from the data sheet; 0: unknown name. */
double pd_gpu_matmul_flops(const char *name);
/* Its name for pd_machine_preset; NULL: none. */
const char *pd_gpu_machine_name(const char *name);

enum pd_gpu_library { PD_GPU_CUBLASLT, PD_GPU_NCCL, PD_GPU_LIBRARY_COUNT };

struct pd_gpu_library_version {
    const char *name; /* "cuBLASLt" */
    char version[32]; /* "13.0.2"; "": not found */
    char path[256];   /* of the file */
};

/* load: opens the library if it is not open, and closes it again. Otherwise finds only what this process has open. */
bool pd_gpu_library_find(enum pd_gpu_library library, bool load, struct pd_gpu_library_version *ret_version);
