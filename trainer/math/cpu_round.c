/* Rounding at random: integers alone, so that every build has the same bits. */
#include "ckpt/base/random_bits.h"
#include "trainer/math/cpu_ops.h"

#define TASK_ELEMENTS 16384u

/* Neighbours in one row of the tensor. */
static void round_run(const struct pd_round *r, uint64_t i, uint64_t index, uint64_t count)
{
    const float *x = r->x + i;
    uint16_t *out = r->out + i;
    for (uint64_t k = 0; k < count; k++)
        out[k] = pd_bf16_at_random(x[k], pd_random_bits(r->key, index + k));
}

static void round_task(void *context, uint64_t task)
{
    const struct pd_round *r = context;
    uint64_t i = task * TASK_ELEMENTS;
    const uint64_t end = i + TASK_ELEMENTS < r->n ? i + TASK_ELEMENTS : r->n;
    while (i < end) {
        const uint64_t row = (r->first + i) / r->columns, column = (r->first + i) % r->columns;
        const uint64_t left = r->columns == r->stride ? end - i : r->columns - column; /* whole rows are one run */
        const uint64_t count = left < end - i ? left : end - i;
        round_run(r, i, r->origin + row * r->stride + column, count);
        i += count;
    }
}

pd_status PD_CPU(round)(struct pd_math *math, const struct pd_round *round, struct pd_error *err)
{
    return pd_cpu_run(math, (round->n + TASK_ELEMENTS - 1) / TASK_ELEMENTS, round_task, round);
}
