/* Builds without CUDA. */
#include "offload/device.h"

uint32_t pd_dev_cuda_count(void)
{
    return 0;
}

pd_status pd_dev_open_cuda(uint32_t index, struct pd_dev **ret_dev, struct pd_error *err)
{
    (void)ret_dev;
    PD_FAIL(err, PD_UNSUPPORTED,
            "GPU %u: this build has no CUDA; configure it again where nvcc is on PATH, with -DPERDURE_CUDA=ON", index);
}

void pd_dev_cuda_pci(uint32_t index, char ret_address[16])
{
    (void)index;
    ret_address[0] = '\0';
}

bool pd_dev_cuda_reaches(uint32_t index, uint32_t other)
{
    (void)index, (void)other;
    return false;
}

void pd_dev_cuda_identity(uint32_t index, char ret_identity[33])
{
    (void)index;
    ret_identity[0] = '\0';
}

pd_status pd_dev_cuda_memory(uint32_t index, char ret_name[96], struct pd_dev_memory *ret_memory, struct pd_error *err)
{
    struct pd_dev *none;
    (void)ret_name, (void)ret_memory;
    return pd_dev_open_cuda(index, &none, err);
}
