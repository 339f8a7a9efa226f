/* With ep > 1 a rank has every ep-th expert and sends each token to the ranks that have its experts:
 *
 *   counts    how many tokens of each piece of its micro-batch each rank sends to each expert
 *   there     rows and their weights, ordered by expert and token: what one rank gets is contiguous
 *   back      results in the same order
 *
 * The receiver keeps the micro-batches of the ranks apart, so each (expert, micro-batch) is a product of its own over tokens in
 * ascending order, as with ep = 1. All ep ranks make the same exchanges; one without a micro-batch sends no tokens.
 *
 * Slices. If more rows go to a rank than its memory is for (pd_transformer_options.ep_rows), all ranks exchange several times,
 * until every rank had its rows. What one rank sends one expert is never divided, as no bits may depend on slices. Backward
 * makes the rows of all slices but the first again. */
#include "ckpt/base/checked.h"
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

uint64_t pd_experts_arrived(const struct pd_transformer *t)
{
    return (uint64_t)t->experts.slice.first[t->model->config.experts * t->sp.pieces];
}

static pd_status exchange_counts(struct pd_transformer *t, struct pd_expert_activations *x, struct pd_error *err)
{
    const uint32_t all = t->model->config.experts * t->sp.pieces;
    const uint64_t bytes = all * sizeof(int32_t);
    int32_t *own = x->device_counts + (uint64_t)t->options.ep_rank * all;
    struct pd_peer_transfer *travel = &t->experts.travel;
    PD_TRY(pd_slot_counts(t->math, all, 1, 1, x->device_first, own, err));
    pd_peer_transfer_clear(travel);
    for (uint32_t r = 0; r < t->options.ep; r++) {
        if (r == t->options.ep_rank) continue;
        pd_peer_transfer_send(travel, r, own, bytes);
        pd_peer_transfer_recv(travel, r, x->device_counts + (uint64_t)r * all, bytes);
    }
    PD_TRY(pd_peer_transfer_start(travel, err));
    PD_TRY(pd_peer_transfer_wait(travel, err));
    return t->options.on_device ? pd_math_copy(t->math, x->counts, x->device_counts, t->options.ep * bytes, err) : PD_OK;
}

/* All rows of this rank, one an expert and token, go to its own first expert, and with experts on several ranks the most
 * rows of any rank come from the next one: no product exceeds these. */
static void rehearse_counts(const struct pd_transformer *t, struct pd_expert_activations *x)
{
    const uint32_t all = t->model->config.experts * t->sp.pieces, ep = t->options.ep, own = t->options.ep_rank * (all / ep);
    for (uint32_t i = 0; i <= all; i++)
        x->first[i] = i > own ? (int32_t)t->rows : 0;
    for (uint32_t i = 0; ep > 1 && i < ep * all; i++)
        x->counts[i] = 0;
    if (ep == 1) return;
    x->counts[t->options.ep_rank * all + own] = (int32_t)t->rows;
    x->counts[(t->options.ep_rank + 1) % ep * all + own] = (int32_t)t->experts.group_rows;
}

/* Waits until the host has first and counts. */
static pd_status wait_for_counts(struct pd_transformer *t, struct pd_expert_activations *x, struct pd_error *err)
{
    if (!t->options.on_device) return PD_OK;
    PD_TRY(pd_math_mark(t->math, &t->experts.counted, err));
    PD_TRY(pd_math_reach(t->math, &t->experts.counted, err));
    if (t->rehearses) rehearse_counts(t, x);
    return PD_OK;
}

/* The only time in a pass over a block that the host waits for its GPU: it launches a product an expert, and lists what
 * travels, by numbers that are only known now. Gathering the rows is queued before. */
pd_status pd_experts_meet(struct pd_transformer *t, struct pd_expert_activations *x, struct pd_error *err)
{
    if (t->options.ep > 1) PD_TRY(exchange_counts(t, x, err));
    return wait_for_counts(t, x, err);
}

/* ---- slices ---- */

/* Rows of each piece of a group that rank `to` takes: (pieces). */
static const int32_t *group_at(const struct pd_transformer *t, const struct pd_expert_activations *x, uint32_t to,
                               uint32_t group)
{
    const uint32_t here = pd_experts_here(t), source = group / here, number = group % here;
    return x->counts + ((uint64_t)source * t->model->config.experts + to * here + number) * t->sp.pieces;
}

