/* AdamW: equal to its definition bit for bit on every instruction set, for any threads and any cut into ranges; close to the
 * same formula in double over many steps. PERDURE_TEST_SCALE multiplies the number of random ranges. */
#include "ckpt/base/half.h"
#include "ckpt/base/random_bits.h"
#include "offload/cpu_adam.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 8u /* elements after each array that must stay as they are */

static uint32_t state = 1;

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static float uniform(void)
{
    return (float)(int32_t)next() / 2147483648.0f;
}

struct arrays {
    float *p, *m, *v, *g;
    void *copy;
};

static float *floats(uint64_t n, float scale, bool positive)
{
    float *x = malloc((n + GUARD) * sizeof *x);
    cr_assert_not_null(x);
    for (uint64_t i = 0; i < n + GUARD; i++) {
        uint32_t kind = next() % 50;
        float value = kind == 0 ? 0.0f : kind == 1 ? 1e-30f * uniform() : kind == 2 ? 1e-42f : scale * uniform();
        x[i] = positive ? fabsf(value) : value;
    }
    return x;
}

static struct arrays arrays_new(uint64_t n)
{
    return (struct arrays){floats(n, 0.1f, false), floats(n, 0.01f, false), floats(n, 1e-4f, true), floats(n, 3.0f, false),
                           calloc(n + GUARD, sizeof(float))};
}

static struct arrays arrays_clone(const struct arrays *from, uint64_t n)
{
    struct arrays to = arrays_new(n);
    memcpy(to.p, from->p, (n + GUARD) * sizeof(float));
    memcpy(to.m, from->m, (n + GUARD) * sizeof(float));
    memcpy(to.v, from->v, (n + GUARD) * sizeof(float));
    memcpy(to.g, from->g, (n + GUARD) * sizeof(float));
    return to;
}

static void arrays_free(struct arrays *a)
{
    free(a->p);
    free(a->m);
    free(a->v);
    free(a->g);
    free(a->copy);
}

/* How moments are kept, and where the arrays lie in their tensor. */
struct kept {
    enum pd_dtype moments;
    struct pd_update_place place;
};

static struct pd_update_range range_of(const struct arrays *a, uint64_t from, uint64_t n, bool decay, enum pd_dtype copy,
                                       const struct kept *kept)
{
    const uint64_t width = pd_dtype_bytes(kept->moments);
    struct pd_update_range range = {.n = n,
                                    .decay = decay,
                                    .param = a->p + from,
                                    .exp_avg = (char *)a->m + from * width,
                                    .exp_avg_sq = (char *)a->v + from * width,
                                    .grad = a->g + from,
                                    .copy = (char *)a->copy + from * pd_dtype_bytes(copy),
                                    .copy_dtype = copy,
                                    .moments = kept->moments,
                                    .place = kept->place};
    range.place.first += from;
    return range;
}

static float moment(const void *moments, enum pd_dtype dtype, uint64_t i)
{
    return dtype == PD_F32 ? ((const float *)moments)[i] : pd_f32_from_bf16(((const uint16_t *)moments)[i]);
}

static void put_moments(const struct pd_adam_step *s, const struct pd_update_range *r, uint64_t i, float m, float v)
{
    const struct pd_update_place *p = &r->place;
    if (r->moments == PD_F32) {
        ((float *)r->exp_avg)[i] = m;
        ((float *)r->exp_avg_sq)[i] = v;
        return;
    }
    const uint64_t at = p->first + i, index = p->origin + at / p->columns * p->stride + at % p->columns;
    const uint32_t random = pd_random_bits(pd_random_key(s->key, p->tensor), index);
    ((uint16_t *)r->exp_avg)[i] = pd_bf16_at_random(m, random & 0xffffu);
    ((uint16_t *)r->exp_avg_sq)[i] = pd_bf16_at_random(v, random >> 16);
}

