/* Loss and embedding with a vocabulary cut by rows over tensor-parallel ranks. Every tp rank makes the same calls in the
 * same order. */
#include "trainer/model/transformer_internal.h"

#include <string.h>

/* Vocabulary tokens per rank; the last rank with any may have fewer. */
static uint64_t rank_tokens(const struct pd_transformer *t)
{
    const uint64_t virtual_tp = t->partition.virtual_tp;
    return (t->model->config.vocab + virtual_tp - 1) / virtual_tp * t->tp.chunks;
}

static uint32_t rank_of_token(const struct pd_transformer *t, int32_t token)
{
    return (uint32_t)((uint64_t)token / rank_tokens(t));
}

/* ---- embedding ---- A rank looks up the tokens it holds, and sends each rank, in one message, the rows that it keeps. The
 * received rows, ordered by sender, form a table, in which it looks up the rows that it keeps. */

/* Start of each rank's rows in looked_up, and in embedded; and counters. */
struct counts {
    uint64_t *to, *from, *next_to, *next_from;
};

static struct counts counts_of(const struct pd_transformer *t, const struct pd_input_slot *s)
{
    const uint64_t n = t->partition.tp + 1ull;
    return (struct counts){s->first_row, s->first_row + n, s->first_row + 2 * n, s->first_row + 3 * n};
}

static void count_rows(struct pd_transformer *t, const struct pd_input_slot *s)
{
    const struct counts c = counts_of(t, s);
    const uint32_t me = t->partition.tp_rank, ranks = t->partition.tp;
    memset(c.to, 0, 2 * (ranks + 1ull) * sizeof *c.to);
    for (uint64_t row = 0; row < t->rows; row++) {
        const uint32_t holder = rank_of_token(t, s->host.tokens[row]), keeper = pd_rows_owner(t, row);
        c.to[keeper + 1] += holder == me;
        c.from[holder + 1] += keeper == me;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        c.to[r + 1] += c.to[r];
        c.from[r + 1] += c.from[r];
    }
    memcpy(c.next_to, c.to, 2 * (ranks + 1ull) * sizeof *c.to);
}

void pd_embedding_order(struct pd_transformer *t, uint32_t slot)
{
    const uint32_t me = t->partition.tp_rank;
    struct pd_input_slot *s = &t->inputs[slot % t->input_count];
    const struct counts c = counts_of(t, s);
    uint64_t kept = 0;
    count_rows(t, s);
    for (uint64_t row = 0; row < t->rows; row++) {
        const uint32_t holder = rank_of_token(t, s->host.tokens[row]), keeper = pd_rows_owner(t, row);
        if (keeper == me) s->host_order.row[kept++] = (int32_t)c.next_from[holder]++;
        if (holder != me) continue;
        const uint64_t at = c.next_to[keeper]++;
        s->host_order.tokens[at] = s->host.tokens[row];
        s->host_order.positions[at] = s->host.positions[row];
    }
}

pd_status pd_embedding_gather(struct pd_transformer *t, uint32_t slot, const struct pd_embedding *whole,
                              struct pd_error *err)
{
    const struct pd_input_slot *s = &t->inputs[slot % t->input_count];
    const struct pd_token_order *order = t->options.on_device ? &s->device_order : &s->host_order;
    const struct counts c = counts_of(t, s);
    const uint32_t ranks = t->partition.tp;
    struct pd_embedding held = *whole, kept = *whole;
    held.rows = c.to[ranks];
    held.tokens = order->tokens;
    held.positions = order->positions;
    held.out = t->tp.looked_up;
    if (held.rows) PD_TRY(pd_embedding_forward(t->math, &held, err));
    const uint32_t me = t->partition.tp_rank;
    const uint64_t row_bytes = t->model->config.hidden * t->element_bytes;
    struct pd_peer_transfer *x = &t->tp.embedding;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.tp; r++) {
        char *to = t->tp.looked_up + c.to[r] * row_bytes, *from = t->tp.embedded + c.from[r] * row_bytes;
        const uint64_t to_bytes = (c.to[r + 1] - c.to[r]) * row_bytes;
        if (r == me && to_bytes) PD_TRY(pd_math_copy(t->math, from, to, to_bytes, err));
        if (r == me) continue;
        pd_peer_transfer_send(x, r, to, to_bytes);
        pd_peer_transfer_recv(x, r, from, (c.from[r + 1] - c.from[r]) * row_bytes);
    }
    PD_TRY(pd_peer_transfer_start(x, err));
    PD_TRY(pd_peer_transfer_wait(x, err));
    kept.rows = kept.vocab = c.from[ranks];
    kept.first_token = 0;
    kept.tokens = order->row;
    kept.token_table = t->tp.embedded;
    kept.position_table = NULL;
    return kept.rows ? pd_embedding_forward(t->math, &kept, err) : PD_OK;
}

