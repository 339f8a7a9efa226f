#include "offload/cpu_adam.h"

#include "ckpt/base/random_bits.h"
#include "offload/cpu_adam_kernel.h"

#include <math.h>

#define PIECE (UINT64_C(64) << 10)         /* elements of one index of the pool */
#define MOMENTS UINT64_C(0x6d6f6d656e7473) /* separates these keys from other uses of the seed */

struct adam_job {
    const struct pd_adam_step *step;
    const struct pd_update_range *range;
    void (*kernel)(const struct pd_adam_step *step, const struct pd_update_range *range);
};

/* By squaring, so that the bits follow from IEEE multiplication, not from a C library. */
static double power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

struct pd_adam_step pd_adam_step_make(const struct pd_update_config *config)
{
    PD_CHECK(config->step >= 1);
    return (struct pd_adam_step){
        .scale = (float)config->scale,
        .beta1 = (float)config->beta1,
        .beta1_rest = (float)(1.0 - config->beta1),
        .beta2 = (float)config->beta2,
        .beta2_rest = (float)(1.0 - config->beta2),
        .epsilon = (float)config->epsilon,
        .root_correction = (float)(1.0 / sqrt(1.0 - power(config->beta2, config->step))),
        .rate_corrected = (float)(config->rate / (1.0 - power(config->beta1, config->step))),
        .decay_keep = (float)(1.0 - config->rate * config->weight_decay),
        .key = pd_random_key(pd_random_key(config->seed, MOMENTS), config->step),
    };
}

static void update_piece(void *context, uint64_t index)
{
    const struct adam_job *job = context;
    uint64_t from = index * PIECE;
    const uint64_t left = job->range->n - from;
    const struct pd_update_range piece = pd_update_range_cut(job->range, from, left < PIECE ? left : PIECE);
    job->kernel(job->step, &piece);
}

void pd_cpu_adam(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_adam_step *step,
                 const struct pd_update_range *range)
{
    struct adam_job job = {.step = step, .range = range, .kernel = pd_adam_kernel_portable};
    PD_CHECK(isa > PD_ISA_AUTO && isa < PD_ISA_COUNT);
#if defined(__x86_64__)
    if (isa == PD_ISA_AVX2) job.kernel = pd_adam_kernel_avx2;
    if (isa == PD_ISA_AVX512) job.kernel = pd_adam_kernel_avx512;
#endif
    pd_parallel(pool, range->n / PIECE + (range->n % PIECE != 0), update_piece, &job);
}
