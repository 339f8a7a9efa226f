/* Which experts a token goes to, and the router's losses and gradients.
 *
 *   logits    a chain over C in fp32; ties go to the lower expert
 *   losses    functions of one block and one whole micro-batch. transformers multiplies counts and scores of all blocks
 *             together, for which a block's backward would wait for the other pipeline stages
 *
 * If sequences are cut, sums over tokens go piece by piece, and sp ranks tell each other the counts and sums of their pieces.
 *
 *   sources  Fedus et al. 2022 (balance loss); Zoph et al. 2022 (z loss); Wang et al. 2024 (bias) */
#include "trainer/model/transformer_internal.h"

#include <string.h>

static struct pd_matrix router_weight(const struct pd_transformer *t, void *const *w)
{
    return (struct pd_matrix){w[t->model->places[PD_ROLE_ROUTER][0]], t->options.dtype, t->model->config.hidden};
}

static struct pd_route route_of(const struct pd_transformer *t, const struct pd_expert_activations *x)
{
    const struct pd_model_config *c = &t->model->config;
    return (struct pd_route){.rows = t->rows,
                             .experts = c->experts,
                             .per_token = c->experts_per_token,
                             .groups = c->router_groups,
                             .groups_kept = c->router_groups_kept,
                             .is_sigmoid = t->family->router == PD_ROUTER_SIGMOID,
                             .renormalise = c->renormalise,
                             .scale = c->routed_scale,
                             .logits = t->experts.logits,
                             .scores = x->scores,
                             .choice = x->choice,
                             .weights = t->experts.weights,
                             .lse = x->lse};
}

/* The place in `first` of an expert's tokens of a piece. */
static uint32_t first_at(const struct pd_transformer *t, uint32_t expert, uint32_t place)
{
    return pd_expert_position(t, expert) * t->sp.pieces + place;
}

/* Orders (token, choice) by the rank of the expert, the expert, then by token. */
static void order_slots(struct pd_transformer *t, struct pd_expert_activations *x)
{
    const uint32_t k = t->model->config.experts_per_token, count = t->model->config.experts * t->sp.pieces;
    memset(x->first, 0, (count + 1ull) * sizeof *x->first);
    for (uint32_t place = 0; place < t->sp.pieces; place++)
        for (uint64_t i = t->sp.row[place] * k; i < t->sp.row[place + 1] * k; i++)
            x->first[first_at(t, (uint32_t)x->choice[i], place) + 1]++;
    for (uint32_t i = 0; i < count; i++)
        x->first[i + 1] += x->first[i];
    for (uint32_t place = 0; place < t->sp.pieces; place++)
        for (uint64_t i = t->sp.row[place] * k; i < t->sp.row[place + 1] * k; i++) { /* advances first to the end */
            const int32_t slot = x->first[first_at(t, (uint32_t)x->choice[i], place)]++;
            x->slots[i] = slot;
            x->tokens[slot] = (int32_t)(i / k);
            x->weights[slot] = t->experts.weights[i];
        }
    memmove(x->first + 1, x->first, count * sizeof *x->first);
    x->first[0] = 0;
}

static pd_status logits_of(struct pd_transformer *t, const void *norm2, void *const *w, struct pd_error *err)
{
    const uint64_t hidden = t->model->config.hidden, experts = t->model->config.experts;
    const struct pd_gemm g = {.m = t->rows,
                              .n = experts,
                              .k = hidden,
                              .trans_b = true,
                              .a = {(void *)(uintptr_t)norm2, t->options.dtype, hidden},
                              .b = router_weight(t, w),
                              .c = {t->experts.logits, PD_F32, experts}};
    return pd_gemm(t->math, &g, err);
}

pd_status pd_router_choose(struct pd_transformer *t, const void *norm2, struct pd_expert_activations *x, void *const *w,
                           struct pd_error *err)
{
    struct pd_route route = route_of(t, x);
    const int bias = t->model->places[PD_ROLE_ROUTER][1];
    PD_TRY(logits_of(t, norm2, w, err));
    if (bias >= 0) {
        PD_TRY(pd_cast(t->math, route.experts, PD_F32, t->experts.bias, t->options.dtype, w[bias], err));
        route.bias = t->experts.bias;
    }
    PD_TRY(pd_route_forward(t->math, &route, err));
    order_slots(t, x);
    return PD_OK;
}

/* ---- auxiliary losses and statistics ---- */

