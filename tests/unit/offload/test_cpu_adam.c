/* AdamW: equal to its definition bit for bit on every instruction set, for any threads and any cut into ranges; close to the
 * same formula in double over many steps. PERDURE_TEST_SCALE multiplies the number of random ranges. */
#include "ckpt/base/half.h"
#include "offload/cpu_adam.h"

#include <criterion/criterion.h>
#include <math.h>
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

static struct pd_adam_range range_of(const struct arrays *a, uint64_t from, uint64_t n, bool decay, enum pd_dtype copy)
{
    return (struct pd_adam_range){
        n, decay, a->p + from, a->m + from, a->v + from, a->g + from, (char *)a->copy + from * pd_dtype_bytes(copy), copy};
}

/* The formula of the header, one rounded operation at a time. */
static void definition(const struct pd_adam_step *s, const struct pd_adam_range *r)
{
    for (uint64_t i = 0; i < r->n; i++) {
        volatile float g = s->scale * r->grad[i], a = s->beta1 * r->exp_avg[i], b = s->beta1_rest * g;
        volatile float m = a + b, c = s->beta2 * r->exp_avg_sq[i], d = s->beta2_rest * g;
        volatile float e = d * g, v = c + e, root = sqrtf(v), f = root * s->root_correction, h = f + s->epsilon;
        volatile float q = m / h, change = s->rate_corrected * q,
                       kept = r->decay ? s->decay_keep * r->param[i] : r->param[i];
        r->exp_avg[i] = m;
        r->exp_avg_sq[i] = v;
        r->param[i] = kept - change;
        if (r->copy_dtype == PD_F32) ((float *)r->copy)[i] = r->param[i];
        if (r->copy_dtype == PD_BF16) ((uint16_t *)r->copy)[i] = pd_bf16_from_f32(r->param[i]);
        if (r->copy_dtype == PD_F16) ((uint16_t *)r->copy)[i] = pd_f16_from_f32(r->param[i]);
    }
}

static struct pd_update_config config_random(void)
{
    return (struct pd_update_config){
        1e-3 * fabs((double)uniform()), 0.9, 0.95, 1e-8, 0.1, 0.5 + fabs((double)uniform()), 1 + next() % 1000};
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
                    uint64_t n, bool decay, enum pd_dtype copy)
{
    for (uint64_t from = 0; from < n;) {
        uint64_t part = next() % 3 == 0 ? 1 + next() % n : n;
        if (part > n - from) part = n - from;
        struct pd_adam_range range = range_of(a, from, part, decay, copy);
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
        struct arrays before = arrays_new(n), expected = arrays_clone(&before, n);
        struct pd_adam_range whole = range_of(&expected, 0, n, decay, copy);
        definition(&step, &whole);
        for (enum pd_isa isa = PD_ISA_PORTABLE; isa < PD_ISA_COUNT; isa++) {
            if (!pd_isa_available(isa)) continue;
            struct arrays got = arrays_clone(&before, n);
            run_cut(pools[next() % 4], isa, &step, &got, n, decay, copy);
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
        struct pd_update_config c = {0.01, 0.9, 0.999, 1e-8, 0.1, 0.5, t};
        struct pd_adam_step step = pd_adam_step_make(&c);
        for (int i = 0; i < 3; i++) {
            g[i] = 2.0f * p[i] + 0.1f * (float)i;
            double dg = 0.5 * (2.0 * dp[i] + 0.1 * i);
            dm[i] = 0.9 * dm[i] + 0.1 * dg;
            dv[i] = 0.999 * dv[i] + 0.001 * dg * dg;
            double mh = dm[i] / (1 - pow(0.9, (double)t)), vh = dv[i] / (1 - pow(0.999, (double)t));
            dp[i] -= 0.01 * (mh / (sqrt(vh) + 1e-8) + 0.1 * dp[i]);
        }
        struct pd_adam_range range = {.n = 3, .decay = true, .param = p, .exp_avg = m, .exp_avg_sq = v, .grad = g};
        pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
    }
    for (int i = 0; i < 3; i++)
        cr_assert_float_eq((double)p[i], dp[i], 1e-4, "%d: %g %g", i, (double)p[i], dp[i]);
}

Test(cpu_adam, nothing_is_nothing)
{
    struct pd_update_config c = {0.01, 0.9, 0.999, 1e-8, 0.1, 1.0, 1};
    struct pd_adam_step step = pd_adam_step_make(&c);
    struct pd_adam_range range = {.n = 0};
    pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
    float p = 1, m = 0, v = 0, g = 0;
    range = (struct pd_adam_range){.n = 1, .param = &p, .exp_avg = &m, .exp_avg_sq = &v, .grad = &g};
    pd_cpu_adam(NULL, PD_ISA_PORTABLE, &step, &range);
    cr_assert(p == 1.0f && m == 0 && v == 0, "no gradient and no decay change nothing");
}
