/* With ep > 1 a rank has every ep-th expert and sends each token to the ranks that have its experts:
 *
 *   counts    how many tokens of each piece of this micro-batch each expert of a rank gets
 *   there     rows and their weights, ordered by expert and token: what one rank gets is contiguous
 *   back      results in the same order
 *
 * The receiver keeps the micro-batches of the ranks apart, so each (expert, micro-batch) is a product of its own over tokens in
 * ascending order, as with ep = 1. All ep ranks make the same exchanges; one without a micro-batch sends no tokens. */
#include "trainer/model/transformer_internal.h"

#include <string.h>

uint32_t pd_experts_here(const struct pd_transformer *t)
{
    return t->model->config.experts / t->options.ep;
}

uint32_t pd_expert_position(const struct pd_transformer *t, uint32_t expert)
{
    return expert % t->options.ep * pd_experts_here(t) + expert / t->options.ep;
}

uint64_t pd_experts_arrived(const struct pd_transformer *t, const struct pd_expert_activations *x)
{
    return (uint64_t)x->arrived_first[t->model->config.experts * t->sp.pieces];
}

pd_status pd_experts_meet(struct pd_transformer *t, struct pd_expert_activations *x, struct pd_error *err)
{
    const uint32_t all = t->model->config.experts * t->sp.pieces, here = pd_experts_here(t) * t->sp.pieces;
    const uint64_t bytes = here * sizeof(int32_t);
    int32_t *counts = t->experts.counts, *first = x->arrived_first;
    struct pd_peer_transfer *travel = &t->experts.travel;
    if (t->options.ep == 1) return PD_OK;
    for (uint32_t i = 0; i < all; i++)
        counts[i] = x->first[i + 1] - x->first[i];
    pd_peer_transfer_clear(travel);
    for (uint32_t r = 0; r < t->options.ep; r++) {
        pd_peer_transfer_send(travel, r, counts + (uint64_t)r * here, bytes);
        pd_peer_transfer_recv(travel, r, first + 1 + (uint64_t)r * here, bytes);
    }
    PD_TRY(pd_peer_transfer_start(travel, err));
    PD_TRY(pd_peer_transfer_wait(travel, err));
    first[0] = 0;
    for (uint32_t i = 0; i < all; i++)
        first[i + 1] += first[i];
    return PD_OK;
}

pd_status pd_experts_travel(struct pd_transformer *t, const struct pd_expert_activations *x,
                            const struct pd_expert_rows *rows, uint32_t count, bool is_back, struct pd_error *err)
{
    const uint32_t here = pd_experts_here(t) * t->sp.pieces;
    struct pd_peer_transfer *travel = &t->experts.travel;
    if (t->options.ep == 1) return PD_OK;
    pd_peer_transfer_clear(travel);
    for (uint32_t r = 0; r < t->options.ep; r++) {
        const int32_t *at = x->first + (uint64_t)r * here, *arrived = x->arrived_first + (uint64_t)r * here;
        const uint64_t ours = (uint64_t)(at[here] - at[0]), theirs = (uint64_t)(arrived[here] - arrived[0]);
        for (uint32_t i = 0; i < count; i++) {
            char *home = (char *)rows[i].home + (uint64_t)at[0] * rows[i].bytes,
                 *away = (char *)rows[i].away + (uint64_t)arrived[0] * rows[i].bytes;
            pd_peer_transfer_send(travel, r, is_back ? away : home, (is_back ? theirs : ours) * rows[i].bytes);
            pd_peer_transfer_recv(travel, r, is_back ? home : away, (is_back ? ours : theirs) * rows[i].bytes);
        }
    }
    return pd_peer_transfer_start(travel, err);
}
