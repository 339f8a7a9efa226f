/* Plain C that every instruction set vectorizes: only multiplications, additions, divisions and square roots, each correctly
 * rounded by IEEE 754, so the width of a vector cannot show. The copy follows strip by strip, from the first-level cache. */
#include "offload/cpu_adam_kernel.h"
#include "ckpt/base/half.h"

#include <math.h>
#include <string.h>

#if PD_ISA_LEVEL > 0
#include <immintrin.h>
#endif

#define STRIP 1024u

#define LINE 16u
/* Elements from what is updated to what is fetched: four streams are more than the processor follows by itself. */
#define AHEAD 128u

static inline void update_elements(const struct pd_adam_step *restrict s, float keep, uint64_t n, float *restrict p,
                                   float *restrict m, float *restrict v, const float *restrict grad)
{
    for (uint64_t i = 0; i < n; i++) {
        float g = s->scale * grad[i];
        float first = s->beta1 * m[i] + s->beta1_rest * g;
        float second = s->beta2 * v[i] + s->beta2_rest * g * g;
        m[i] = first;
        v[i] = second;
        p[i] = keep * p[i] - s->rate_corrected * (first / (sqrtf(second) * s->root_correction + s->epsilon));
    }
}

static void update(const struct pd_adam_step *step, float keep, uint64_t n, float *p, float *m, float *v, const float *grad)
{
    const struct pd_adam_step s = *step;
    uint64_t whole = n / LINE * LINE;
    for (uint64_t i = 0; i < whole; i += LINE) {
        __builtin_prefetch(p + i + AHEAD, 1);
        __builtin_prefetch(m + i + AHEAD, 1);
        __builtin_prefetch(v + i + AHEAD, 1);
        __builtin_prefetch(grad + i + AHEAD, 0);
        update_elements(&s, keep, LINE, p + i, m + i, v + i, grad + i);
    }
    update_elements(&s, keep, n - whole, p + whole, m + whole, v + whole, grad + whole);
}

static void copy_bf16(uint64_t n, const float *restrict p, uint16_t *restrict copy)
{
    for (uint64_t i = 0; i < n; i++)
        copy[i] = pd_bf16_from_f32(p[i]);
}

static void copy_f16(uint64_t n, const float *restrict p, uint16_t *restrict copy)
{
    uint64_t i = 0;
#if PD_ISA_LEVEL > 0
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(copy + i), _mm256_cvtps_ph(_mm256_loadu_ps(p + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        copy[i] = pd_f16_from_f32(p[i]);
}

void PD_ISA_SYMBOL(pd_adam_kernel)(const struct pd_adam_step *step, const struct pd_adam_range *range)
{
    float keep = range->decay ? step->decay_keep : 1.0f;
    for (uint64_t i = 0; i < range->n; i += STRIP) {
        uint64_t n = range->n - i < STRIP ? range->n - i : STRIP;
        float *p = range->param + i;
        update(step, keep, n, p, range->exp_avg + i, range->exp_avg_sq + i, range->grad + i);
        if (!range->copy) continue;
        if (range->copy_dtype == PD_F32)
            memcpy((float *)range->copy + i, p, n * sizeof *p);
        else if (range->copy_dtype == PD_BF16)
            copy_bf16(n, p, (uint16_t *)range->copy + i);
        else
            copy_f16(n, p, (uint16_t *)range->copy + i);
    }
}
