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

uint64_t pd_expert_place_counts(const struct pd_transformer *t)
{
    return t->model->config.experts * (uint64_t)t->sp.pieces * (t->options.ep > 1 ? 1 + t->options.ep : 1) + 1;
}

void pd_router_enter(struct pd_transformer *t, uint32_t place, struct pd_expert_activations *x)
{
    if (!t->options.on_device || !t->experts.firsts) return;
    x->first = t->experts.firsts + place * pd_expert_place_counts(t);
    x->counts = x->first + t->model->config.experts * (uint64_t)t->sp.pieces + 1;
}

static pd_status order_slots(struct pd_transformer *t, struct pd_expert_activations *x, struct pd_error *err)
{
    const struct pd_slot_order order = {.rows = t->rows,
                                        .experts = t->model->config.experts,
                                        .per_token = t->model->config.experts_per_token,
                                        .ranks = t->options.ep,
                                        .pieces = t->sp.pieces,
                                        .piece_rows = t->sp.row,
                                        .choice = x->choice,
                                        .weights = t->experts.weights,
                                        .slots = x->slots,
                                        .tokens = x->tokens,
                                        .slot_weights = x->weights,
                                        .first = x->device_first};
    PD_TRY(pd_slot_order(t->math, &order, err));
    if (!t->options.on_device) return PD_OK;
    const uint64_t count = order.experts * (uint64_t)order.pieces + 1;
    return pd_math_copy(t->math, x->first, x->device_first, count * sizeof *x->first, err);
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
    return order_slots(t, x, err);
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
    t->experts.has_sums = false;
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
    }
    PD_TRY(pd_slot_counts(t->math, experts, t->options.ep, t->sp.pieces, x->device_first, t->experts.tokens + own, err));
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

/* Where the losses are added up: on a GPU in its memory, from zeros on. */
static pd_status begin_sums(struct pd_transformer *t, struct pd_error *err)
{
    struct pd_expert_work *w = &t->experts;
    const uint32_t layers = t->model->config.layers;
    if (!t->options.on_device || w->has_sums) return PD_OK;
    memset(w->host_sums, 0, sizeof *w->host_sums);
    memset(w->host_ranges, 0, layers * sizeof *w->host_ranges);
    w->has_sums = true;
    PD_TRY(pd_math_copy(t->math, w->sums, w->host_sums, sizeof *w->sums, err));
    return pd_math_copy(t->math, w->ranges, w->host_ranges, layers * sizeof *w->ranges, err);
}

static void set_range(struct pd_transformer *t, uint32_t block, float range)
{
    memcpy(&t->expert_counts.tokens[(block + 1) * (t->model->config.experts + 1ull) - 1], &range, sizeof range);
}

pd_status pd_transformer_expert_read(struct pd_transformer *t, struct pd_error *err)
{
    struct pd_expert_work *w = &t->experts;
    const uint32_t layers = t->model->config.layers;
    if (!t->options.on_device || !w->has_sums) return PD_OK;
    PD_TRY(pd_math_copy(t->math, w->host_sums, w->sums, sizeof *w->sums, err));
    PD_TRY(pd_math_copy(t->math, w->host_ranges, w->ranges, layers * sizeof *w->ranges, err));
    PD_TRY(pd_math_sync(t->math, err));
    pd_superaccumulator_normalise(&w->host_sums->balance);
    pd_superaccumulator_normalise(&w->host_sums->z);
    t->expert_counts.balance = w->host_sums->balance;
    t->expert_counts.z = w->host_sums->z;
    for (uint32_t block = 0; block < layers; block++)
        set_range(t, block, w->host_ranges[block]);
    return PD_OK;
}

/* Counts of a block and micro-batch, auxiliary losses for the statistics, and the gradient of the balance loss. Gradients of
 * losses are of sums over tokens, so an auxiliary loss, a mean over tokens and blocks, counts once a token. */
static pd_status count_block(struct pd_transformer *t, uint32_t block, const struct pd_expert_activations *x,
                             struct pd_error *err)
{
    const struct pd_model_config *m = &t->model->config;
    const double blocks = m->layers - m->dense_blocks;
    struct pd_expert_counts *c = &t->expert_counts;
    const struct pd_router_losses losses = {.experts = m->experts,
                                            .pieces = t->sp.total,
                                            .rows = (double)t->options.sequences * t->options.length,
                                            .scores = t->experts.scores,
                                            .tokens = t->experts.tokens,
                                            .factor = t->scale * (double)m->balance_loss * m->experts / blocks,
                                            .balance = t->experts.balance,
                                            .balance_loss = t->experts.losses,
                                            .lse = x->lse,
                                            .z_pieces = t->sp.pieces,
                                            .z_rows = t->sp.row,
                                            .z_loss = t->experts.losses + 1};
    struct pd_superaccumulator *balance = t->options.on_device ? &t->experts.sums->balance : &c->balance,
                               *z = t->options.on_device ? &t->experts.sums->z : &c->z;
    PD_TRY(begin_sums(t, err));
    PD_TRY(pd_router_losses(t->math, &losses, err));
    if (t->partition.sp_rank == 0) PD_TRY(pd_superaccumulate(t->math, 1, losses.balance_loss, balance, err));
    PD_TRY(pd_superaccumulate(t->math, t->sp.pieces, losses.z_loss, z, err));
    for (uint32_t e = 0; e < m->experts; e++)
        for (uint32_t place = 0; place < t->sp.pieces; place++)
            c->tokens[block * (m->experts + 1ull) + e] += tokens_of(t, x, e, place);
    return PD_OK;
}