static uint64_t group_rows(const struct pd_transformer *t, const struct pd_expert_activations *x, uint32_t to,
                           uint32_t group)
{
    uint64_t rows = 0;
    for (uint32_t place = 0; place < t->sp.pieces; place++)
        rows += (uint64_t)group_at(t, x, to, group)[place];
    return rows;
}

/* From `begin` on, as many groups as `limit` has room for. */
static void set_slice(struct pd_transformer *t, const struct pd_expert_activations *x)
{
    struct pd_expert_slice *s = &t->experts.slice;
    const uint32_t groups = t->model->config.experts, me = t->options.ep_rank;
    s->is_last = true;
    for (uint32_t r = 0; r < t->options.ep; r++) {
        uint64_t rows = 0;
        for (s->end[r] = s->begin[r]; s->end[r] < groups; s->end[r]++) {
            rows += group_rows(t, x, r, s->end[r]);
            if (rows > t->experts.limit) break;
        }
        PD_CHECK(s->end[r] > s->begin[r] || s->begin[r] == groups);
        s->is_last &= s->end[r] == groups;
    }
    s->first[0] = 0;
    for (uint32_t group = 0, i = 0; group < groups; group++)
        for (uint32_t place = 0; place < t->sp.pieces; place++, i++) {
            const bool is_taken = s->begin[me] <= group && group < s->end[me];
            s->first[i + 1] = s->first[i] + (is_taken ? group_at(t, x, me, group)[place] : 0);
        }
}

void pd_experts_first_slice(struct pd_transformer *t, const struct pd_expert_activations *x)
{
    struct pd_expert_slice *s = &t->experts.slice;
    s->number = 0;
    s->products = &x->kept;
    s->first = t->options.ep > 1 ? s->own : x->first;
    s->is_last = true;
    memset(s->begin, 0, t->options.ep * sizeof *s->begin);
    s->end[0] = t->model->config.experts;
    if (t->options.ep > 1) set_slice(t, x);
}

bool pd_experts_next_slice(struct pd_transformer *t, const struct pd_expert_activations *x)
{
    struct pd_expert_slice *s = &t->experts.slice;
    if (s->is_last) return false;
    s->number++;
    s->products = &t->experts.again;
    memcpy(s->begin, s->end, t->options.ep * sizeof *s->begin);
    set_slice(t, x);
    return true;
}

/* The experts of rank `to` whose rows from rank `source` are in the slice. */
static struct pd_range experts_between(const struct pd_transformer *t, uint32_t to, uint32_t source)
{
    const struct pd_expert_slice *s = &t->experts.slice;
    const uint32_t here = pd_experts_here(t), first = source * here;
    const uint64_t begin = pd_max_u64(s->begin[to], first), end = pd_min_u64(s->end[to], first + here);
    return begin < end ? (struct pd_range){begin - first, end - first} : (struct pd_range){0, 0};
}

struct pd_range pd_experts_in_slice(const struct pd_transformer *t, uint32_t source)
{
    return experts_between(t, t->options.ep_rank, source);
}

pd_status pd_experts_travel(struct pd_transformer *t, const struct pd_expert_activations *x,
                            const struct pd_expert_rows *rows, uint32_t count, bool is_back, struct pd_error *err)
{
    const uint32_t here = pd_experts_here(t), pieces = t->sp.pieces;
    struct pd_peer_transfer *travel = &t->experts.travel;
    if (t->options.ep == 1) return PD_OK;
    pd_peer_transfer_clear(travel);
    for (uint32_t r = 0; r < t->options.ep; r++) {
        const struct pd_range mine = experts_between(t, r, t->options.ep_rank);
        const int32_t *at = x->first + (uint64_t)r * here * pieces,
                      *arrived = t->experts.slice.first + (uint64_t)r * here * pieces;
        const uint64_t first = (uint64_t)at[mine.begin * pieces], ours = (uint64_t)at[mine.end * pieces] - first,
                       theirs = (uint64_t)(arrived[here * pieces] - arrived[0]);
        for (uint32_t i = 0; i < count; i++) {
            char *home = (char *)rows[i].home + first * rows[i].bytes,
                 *away = (char *)rows[i].away + (uint64_t)arrived[0] * rows[i].bytes;
            pd_peer_transfer_send(travel, r, is_back ? away : home, (is_back ? theirs : ours) * rows[i].bytes);
            pd_peer_transfer_recv(travel, r, is_back ? home : away, (is_back ? ours : theirs) * rows[i].bytes);
        }
    }
    return pd_peer_transfer_start(travel, err);
}
