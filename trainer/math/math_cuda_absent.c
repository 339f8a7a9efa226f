/* Builds without CUDA. */
#include "trainer/math/math_cuda.h"

#include <stdio.h>

pd_status pd_math_cuda_new(const struct pd_math_cuda_options *options, struct pd_arena *arena, struct pd_math **ret_math,
                           struct pd_error *err)
{
    (void)options;
    (void)arena;
    (void)ret_math;
    PD_FAIL(err, PD_UNSUPPORTED,
            "GPU: this build has no CUDA; configure it again where nvcc is on PATH, with -DPERDURE_CUDA=ON");
}

void pd_math_cuda_kernels(uint32_t capability, const struct pd_attention *attention, char *ret_text, size_t bytes)
{
    (void)capability;
    (void)attention;
    snprintf(ret_text, bytes, "none");
}

uint32_t pd_math_cuda_plain_shapes(const struct pd_math *math)
{
    (void)math;
    return 0;
}

void pd_math_cuda_rehearse(struct pd_math *math, bool on)
{
    (void)math, (void)on;
}

pd_status pd_math_cuda_load(struct pd_error *err)
{
    (void)err;
    return PD_OK;
}

uint32_t pd_math_cuda_kernel_count(void)
{
    return 0;
}
