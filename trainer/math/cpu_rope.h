/* The rotation of a head by its position (Su et al. 2021): (a, b) -> (a cos - b sin, b cos + a sin); the inverse has -sin. */
#pragma once

#include "trainer/math/cpu_ops.h"

#include <string.h>

/* cos and sin of one position; readable up to a whole vector past the end. */
struct pd_cpu_turn {
    float cosines[PD_CPU_HEAD_SIZE_MAX / 2 + 16], sines[PD_CPU_HEAD_SIZE_MAX / 2 + 16];
};

V16_INLINE void pd_cpu_turn_of(const float *cos_sin, int32_t position, uint64_t half, bool inverse, struct pd_cpu_turn *turn)
{
    const float *table = cos_sin + (uint64_t)position * half * 2, sign = inverse ? -1.0f : 1.0f;
    memset(turn, 0, sizeof *turn);
    for (uint64_t i = 0; i < half; i++) {
        turn->cosines[i] = table[2 * i];
        turn->sines[i] = sign * table[2 * i + 1];
    }
}

V16_INLINE void pd_cpu_turn_put(enum pd_dtype dtype, const struct pd_cpu_turn *turn, const void *from, void *to, uint64_t at,
                                uint64_t half, uint64_t i, unsigned w)
{
    v16 a = v16_get_part(dtype, from, at + i, w), b = v16_get_part(dtype, from, at + half + i, w);
    v16 c = v16_load(turn->cosines + i), s = v16_load(turn->sines + i);
    v16 minus_bs = v16_sub(v16_zero(), v16_mul(b, s));
    v16_put_part(dtype, to, at + i, w, v16_fma(a, c, minus_bs));
    v16_put_part(dtype, to, at + half + i, w, v16_fma(a, s, v16_mul(b, c)));
}

/* Rotates the head at element `at` of `from`, which may be `to`. */
V16_INLINE void pd_cpu_turn_head(enum pd_dtype dtype, const struct pd_cpu_turn *turn, const void *from, void *to,
                                 uint64_t at, uint64_t half)
{
    V16_FOR(i, w, half, pd_cpu_turn_put(dtype, turn, from, to, at, half, i, w));
}
