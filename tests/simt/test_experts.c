/* Routing, slots, losses and what stands between the products of experts have the CPU's bits; z losses are near them and the
 * same in every order of threads and blocks. */
#include "simt_fixture.h"

enum { ROWS = 37, EXPERTS_MOST = 70 };

/* ---- routing ---- */

struct case_of_routes {
    uint32_t experts, per_token, groups, groups_kept;
    bool is_sigmoid, renormalise, has_bias;
    float z;
};

static const struct case_of_routes routes[] = {
    {8, 2, 1, 1, false, true, false, 0},          {64, 8, 1, 1, false, false, false, 0.5f},
    {3, 3, 1, 1, false, true, false, 0.25f},      {70, 5, 7, 3, true, true, true, 0},
    {12, 4, 3, 1, true, false, true, 0.125f},     {33, 33, 1, 1, true, true, false, 0},
    {EXPERTS_MOST, 1, 1, 1, false, true, true, 0}};

/* Ties, infinities and NaN among the logits. */
static void upset(struct buffer *logits, uint32_t experts)
{
    float *x = logits->data;
    for (uint32_t e = 0; e < experts; e++) {
        x[0 * experts + e] = 1.0f;
        x[1 * experts + e] = e % 3 ? 0.5f : 2.0f;
        x[2 * experts + e] = NAN;
        x[4 * experts + e] = e % 2 ? -0.0f : 0.0f;
    }
    x[3 * experts + experts / 2] = NAN;
    x[5 * experts] = NAN;
    x[6 * experts + experts - 1] = 80.0f;
    x[7 * experts + experts - 1] = -INFINITY;
}

struct routed {
    struct buffer scores, choice, weights, lse, dlogits;
};

static struct routed route(struct fixture *f, const struct case_of_routes *c, const struct buffer *logits,
                           const struct buffer *bias, const struct buffer *dweights, const struct buffer *balance)
{
    const size_t all = (size_t)ROWS * c->experts, chosen = (size_t)ROWS * c->per_token;
    struct routed out = {buffer_new(PD_F32, all, 0), buffer_new(PD_F32, chosen, 0), buffer_new(PD_F32, chosen, 0),
                         buffer_new(PD_F32, ROWS, 0), buffer_new(PD_F32, all, 0)};
    const struct pd_route r = {.rows = ROWS,
                               .experts = c->experts,
                               .per_token = c->per_token,
                               .groups = c->groups,
                               .groups_kept = c->groups_kept,
                               .is_sigmoid = c->is_sigmoid,
                               .renormalise = c->renormalise,
                               .scale = 2.5f,
                               .logits = logits->data,
                               .bias = c->has_bias ? bias->data : NULL,
                               .scores = out.scores.data,
                               .choice = out.choice.data,
                               .weights = out.weights.data,
                               .lse = out.lse.data,
                               .dweights = dweights->data,
                               .balance = c->renormalise ? balance->data : NULL,
                               .z = c->z,
                               .dlogits = out.dlogits.data};
    MUST(f ? pd_route_forward(f->math, &r, &err) : pd_cuda_route_forward(NULL, &r, &err));
    MUST(f ? pd_route_backward(f->math, &r, &err) : pd_cuda_route_backward(NULL, &r, &err));
    return out;
}

static void routed_free(struct routed *r)
{
    buffer_free(&r->scores), buffer_free(&r->choice), buffer_free(&r->weights), buffer_free(&r->lse);
    buffer_free(&r->dlogits);
}

