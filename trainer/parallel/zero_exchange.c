/* Sums the terms of all ranks at their owners, as integers, in any order. This rank owns a part of every set: after the
 * exchange `sums` has it, followed by its checksum, and it becomes fp32 in place after the last terms.
 *
 *   1. terms that other tensor-parallel ranks own go to them                    (key-value heads that are shared)
 *   2. a reduce-scatter among the zero_shard ranks that own a copy together     (the first one of a step: into the sums)
 *   3. an all-reduce of every part among its replicas, each owning a part of it (once a step) */
#include "ckpt/base/checked.h"
#include "ckpt/base/trace.h"
#include "trainer/parallel/zero_internal.h"

static const char an_exchange[] = "an exchange of gradients";

int64_t *pd_zero_sums(const struct pd_zero *zero, uint32_t set)
{
    return (int64_t *)zero->has.gradient + zero->sets[set].sums;
}

/* ---- to other tensor-parallel ranks ---- */

/* Terms and parameters take the same way, in opposite directions. */
struct passage {
    const struct pd_zero *zero;
    const struct pd_zero_set *set;
    enum pd_zero_use use;
    bool is_owner; /* this rank's parts contain the data */
    uint32_t peer;
    int64_t *apart; /* terms that others own, from the next one on */
    struct pd_comm_piece *next;
};

static pd_status add_piece(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct passage *p = context;
    const struct pd_zero_set *s = p->set;
    const bool is_term = p->use == PD_ZERO_TERMS;
    const uint64_t bytes = is_term ? sizeof(int64_t) : pd_dtype_bytes(p->zero->options.compute);
    char *parts = is_term ? (char *)s->terms->data : p->zero->gathers.turns[p->zero->gathers.oldest].parts,
         *used = is_term ? (char *)p->apart : s->place + (s->needed[share->e] + share->used_at) * bytes;
    const uint64_t at = share->part * (is_term ? s->stride : s->part) + share->part_at;
    (void)err;
    *p->next++ = (struct pd_comm_piece){p->peer, p->is_owner ? parts + at * bytes : used, share->elements * bytes};
    if (!p->is_owner) p->apart += share->elements;
    return PD_OK;
}

/* For every other tensor-parallel rank: what it uses from this rank's parts, or the reverse. */
static pd_status each_crossing(struct pd_zero *zero, uint32_t set, struct passage *p,
                               pd_status (*visit)(void *context, const struct pd_zero_share *share, struct pd_error *err),
                               struct pd_error *err)
{
    const uint32_t me = zero->grid->place.tp;
    for (p->peer = 0; p->peer < zero->grid->layout.tp; p->peer++)
        if (p->peer != me)
            PD_TRY(pd_zero_each_share(zero, set, p->use, p->is_owner ? p->peer : me, p->is_owner ? me : p->peer, visit, p,
                                      err));
    return PD_OK;
}

/* Adds received elements to the checksum of their part. Each element has one sender. */
static pd_status check_arrived(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    const struct passage *p = context;
    int64_t *part = p->set->terms->data + share->part * p->set->stride, *arrived = part + share->part_at;
    const struct pd_term_run run = {
        .from = arrived, .to = arrived, .n = share->elements, .check = part + p->set->stride - 1};
    return pd_zero_add_run(p->zero, &run, err);
}

pd_status pd_zero_cross(struct pd_zero *zero, uint32_t set, enum pd_zero_use use, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    const bool is_term = use == PD_ZERO_TERMS;
    struct passage p = {.zero = zero, .set = s, .use = use, .is_owner = !is_term, .next = zero->crossing};
    if (zero->grid->layout.tp == 1 || (is_term && !s->crosses)) return PD_OK;
    if (is_term) p.apart = s->terms->data + zero->parts * s->stride;
    PD_TRY(each_crossing(zero, set, &p, add_piece, err));
    struct pd_comm_piece *recvs = p.next;
    p.is_owner = is_term;
    PD_TRY(each_crossing(zero, set, &p, add_piece, err));
    struct pd_comm_op op = {.sends = zero->crossing,
                            .send_count = (uint32_t)(recvs - zero->crossing),
                            .recvs = recvs,
                            .recv_count = (uint32_t)(p.next - recvs),
                            .what = is_term ? "exchange of gradients" : "gather of parameters"};
    PD_TRY(pd_comm_start(zero->grid->tp, &op, err));
    PD_TRY(pd_comm_wait(zero->grid->tp, &op, err));
    return is_term ? each_crossing(zero, set, &p, check_arrived, err) : PD_OK;
}