void pd_experts_begin(struct pd_transformer *t)
{
    const struct pd_model_config *m = &t->model->config;
    struct pd_expert_counts *c = &t->expert_counts;
    if (!c->tokens) return;
    memset(c->tokens, 0, m->layers * (m->experts + 1ull) * sizeof *c->tokens);
    pd_superaccumulator_init(&c->balance);
    pd_superaccumulator_init(&c->z);
}

static uint64_t tokens_of(const struct pd_transformer *t, const struct pd_expert_activations *x, uint32_t expert,
                          uint32_t place)
{
    const uint32_t at = first_at(t, expert, place);
    return (uint64_t)(x->first[at + 1] - x->first[at]);
}

pd_status pd_router_meet(struct pd_transformer *t, const struct pd_expert_activations *x, struct pd_error *err)
{
    const uint32_t experts = t->model->config.experts;
    const uint64_t each = (uint64_t)t->sp.pieces * experts, own = t->partition.sp_rank * each;
    struct pd_peer_transfer *meeting = &t->experts.meeting;
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        PD_TRY(pd_column_sum(t->math, t->sp.rows[place], experts, experts, PD_F32, x->scores + t->sp.row[place] * experts,
                             t->experts.scores + own + place * (uint64_t)experts, err));
        for (uint32_t e = 0; e < experts; e++)
            t->experts.tokens[own + place * (uint64_t)experts + e] = (int32_t)tokens_of(t, x, e, place);
    }
    if (t->partition.sp == 1) return PD_OK;
    pd_peer_transfer_clear(meeting);
    for (uint32_t r = 0; r < t->partition.sp; r++) {
        if (r == t->partition.sp_rank) continue;
        pd_peer_transfer_send(meeting, r, t->experts.scores + own, each * sizeof *t->experts.scores);
        pd_peer_transfer_send(meeting, r, t->experts.tokens + own, each * sizeof *t->experts.tokens);
        pd_peer_transfer_recv(meeting, r, t->experts.scores + r * each, each * sizeof *t->experts.scores);
        pd_peer_transfer_recv(meeting, r, t->experts.tokens + r * each, each * sizeof *t->experts.tokens);
    }
    return pd_peer_transfer_start(meeting, err);
}

/* Of the whole micro-batch, piece after piece in the order of places. */
static double met_scores(const struct pd_transformer *t, uint32_t expert)
{
    double sum = 0;
    for (uint32_t i = 0; i < t->sp.total; i++)
        sum += t->experts.scores[(uint64_t)i * t->model->config.experts + expert];
    return sum;
}

static uint64_t met_tokens(const struct pd_transformer *t, uint32_t expert)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->sp.total; i++)
        sum += (uint64_t)t->experts.tokens[(uint64_t)i * t->model->config.experts + expert];
    return sum;
}

static double micro_batch_rows(const struct pd_transformer *t)
{
    return (double)t->options.sequences * t->options.length;
}

/* Balance loss: E * sum over experts of (share of tokens that chose it) * (mean score). z loss: mean of lse^2. Here for the
 * statistics of a block and micro-batch; their gradients are in route_backward. */
static void count_block(struct pd_transformer *t, uint32_t block, const struct pd_expert_activations *x)
{
    const uint32_t experts = t->model->config.experts;
    const double rows = micro_batch_rows(t);
    struct pd_expert_counts *c = &t->expert_counts;
    double balance = 0;
    for (uint32_t e = 0; e < experts; e++)
        balance += (double)met_tokens(t, e) / rows * (met_scores(t, e) / rows);
    if (t->partition.sp_rank == 0) pd_superaccumulator_add(&c->balance, balance * experts);
    for (uint32_t place = 0; place < t->sp.pieces; place++) {
        double z = 0;
        for (uint64_t r = t->sp.row[place]; r < t->sp.row[place + 1]; r++)
            z += (double)x->lse[r] * x->lse[r];
        pd_superaccumulator_add(&c->z, z / rows);
        for (uint32_t e = 0; e < experts; e++)
            c->tokens[block * (experts + 1ull) + e] += tokens_of(t, x, e, place);
    }
}

