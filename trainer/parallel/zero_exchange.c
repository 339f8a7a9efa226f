/* Sums: terms of all ranks to those who own them, as integers, in any order. A part of every set is this rank's: after the
 * exchange `sums` has it, with its check behind it, and becomes fp32 in place when the last terms are in.
 *
 *   1. terms that other tensor-parallel ranks own go to them                    (key-value heads that are shared)
 *   2. a reduce-scatter among the zero_shard ranks that own a copy together     (the first one of a step: into the sums)
 *   3. an all-reduce of every part among its replicas, each owning a part of it (once a step) */
#include "ckpt/base/checked.h"
#include "ckpt/base/trace.h"
#include "trainer/parallel/zero_internal.h"

static const char an_exchange[] = "an exchange of gradients";

static pd_status add_run(struct pd_zero *zero, const struct pd_term_run *run, struct pd_error *err)
{
    const struct pd_terms terms = {.runs = run, .run_count = 1, .source = PD_TERM_INTEGER};
    return pd_terms(zero->math, &terms, err);
}

int64_t *pd_zero_sums(const struct pd_zero *zero, uint32_t set)
{
    return (int64_t *)zero->has.gradient + zero->sets[set].sums;
}

/* ---- to other tensor-parallel ranks ---- */

struct crossing {
    struct pd_zero *zero;
    uint32_t set;
    int64_t *at; /* of what comes next */
};

static pd_status count_share(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    (void)err;
    *(uint64_t *)context += share->elements;
    return PD_OK;
}

uint64_t pd_zero_count_terms(struct pd_zero *zero, uint32_t set, uint32_t user_tp, uint32_t owner_tp)
{
    uint64_t elements = 0;
    (void)!pd_zero_each_share(zero, set, PD_ZERO_TERMS, user_tp, owner_tp, count_share, &elements, NULL);
    return elements;
}

static pd_status add_arrived(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct crossing *c = context;
    const struct pd_zero_set *s = &c->zero->sets[c->set];
    int64_t *part = s->terms->data + share->part * s->stride;
    const struct pd_term_run run = {
        .from = c->at, .to = part + share->part_at, .n = share->elements, .check = part + s->stride - 1};
    c->at += share->elements;
    return add_run(c->zero, &run, err);
}

/* Whoever computed an element is the only one who did: where it arrives there was none. */
static pd_status cross(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    const uint32_t tp = zero->grid->layout.tp, me = zero->grid->place.tp;
    struct pd_zero_exchange *x = &zero->exchange;
    int64_t *out = s->terms->data + zero->parts * s->stride;
    struct crossing c = {zero, set, zero->arrived};
    if (!s->crosses) return PD_OK;
    pd_owner_acquire(&x->owner, an_exchange);
    x->op = (struct pd_comm_op){.sends = x->sends, .recvs = x->recvs, .what = "exchange of gradients"};
    for (uint32_t t = 0; t < tp; t++) {
        const uint64_t sent = t == me ? 0 : pd_zero_count_terms(zero, set, me, t) * sizeof *out,
                       received = t == me ? 0 : pd_zero_count_terms(zero, set, t, me) * sizeof *out;
        if (sent) x->sends[x->op.send_count++] = (struct pd_comm_piece){t, out, sent};
        if (received) x->recvs[x->op.recv_count++] = (struct pd_comm_piece){t, c.at, received};
        out += sent / sizeof *out, c.at += received / sizeof *out;
    }
    pd_status st = pd_comm_start(zero->grid->tp, &x->op, err);
    if (!st) st = pd_comm_wait(zero->grid->tp, &x->op, err);
    pd_owner_release(&x->owner, an_exchange);
    c.at = zero->arrived;
    for (uint32_t t = 0; !st && t < tp; t++)
        if (t != me) st = pd_zero_each_share(zero, set, PD_ZERO_TERMS, t, me, add_arrived, &c, err);
    return st;
}

/* ---- among the ranks that own a copy together ---- */

static int64_t *own_part(const struct pd_zero *zero)
{
    const struct pd_zero_exchange *x = &zero->exchange;
    return x->terms->data + zero->q % zero->parts * zero->sets[x->set].stride;
}

static void let_go(struct pd_zero_exchange *x)
{
    pd_owner_release(&x->terms->owner, an_exchange);
    pd_owner_release(&x->owner, an_exchange);
}

/* The first sums of a step are made where sums live, later ones are added to them. Alone, a rank makes terms there. */
static pd_status start(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    struct pd_zero_set *s = &zero->sets[set];
    x->set = set;
    x->terms = s->terms;
    s->filled = 0;
    if (zero->parts == 1) return PD_OK;
    int64_t *to = s->has_sums ? own_part(zero) : pd_zero_sums(zero, set);
    pd_owner_acquire(&x->owner, an_exchange);
    pd_owner_acquire(&x->terms->owner, an_exchange);
    x->op = (struct pd_comm_op){.what = "exchange of gradients"};
    const pd_status st =
        pd_comm_start_reduce_scatter(zero->grid->shard, &x->op, (uint64_t *)x->terms->data, s->stride, (uint64_t *)to, err);
    if (st) let_go(x);
    x->in_flight = !st;
    return st;
}

pd_status pd_zero_wait_exchange(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    const uint64_t begin = pd_trace_begin();
    if (!x->in_flight) return PD_OK;
    x->in_flight = false;
    const pd_status st = pd_comm_wait(zero->grid->shard, &x->op, err);
    let_go(x);
    pd_trace_end(begin, "wait", "exchange of gradients", x->set);
    return st;
}

/* ---- among replicas ---- */

