/* Cross-entropy of rows of logits, and its gradient, in three passes over a row that stays in cache (or, for columns of a
 * wider vocabulary, in three calls with exchanges between them):
 *
 *   max    exact in any order
 *   sum    of exp(x - max): 16 lanes inside each chunk of ceil(vocab / chunks) columns, then a binary tree over the chunks
 *   write  (exp(x - max) / sum - onehot) scale
 *
 * loss = (max - x[target]) + log(sum). */
#include "trainer/math/cpu_ops.h"
#include "trainer/math/simd_math.h"

#include <float.h>
#include <math.h>

/* A row of logits of type T. */
static const void *logits_row(const struct pd_cross_entropy *l, uint64_t row)
{
    return (const char *)l->logits + row * l->ld * pd_dtype_bytes(l->logits_dtype);
}

V16_INLINE float logit_at(enum pd_dtype T, const void *x, uint64_t i)
{
    if (T == PD_F32) return ((const float *)x)[i];
    const uint16_t half = ((const uint16_t *)x)[i];
    return T == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half);
}

V16_INLINE float row_max(enum pd_dtype T, const void *x, uint64_t n)
{
    v16 max[2] = {v16_set1(logit_at(T, x, 0)), v16_set1(logit_at(T, x, 0))};
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        max[0] = v16_max(v16_get(T, x, i), max[0]);
        max[1] = v16_max(v16_get(T, x, i + 16), max[1]);
    }
    float result = v16_max_lane(v16_max(max[0], max[1]));
    for (; i < n; i++)
        result = logit_at(T, x, i) > result ? logit_at(T, x, i) : result;
    return result;
}

/* A lane beyond the chunk holds exp(-inf) = 0. */
V16_INLINE v16 exp_part(enum pd_dtype T, const void *x, uint64_t i, unsigned w, v16 max)
{
    if (w == 16) return v16_exp(v16_sub(v16_get(T, x, i), max));
    float lanes[16];
    for (unsigned l = 0; l < 16; l++)
        lanes[l] = l < w ? logit_at(T, x, i + l) : -INFINITY;
    return v16_exp(v16_sub(v16_load(lanes), max));
}

V16_INLINE float chunk_sum(enum pd_dtype T, const void *x, uint64_t n, v16 max)
{
    v16 sum = v16_zero();
    V16_FOR(i, w, n, sum = v16_add(sum, exp_part(T, x, i, w, max)));
    return v16_sum(sum);
}

static float chunk_sum_of(enum pd_dtype T, const void *x, uint64_t start, uint64_t n, v16 max)
{
    if (T == PD_F32) return chunk_sum(PD_F32, (const float *)x + start, n, max);
    const uint16_t *half = (const uint16_t *)x + start;
    return T == PD_BF16 ? chunk_sum(PD_BF16, half, n, max) : chunk_sum(PD_F16, half, n, max);
}

/* Sum of chunks [first, first + width), width a power of two; chunks beyond the last are 0. */
static float tree_sum(const struct pd_cross_entropy *l, const void *x, uint64_t chunk, uint64_t first, uint64_t width,
                      v16 max)
{
    uint64_t start = first * chunk;
    if (start >= l->vocab) return 0.0f;
    if (width == 1) return chunk_sum_of(l->logits_dtype, x, start, l->vocab - start < chunk ? l->vocab - start : chunk, max);
    float left = tree_sum(l, x, chunk, first, width / 2, max);
    return left + tree_sum(l, x, chunk, first + width / 2, width / 2, max);
}

static float row_sum(const struct pd_cross_entropy *l, const void *x, float max)
{
    uint64_t chunk = l->chunk ? l->chunk : (l->vocab + l->chunks - 1) / l->chunks, width = 1;
    while (width < l->chunks)
        width *= 2;
    return tree_sum(l, x, chunk, 0, width, v16_set1(max));
}

/* Column of a row's target, or `vocab` if it is elsewhere. */
static uint64_t target_column(const struct pd_cross_entropy *l, uint64_t row)
{
    uint64_t column = (uint64_t)l->targets[row] - l->first_column;
    return l->targets[row] >= 0 && column < l->vocab ? column : l->vocab;
}

V16_INLINE void put_gradient(enum pd_dtype dtype, enum pd_dtype T, const void *x, uint64_t i, unsigned w, v16 max,
                             v16 factor, void *out, uint64_t at)
{
    v16_put_part(dtype, out, at + i, w, v16_mul(exp_part(T, x, i, w, max), factor));
}

/* May overlay x: an element is no wider than a logit, and is written after its 16 logits were read. */
V16_INLINE void write_gradient(enum pd_dtype dtype, enum pd_dtype T, const struct pd_cross_entropy *l, uint64_t row,
                               float max, float sum, float target_logit)
{
    const void *x = logits_row(l, row);
    uint64_t at = row * l->ld_dlogits;
    v16 max_all = v16_set1(max), factor = v16_set1(l->scale / sum);
    V16_FOR(i, w, l->vocab, put_gradient(dtype, T, x, i, w, max_all, factor, l->dlogits, at));
    v16 p = v16_exp(v16_sub(v16_set1(target_logit), max_all));
    p = v16_fma(p, factor, v16_set1(-l->scale));
    if (target_column(l, row) < l->vocab) v16_put_part(dtype, l->dlogits, at + target_column(l, row), 1, p);
}

V16_INLINE void zero_gradient(enum pd_dtype dtype, const struct pd_cross_entropy *l, uint64_t row)
{
    uint64_t bytes = pd_dtype_bytes(dtype);
    memset((char *)l->dlogits + row * l->ld_dlogits * bytes, 0, l->vocab * bytes);
}