static void check_routes(struct fixture *f, const struct case_of_routes *c, bool is_upset)
{
    uint64_t seed = c->experts + c->per_token;
    struct buffer logits = buffer_random(PD_F32, (size_t)ROWS * c->experts, 0, 2, &seed);
    struct buffer bias = buffer_random(PD_F32, c->experts, 0, 1, &seed),
                  dweights = buffer_random(PD_F32, (size_t)ROWS * c->per_token, 0, 1, &seed),
                  balance = buffer_random(PD_F32, c->experts, 0, 1, &seed);
    if (is_upset) upset(&logits, c->experts);
    struct routed want = route(f, c, &logits, &bias, &dweights, &balance);
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        simt_set_order(some_orders[o]);
        struct routed got = route(NULL, c, &logits, &bias, &dweights, &balance);
        cr_assert_arr_eq(got.choice.data, want.choice.data, ROWS * c->per_token * sizeof(int32_t), "choices of %u experts",
                         c->experts);
        if (!is_upset) { /* NaN of both sides may differ in their sign */
            buffers_equal(&got.scores, &want.scores, "scores");
            buffers_equal(&got.weights, &want.weights, "weights");
            buffers_equal(&got.lse, &want.lse, "lse");
            buffers_equal(&got.dlogits, &want.dlogits, "dlogits");
        }
        routed_free(&got);
    }
    routed_free(&want);
    buffer_free(&logits), buffer_free(&bias), buffer_free(&dweights), buffer_free(&balance);
}

Test(experts, routes)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        check_routes(&f, &routes[i], false);
        check_routes(&f, &routes[i], true);
    }
    fixture_free(&f);
}

/* ---- slots ---- */

enum { SLOT_ROWS = 600, PER_TOKEN = 3 };

struct ordered {
    int32_t slots[SLOT_ROWS * PER_TOKEN], tokens[SLOT_ROWS * PER_TOKEN], first[8 * 3 + 1], counts[8 * 3];
    float weights[SLOT_ROWS * PER_TOKEN], surplus[8];
};

/* kind 0: spread; 1: everybody chooses the first three; 2: the last expert has no tokens. */
static void choose(int kind, int32_t *choice, float *weights)
{
    uint64_t seed = 3;
    for (int r = 0; r < SLOT_ROWS; r++) {
        const int32_t start = kind == 1 ? 0 : (int32_t)(random_u64(&seed) % (kind == 2 ? 5 : 8));
        for (int j = 0; j < PER_TOKEN; j++) {
            choice[r * PER_TOKEN + j] = (start + j * (kind == 0 ? 3 : 1)) % 8;
            weights[r * PER_TOKEN + j] = (float)random_normal(&seed);
        }
    }
}

static void order(struct fixture *f, uint32_t ranks, uint32_t pieces, const int32_t *choice, const float *weights,
                  struct ordered *x)
{
    const uint64_t piece_rows[] = {0, pieces == 1 ? SLOT_ROWS : 7, 300, SLOT_ROWS};
    const struct pd_slot_order o = {SLOT_ROWS, 8,       PER_TOKEN, ranks,     pieces,     piece_rows,
                                    choice,    weights, x->slots,  x->tokens, x->weights, x->first};
    memset(x, 0xfb, sizeof *x);
    MUST(f ? pd_slot_order(f->math, &o, &err) : pd_cuda_slot_order(NULL, &o, &err));
    MUST(f ? pd_slot_counts(f->math, 8, ranks, pieces, x->first, x->counts, &err)
           : pd_cuda_slot_counts(NULL, 8, ranks, pieces, x->first, x->counts, &err));
    MUST(f ? pd_slot_surplus(f->math, 8, 77, 0.3f, x->counts, x->surplus, &err)
           : pd_cuda_slot_surplus(NULL, 8, 77, 0.3f, x->counts, x->surplus, &err));
}

Test(experts, order_of_slots)
{
    static int32_t choice[SLOT_ROWS * PER_TOKEN];
    static float weights[SLOT_ROWS * PER_TOKEN];
    static struct ordered want, got;
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    for (uint32_t i = 0; i < 3 * 4 * 2; i++) {
        const uint32_t ranks = 1u << i % 4, pieces = i / 4 % 2 ? 3 : 1;
        choose((int)(i / 8), choice, weights);
        order(&f, ranks, pieces, choice, weights, &want);
        cr_assert_eq(want.first[8 * pieces], SLOT_ROWS * PER_TOKEN);
        for (size_t o = 0; o < SOME_ORDERS; o++) {
            simt_set_order(some_orders[o]);
            order(NULL, ranks, pieces, choice, weights, &got);
            cr_assert_arr_eq(&got, &want, sizeof want, "%u ranks, %u pieces, kind %u", ranks, pieces, i / 8);
        }
    }
    fixture_free(&f);
}

