/* Routing of tokens to experts, and what stands between their products. A thread owns whole rows. Sums over the experts of
 * a row are chains in ascending order, sums over columns use 16 lanes, and a token's results are added in the order of its
 * choice, so nothing depends on threads or instruction set. */
#include "trainer/math/cpu_ops.h"
#include "trainer/math/simd_math.h"

#include <math.h>
#include <string.h>

/* ---- routing ---- */

static float experts_exp(float x)
{
    float lanes[16];
    v16_store(lanes, v16_exp(v16_set1(x)));
    return lanes[0];
}

static float experts_log(float x)
{
    float lanes[16];
    v16_store(lanes, v16_log(v16_set1(x)));
    return lanes[0];
}

static float experts_sigmoid(float x)
{
    float lanes[16];
    v16_store(lanes, v16_sigmoid(v16_set1(x)));
    return lanes[0];
}

/* scores: softmax or logistic function of the logits; returns the log of the sum of their exponentials. */
static float route_scores(const struct pd_route *r, const float *logits, float *scores)
{
    float max = logits[0], sum = 0;
    for (uint32_t e = 1; e < r->experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < r->experts; e++) {
        scores[e] = experts_exp(logits[e] - max);
        sum += scores[e];
    }
    for (uint32_t e = 0; e < r->experts; e++)
        scores[e] = r->is_sigmoid ? experts_sigmoid(logits[e]) : scores[e] / sum;
    return max + experts_log(sum);
}

/* The value that decides which experts a token chooses. */
static float route_rank(const struct pd_route *r, const float *scores, uint32_t e)
{
    return r->bias ? scores[e] + r->bias[e] : scores[e];
}

/* The largest that is not taken yet; the first of equal ones. NaN is never larger. */
static uint32_t route_best(const float *values, const bool *is_taken, uint32_t count)
{
    uint32_t best = count;
    for (uint32_t i = 0; i < count; i++)
        if (!is_taken[i] && (best == count || values[i] > values[best])) best = i;
    return best;
}

/* Experts outside the groups whose best two have the largest sums are taken from the start. */
static void leave_groups(const struct pd_route *r, const float *ranks, bool *is_taken)
{
    const uint32_t each = r->experts / r->groups;
    float sums[PD_EXPERTS_MAX / 2];
    bool is_kept[PD_EXPERTS_MAX / 2] = {false};
    for (uint32_t g = 0; g < r->groups; g++) {
        bool is_used[PD_EXPERTS_MAX] = {false};
        const uint32_t first = route_best(ranks + g * each, is_used, each);
        is_used[first] = true;
        sums[g] = ranks[g * each + first] + ranks[g * each + route_best(ranks + g * each, is_used, each)];
    }
    for (uint32_t i = 0; i < r->groups_kept; i++)
        is_kept[route_best(sums, is_kept, r->groups)] = true;
    for (uint32_t e = 0; e < r->experts; e++)
        is_taken[e] = !is_kept[e / each];
}

/* Sum of a row's chosen scores, by which their weights are divided. */
static float chosen_sum(const struct pd_route *r, const float *scores, const int32_t *choice)
{
    float sum = 0;
    for (uint32_t j = 0; j < r->per_token; j++)
        sum += scores[choice[j]];
    return sum + 1e-20f;
}

static void route_forward_row(void *context, uint64_t row)
{
    const struct pd_route *r = context;
    float *scores = r->scores + row * r->experts, *weights = r->weights + row * r->per_token, ranks[PD_EXPERTS_MAX];
    int32_t *choice = r->choice + row * r->per_token;
    bool is_taken[PD_EXPERTS_MAX] = {false};
    r->lse[row] = route_scores(r, r->logits + row * r->experts, scores);
    for (uint32_t e = 0; e < r->experts; e++)
        ranks[e] = route_rank(r, scores, e);
    if (r->groups_kept < r->groups) leave_groups(r, ranks, is_taken);
    for (uint32_t j = 0; j < r->per_token; j++) {
        choice[j] = (int32_t)route_best(ranks, is_taken, r->experts);
        is_taken[choice[j]] = true;
    }
    const float sum = r->renormalise ? chosen_sum(r, scores, choice) : 1.0f;
    for (uint32_t j = 0; j < r->per_token; j++)
        weights[j] = r->scale * (scores[choice[j]] / sum);
}

