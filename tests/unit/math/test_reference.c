/* The float64 backward formulas against central differences of the float64 forward ones. */
#include "fixture.h"
#include "reference.h"

typedef double (*scalar_function)(void *context); /* reads `variable` through the context */

/* |d f / d variable[i] - gradient[i]| small for every i. */
static void check_gradient(const char *what, scalar_function f, void *context, double *variable, const double *gradient,
                           size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(gradient[i]));
    for (size_t i = 0; i < count; i++) {
        double saved = variable[i], h = 1e-5;
        variable[i] = saved + h;
        double up = f(context);
        variable[i] = saved - h;
        double slope = (up - f(context)) / (2 * h);
        variable[i] = saved;
        cr_assert(fabs(slope - gradient[i]) <= 1e-7 * (1 + largest), "%s[%zu]: %.12g, differences say %.12g", what, i,
                  gradient[i], slope);
    }
}

static void fill(double *x, size_t count, uint64_t *seed)
{
    for (size_t i = 0; i < count; i++)
        x[i] = random_normal(seed);
}

static double dot(const double *a, const double *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

struct norm_case {
    double x[4 * 9], weight[9], bias[9], dout[4 * 9], out[4 * 9];
    bool layer;
};

static double norm_value(void *context)
{
    struct norm_case *c = context;
    ref_norm_forward(4, 9, 1e-3, c->x, c->weight, c->layer ? c->bias : NULL, NULL, NULL, c->out);
    return dot(c->out, c->dout, 36);
}

Test(reference, norms)
{
    for (int layer = 0; layer < 2; layer++) {
        struct norm_case c = {.layer = layer};
        uint64_t seed = 5;
        double dx[36], dweight[9], dbias[9];
        fill(c.x, 36, &seed);
        fill(c.weight, 9, &seed);
        fill(c.bias, 9, &seed);
        fill(c.dout, 36, &seed);
        ref_norm_backward(4, 9, 1e-3, c.x, c.weight, c.dout, NULL, dx, dweight, layer ? dbias : NULL);
        check_gradient("dx", norm_value, &c, c.x, dx, 36);
        check_gradient("dweight", norm_value, &c, c.weight, dweight, 9);
        if (layer) check_gradient("dbias", norm_value, &c, c.bias, dbias, 9);
    }
}

enum { S = 2, T = 7, H = 4, K = 2, D = 6 };
struct attention_case {
    double q[S * T * H * D], k[S * T * K * D], v[S * T * K * D], dout[S * T * H * D], out[S * T * H * D];
    struct ref_attention a;
};

static double attention_value(void *context)
{
    struct attention_case *c = context;
    ref_attention_forward(&c->a, c->out, NULL);
    return dot(c->out, c->dout, S * T * H * D);
}

Test(reference, attention)
{
    static const int32_t documents[S * T] = {0, 0, 0, 3, 3, 3, 6, 0, 1, 1, 1, 4, 4, 4};
    for (int with_documents = 0; with_documents < 2; with_documents++) {
        struct attention_case c;
        double dq[S * T * H * D], dk[S * T * K * D], dv[S * T * K * D];
        uint64_t seed = 6;
        c.a = (struct ref_attention){S, T, H, K, D, 0.4, c.q, c.k, c.v, with_documents ? documents : NULL};
        fill(c.q, S * T * H * D, &seed);
        fill(c.k, S * T * K * D, &seed);
        fill(c.v, S * T * K * D, &seed);
        fill(c.dout, S * T * H * D, &seed);
        ref_attention_backward(&c.a, c.dout, dq, dk, dv);
        check_gradient("dq", attention_value, &c, c.q, dq, S * T * H * D);
        check_gradient("dk", attention_value, &c, c.k, dk, S * T * K * D);
        check_gradient("dv", attention_value, &c, c.v, dv, S * T * K * D);
    }
}

struct pointwise_case {
    double x[24], dout[24], out[24];
};

static double gelu_value(void *context)
{
    struct pointwise_case *c = context;
    ref_gelu_forward(24, c->x, c->out);
    return dot(c->out, c->dout, 24);
}

static double swiglu_value(void *context)
{
    struct pointwise_case *c = context;
    ref_swiglu_forward(3, 4, c->x, c->out);
    return dot(c->out, c->dout, 12);
}

Test(reference, activations)
{
    struct pointwise_case c;
    double dx[24];
    uint64_t seed = 7;
    fill(c.x, 24, &seed);
    fill(c.dout, 24, &seed);
    ref_gelu_backward(24, c.x, c.dout, dx);
    check_gradient("gelu", gelu_value, &c, c.x, dx, 24);
    ref_swiglu_backward(3, 4, c.x, c.dout, dx);
    check_gradient("swiglu", swiglu_value, &c, c.x, dx, 24);
}

struct loss_case {
    double logits[5 * 11], losses[5];
};
static const int32_t loss_targets[5] = {3, -1, 0, 10, 7};

static double loss_value(void *context)
{
    struct loss_case *c = context;
    ref_cross_entropy(5, 11, c->logits, loss_targets, 0.25, c->losses, NULL);
    return 0.25 * (c->losses[0] + c->losses[1] + c->losses[2] + c->losses[3] + c->losses[4]);
}

Test(reference, cross_entropy)
{
    struct loss_case c;
    double dlogits[55];
    uint64_t seed = 8;
    fill(c.logits, 55, &seed);
    ref_cross_entropy(5, 11, c.logits, loss_targets, 0.25, c.losses, dlogits);
    check_gradient("dlogits", loss_value, &c, c.logits, dlogits, 55);
}

struct rope_case {
    double x[3 * 2 * 6], dout[3 * 2 * 6], out[3 * 2 * 6], table[9 * 3 * 2];
};
static const int32_t rope_positions[3] = {0, 8, 5};

static double rope_value(void *context)
{
    struct rope_case *c = context;
    memcpy(c->out, c->x, sizeof c->out);
    ref_rope(3, 2, 6, c->out, rope_positions, c->table, false);
    return dot(c->out, c->dout, 36);
}

/* The inverse rotation is the gradient, because a rotation is orthogonal. */
Test(reference, rope)
{
    struct rope_case c;
    uint64_t seed = 9;
    fill(c.x, 36, &seed);
    fill(c.dout, 36, &seed);
    for (int i = 0; i < 27; i++) {
        c.table[2 * i] = cos(0.37 * i);
        c.table[2 * i + 1] = sin(0.37 * i);
    }
    double dx[36];
    memcpy(dx, c.dout, sizeof dx);
    ref_rope(3, 2, 6, dx, rope_positions, c.table, true);
    check_gradient("dx", rope_value, &c, c.x, dx, 36);
}

struct embedding_case {
    double tokens[6 * 5], positions[4 * 5], dout[7 * 5], out[7 * 5];
};
static const int32_t embedding_tokens[7] = {1, 5, 1, 0, 1, 4, 5}, embedding_positions[7] = {0, 1, 2, 3, 0, 1, 2};

static double embedding_value(void *context)
{
    struct embedding_case *c = context;
    ref_embedding_forward(7, 5, embedding_tokens, embedding_positions, c->tokens, c->positions, c->out);
    return dot(c->out, c->dout, 35);
}

Test(reference, embedding)
{
    struct embedding_case c;
    uint64_t seed = 10;
    double dtokens[30], dpositions[20];
    fill(c.tokens, 30, &seed);
    fill(c.positions, 20, &seed);
    fill(c.dout, 35, &seed);
    ref_embedding_backward(7, 5, 6, embedding_tokens, c.dout, dtokens);
    ref_embedding_backward(7, 5, 4, embedding_positions, c.dout, dpositions);
    check_gradient("dtokens", embedding_value, &c, c.tokens, dtokens, 30);
    check_gradient("dpositions", embedding_value, &c, c.positions, dpositions, 20);
}