/* ---- losses ---- */

Test(experts, losses)
{
    enum { EXPERTS = 11, PIECES = 3 };
    struct fixture f = fixture_new(PD_ISA_AUTO, 1);
    uint64_t seed = 9;
    struct buffer scores = buffer_random(PD_F32, EXPERTS * PIECES, 0, 1, &seed),
                  lse = buffer_random(PD_F32, 1000, 0, 3, &seed), balance = buffer_new(PD_F32, EXPERTS, 0),
                  wanted = buffer_new(PD_F32, EXPERTS, 0);
    const uint64_t z_rows[] = {0, 1, 700, 1000};
    int32_t tokens[EXPERTS * PIECES];
    double loss[2], z[2][3], again[3];
    float range[2];
    for (int i = 0; i < EXPERTS * PIECES; i++)
        tokens[i] = (int32_t)(random_u64(&seed) % 500);
    struct pd_router_losses l = {.experts = EXPERTS,
                                 .pieces = PIECES,
                                 .rows = 3000,
                                 .scores = scores.data,
                                 .tokens = tokens,
                                 .factor = 0.7,
                                 .balance = wanted.data,
                                 .balance_loss = &loss[0],
                                 .lse = lse.data,
                                 .z_pieces = 3,
                                 .z_rows = z_rows,
                                 .z_loss = z[0]};
    MUST(pd_router_losses(f.math, &l, &err));
    MUST(pd_value_range(f.math, 1000, lse.data, &range[0], &err));
    l.balance = balance.data, l.balance_loss = &loss[1], l.z_loss = z[1];
    for (size_t o = 0; o < SOME_ORDERS; o++) {
        simt_set_order(some_orders[o]);
        MUST(pd_cuda_router_losses(NULL, &l, &err));
        if (o) cr_assert_arr_eq(again, z[1], sizeof again, "in another order");
        memcpy(again, z[1], sizeof again);
        cr_assert_eq(loss[0], loss[1], "%.17g %.17g", loss[0], loss[1]);
        buffers_equal(&balance, &wanted, "gradient of the balance loss");
        for (int p = 0; p < 3; p++)
            cr_assert_float_eq(z[0][p], z[1][p], 1e-12, "%.17g %.17g", z[0][p], z[1][p]);
        MUST(pd_cuda_value_range(NULL, 1000, lse.data, &range[1], &err));
        cr_assert_eq(range[0], range[1]);
    }
    l.balance = NULL, l.z_pieces = 0;
    MUST(pd_cuda_router_losses(NULL, &l, &err));
    buffer_free(&scores), buffer_free(&lse), buffer_free(&balance), buffer_free(&wanted);
    fixture_free(&f);
}

/* ---- rows ---- */

static void check_gather(struct fixture *f, uint64_t rows, uint64_t bytes, size_t shift)
{
    uint64_t seed = bytes;
    struct buffer src = buffer_random(PD_F16, 40 * bytes, shift, 1, &seed), want = buffer_new(PD_F16, rows * bytes, shift),
                  got = buffer_copy(&want);
    int32_t *from = malloc(rows * sizeof *from);
    for (uint64_t i = 0; i < rows; i++)
        from[i] = (int32_t)(random_u64(&seed) % 40);
    MUST(pd_gather_rows(f->math, rows, bytes, from, src.data, want.data, &err));
    MUST(pd_cuda_gather_rows(NULL, rows, bytes, from, src.data, got.data, &err));
    buffers_equal(&got, &want, "gathered rows");
    buffer_free(&src), buffer_free(&want), buffer_free(&got), free(from);
}