static float log_of(float x)
{
    float lanes[16];
    v16_store(lanes, v16_log(v16_set1(x)));
    return lanes[0];
}

V16_INLINE void typed_loss_row(enum pd_dtype dtype, enum pd_dtype T, const struct pd_cross_entropy *l, uint64_t row)
{
    if (l->targets[row] < 0) {
        l->losses[row] = 0.0f;
        if (l->dlogits) zero_gradient(dtype, l, row);
        return;
    }
    const void *x = logits_row(l, row);
    float max, sum, target_logit;
    if (l->max) {
        max = l->max[row];
        sum = l->sum[row];
        target_logit = l->target_logit[row];
    } else {
        PD_CHECK(target_column(l, row) < l->vocab);
        max = row_max(T, x, l->vocab);
        sum = row_sum(l, x, max);
        target_logit = logit_at(T, x, target_column(l, row));
    }
    l->losses[row] = (max - target_logit) + log_of(sum);
    if (l->dlogits) write_gradient(dtype, T, l, row, max, sum, target_logit);
}

V16_INLINE void loss_row(enum pd_dtype dtype, const struct pd_cross_entropy *l, uint64_t row)
{
    if (l->logits_dtype == PD_F32)
        typed_loss_row(dtype, PD_F32, l, row);
    else
        typed_loss_row(dtype, dtype, l, row);
}

PD_DTYPE_BODY(loss_body, struct pd_cross_entropy, dtype, loss_row)

pd_status PD_CPU(cross_entropy)(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err)
{
    return pd_cpu_run(math, loss->rows, loss_body, loss);
}

/* An ignored row has no maximum; uses 0. */
V16_INLINE void max_of_row(enum pd_dtype T, const struct pd_cross_entropy *l, uint64_t row)
{
    if (l->targets[row] < 0)
        l->max[row] = 0.0f;
    else
        l->max[row] = l->vocab ? row_max(T, logits_row(l, row), l->vocab) : -INFINITY;
}

PD_DTYPE_BODY(max_body, struct pd_cross_entropy, logits_dtype, max_of_row)

pd_status PD_CPU(logits_max)(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err)
{
    return pd_cpu_run(math, loss->rows, max_body, loss);
}

static void sum_body(void *context, uint64_t row)
{
    const struct pd_cross_entropy *l = context;
    const void *x = logits_row(l, row);
    const uint64_t column = target_column(l, row);
    l->sum[row] = l->targets[row] < 0 || l->vocab == 0 ? 0.0f : row_sum(l, x, l->max[row]);
    if (column < l->vocab) l->target_logit[row] = logit_at(l->logits_dtype, x, column);
}

pd_status PD_CPU(logits_sum)(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err)
{
    return pd_cpu_run(math, loss->rows, sum_body, loss);
}

static float exp_of(float x)
{
    float lanes[16];
    v16_store(lanes, v16_exp(v16_set1(x)));
    return lanes[0];
}

/* The columns form a chunk, whose sum joins the sum of earlier columns (Milakov and Gimelshein 2018, "Online normalizer
 * calculation for softmax"). If all are -infinity the sum is 0. */
V16_INLINE void part_of_row(enum pd_dtype T, const struct pd_cross_entropy *l, uint64_t row)
{
    const void *x = logits_row(l, row);
    const uint64_t column = target_column(l, row);
    float *max = &l->max[row], *sum = &l->sum[row];
    if (!l->goes_on || l->targets[row] < 0) *max = *sum = 0.0f;
    if (l->targets[row] < 0) return;
    const float part_max = fmaxf(row_max(T, x, l->vocab), -FLT_MAX),
                part_sum = chunk_sum(T, x, l->vocab, v16_set1(part_max));
    const float larger = l->goes_on && *max > part_max ? *max : part_max;
    *sum = l->goes_on ? *sum * exp_of(*max - larger) + part_sum * exp_of(part_max - larger) : part_sum;
    *max = larger;
    if (column < l->vocab) l->target_logit[row] = logit_at(T, x, column);
}

PD_DTYPE_BODY(part_body, struct pd_cross_entropy, logits_dtype, part_of_row)

pd_status PD_CPU(logits_part)(struct pd_math *math, const struct pd_cross_entropy *loss, struct pd_error *err)
{
    return pd_cpu_run(math, loss->rows, part_body, loss);
}

struct rescale {
    const float *part_max, *max;
    float *sum;
};

static void rescale_body(void *context, uint64_t row)
{
    const struct rescale *r = context;
    r->sum[row] *= exp_of(r->part_max[row] - r->max[row]);
}

pd_status PD_CPU(logits_rescale)(struct pd_math *math, uint64_t rows, const float *part_max, const float *max, float *sum,
                                 struct pd_error *err)
{
    const struct rescale r = {part_max, max, sum};
    return pd_cpu_run(math, rows, rescale_body, &r);
}

/* Compares and copies a few numbers per row. */
pd_status PD_CPU(logits_join)(struct pd_math *math, const struct pd_logits_join *j, struct pd_error *err)
{
    for (uint64_t row = 0; row < j->rows && j->max; row++) {
        float max = j->all_max[row];
        for (uint32_t r = 1; r < j->ranks; r++)
            if (j->all_max[r * j->ld + row] > max) max = j->all_max[r * j->ld + row];
        j->max[row] = max;
    }
    for (uint64_t row = 0; row < j->rows && j->target_logit; row++)
        if (j->targets[row] >= 0)
            j->target_logit[row] = j->all_targets[(uint64_t)j->targets[row] / j->rank_columns * j->ld + row];
    return PD_OK;
}
