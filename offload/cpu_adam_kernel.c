/* Plain C that the compiler vectorizes for every instruction set. It uses only multiplication, addition, division and
 * square root, each correctly rounded by IEEE 754, so the bits do not depend on the vector width.
 *
 * Works strip by strip: the moments first, then the parameter, then its copy from the first-level cache. Some processors
 * hash addresses to find lines in that cache, so lines of arrays a power of two apart evict each other: four arrays at
 * once were much slower than three and then one. README.md has the figures.
 */
#include "offload/cpu_adam_kernel.h"
#include "ckpt/base/half.h"
#include "ckpt/base/random_bits.h"

#include <math.h>
#include <string.h>

#if PD_ISA_LEVEL > 0
#include <immintrin.h>
#endif

#define STRIP 256u
#define LINE 16u
/* Prefetch distance in elements: these are more streams than the hardware prefetcher follows. */
#define AHEAD 256u

/* Updates m and v, and computes what is subtracted from the parameter. */
static inline void moments_elements(const struct pd_adam_step *restrict s, uint64_t n, float *restrict m, float *restrict v,
                                    const float *restrict grad, float *restrict change)
{
    for (uint64_t i = 0; i < n; i++) {
        float g = s->scale * grad[i];
        float first = s->beta1 * m[i] + s->beta1_rest * g;
        float second = s->beta2 * v[i] + s->beta2_rest * g * g;
        m[i] = first;
        v[i] = second;
        change[i] = s->rate_corrected * (first / (sqrtf(second) * s->root_correction + s->epsilon));
    }
}

static void moments(const struct pd_adam_step *step, uint64_t n, float *m, float *v, const float *grad, float *change)
{
    const struct pd_adam_step s = *step;
    uint64_t whole = n / LINE * LINE;
    for (uint64_t i = 0; i < whole; i += LINE) {
        __builtin_prefetch(m + i + AHEAD, 1);
        __builtin_prefetch(v + i + AHEAD, 1);
        __builtin_prefetch(grad + i + AHEAD, 0);
        moments_elements(&s, LINE, m + i, v + i, grad + i, change + i);
    }
    moments_elements(&s, n - whole, m + whole, v + whole, grad + whole, change + whole);
}

static inline void parameter_elements(float keep, uint64_t n, float *restrict p, const float *restrict change)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = keep * p[i] - change[i];
}

static void parameter(float keep, uint64_t n, float *p, const float *change)
{
    uint64_t whole = n / LINE * LINE;
    for (uint64_t i = 0; i < whole; i += LINE) {
        __builtin_prefetch(p + i + AHEAD, 1);
        parameter_elements(keep, LINE, p + i, change + i);
    }
    parameter_elements(keep, n - whole, p + whole, change + whole);
}

static void move_by_sign(float step, uint64_t n, float *p, const float *grad)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] -= step * (float)((grad[i] > 0) - (grad[i] < 0));
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

/* ---- moments in bf16 ---- */

static void widen(uint64_t n, const uint16_t *restrict narrow, float *restrict wide)
{
    for (uint64_t i = 0; i < n; i++)
        wide[i] = pd_f32_from_bf16(narrow[i]);
}

/* Rounds elements index .. index + n of the tensor, whose indexes have the same high half. */
static void round_moments(uint64_t key, uint64_t index, uint64_t n, const float *restrict m, const float *restrict v,
                          uint16_t *restrict m16, uint16_t *restrict v16)
{
    const uint32_t low = (uint32_t)index;
    const uint64_t high = index & ~(uint64_t)UINT32_MAX;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        const uint32_t random = pd_random_bits(key, high | (low + i));
        m16[i] = pd_bf16_at_random(m[i], random);
        v16[i] = pd_bf16_at_random(v[i], random >> 16);
    }
}

/* Counts how many of `most` elements from element `at` of a box are contiguous in the tensor and share that high half. */
static uint64_t run_length(const struct pd_update_place *place, uint64_t at, uint64_t index, uint64_t most)
{
    const uint64_t row = place->columns == place->stride ? most : place->columns - at % place->columns;
    const uint64_t half = (UINT64_C(1) << 32) - (uint32_t)index, run = row < half ? row : half;
    return run < most ? run : most;
}

static void narrow_moments(const struct pd_adam_step *step, const struct pd_update_range *range, uint64_t key,
                           uint64_t first, uint64_t n, float *change)
{
    uint16_t *m16 = (uint16_t *)range->exp_avg + first, *v16 = (uint16_t *)range->exp_avg_sq + first;
    _Alignas(64) float m[STRIP], v[STRIP];
    widen(n, m16, m);
    widen(n, v16, v);
    moments(step, n, m, v, range->grad + first, change);
    const struct pd_update_place *place = &range->place;
    for (uint64_t i = 0, run; i < n; i += run) {
        const uint64_t at = place->first + first + i;
        const uint64_t index = place->origin + at / place->columns * place->stride + at % place->columns;
        run = run_length(place, at, index, n - i);
        round_moments(key, index, run, m + i, v + i, m16 + i, v16 + i);
    }
}

void PD_ISA_SYMBOL(pd_adam_kernel)(const struct pd_adam_step *step, const struct pd_update_range *range)
{
    float keep = range->decay ? step->decay_keep : 1.0f;
    const uint64_t key = pd_random_key(step->key, range->place.tensor);
    _Alignas(64) float change[STRIP];
    for (uint64_t i = 0; i < range->n; i += STRIP) {
        uint64_t n = range->n - i < STRIP ? range->n - i : STRIP;
        float *p = range->param + i;
        if (range->by_sign)
            move_by_sign(range->sign_step, n, p, range->grad + i);
        else if (range->moments == PD_F32)
            moments(step, n, (float *)range->exp_avg + i, (float *)range->exp_avg_sq + i, range->grad + i, change);
        else
            narrow_moments(step, range, key, i, n, change);
        if (!range->by_sign) parameter(keep, n, p, change);
        if (!range->copy) continue;
        if (range->copy_dtype == PD_F32)
            memcpy((float *)range->copy + i, p, n * sizeof *p);
        else if (range->copy_dtype == PD_BF16)
            copy_bf16(n, p, (uint16_t *)range->copy + i);
        else
            copy_f16(n, p, (uint16_t *)range->copy + i);
    }
}