/* Whole numbers, so that sums are exact: positive where an expert has more tokens than the mean. */
static pd_status bias_gradient(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct pd_model_config *c = &t->model->config;
    const uint64_t at = ((uint64_t)t->partition.sp_rank * t->sp.pieces + place) * c->experts;
    (void)context;
    return pd_slot_surplus(t->math, c->experts, (double)t->sp.rows[place] * c->experts_per_token, t->scale,
                           t->experts.tokens + at, dst, err);
}

static pd_status bias_backward(struct pd_transformer *t, uint32_t block, const void *bias, float *gradient,
                               struct pd_error *err)
{
    const uint32_t experts = t->model->config.experts;
    float range;
    PD_TRY(pd_vector_gradient(t, experts, bias_gradient, NULL, gradient, err));
    PD_TRY(pd_cast(t->math, experts, PD_F32, t->experts.bias, t->options.dtype, bias, err));
    if (t->options.on_device) return pd_value_range(t->math, experts, t->experts.bias, t->experts.ranges + block, err);
    PD_TRY(pd_value_range(t->math, experts, t->experts.bias, &range, err));
    set_range(t, block, range);
    return PD_OK;
}

/* ---- backward ---- */

static float *dlogits_of(const struct pd_transformer *t)
{
    const bool reads_logits = t->family->router == PD_ROUTER_SIGMOID && t->model->config.z_loss > 0;
    return reads_logits ? t->experts.dlogits : t->experts.logits;
}

/* dW (E,C) = dlogits^T norm2, a chain of tokens a piece. */
static pd_status router_piece(struct pd_transformer *t, void *context, uint32_t place, float *dst, struct pd_error *err)
{
    const struct pd_matrix *norm2 = context;
    const uint64_t experts = t->model->config.experts, hidden = t->model->config.hidden, row = t->sp.row[place];
    const struct pd_gemm g = {.m = experts,
                              .n = hidden,
                              .k = t->sp.rows[place],
                              .trans_a = true,
                              .a = {dlogits_of(t) + row * experts, PD_F32, experts},
                              .b = {(char *)norm2->data + row * hidden * pd_dtype_bytes(norm2->dtype), norm2->dtype, hidden},
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
    PD_TRY(count_block(t, block, x, err));
    if (c->balance_loss > 0) route.balance = t->experts.balance;
    route.dweights = t->experts.weights;
    route.z = t->scale * c->z_loss / (float)(c->layers - c->dense_blocks);
    route.dlogits = dlogits_of(t);
    PD_TRY(pd_route_backward(t->math, &route, err));
    if (bias >= 0) PD_TRY(bias_backward(t, block, w[bias], g[bias], err));
    struct pd_matrix norm2 = {a->norm2, t->options.dtype, c->hidden};
    if (t->experts.widens) {
        PD_TRY(pd_cast(t->math, t->rows * c->hidden, PD_F32, t->experts.product, t->options.dtype, a->norm2, err));
        norm2 = (struct pd_matrix){t->experts.product, PD_F32, c->hidden};
    }
    return pd_piece_gradients(t, (uint64_t)c->experts * c->hidden, router_piece, &norm2,
                              g[t->model->places[PD_ROLE_ROUTER][0]], err);
}

pd_status pd_router_input(struct pd_transformer *t, void *const *w, struct pd_matrix chain, struct pd_error *err)
{
    const struct pd_model_config *c = &t->model->config;
    struct pd_matrix weight = router_weight(t, w);
    if (t->tp.first_chunk) return PD_OK;
    if (t->experts.widens) {
        PD_TRY(pd_cast(t->math, (uint64_t)c->experts * c->hidden, PD_F32, t->experts.wide_weight, weight.dtype, weight.data,
                       err));
        weight.data = t->experts.wide_weight, weight.dtype = PD_F32;
    }
    const struct pd_gemm g = {.m = t->rows,
                              .n = c->hidden,
                              .k = c->experts,
                              .accumulate = true,
                              .a = {dlogits_of(t), PD_F32, c->experts},
                              .b = weight,
                              .c = chain};
    return pd_gemm(t->math, &g, err);
}