/* Gradients of losses are of sums over tokens, so an auxiliary loss, a mean over tokens and blocks, counts once a token. */
static void balance_gradient(struct pd_transformer *t)
{
    const struct pd_model_config *c = &t->model->config;
    const double blocks = c->layers - c->dense_blocks, factor = t->scale * (double)c->balance_loss * c->experts / blocks;
    for (uint32_t e = 0; e < c->experts; e++)
        t->experts.balance[e] = (float)(factor * (double)met_tokens(t, e) / micro_batch_rows(t));
}

static pd_status bias_gradient(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct pd_expert_activations *x = context;
    const struct pd_model_config *c = &t->model->config;
    const double slots = (double)t->sp.rows[place] * c->experts_per_token;
    uint64_t unit = 1;
    (void)err;
    while (unit < c->experts)
        unit *= 2;
    /* Whole numbers, so that sums are exact: positive where an expert has more tokens than the mean. */
    for (uint32_t e = 0; e < c->experts; e++)
        dst[e] = t->scale * (float)((double)tokens_of(t, x, e, place) * c->experts - slots) / (float)unit;
    return PD_OK;
}

static float range_of(const float *values, uint32_t count)
{
    float low = values[0], high = values[0];
    for (uint32_t i = 1; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    return high - low;
}

/* ---- backward ---- */

static float *dlogits_of(const struct pd_transformer *t)
{
    const bool reads_logits = t->family->router == PD_ROUTER_SIGMOID && t->model->config.z_loss > 0;
    return reads_logits ? t->experts.dlogits : t->experts.logits;
}

/* dW (E,C) = dlogits^T norm2, a chain of tokens a piece. */
static pd_status router_piece(struct pd_transformer *t, void *norm2, uint32_t place, float *dst, struct pd_error *err)
{
    const uint64_t experts = t->model->config.experts, hidden = t->model->config.hidden, row = t->sp.row[place];
    const struct pd_gemm g = {.m = experts,
                              .n = hidden,
                              .k = t->sp.rows[place],
                              .trans_a = true,
                              .a = {dlogits_of(t) + row * experts, PD_F32, experts},
                              .b = {(char *)norm2 + row * hidden * t->element_bytes, t->options.dtype, hidden},
                              .c = {dst, PD_F32, hidden},
                              .residual = pd_gradient_so_far(t, dst, hidden)};
    return pd_gemm(t->math, &g, err);
}

pd_status pd_router_backward(struct pd_transformer *t, uint32_t block, const struct pd_block_activations *a, void *const *w,
                             float *const *g, struct pd_error *err)
{
    const struct pd_model_config *c = &t->model->config;
    const struct pd_expert_activations *x = &a->experts;
    const int bias = t->model->places[PD_ROLE_ROUTER][1];
    struct pd_route route = route_of(t, x);
    PD_TRY(pd_peer_transfer_wait(&t->experts.meeting, err));
    if (dlogits_of(t) != t->experts.logits) PD_TRY(logits_of(t, a->norm2, w, err));
    count_block(t, block, x);
    if (c->balance_loss > 0) {
        balance_gradient(t);
        route.balance = t->experts.balance;
    }
    route.dweights = t->experts.weights;
    route.z = t->scale * c->z_loss / (float)(c->layers - c->dense_blocks);
    route.dlogits = dlogits_of(t);
    PD_TRY(pd_route_backward(t->math, &route, err));
    if (bias >= 0) {
        PD_TRY(pd_vector_gradient(t, c->experts, bias_gradient, (void *)(uintptr_t)x, g[bias], err));
        PD_TRY(pd_cast(t->math, c->experts, PD_F32, t->experts.bias, t->options.dtype, w[bias], err));
        const float range = range_of(t->experts.bias, c->experts);
        memcpy(&t->expert_counts.tokens[block * (c->experts + 1ull) + c->experts], &range, sizeof range);
    }
    return pd_piece_gradients(t, (uint64_t)c->experts * c->hidden, router_piece, a->norm2,
                              g[t->model->places[PD_ROLE_ROUTER][0]], err);
}

pd_status pd_router_input(struct pd_transformer *t, void *const *w, struct pd_matrix chain, struct pd_error *err)
{
    const struct pd_model_config *c = &t->model->config;
    const struct pd_gemm g = {.m = t->rows,
                              .n = c->hidden,
                              .k = c->experts,
                              .accumulate = true,
                              .a = {dlogits_of(t), PD_F32, c->experts},
                              .b = router_weight(t, w),
                              .c = chain};
    return t->tp.first_chunk == 0 ? pd_gemm(t->math, &g, err) : PD_OK;
}
