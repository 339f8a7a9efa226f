#include "tools/bench/attention_check.h"

#include "ckpt/base/half.h"

#include <math.h>
#include <stdlib.h>

#define QUERIES 16u
#define KEYS 8u

struct checking {
    const struct pd_attention *a;
    double *p, *dp, *out; /* of one query: weights, their gradients; its row of out */
    double difference, size;
};

static double at(const struct checking *c, const void *data, uint64_t i)
{
    if (c->a->dtype == PD_F32) return (double)((const float *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return (double)(c->a->dtype == PD_BF16 ? pd_f32_from_bf16(half) : pd_f32_from_f16(half));
}

static uint64_t wide(const struct checking *c, uint32_t row, uint32_t head)
{
    return ((uint64_t)row * c->a->heads + head) * c->a->head_size;
}

static uint64_t narrow(const struct checking *c, uint32_t row, uint32_t head)
{
    const uint32_t kv = head / (c->a->heads / c->a->kv_heads);
    return ((uint64_t)row * c->a->kv_heads + kv) * c->a->head_size;
}

static double dot(const struct checking *c, const void *x, uint64_t i, const void *y, uint64_t j)
{
    double sum = 0;
    for (uint32_t d = 0; d < c->a->head_size; d++)
        sum += at(c, x, i + d) * at(c, y, j + d);
    return sum;
}

/* p, out, and dS in place of dp: of query r. */
static void query(struct checking *c, uint32_t r, uint32_t head)
{
    const struct pd_attention *a = c->a;
    double max = -INFINITY, sum = 0, delta = 0;
    for (uint32_t k = 0; k <= r; k++) {
        c->p[k] = (double)a->scale * dot(c, a->q, wide(c, r, head), a->k, narrow(c, k, head));
        c->dp[k] = dot(c, a->dout, wide(c, r, head), a->v, narrow(c, k, head));
        if (c->p[k] > max) max = c->p[k];
    }
    for (uint32_t k = 0; k <= r; k++)
        sum += c->p[k] = exp(c->p[k] - max);
    for (uint32_t d = 0; d < a->head_size; d++)
        c->out[d] = 0;
    for (uint32_t k = 0; k <= r; k++) {
        c->p[k] /= sum;
        delta += c->p[k] * c->dp[k];
        for (uint32_t d = 0; d < a->head_size; d++)
            c->out[d] += c->p[k] * at(c, a->v, narrow(c, k, head) + d);
    }
    for (uint32_t k = 0; k <= r; k++)
        c->dp[k] = (double)a->scale * c->p[k] * (c->dp[k] - delta);
}

static void compare(struct checking *c, const void *got, uint64_t i, const double *want)
{
    for (uint32_t d = 0; d < c->a->head_size; d++) {
        const double difference = at(c, got, i + d) - want[d];
        c->difference += difference * difference;
        c->size += want[d] * want[d];
    }
}

static void compare_queries(struct checking *c, uint32_t head, bool backward)
{
    const struct pd_attention *a = c->a;
    for (uint32_t i = 1; i <= QUERIES; i++) {
        const uint32_t r = (uint32_t)((uint64_t)a->length * i / QUERIES);
        if (r == 0) continue;
        query(c, r - 1, head);
        for (uint32_t d = 0; backward && d < a->head_size; d++) {
            c->out[d] = 0;
            for (uint32_t k = 0; k < r; k++)
                c->out[d] += c->dp[k] * at(c, a->k, narrow(c, k, head) + d);
        }
        compare(c, backward ? a->dq : a->out, wide(c, r - 1, head), c->out);
    }
}

/* The last keys are seen by few queries. */
static void compare_keys(struct checking *c, uint32_t kv, double *dk, double *dv)
{
    const struct pd_attention *a = c->a;
    const uint32_t group = a->heads / a->kv_heads, count = a->length < KEYS ? a->length : KEYS, d_count = a->head_size;
    for (uint32_t i = 0; i < count * d_count; i++)
        dk[i] = dv[i] = 0;
    for (uint32_t head = kv * group; head < (kv + 1) * group; head++)
        for (uint32_t r = a->length - count; r < a->length; r++) {
            query(c, r, head);
            for (uint32_t k = a->length - count; k <= r; k++)
                for (uint32_t d = 0; d < d_count; d++) {
                    const uint32_t to = (k - (a->length - count)) * d_count + d;
                    dk[to] += c->dp[k] * at(c, a->q, wide(c, r, head) + d);
                    dv[to] += c->p[k] * at(c, a->dout, wide(c, r, head) + d);
                }
        }
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t key = narrow(c, a->length - count + i, kv * group);
        compare(c, a->dk, key, dk + i * d_count);
        compare(c, a->dv, key, dv + i * d_count);
    }
}

pd_status pd_attention_errors_of(const struct pd_attention *a, struct pd_attention_errors *ret_errors, struct pd_error *err)
{
    const size_t length = a->length, d = a->head_size;
    double *memory = malloc((2 * length + d + 2 * KEYS * d) * sizeof *memory);
    if (!memory) PD_FAIL(err, PD_NO_MEMORY, "no memory for float64 rows of %zu keys", length);
    struct checking c = {.a = a, .p = memory, .dp = memory + length, .out = memory + 2 * length};
    double *dk = c.out + d, *dv = dk + KEYS * d;
    compare_queries(&c, 0, false);
    compare_queries(&c, a->heads - 1, false);
    ret_errors->forward = sqrt(c.difference) / sqrt(c.size);
    c.difference = c.size = 0;
    compare_queries(&c, 0, true);
    compare_queries(&c, a->heads - 1, true);
    compare_keys(&c, 0, dk, dv);
    compare_keys(&c, a->kv_heads - 1, dk, dv);
    ret_errors->backward = sqrt(c.difference) / sqrt(c.size);
    free(memory);
    return PD_OK;
}