static void check_combine(struct fixture *f, enum pd_dtype dtype, uint64_t columns, bool has_parts)
{
    uint64_t seed = columns;
    struct buffer parts = buffer_random(dtype, 50 * columns, 0, 1, &seed), want = buffer_new(PD_F32, ROWS * columns, 0),
                  got = buffer_copy(&want);
    int32_t slots[ROWS * 4];
    for (int i = 0; i < ROWS * 4; i++)
        slots[i] = (int32_t)(random_u64(&seed) % 50);
    struct pd_combine c = {ROWS, columns, 4, has_parts ? parts.data : NULL, slots, want.data, dtype};
    MUST(pd_combine(f->math, &c, &err));
    c.out = got.data;
    MUST(pd_cuda_combine(NULL, &c, &err));
    buffers_equal(&got, &want, "combined rows");
    buffer_free(&parts), buffer_free(&want), buffer_free(&got);
}

Test(experts, rows)
{
    static const uint64_t bytes[] = {1, 2, 4, 6, 16, 48, 512, 1040, 1042};
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        check_gather(&f, 1, bytes[i], 0);
        check_gather(&f, 77, bytes[i], 0);
        check_gather(&f, 77, bytes[i], 1);
    }
    for (size_t d = 0; d < 3; d++) {
        check_combine(&f, all_dtypes[d], 24, true);
        check_combine(&f, all_dtypes[d], 45, true);
        check_combine(&f, all_dtypes[d], 264, true);
        check_combine(&f, all_dtypes[d], 24, false);
    }
    fixture_free(&f);
}

/* ---- SwiGLU ---- */

static void check_weighted(struct fixture *f, enum pd_dtype dtype, uint64_t rows, uint64_t columns, uint32_t chunks)
{
    uint64_t seed = rows + columns;
    struct buffer gate_up = buffer_random(dtype, 2 * rows * columns, 0, 1, &seed),
                  weights = buffer_random(PD_F32, rows, 0, 1, &seed),
                  dout = buffer_random(dtype, rows * columns, 0, 1, &seed), out = buffer_new(dtype, rows * columns, 0),
                  want = buffer_copy(&out), dweights = buffer_new(PD_F32, chunks * rows, 0), dwant = buffer_copy(&dweights),
                  inplace = buffer_copy(&gate_up), dgate_up = buffer_new(dtype, 2 * rows * columns, 0);
    struct pd_weighted_swiglu s = {.rows = rows,
                                   .columns = columns,
                                   .dtype = dtype,
                                   .gate_up = gate_up.data,
                                   .weights = weights.data,
                                   .out = want.data,
                                   .dout = dout.data,
                                   .dgate_up = dgate_up.data,
                                   .chunks = chunks,
                                   .chunk = (columns + chunks - 1) / chunks,
                                   .dweights = dwant.data};
    MUST(pd_weighted_swiglu_forward(f->math, &s, &err));
    MUST(pd_weighted_swiglu_backward(f->math, &s, &err));
    s.out = out.data, s.gate_up = s.dgate_up = inplace.data, s.dweights = dweights.data;
    MUST(pd_cuda_weighted_swiglu_forward(NULL, &s, &err));
    MUST(pd_cuda_weighted_swiglu_backward(NULL, &s, &err));
    buffers_equal(&out, &want, "weighted SwiGLU");
    buffers_equal(&inplace, &dgate_up, "its gradient");
    buffers_equal(&dweights, &dwant, "gradient of weights");
    buffer_free(&gate_up), buffer_free(&weights), buffer_free(&dout), buffer_free(&out), buffer_free(&want);
    buffer_free(&dweights), buffer_free(&dwant), buffer_free(&inplace), buffer_free(&dgate_up);
}

Test(experts, weighted_swiglu)
{
    struct fixture f = fixture_new(PD_ISA_AUTO, 2);
    for (size_t d = 0; d < 3; d++) {
        check_weighted(&f, all_dtypes[d], 1, 1, 1);
        check_weighted(&f, all_dtypes[d], 33, 40, 1);
        check_weighted(&f, all_dtypes[d], 17, 75, 4);
        check_weighted(&f, all_dtypes[d], 16, 5, 4);
        check_weighted(&f, all_dtypes[d], 5, 264, 2);
    }
    fixture_free(&f);
}
