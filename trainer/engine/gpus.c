#include "trainer/engine/gpus.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#ifndef PERDURE_CUDA_LIBRARIES
#define PERDURE_CUDA_LIBRARIES ""
#define PERDURE_CUBLASLT "libcublasLt.so.13", "libcublasLt.so.12" /* a build with CUDA needs the one of its version */
#endif

/* ---- the driver ---- */

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CUdevice_attribute */

struct driver {
    int (*init)(unsigned);
    int (*version)(int *);
    int (*count)(int *);
    int (*get)(int *, int);
    int (*name)(char *, int, int);
    int (*total)(size_t *, int);
    int (*attribute)(int *, int, int);
};

static bool driver_open(void *library, struct driver *ret)
{
    const struct {
        const char *name;
        void *slot;
    } symbols[] = {{"cuInit", &ret->init},
                   {"cuDriverGetVersion", &ret->version},
                   {"cuDeviceGetCount", &ret->count},
                   {"cuDeviceGet", &ret->get},
                   {"cuDeviceGetName", &ret->name},
                   {"cuDeviceTotalMem_v2", &ret->total},
                   {"cuDeviceGetAttribute", &ret->attribute}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!(*(void **)symbols[i].slot = dlsym(library, symbols[i].name))) return false;
    return true;
}

static bool gpus_look_at(const struct driver *driver, int index, struct pd_gpu *ret_gpu)
{
    int device, major, minor;
    size_t bytes;
    struct pd_gpu gpu = {.bytes = 0};
    if (driver->get(&device, index) || driver->name(gpu.name, sizeof gpu.name, device) || driver->total(&bytes, device) ||
        driver->attribute(&major, CAPABILITY_MAJOR, device) || driver->attribute(&minor, CAPABILITY_MINOR, device))
        return false;
    gpu.bytes = bytes;
    gpu.major = (uint32_t)major;
    gpu.minor = (uint32_t)minor;
    *ret_gpu = gpu;
    return true;
}

void pd_gpus_find(struct pd_gpus *ret)
{
    struct driver driver;
    int count = 0, version = 0, code;
    *ret = (struct pd_gpus){.count = 0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* stays: closing a driver is not foreseen */
    if (!library) {
        snprintf(ret->why_none, sizeof ret->why_none, "no NVIDIA driver (libcuda.so.1)");
        return;
    }
    if (!driver_open(library, &driver)) {
        snprintf(ret->why_none, sizeof ret->why_none, "libcuda.so.1 is not a driver's (a stub of the toolkit?)");
        return;
    }
    code = driver.init(0);
    if (!driver.version(&version)) ret->driver = (uint32_t)version;
    if (code || driver.count(&count) || count <= 0) {
        snprintf(ret->why_none, sizeof ret->why_none, "an NVIDIA driver and no GPU that it offers (cuInit: %d)", code);
        return;
    }
    for (int i = 0; i < count && ret->count < PD_GPUS_MAX; i++)
        if (gpus_look_at(&driver, i, &ret->gpus[ret->count])) ret->count++;
    if (!ret->count) snprintf(ret->why_none, sizeof ret->why_none, "%d GPUs, but the driver describes none of them", count);
}

/* ---- by name ---- */

/* The first entry whose word occurs in the name as a whole word: an A1000 is not an A100. */
static const struct known {
    const char *word;
    double matmul_flops;
    const char *machine;
} known[] = {
    {"H100 PCIe", 756e12, "h100-80g"},
    {"H100 NVL", 835e12, "h100-80g"},
    {"H100", 989e12, "h100-80g"},
    {"H200 NVL", 835e12, "h200-141g"},
    {"H200", 989e12, "h200-141g"},
    {"GH200", 989e12, "h100-80g"},
    {"A100", 312e12, "a100-80g"},
    {"A800", 312e12, "a100-80g"},
    {"L40S", 362e12, NULL},
    {"RTX 4090", 165e12, NULL},
    {"A10G", 70e12, NULL},
    {"B200", 2250e12, NULL},
};

static bool has_word(const char *name, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(name, word); at; at = strstr(at + 1, word)) {
        const unsigned char after = (unsigned char)at[length];
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum(after)) return true;
    }
    return false;
}

static const struct known *known_of(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (has_word(name, known[i].word)) return &known[i];
    return NULL;
}

double pd_gpu_matmul_flops(const char *name)
{
    const struct known *k = known_of(name);
    return k ? k->matmul_flops : 0;
}

const char *pd_gpu_machine_name(const char *name)
{
    const struct known *k = known_of(name);
    if (k && k->machine && !strcmp(k->machine, "a100-80g") && strstr(name, "40GB")) return "a100-40g";
    return k ? k->machine : NULL;
}

/* ---- libraries ---- */

/* A library function returns it as one number: major * 10000 + minor * 100 + patch from `wide_from` on, * 1000 before. */
static const struct library {
    const char *name, *files[3], *function;
    uint64_t wide_from;
} libraries[PD_GPU_LIBRARY_COUNT] = {
    [PD_GPU_CUBLASLT] = {"cuBLASLt", {PERDURE_CUBLASLT}, "cublasLtGetVersion", 100000},
    [PD_GPU_NCCL] = {"NCCL", {"libnccl.so.2"}, "ncclGetVersion", 10000},
};

static void read_version(enum pd_gpu_library which, void *function, char ret[32])
{
    size_t (*version)(void);
    int (*nccl_version)(int *), said = 0;
    *(void **)&version = *(void **)&nccl_version = function;
    const bool is_nccl = which == PD_GPU_NCCL, is_told = !is_nccl || nccl_version(&said) == 0;
    const uint64_t number = is_nccl ? (uint64_t)said : version();
    const uint64_t major = number >= libraries[which].wide_from ? 10000 : 1000;
    if (is_told)
        snprintf(ret, 32, "%llu.%llu.%llu", (unsigned long long)(number / major), (unsigned long long)(number % major / 100),
                 (unsigned long long)(number % 100));
}

static void *open_one(const char *file, bool load)
{
    char path[512];
    const int mode = RTLD_LAZY | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD);
    void *library = dlopen(file, mode);
    if (library || !PERDURE_CUDA_LIBRARIES[0]) return library;
    snprintf(path, sizeof path, "%s/%s", PERDURE_CUDA_LIBRARIES, file);
    return dlopen(path, mode);
}

bool pd_gpu_library_find(enum pd_gpu_library which, bool load, struct pd_gpu_library_version *ret)
{
    const struct library *l = &libraries[which];
    struct link_map *map;
    void *opened = NULL;
    *ret = (struct pd_gpu_library_version){.name = l->name};
    for (int i = 0; i < 3 && l->files[i] && !opened; i++)
        opened = open_one(l->files[i], load);
    if (!opened) return false;
    void *function = dlsym(opened, l->function);
    if (function) read_version(which, function, ret->version);
    if (dlinfo(opened, RTLD_DI_LINKMAP, &map) == 0) snprintf(ret->path, sizeof ret->path, "%s", map->l_name);
    dlclose(opened);
    return ret->version[0] != '\0';
}
