#include "trainer/math/cuda/architectures.h"

/* Shared memory: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
const struct pd_architecture pd_architectures[PD_ARCHITECTURES] = {
    {80, 80, "A100, A800", PD_ATTENTION_MMA, 163 << 10},      {86, 80, "A10, A40, RTX 30", PD_ATTENTION_MMA, 99 << 10},
    {89, 80, "L4, L40S, RTX 40", PD_ATTENTION_MMA, 99 << 10}, {90, 90, "H100, H200, GH200", PD_ATTENTION_WGMMA, 227 << 10},
    {100, 100, "B200, GB200", PD_ATTENTION_MMA, 227 << 10},   {120, 120, "RTX 50, RTX PRO 6000", PD_ATTENTION_MMA, 99 << 10},
};

const struct pd_architecture *pd_architecture_of(uint32_t capability)
{
    for (uint32_t i = 0; i < PD_ARCHITECTURES; i++)
        if (pd_architectures[i].capability == capability) return &pd_architectures[i];
    return NULL;
}

enum pd_attention_kernels pd_attention_kernels_of(uint32_t capability, bool build_has_wgmma)
{
    const struct pd_architecture *a = pd_architecture_of(capability);
    if (!a || (a->attention == PD_ATTENTION_WGMMA && !build_has_wgmma)) return PD_ATTENTION_MMA;
    return a->attention;
}