/* ---- loss over a cut vocabulary: a few numbers a row ---- */

/* mine (rows) and, unless NULL, mine2 of every rank. */
static pd_status gather_rows(struct pd_transformer *t, uint64_t rows, float *const *mine, float *const *all, uint32_t arrays,
                             struct pd_error *err)
{
    const uint32_t me = t->partition.tp_rank;
    const uint64_t vocab = t->model->config.vocab;
    struct pd_peer_transfer *x = &t->tp.loss;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.tp; r++)
        for (uint32_t i = 0; i < arrays; i++) {
            float *place = all[i] + r * t->logits_rows;
            if (r == me) PD_TRY(pd_math_copy(t->math, place, mine[i], rows * sizeof(float), err));
            if (r == me) continue;
            if (pd_tp_has_units(t, me, vocab)) pd_peer_transfer_send(x, r, mine[i], rows * sizeof(float));
            if (pd_tp_has_units(t, r, vocab)) pd_peer_transfer_recv(x, r, place, rows * sizeof(float));
        }
    PD_TRY(pd_peer_transfer_start(x, err));
    return pd_peer_transfer_wait(x, err);
}

static struct pd_logits_join join_of(const struct pd_transformer *t, uint64_t rows)
{
    return (struct pd_logits_join){.rows = rows,
                                   .ld = t->logits_rows,
                                   .ranks = rank_of_token(t, (int32_t)t->model->config.vocab - 1) + 1,
                                   .rank_columns = rank_tokens(t)};
}

pd_status pd_loss_max(struct pd_transformer *t, uint64_t rows, struct pd_error *err)
{
    struct pd_tensor_parallel *tp = &t->tp;
    PD_TRY(gather_rows(t, rows, &tp->max, &tp->all_max, 1, err));
    struct pd_logits_join join = join_of(t, rows);
    join.all_max = tp->all_max;
    join.max = tp->max;
    return pd_logits_join(t->math, &join, err);
}

pd_status pd_loss_sum(struct pd_transformer *t, uint64_t rows, const int32_t *targets, struct pd_error *err)
{
    struct pd_tensor_parallel *tp = &t->tp;
    float *const mine[] = {tp->sum, tp->target}, *const all[] = {tp->all_sum, tp->all_target};
    PD_TRY(gather_rows(t, rows, mine, all, 2, err));
    for (uint32_t r = 0; r < t->partition.tp; r++)
        tp->parts[r] = pd_tp_has_units(t, r, t->model->config.vocab) ? tp->all_sum + r * t->logits_rows : NULL;
    struct pd_finish f = {.rows = 1,
                          .columns = rows,
                          .part_count = t->partition.tp,
                          .parts = tp->parts,
                          .scale = 1.0f,
                          .out = {tp->sum, PD_F32, rows}};
    PD_TRY(pd_finish(t->math, &f, err));
    struct pd_logits_join join = join_of(t, rows);
    join.all_targets = tp->all_target;
    join.target_logit = tp->target;
    join.targets = targets;
    return pd_logits_join(t->math, &join, err);
}

pd_status pd_logits_fetch(struct pd_transformer *t, float *logits, struct pd_error *err)
{
    const uint32_t me = t->partition.tp_rank;
    struct pd_peer_transfer *x = &t->tp.loss;
    pd_peer_transfer_clear(x);
    for (uint32_t r = 0; r < t->partition.tp; r++) {
        struct pd_range theirs = pd_tp_units(t, r, t->model->config.vocab);
        if (r == me) continue;
        pd_peer_transfer_send(x, r, logits + t->share.vocab.begin, t->share.vocab_columns * sizeof(float));
        pd_peer_transfer_recv(x, r, logits + theirs.begin, (theirs.end - theirs.begin) * sizeof(float));
    }
    PD_TRY(pd_peer_transfer_start(x, err));
    return pd_peer_transfer_wait(x, err);
}