/* The first `words` of a set's sums. */
static pd_status add_replicas(struct pd_zero *zero, uint32_t set, uint64_t words, struct pd_error *err)
{
    struct pd_comm *comm = zero->grid->replicas;
    struct pd_zero_exchange *x = &zero->exchange;
    if (!comm) return PD_OK;
    uint64_t *sums = (uint64_t *)pd_zero_sums(zero, set);
    const uint64_t count = pd_divide_up(words, comm->size);
    pd_owner_acquire(&x->owner, an_exchange);
    x->op = (struct pd_comm_op){.what = "exchange of gradients"};
    pd_status st = pd_comm_start_reduce_scatter(comm, &x->op, sums, count, sums + comm->rank * count, err);
    if (!st) st = pd_comm_wait(comm, &x->op, err);
    x->op = (struct pd_comm_op){.what = "exchange of gradients"};
    if (!st) st = pd_comm_start_all_gather(comm, &x->op, sums, count * sizeof *sums, err);
    if (!st) st = pd_comm_wait(comm, &x->op, err);
    pd_owner_release(&x->owner, an_exchange);
    return st;
}

/* What owners have, and zeros of all others, added up as integers. It passes through the memory of the sums, of which there
 * are none yet. */
static pd_status share_array(struct pd_zero *zero, uint32_t set, float *array, struct pd_error *err)
{
    const struct pd_term_run zeros = {.to = pd_zero_sums(zero, set), .n = zero->sets[set].room};
    float *passage = zero->has.gradient;
    PD_TRY(add_run(zero, &zeros, err));
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = zero->has.first_box[set]; i < zero->has.first_box[set + 1]; i++) {
            const struct pd_zero_box *b = &zero->has.boxes[i];
            float *held = array + b->offset, *passing = passage + b->gradient_offset;
            if (turn == !b->owned)
                PD_TRY(
                    pd_math_copy(zero->math, turn ? held : passing, turn ? passing : held, b->elements * sizeof *held, err));
        }
        if (!turn) PD_TRY(add_replicas(zero, set, pd_divide_up(zero->sets[set].own, 2), err));
    }
    return PD_OK;
}

pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err)
{
    for (int kind = 0; zero->grid->replicas && kind < PD_KIND_COUNT && zero->has.state[kind]; kind++)
        for (uint32_t set = 0; set < zero->has.set_count; set++)
            if (zero->sets[set].count) PD_TRY(share_array(zero, set, zero->has.state[kind], err));
    return pd_math_sync(zero->math, err);
}

/* ---- the end of a set ---- */

pd_status pd_zero_end_set(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    if (zero->makes_terms) {
        int64_t *sums = pd_zero_sums(zero, set);
        const struct pd_term_sums made = {.n = s->own,
                                          .sums = sums,
                                          .out = (float *)sums,
                                          .quantum = zero->quantum.quantum,
                                          .check = sums + s->stride - 1,
                                          .damaged = &zero->marks[zero->model->tensors.count + set],
                                          .mark = zero->attempt};
        PD_TRY(pd_term_sums(zero->math, &made, err));
    }
    return pd_zero_complete(zero, set, err);
}

static bool waits_for_mirror(const struct pd_zero *zero, uint32_t set)
{
    return zero->is_mirrored && pd_zero_is_end(zero, set);
}

static pd_status end_exchange(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    struct pd_zero_set *s = &zero->sets[set];
    if (zero->parts > 1 && s->has_sums) {
        const struct pd_term_run run = {
            .from = own_part(zero), .to = pd_zero_sums(zero, set), .n = s->stride, .adds = s->has_sums};
        PD_TRY(add_run(zero, &run, err));
    }
    s->has_sums = true;
    if (!zero->exchange.is_last) return PD_OK;
    PD_TRY(add_replicas(zero, set, s->room, err));
    return waits_for_mirror(zero, set) ? PD_OK : pd_zero_end_set(zero, set, err);
}

pd_status pd_zero_drain(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    const uint32_t set = x->set;
    if (set == PD_ZERO_NO_SET) return PD_OK;
    PD_TRY(pd_zero_wait_exchange(zero, err));
    const pd_status st = end_exchange(zero, set, err);
    x->set = PD_ZERO_NO_SET;
    return st;
}

/* Ends travel once a step, and so do blocks unless memory is short. Pieces of micro-batches are terms before their lane ends. */
static bool exchanges(const struct pd_zero *zero, uint32_t set, uint32_t slot)
{
    if (slot + 1 == zero->slots) return true;
    return zero->options.by_lane && !pd_zero_is_end(zero, set) && zero->parts > 1 &&
           (zero->pieces > 1 || pd_lanes_any_ends(&zero->lanes, slot));
}

pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    const bool is_last = slot + 1 == zero->slots;
    if (!pd_lanes_is_padding(&zero->lanes, zero->grid->place.dp, slot))
        PD_TRY(pd_zero_add_micro_batch(zero, set, slot, err));
    if (!zero->makes_terms) return is_last && !waits_for_mirror(zero, set) ? pd_zero_end_set(zero, set, err) : PD_OK;
    if (!exchanges(zero, set, slot)) return PD_OK;
    PD_TRY(pd_zero_drain(zero, err));
    if (!zero->sets[set].filled) {
        pd_zero_choose_terms(zero, set);
        PD_TRY(pd_zero_clear_terms(zero, set, err));
    }
    PD_TRY(cross(zero, set, err));
    x->is_last = is_last;
    PD_TRY(start(zero, set, err));
    return zero->parts > 1 ? PD_OK : pd_zero_drain(zero, err);
}