/* ---- among the ranks that own a copy together ---- */

static int64_t *own_part(const struct pd_zero *zero, const struct pd_zero_terms *terms, uint32_t set)
{
    return terms->data + zero->q % zero->parts * zero->sets[set].stride;
}

static struct pd_zero_exchange *newest(struct pd_zero *zero)
{
    return &zero->exchanges.flights[zero->exchanges.newest];
}

/* The first sums of a step go directly to the sums' memory, later ones are added. A rank alone makes terms there. */
static pd_status zero_exchange_start(struct pd_zero *zero, uint32_t set, bool is_last, struct pd_error *err)
{
    struct pd_zero_exchanges *both = &zero->exchanges;
    struct pd_zero_exchange *x = &both->flights[both->newest ^= 1];
    struct pd_zero_set *s = &zero->sets[set];
    *x = (struct pd_zero_exchange){.set = set, .is_last = is_last, .terms = s->terms};
    s->filled = 0;
    if (zero->parts == 1) return PD_OK;
    int64_t *to = s->has_sums ? own_part(zero, x->terms, set) : pd_zero_sums(zero, set);
    pd_owner_acquire(&x->terms->owner, an_exchange);
    x->op.what = "exchange of gradients";
    x->comm = zero->options.exchanges_two && both->newest ? zero->grid->gathers : zero->grid->shard;
    const pd_status st =
        pd_comm_start_reduce_scatter(x->comm, &x->op, (uint64_t *)x->terms->data, s->stride, (uint64_t *)to, err);
    if (st) pd_owner_release(&x->terms->owner, an_exchange);
    x->in_flight = !st;
    return st;
}

static pd_status wait(struct pd_zero_exchange *x, struct pd_error *err)
{
    const uint64_t begin = pd_trace_begin();
    if (!x->in_flight) return PD_OK;
    x->in_flight = false;
    const pd_status st = pd_comm_wait(x->comm, &x->op, err);
    pd_owner_release(&x->terms->owner, an_exchange);
    pd_trace_end(begin, "wait", "exchange of gradients", x->set);
    return st;
}

/* ---- among replicas ---- */

/* The first `words` of a set's sums. */
static pd_status add_replicas(struct pd_zero *zero, uint32_t set, uint64_t words, struct pd_error *err)
{
    struct pd_comm *comm = zero->grid->replicas;
    struct pd_comm_op op = {.what = "exchange of gradients"};
    if (!comm) return PD_OK;
    PD_CHECK(!zero->exchanges.flights[0].in_flight && !zero->exchanges.flights[1].in_flight);
    uint64_t *sums = (uint64_t *)pd_zero_sums(zero, set);
    const uint64_t count = pd_divide_up(words, comm->size);
    PD_TRY(pd_comm_start_reduce_scatter(comm, &op, sums, count, sums + comm->rank * count, err));
    PD_TRY(pd_comm_wait(comm, &op, err));
    PD_TRY(pd_comm_start_all_gather(comm, &op, sums, count * sizeof *sums, err));
    return pd_comm_wait(comm, &op, err);
}

/* Owners' values plus zeros of all others, added as integers. Uses the sums' memory, still unused. */
static pd_status share_array(struct pd_zero *zero, uint32_t set, enum pd_kind kind, struct pd_error *err)
{
    const uint32_t element_bytes = pd_zero_element_bytes(&zero->has, kind);
    const struct pd_term_run zeros = {.to = pd_zero_sums(zero, set), .n = zero->sets[set].room};
    float *passage = zero->has.gradient;
    PD_TRY(pd_zero_add_run(zero, &zeros, err));
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = zero->has.first_box[set]; i < zero->has.first_box[set + 1]; i++) {
            const struct pd_zero_box *b = &zero->has.boxes[i];
            void *held = pd_zero_state(&zero->has, kind, b->offset), *passing = passage + b->gradient_offset;
            if (turn == !b->owned)
                PD_TRY(pd_math_copy(zero->math, turn ? held : passing, turn ? passing : held, b->elements * element_bytes,
                                    err));
        }
        if (!turn) PD_TRY(add_replicas(zero, set, pd_divide_up(zero->sets[set].own, 2), err));
    }
    return PD_OK;
}

pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err)
{
    for (int kind = 0; zero->grid->replicas && kind < PD_KIND_COUNT && zero->has.state[kind]; kind++)
        for (uint32_t set = 0; set < zero->has.set_count; set++)
            if (zero->sets[set].count) PD_TRY(share_array(zero, set, (enum pd_kind)kind, err));
    return pd_math_sync(zero->math, err);
}

/* ---- the end of a set ---- */

pd_status pd_zero_end_set(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    if (zero->has.makes_terms) {
        int64_t *sums = pd_zero_sums(zero, set);
        const struct pd_term_sums made = {.n = s->own,
                                          .sums = sums,
                                          .out = (float *)sums,
                                          .quantum = zero->quantum.quantum,
                                          .check = sums + s->stride - 1,
                                          .damaged = &zero->marks[2 * zero->model->tensors.count + set],
                                          .mark = zero->attempt};
        PD_TRY(pd_term_sums(zero->math, &made, err));
    }
    return pd_zero_complete(zero, set, err);
}

static bool waits_for_mirror(const struct pd_zero *zero, uint32_t set)
{
    return zero->is_mirrored && pd_zero_is_end(zero, set);
}

static pd_status end_exchange(struct pd_zero *zero, struct pd_zero_exchange *x, struct pd_error *err)
{
    if (x->set == PD_ZERO_NO_SET) return PD_OK;
    struct pd_zero_set *s = &zero->sets[x->set];
    const uint32_t set = x->set;
    PD_TRY(wait(x, err));
    x->set = PD_ZERO_NO_SET;
    if (zero->parts > 1 && s->has_sums) {
        const struct pd_term_run run = {own_part(zero, x->terms, set), pd_zero_sums(zero, set), s->stride, .adds = true};
        PD_TRY(pd_zero_add_run(zero, &run, err));
    }
    s->has_sums = true;
    if (!x->is_last) return PD_OK;
    PD_TRY(add_replicas(zero, set, s->room, err));
    return waits_for_mirror(zero, set) ? PD_OK : pd_zero_end_set(zero, set, err);
}

/* Exchanges ends once a step, as blocks unless memory is short. Pieces are terms before their lane ends. */
static bool exchanges(const struct pd_zero *zero, uint32_t set, uint32_t slot)
{
    if (slot + 1 == zero->slots) return true;
    return zero->options.by_lane && !pd_zero_is_end(zero, set) && zero->parts > 1 &&
           (zero->pieces > 1 || pd_lanes_any_ends(&zero->lanes, slot));
}

/* Queues an exchange after the last, whose sums are made meanwhile; replicas' sums travel too, and go first. */
pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err)
{
    struct pd_zero_exchange *before = newest(zero);
    const bool is_last = slot + 1 == zero->slots;
    if (slot == PD_ZERO_NO_SLOT) return pd_zero_add_micro_batch(zero, set, slot, err);
    if (!pd_lanes_is_padding(&zero->lanes, zero->grid->place.dp, slot))
        PD_TRY(pd_zero_add_micro_batch(zero, set, slot, err));
    if (!zero->has.makes_terms) return is_last && !waits_for_mirror(zero, set) ? pd_zero_end_set(zero, set, err) : PD_OK;
    if (!exchanges(zero, set, slot)) return PD_OK;
    if (zero->grid->replicas || zero->sets[set].crosses || before->set == set) PD_TRY(end_exchange(zero, before, err));
    if (!zero->sets[set].filled) PD_TRY(pd_zero_clear_terms(zero, set, err));
    PD_TRY(pd_zero_cross(zero, set, PD_ZERO_TERMS, err));
    PD_TRY(zero_exchange_start(zero, set, is_last, err));
    PD_TRY(end_exchange(zero, before, err));
    return zero->parts > 1 ? PD_OK : end_exchange(zero, newest(zero), err);
}

pd_status pd_zero_finish_gradients(struct pd_zero *zero, struct pd_error *err)
{
    PD_TRY(end_exchange(zero, newest(zero), err));
    return pd_zero_join_tables(zero, err);
}

void pd_zero_sync(struct pd_zero *zero)
{
    pd_zero_forget_gathers(zero);
    for (struct pd_zero_exchange *x = zero->exchanges.flights; x < zero->exchanges.flights + 2; x++) {
        (void)!wait(x, NULL);
        x->set = PD_ZERO_NO_SET;
    }
}