/* The formula of the header, one rounded operation at a time. */
static void definition(const struct pd_adam_step *s, const struct pd_update_range *r)
{
    for (uint64_t i = 0; i < r->n; i++) {
        volatile float g = s->scale * r->grad[i], a = s->beta1 * moment(r->exp_avg, r->moments, i), b = s->beta1_rest * g;
        volatile float m = a + b, c = s->beta2 * moment(r->exp_avg_sq, r->moments, i), d = s->beta2_rest * g;
        volatile float e = d * g, v = c + e, root = sqrtf(v), f = root * s->root_correction, h = f + s->epsilon;
        volatile float q = m / h, change = s->rate_corrected * q,
                       kept = r->decay ? s->decay_keep * r->param[i] : r->param[i];
        put_moments(s, r, i, m, v);
        r->param[i] = kept - change;
        if (r->copy_dtype == PD_F32) ((float *)r->copy)[i] = r->param[i];
        if (r->copy_dtype == PD_BF16) ((uint16_t *)r->copy)[i] = pd_bf16_from_f32(r->param[i]);
        if (r->copy_dtype == PD_F16) ((uint16_t *)r->copy)[i] = pd_f16_from_f32(r->param[i]);
    }
}

static struct pd_update_config config_random(void)
{
    return (struct pd_update_config){
        1e-3 * fabs((double)uniform()), 0.9, 0.95, 1e-8, 0.1, 0.5 + fabs((double)uniform()), 1 + next() % 1000, next()};
}

/* A box of part of the columns, or whole rows; now and then where 32 bits of an index end. */
static struct kept kept_random(uint64_t n)
{
    const uint64_t columns = 1 + next() % (next() % 2 ? 100 : 5000), stride = columns + (next() % 2 ? next() % 50 : 0);
    const uint64_t edge = (UINT64_C(1) << 32) - n / 2;
    return (struct kept){next() % 2 ? PD_BF16 : PD_F32,
                         {.tensor = next() % 9,
                          .first = next() % 2 ? next() % 10000 : 0,
                          .origin = next() % 3 ? next() : edge,
                          .columns = columns,
                          .stride = stride}};
}

static void check_same(const struct arrays *x, const struct arrays *y, uint64_t n, const char *what)
{
    uint64_t bytes = (n + GUARD) * sizeof(float);
    cr_assert(memcmp(x->p, y->p, bytes) == 0, "%s: param", what);
    cr_assert(memcmp(x->m, y->m, bytes) == 0, "%s: exp_avg", what);
    cr_assert(memcmp(x->v, y->v, bytes) == 0, "%s: exp_avg_sq", what);
    cr_assert(memcmp(x->g, y->g, bytes) == 0, "%s: grad", what);
    cr_assert(memcmp(x->copy, y->copy, bytes) == 0, "%s: copy", what);
}

/* The same update through `isa`, by `threads`, cut into ranges at random places. */
static void run_cut(struct pd_thread_pool *pool, enum pd_isa isa, const struct pd_adam_step *step, const struct arrays *a,
                    uint64_t n, bool decay, enum pd_dtype copy, const struct kept *kept)
{
    for (uint64_t from = 0; from < n;) {
        uint64_t part = next() % 3 == 0 ? 1 + next() % n : n;
        if (part > n - from) part = n - from;
        struct pd_update_range range = range_of(a, from, part, decay, copy, kept);
        pd_cpu_adam(pool, isa, step, &range);
        from += part;
    }
}

Test(cpu_adam, equals_its_definition_however_it_runs)
{
    pd_numerics_thread_init();
    struct pd_thread_pool *pools[4] = {NULL};
    for (unsigned t = 1; t < 4; t++)
        cr_assert_eq(pd_thread_pool_new(t, &pools[t], NULL), PD_OK);
    const char *scale = getenv("PERDURE_TEST_SCALE");
    uint64_t rounds = 150 * (scale ? strtoull(scale, NULL, 10) : 1);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t n = round % 10 == 0 ? 60000 + next() % 200000 : 1 + next() % 3000;
        enum pd_dtype copy = (enum pd_dtype)(next() % 3);
        bool decay = next() % 2;
        struct pd_update_config config = config_random();
        struct pd_adam_step step = pd_adam_step_make(&config);
        struct kept kept = kept_random(n);
        struct arrays before = arrays_new(n);
        if (kept.moments == PD_BF16) pd_narrow_bf16(before.m, before.m, n), pd_narrow_bf16(before.v, before.v, n);
        struct arrays expected = arrays_clone(&before, n);
        struct pd_update_range whole = range_of(&expected, 0, n, decay, copy, &kept);
        definition(&step, &whole);
        for (enum pd_isa isa = PD_ISA_PORTABLE; isa < PD_ISA_COUNT; isa++) {
            if (!pd_isa_available(isa)) continue;
            struct arrays got = arrays_clone(&before, n);
            run_cut(pools[next() % 4], isa, &step, &got, n, decay, copy, &kept);
            check_same(&expected, &got, n, pd_isa_name(isa));
            arrays_free(&got);
        }
        arrays_free(&before);
        arrays_free(&expected);
    }
    for (unsigned t = 1; t < 4; t++)
        pd_thread_pool_free(pools[t]);
}

