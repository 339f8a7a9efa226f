/* Builds without CUDA. */
#include "trainer/math/math_cuda.h"

pd_status pd_math_cuda_new(const struct pd_math_cuda_options *options, struct pd_arena *arena, struct pd_math **ret_math,
                           struct pd_error *err)
{
    (void)options;
    (void)arena;
    (void)ret_math;
    PD_FAIL(err, PD_UNSUPPORTED,
            "GPU: this build has no CUDA; configure it again where nvcc is on PATH, with -DPERDURE_CUDA=ON");
}
