#include "tools/commands/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, UNCORRECTED = 1, SINCE_DRIVER = 0, LINKS_MAX = 18 };
/* nvmlClocksThrottleReasons: hardware slowdown, thermal ones of software and hardware, the power brake. */
#define SLOWED_BY_FAULTS UINT64_C(0xe8)

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver)(char *, unsigned);
    int (*by_address)(const char *, void **);
    int (*clock)(void *, int, unsigned *);
    int (*clock_max)(void *, int, unsigned *);
    int (*width)(void *, unsigned *);
    int (*width_max)(void *, unsigned *);
    int (*generation)(void *, unsigned *);
    int (*generation_max)(void *, unsigned *);
    int (*ecc)(void *, unsigned *, unsigned *);
    int (*errors)(void *, int, int, unsigned long long *);
    int (*slowed)(void *, unsigned long long *);
    int (*link)(void *, unsigned, unsigned *);
};

static bool nvml_load(void *library, struct nvml *n)
{
    const struct {
        const char *name;
        void *slot;
    } symbols[] = {{"nvmlInit_v2", &n->init},
                   {"nvmlShutdown", &n->shutdown},
                   {"nvmlSystemGetDriverVersion", &n->driver},
                   {"nvmlDeviceGetHandleByPciBusId_v2", &n->by_address},
                   {"nvmlDeviceGetClockInfo", &n->clock},
                   {"nvmlDeviceGetMaxClockInfo", &n->clock_max},
                   {"nvmlDeviceGetCurrPcieLinkWidth", &n->width},
                   {"nvmlDeviceGetMaxPcieLinkWidth", &n->width_max},
                   {"nvmlDeviceGetCurrPcieLinkGeneration", &n->generation},
                   {"nvmlDeviceGetMaxPcieLinkGeneration", &n->generation_max},
                   {"nvmlDeviceGetEccMode", &n->ecc},
                   {"nvmlDeviceGetTotalEccErrors", &n->errors},
                   {"nvmlDeviceGetCurrentClocksThrottleReasons", &n->slowed},
                   {"nvmlDeviceGetNvLinkState", &n->link}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!(*(void **)symbols[i].slot = dlsym(library, symbols[i].name))) return false;
    return true;
}

/* A number that the card does not have stays 0. */
static void read_gpu(const struct nvml *n, void *gpu, struct pd_nvml_gpu *g)
{
    unsigned on = 0, next, active;
    unsigned long long bits = 0, errors = 0;
    if (n->clock(gpu, CLOCK_SM, &g->sm_mhz)) g->sm_mhz = 0;
    if (n->clock_max(gpu, CLOCK_SM, &g->sm_mhz_max)) g->sm_mhz_max = 0;
    if (n->clock(gpu, CLOCK_MEMORY, &g->memory_mhz)) g->memory_mhz = 0;
    if (n->clock_max(gpu, CLOCK_MEMORY, &g->memory_mhz_max)) g->memory_mhz_max = 0;
    if (n->width(gpu, &g->pcie_width)) g->pcie_width = 0;
    if (n->width_max(gpu, &g->pcie_width_max)) g->pcie_width_max = 0;
    if (n->generation(gpu, &g->pcie_generation)) g->pcie_generation = 0;
    if (n->generation_max(gpu, &g->pcie_generation_max)) g->pcie_generation_max = 0;
    g->has_ecc = !n->ecc(gpu, &on, &next);
    g->is_ecc_on = g->has_ecc && on;
    if (!n->errors(gpu, UNCORRECTED, SINCE_DRIVER, &errors)) g->uncorrected = errors;
    if (!n->slowed(gpu, &bits)) g->slowed_by = bits & SLOWED_BY_FAULTS;
    for (unsigned i = 0; i < LINKS_MAX && !n->link(gpu, i, &active); i++) {
        g->links++;
        g->links_active += active != 0;
    }
}

bool pd_nvml_read(const char *address, struct pd_nvml_gpu *ret, char ret_why[160])
{
    const char *file = getenv("PERDURE_NVML");
    struct nvml n;
    void *gpu;
    *ret = (struct pd_nvml_gpu){.sm_mhz = 0};
    if (!file) file = "libnvidia-ml.so.1";
    void *library = strcmp(file, "off") ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library || !nvml_load(library, &n) || n.init()) {
        snprintf(ret_why, 160, "%.100s, which comes with the driver, does not open", file);
        if (library) dlclose(library);
        return false;
    }
    const bool found = !n.by_address(address, &gpu);
    if (found) read_gpu(&n, gpu, ret);
    if (n.driver(ret->driver, sizeof ret->driver)) ret->driver[0] = '\0';
    if (!found) snprintf(ret_why, 160, "the driver's management library does not know %.40s", address);
    n.shutdown();
    dlclose(library);
    return found;
}