Test(cpu_adam, avx512_runs_where_it_can)
{
    if (!pd_isa_available(PD_ISA_AVX512))
        cr_skip_test("this processor has no AVX-512 (f, dq, bw, vl): its kernel was compiled and not run");
}

/* 300 steps on a quadratic against the textbook formula in double. */
Test(cpu_adam, follows_the_formula_in_double)
{
    float p[3] = {1.0f, -2.0f, 0.5f}, m[3] = {0}, v[3] = {0}, g[3];
    double dp[3] = {1.0, -2.0, 0.5}, dm[3] = {0}, dv[3] = {0};
    for (uint64_t t = 1; t <= 300; t++) {
        struct pd_update_config c = {0.01, 0.9, 0.999, 1e-8, 0.1, 0.5, t, 0};
        struct pd_adam_step step = pd_adam_step_make(&c);
        for (int i = 0; i < 3; i++) {
            g[i] = 2.0f * p[i] + 0.1f * (float)i;
            double dg = 0.5 * (2.0 * dp[i] + 0.1 * i);
            dm[i] = 0.9 * dm[i] + 0.1 * dg;
            dv[i] = 0.999 * dv[i] + 0.001 * dg * dg;
            double mh = dm[i] / (1 - pow(0.9, (double)t)), vh = dv[i] / (1 - pow(0.999, (double)t));
            dp[i] -= 0.01 * (mh / (sqrt(vh) + 1e-8) + 0.1 * dp[i]);
        }
        struct pd_update_range range = {.n = 3, .decay = true, .param = p, .exp_avg = m, .exp_avg_sq = v, .grad = g};
        pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
    }
    for (int i = 0; i < 3; i++)
        cr_assert_float_eq((double)p[i], dp[i], 1e-4, "%d: %g %g", i, (double)p[i], dp[i]);
}

Test(cpu_adam, nothing_is_nothing)
{
    struct pd_update_config c = {0.01, 0.9, 0.999, 1e-8, 0.1, 1.0, 1, 0};
    struct pd_adam_step step = pd_adam_step_make(&c);
    struct pd_update_range range = {.n = 0};
    pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
    float p = 1, m = 0, v = 0, g = 0;
    range = (struct pd_update_range){.n = 1, .param = &p, .exp_avg = &m, .exp_avg_sq = &v, .grad = &g};
    pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
    cr_assert(p == 1.0f && m == 0 && v == 0, "no gradient and no decay change nothing");
}

/* ---- moments in bf16 ---- */

Test(cpu_adam, a_place_says_which_elements_of_the_tensor_a_range_has)
{
    const struct pd_tensor tensor = {.ndim = 3, .shape = {20, 30, 2, 1}};
    const struct pd_box whole = pd_box_whole(&tensor), box = {{3, 5, 0, 0}, {7, 11, 2, 1}};
    const struct pd_update_place place = pd_update_place_of(&tensor, 4, &box);
    cr_assert_eq(place.tensor, 4u);
    for (uint64_t at = 0; at < pd_box_elements(&box); at++) {
        const struct pd_box element = {{3 + at / 22, 5 + at % 22 / 2, at % 2, 0}, {1, 1, 1, 1}};
        cr_assert_eq(place.origin + at / place.columns * place.stride + at % place.columns, pd_box_offset(&whole, &element));
    }
}