pd_status PD_CPU(route_forward)(struct pd_math *math, const struct pd_route *route, struct pd_error *err)
{
    return pd_cpu_run(math, route->rows, route_forward_row, route);
}

/* With s the scores, w_j = scale s_j / S: ds_j = scale/S (dw_j - sum of dw_i s_i / S). */
static void route_backward_row(void *context, uint64_t row)
{
    const struct pd_route *r = context;
    const float *scores = r->scores + row * r->experts, *dweights = r->dweights + row * r->per_token;
    const int32_t *choice = r->choice + row * r->per_token;
    float *d = r->dlogits + row * r->experts;
    const float sum = r->renormalise ? chosen_sum(r, scores, choice) : 1.0f, factor = r->scale / sum;
    float mean = 0;
    for (uint32_t j = 0; j < r->per_token && r->renormalise; j++)
        mean += dweights[j] * (scores[choice[j]] / sum);
    for (uint32_t e = 0; e < r->experts; e++)
        d[e] = r->balance ? r->balance[e] : 0.0f;
    for (uint32_t j = 0; j < r->per_token; j++)
        d[choice[j]] += factor * (dweights[j] - mean);
    if (r->is_sigmoid) {
        for (uint32_t e = 0; e < r->experts; e++)
            d[e] *= scores[e] * (1.0f - scores[e]);
    } else {
        float all = 0;
        for (uint32_t e = 0; e < r->experts; e++)
            all += d[e] * scores[e];
        for (uint32_t e = 0; e < r->experts; e++)
            d[e] = scores[e] * (d[e] - all);
    }
    const float z = 2.0f * r->z * r->lse[row];
    for (uint32_t e = 0; e < r->experts && r->z != 0; e++)
        d[e] += z * (r->is_sigmoid ? experts_exp(r->logits[row * r->experts + e] - r->lse[row]) : scores[e]);
}

pd_status PD_CPU(route_backward)(struct pd_math *math, const struct pd_route *route, struct pd_error *err)
{
    return pd_cpu_run(math, route->rows, route_backward_row, route);
}

/* ---- slots ---- */

/* Place of an expert's slots. */
static uint64_t slot_place(uint32_t experts, uint32_t ranks, uint32_t expert)
{
    return expert % ranks * (uint64_t)(experts / ranks) + expert / ranks;
}

pd_status PD_CPU(slot_order)(struct pd_math *math, const struct pd_slot_order *o, struct pd_error *err)
{
    const uint64_t count = (uint64_t)o->experts * o->pieces;
    int32_t *first = o->first;
    (void)math, (void)err;
    memset(first, 0, (count + 1) * sizeof *first);
    for (uint32_t p = 0; p < o->pieces; p++)
        for (uint64_t i = o->piece_rows[p] * o->per_token; i < o->piece_rows[p + 1] * o->per_token; i++)
            first[slot_place(o->experts, o->ranks, (uint32_t)o->choice[i]) * o->pieces + p + 1]++;
    for (uint64_t i = 0; i < count; i++)
        first[i + 1] += first[i];
    for (uint32_t p = 0; p < o->pieces; p++)
        for (uint64_t i = o->piece_rows[p] * o->per_token; i < o->piece_rows[p + 1] * o->per_token; i++) {
            /* advances first[e] to the end of e */
            const int32_t slot = first[slot_place(o->experts, o->ranks, (uint32_t)o->choice[i]) * o->pieces + p]++;
            o->slots[i] = slot;
            o->tokens[slot] = (int32_t)(i / o->per_token);
            o->slot_weights[slot] = o->weights[i];
        }
    memmove(first + 1, first, count * sizeof *first);
    first[0] = 0;
    return PD_OK;
}

