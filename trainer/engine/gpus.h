/* GPUs as the driver tells of them: none is opened, so nothing of their memory is taken. And what is known by a GPU's name.
 *
 *   CUDA_VISIBLE_DEVICES is heeded by the driver. Where there is no driver, or none of NVIDIA's, `why_none` says so
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
    uint32_t driver;    /* the newest CUDA that it runs: 13000 is 13.0; 0: no driver */
    char why_none[160]; /* "" where there is one */
};

void pd_gpus_find(struct pd_gpus *ret_gpus);

/* Dense bf16 GEMMs, operations a second as the maker's data sheet says; 0: not known by that name. */
double pd_gpu_matmul_flops(const char *name);
/* The name that pd_machine_preset knows it by; NULL: none. */
const char *pd_gpu_machine_name(const char *name);

enum pd_gpu_library { PD_GPU_CUBLASLT, PD_GPU_NCCL, PD_GPU_LIBRARY_COUNT };

struct pd_gpu_library_version {
    const char *name; /* "cuBLASLt" */
    char version[32]; /* "13.0.2"; "": none was found */
    char path[256];   /* of the file */
};

/* `load`: opens it when it is not, and closes it again; else one that this process has not open counts as none. */
bool pd_gpu_library_find(enum pd_gpu_library library, bool load, struct pd_gpu_library_version *ret_version);