enum { SEEDS = 1024, UPDATES = 400 };

/* Gradients of one element: steady for a while, then none. */
static float gradient_of(uint64_t t)
{
    return t <= UPDATES / 2 ? 0.3f + 0.1f * (float)(t % 3) : 0;
}

/* One element a tensor: UPDATES updates of each, with bits of its own, beside fp32. beta2 is 0.999: what an update changes of
 * the second moment is a quarter of bf16's half unit, or less. */
static void run_moments(uint16_t *m, uint16_t *v, float *m32, float *v32)
{
    float p = 1, p32 = 1;
    for (uint64_t t = 1; t <= UPDATES; t++) {
        const struct pd_update_config c = {1e-3, 0.9, 0.999, 1e-8, 0, 1, t, 7};
        const struct pd_adam_step step = pd_adam_step_make(&c);
        const float g = gradient_of(t);
        struct pd_update_range range = {.n = 1, .param = &p32, .exp_avg = m32, .exp_avg_sq = v32, .grad = &g};
        pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
        for (uint32_t s = 0; s < SEEDS; s++) {
            range = (struct pd_update_range){.n = 1,
                                             .param = &p,
                                             .exp_avg = &m[s],
                                             .exp_avg_sq = &v[s],
                                             .grad = &g,
                                             .moments = PD_BF16,
                                             .place = {.tensor = s, .columns = 1, .stride = 1}};
            pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
        }
    }
}

/* The mean lies within five of its standard errors. Returns the spread. */
static double check_mean(const char *what, const uint16_t *x, double exact, double spread)
{
    double sum = 0, squares = 0;
    for (uint32_t s = 0; s < SEEDS; s++) {
        const double off = (double)pd_f32_from_bf16(x[s]) / exact - 1;
        sum += off;
        squares += off * off;
    }
    const double mean = sum / SEEDS, deviation = sqrt(squares / SEEDS - mean * mean);
    printf("%s: mean %+.5f, deviation %.5f of what fp32 holds\n", what, mean, deviation);
    cr_assert(deviation > 0 && deviation < spread, "%s: deviation %g", what, deviation);
    cr_assert(fabs(mean) < 5 * deviation / sqrt(SEEDS), "%s: mean %g, deviation %g", what, mean, deviation);
    return deviation;
}

/* The same second moments, kept as multiples of what a scale of their row would be. */
static void run_scaled(uint16_t *w, float scale)
{
    for (uint64_t t = 1; t <= UPDATES; t++)
        for (uint32_t s = 0; s < SEEDS; s++) {
            const float g = gradient_of(t), v = 0.999f * (scale * pd_f32_from_bf16(w[s])) + 0.001f * g * g;
            w[s] = pd_bf16_at_random(v / scale, pd_random_bits(pd_random_key(9, t), s));
        }
}

/* A scale moves exponents, of which bf16 has those of fp32, and adds no digit. */
Test(cpu_adam, a_scale_of_rows_makes_second_moments_no_better)
{
    static uint16_t m[SEEDS], v[SEEDS], scaled[SEEDS];
    float m32 = 0, v32 = 0;
    run_moments(m, v, &m32, &v32);
    const double plain = check_mean("without a scale", v, (double)v32, 0.07);
    run_scaled(scaled, 0.013f);
    const double other = check_mean("with a scale", scaled, (double)v32 / (double)0.013f, 0.07);
    cr_assert(other > plain / 2 && other < plain * 2, "deviation %g without a scale, %g with one", plain, other);
}

Test(cpu_adam, moments_in_bf16_are_right_on_average_and_do_not_stand_still)
{
    static uint16_t m[SEEDS], v[SEEDS];
    float m32 = 0, v32 = 0;
    run_moments(m, v, &m32, &v32);
    (void)check_mean("exp_avg", m, (double)m32, 0.06);
    (void)check_mean("exp_avg_sq", v, (double)v32, 0.07);
    const float still = pd_f32_from_bf16(pd_bf16_from_f32(0.999f * 0.125f * 1.5f));
    cr_assert_eq(still, 0.125f * 1.5f, "to nearest it would stand still: %g", (double)still);
}