pd_status PD_CPU(slot_counts)(struct pd_math *math, uint32_t experts, uint32_t ranks, uint32_t pieces, const int32_t *first,
                              int32_t *tokens, struct pd_error *err)
{
    (void)math, (void)err;
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t p = 0; p < pieces; p++) {
            const uint64_t at = slot_place(experts, ranks, e) * pieces + p;
            tokens[(uint64_t)p * experts + e] = first[at + 1] - first[at];
        }
    return PD_OK;
}

/* ---- losses ---- */

pd_status PD_CPU(router_losses)(struct pd_math *math, const struct pd_router_losses *l, struct pd_error *err)
{
    double balance = 0;
    (void)math, (void)err;
    for (uint32_t e = 0; e < l->experts; e++) {
        double scores = 0, tokens = 0;
        for (uint32_t p = 0; p < l->pieces; p++) {
            scores += l->scores[(uint64_t)p * l->experts + e];
            tokens += l->tokens[(uint64_t)p * l->experts + e];
        }
        balance += tokens / l->rows * (scores / l->rows);
        if (l->balance) l->balance[e] = (float)(l->factor * tokens / l->rows);
    }
    *l->balance_loss = balance * l->experts;
    for (uint32_t p = 0; p < l->z_pieces; p++) {
        double z = 0;
        for (uint64_t r = l->z_rows[p]; r < l->z_rows[p + 1]; r++)
            z += (double)l->lse[r] * l->lse[r];
        l->z_loss[p] = z / l->rows;
    }
    return PD_OK;
}

pd_status PD_CPU(slot_surplus)(struct pd_math *math, uint32_t experts, double slots, float scale, const int32_t *tokens,
                               float *out, struct pd_error *err)
{
    uint64_t unit = 1;
    (void)math, (void)err;
    while (unit < experts)
        unit *= 2;
    for (uint32_t e = 0; e < experts; e++)
        out[e] = scale * (float)((double)tokens[e] * experts - slots) / (float)unit;
    return PD_OK;
}

