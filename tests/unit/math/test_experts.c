/* Routing against plain loops in double: ties, groups, biases, and gradients against differences. */
#include "fixture.h"

#define ROWS 19
#define EXPERTS 12

static struct pd_error err;

struct routed {
    float logits[ROWS * EXPERTS], scores[ROWS * EXPERTS], weights[ROWS * EXPERTS], lse[ROWS], dweights[ROWS * EXPERTS],
        dlogits[ROWS * EXPERTS], bias[EXPERTS], balance[EXPERTS];
    int32_t choice[ROWS * EXPERTS];
    struct pd_route route;
};

static void routed_init(struct routed *x, uint32_t per_token, bool is_sigmoid, bool renormalise)
{
    uint64_t seed = 5;
    memset(x, 0, sizeof *x);
    for (int i = 0; i < ROWS * EXPERTS; i++) {
        x->logits[i] = (float)random_normal(&seed);
        x->dweights[i] = (float)random_normal(&seed);
    }
    for (int e = 0; e < EXPERTS; e++)
        x->balance[e] = (float)random_normal(&seed);
    x->route = (struct pd_route){.rows = ROWS,
                                 .experts = EXPERTS,
                                 .per_token = per_token,
                                 .groups = 1,
                                 .groups_kept = 1,
                                 .is_sigmoid = is_sigmoid,
                                 .renormalise = renormalise,
                                 .scale = 1.5f,
                                 .logits = x->logits,
                                 .scores = x->scores,
                                 .choice = x->choice,
                                 .weights = x->weights,
                                 .lse = x->lse,
                                 .dweights = x->dweights,
                                 .dlogits = x->dlogits,
                                 .z = 0.25f};
}

static double score(const struct pd_route *r, const double *logits, uint32_t e)
{
    double sum = 0;
    for (uint32_t i = 0; i < r->experts; i++)
        sum += exp(logits[i]);
    return r->is_sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e]) / sum;
}

/* What a row's weights and losses add up to, for a choice that is fixed. */
static double objective(const struct pd_route *r, const double *logits, uint64_t row)
{
    const int32_t *choice = r->choice + row * r->per_token;
    double chosen = 0, all = 0, sum = 0;
    for (uint32_t j = 0; j < r->per_token; j++)
        chosen += score(r, logits, (uint32_t)choice[j]);
    for (uint32_t j = 0; j < r->per_token; j++)
        sum += r->dweights[row * r->per_token + j] * r->scale * score(r, logits, (uint32_t)choice[j]) /
               (r->renormalise ? chosen : 1);
    for (uint32_t e = 0; e < r->experts; e++) {
        sum += r->balance ? r->balance[e] * score(r, logits, e) : 0;
        all += exp(logits[e]);
    }
    return sum + r->z * log(all) * log(all);
}

static void check_gradient(struct fixture *f, bool is_sigmoid, bool renormalise)
{
    static struct routed x;
    routed_init(&x, 3, is_sigmoid, renormalise);
    if (!is_sigmoid) x.route.balance = x.balance;
    cr_assert_eq(pd_route_forward(f->math, &x.route, &err), PD_OK);
    cr_assert_eq(pd_route_backward(f->math, &x.route, &err), PD_OK);
    for (uint64_t row = 0; row < ROWS; row++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            double up[EXPERTS], down[EXPERTS];
            for (int i = 0; i < EXPERTS; i++)
                up[i] = down[i] = x.logits[row * EXPERTS + (uint64_t)i];
            up[e] += 1e-4;
            down[e] -= 1e-4;
            const double slope = (objective(&x.route, up, row) - objective(&x.route, down, row)) / 2e-4;
            cr_assert_float_eq(x.dlogits[row * EXPERTS + e], slope, 2e-5, "%lu %u: %g %g", row, e,
                               x.dlogits[row * EXPERTS + e], slope);
        }
}

Test(experts, gradient_of_the_router)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (int i = 0; i < 4; i++)
        check_gradient(&f, i & 1, i & 2);
    fixture_free(&f);
}

Test(experts, weights)
{
    static struct routed x;
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    for (int i = 0; i < 4; i++) {
        routed_init(&x, 4, i & 1, i & 2);
        cr_assert_eq(pd_route_forward(f.math, &x.route, &err), PD_OK);
        for (uint64_t row = 0; row < ROWS; row++) {
            double logits[EXPERTS], sum = 0;
            for (int e = 0; e < EXPERTS; e++)
                logits[e] = x.logits[row * EXPERTS + (uint64_t)e];
            for (int j = 0; j < 4; j++)
                sum += score(&x.route, logits, (uint32_t)x.choice[row * 4 + (uint64_t)j]);
            for (int j = 0; j < 4; j++) {
                const uint64_t at = row * 4 + (uint64_t)j;
                const double s = score(&x.route, logits, (uint32_t)x.choice[at]);
                cr_assert_float_eq(x.weights[at], 1.5 * s / (i & 2 ? sum : 1), 1e-6);
                cr_assert(j == 0 || logits[x.choice[at]] <= logits[x.choice[at - 1]], "the best comes first");
            }
        }
    }
    fixture_free(&f);
}

Test(experts, the_lower_of_equal_ones)
{
    static struct routed x;
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    routed_init(&x, 3, false, true);
    for (int i = 0; i < ROWS * EXPERTS; i++)
        x.logits[i] = i % EXPERTS == 7 || i % EXPERTS == 2 ? 1.0f : 0.5f;
    cr_assert_eq(pd_route_forward(f.math, &x.route, &err), PD_OK);
    for (int row = 0; row < ROWS; row++)
        cr_assert(x.choice[3 * row] == 2 && x.choice[3 * row + 1] == 7 && x.choice[3 * row + 2] == 0);
    for (int i = 0; i < ROWS * EXPERTS; i++)
        x.logits[i] = NAN;
    cr_assert_eq(pd_route_forward(f.math, &x.route, &err), PD_OK);
    for (int row = 0; row < ROWS; row++)
        cr_assert(x.choice[3 * row] == 0 && x.choice[3 * row + 1] == 1 && x.choice[3 * row + 2] == 2,
                  "three experts of NaN");
    fixture_free(&f);
}

Test(experts, a_bias_chooses_and_weighs_nothing)
{
    static struct routed x;
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    routed_init(&x, 1, true, false);
    x.bias[9] = 2;
    x.route.bias = x.bias;
    cr_assert_eq(pd_route_forward(f.math, &x.route, &err), PD_OK);
    for (int row = 0; row < ROWS; row++) {
        cr_assert_eq(x.choice[row], 9);
        cr_assert_float_eq(x.weights[row], 1.5 / (1 + exp(-(double)x.logits[row * EXPERTS + 9])), 1e-6);
    }
    fixture_free(&f);
}

/* Group 2 has the best expert, group 1 the best two. */
Test(experts, groups)
{
    static struct routed x;
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    routed_init(&x, 2, true, false);
    x.route.groups = 3;
    for (int i = 0; i < ROWS * EXPERTS; i++)
        x.logits[i] = -3;
    for (int row = 0; row < ROWS; row++)
        x.logits[row * EXPERTS + 4] = x.logits[row * EXPERTS + 6] = 1, x.logits[row * EXPERTS + 11] = 1.5f;
    cr_assert_eq(pd_route_forward(f.math, &x.route, &err), PD_OK);
    for (int row = 0; row < ROWS; row++)
        cr_assert(x.choice[2 * row] == 4 && x.choice[2 * row + 1] == 6, "%d %d", x.choice[2 * row], x.choice[2 * row + 1]);
    fixture_free(&f);
}
