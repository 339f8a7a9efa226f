/* What NVIDIA's management library says of a GPU: facts by which a bad one is found before a run. The library is opened when it
 * is asked for (libnvidia-ml.so.1, or the file that PERDURE_NVML names); "off" opens none. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_nvml_gpu {
    uint32_t sm_mhz, sm_mhz_max, memory_mhz, memory_mhz_max; /* 0: not reported, as all numbers here */
    uint32_t pcie_width, pcie_width_max, pcie_generation, pcie_generation_max;
    uint32_t links, links_active; /* NVLink */
    uint64_t slowed_by;           /* NVML's bits: why clocks are low now; heat and power faults only */
    uint64_t uncorrected;         /* memory errors since the driver started */
    bool has_ecc, is_ecc_on;
    char driver[32];
};

/* address: of the PCI device. False: no library, or it does not know the GPU; ret_why (160) says which. */
bool pd_nvml_read(const char *address, struct pd_nvml_gpu *ret_gpu, char ret_why[160]);