pd_status PD_CPU(value_range)(struct pd_math *math, uint64_t n, const float *values, float *range, struct pd_error *err)
{
    float low = values[0], high = values[0];
    (void)math, (void)err;
    for (uint64_t i = 1; i < n; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *range = high - low;
    return PD_OK;
}

/* ---- rows of tokens ---- */

struct gather_job {
    uint64_t rows, bytes, each;
    const int32_t *from;
    const char *src;
    char *dst;
};

static void gather_body(void *context, uint64_t index)
{
    const struct gather_job *job = context;
    for (uint64_t row = index * job->each; row < job->rows && row < (index + 1) * job->each; row++)
        memcpy(job->dst + row * job->bytes, job->src + (uint64_t)job->from[row] * job->bytes, job->bytes);
}

pd_status PD_CPU(gather_rows)(struct pd_math *math, uint64_t rows, uint64_t bytes, const int32_t *from, const void *src,
                              void *dst, struct pd_error *err)
{
    const uint64_t each = 65536 / bytes + 1;
    const struct gather_job job = {rows, bytes, each, from, src, dst};
    return pd_cpu_run(math, (rows + each - 1) / each, gather_body, &job);
}

V16_INLINE void combine_put(enum pd_dtype dtype, const struct pd_combine *c, const int32_t *slots, float *out, uint64_t i,
                            unsigned w)
{
    v16 sum = v16_zero();
    for (uint32_t j = 0; j < c->per_token && c->parts; j++)
        sum = v16_add(sum, v16_get_part(dtype, c->parts, (uint64_t)slots[j] * c->columns + i, w));
    v16_put_part(PD_F32, out, i, w, sum);
}

V16_INLINE void combine_row(enum pd_dtype dtype, const struct pd_combine *c, uint64_t row)
{
    const int32_t *slots = c->slots + row * c->per_token;
    float *out = c->out + row * c->columns;
    V16_FOR(i, w, c->columns, combine_put(dtype, c, slots, out, i, w));
}

PD_DTYPE_BODY(combine_body, struct pd_combine, dtype, combine_row)

pd_status PD_CPU(combine)(struct pd_math *math, const struct pd_combine *combine, struct pd_error *err)
{
    return pd_cpu_run(math, combine->rows, combine_body, combine);
}

/* ---- SwiGLU times the weight of the row ---- */

V16_INLINE void weighted_put(enum pd_dtype dtype, const struct pd_weighted_swiglu *s, uint64_t row, uint64_t i, unsigned w)
{
    const uint64_t at = 2 * row * s->columns + i;
    v16 gate = v16_get_part(dtype, s->gate_up, at, w), up = v16_get_part(dtype, s->gate_up, at + s->columns, w);
    v16 silu = v16_mul(gate, v16_sigmoid(gate));
    v16_put_part(dtype, s->out, row * s->columns + i, w, v16_mul(v16_mul(silu, up), v16_set1(s->weights[row])));
}

V16_INLINE void weighted_forward_row(enum pd_dtype dtype, const struct pd_weighted_swiglu *s, uint64_t row)
{
    V16_FOR(i, w, s->columns, weighted_put(dtype, s, row, i, w));
}

PD_DTYPE_BODY(weighted_forward_body, struct pd_weighted_swiglu, dtype, weighted_forward_row)

pd_status PD_CPU(weighted_swiglu_forward)(struct pd_math *math, const struct pd_weighted_swiglu *swiglu,
                                          struct pd_error *err)
{
    return pd_cpu_run(math, swiglu->rows, weighted_forward_body, swiglu);
}

/* Lanes beyond the row hold 0, and so add nothing. */
V16_INLINE void weighted_put_gradient(enum pd_dtype dtype, const struct pd_weighted_swiglu *s, uint64_t row, uint64_t i,
                                      unsigned w, v16 *sum)
{
    const uint64_t at = 2 * row * s->columns + i;
    v16 one = v16_set1(1.0f), weight = v16_set1(s->weights[row]);
    v16 gate = v16_get_part(dtype, s->gate_up, at, w), up = v16_get_part(dtype, s->gate_up, at + s->columns, w);
    v16 dout = v16_get_part(dtype, s->dout, row * s->columns + i, w), scaled = v16_mul(dout, weight);
    v16 logistic = v16_sigmoid(gate), silu = v16_mul(gate, logistic);
    v16 slope = v16_mul(logistic, v16_fma(gate, v16_sub(one, logistic), one));
    *sum = v16_fma(dout, v16_mul(silu, up), *sum);
    v16_put_part(dtype, s->dgate_up, at, w, v16_mul(v16_mul(scaled, up), slope));
    v16_put_part(dtype, s->dgate_up, at + s->columns, w, v16_mul(scaled, silu));
}

V16_INLINE void weighted_backward_row(enum pd_dtype dtype, const struct pd_weighted_swiglu *s, uint64_t row)
{
    for (uint32_t chunk = 0; chunk < s->chunks; chunk++) {
        const uint64_t begin = chunk * s->chunk < s->columns ? chunk * s->chunk : s->columns,
                       end = begin + s->chunk < s->columns ? begin + s->chunk : s->columns;
        v16 sum = v16_zero();
        V16_FOR(i, w, end - begin, weighted_put_gradient(dtype, s, row, begin + i, w, &sum));
        s->dweights[chunk * s->rows + row] = v16_sum(sum);
    }
}

PD_DTYPE_BODY(weighted_backward_body, struct pd_weighted_swiglu, dtype, weighted_backward_row)

pd_status PD_CPU(weighted_swiglu_backward)(struct pd_math *math, const struct pd_weighted_swiglu *swiglu,
                                           struct pd_error *err)
{
    return pd_cpu_run(math, swiglu->rows, weighted_backward_body, swiglu);
}
