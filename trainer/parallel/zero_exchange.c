/* Sums the terms of all ranks at their owners, as integers, in any order. This rank owns a part of every bucket: after the
 * exchange `sums` has it, followed by its checksum, and it becomes fp32 in place after the last terms.
 *
 *   1. terms that other tensor-parallel ranks own go to them                    (key-value heads that are shared)
 *   2. a reduce-scatter among the zero_shard ranks that own a copy together     (the first one of a step: into the sums)
 *   3. an all-reduce of every part among its replicas, each owning a part of it (once a step) */
#include "ckpt/base/checked.h"
#include "ckpt/base/trace.h"
#include "trainer/parallel/zero_internal.h"

#include <string.h>

static const char an_exchange[] = "an exchange of gradients";

void *pd_zero_sums(const struct pd_zero *zero, uint32_t bucket)
{
    return pd_zero_term(zero, zero->has.gradient, zero->buckets[bucket].sums);
}

/* ---- to other tensor-parallel ranks ---- */

/* Terms and parameters take the same way, in opposite directions. */
struct tp_exchange {
    const struct pd_zero *zero;
    const struct pd_zero_bucket *bucket;
    enum pd_zero_use use;
    bool is_owner; /* this rank's parts contain the data */
    uint32_t peer;
    char *apart; /* terms that others own, from the next one on */
    struct pd_comm_piece *next;
};

static pd_status add_piece(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    struct tp_exchange *p = context;
    const struct pd_zero_bucket *s = p->bucket;
    const bool is_term = p->use == PD_ZERO_TERMS;
    const uint64_t bytes = is_term ? p->zero->term_bytes : pd_dtype_bytes(p->zero->options.compute);
    char *parts = is_term ? s->terms->data : p->zero->gathers.turns[p->zero->gathers.oldest].parts,
         *used = is_term ? p->apart : s->place + (s->needed[share->e] + share->used_at) * bytes;
    const struct pd_zero_side *side = &s->sides[share->side];
    const uint64_t at = is_term ? side->terms_at + share->part * side->stride + share->part_at
                                : side->parts_at + share->part * side->part + share->part_at;
    (void)err;
    *p->next++ = (struct pd_comm_piece){p->peer, p->is_owner ? parts + at * bytes : used, share->elements * bytes};
    if (!p->is_owner) p->apart = pd_zero_term(p->zero, p->apart, share->elements);
    return PD_OK;
}

/* For every other tensor-parallel rank: what it uses from this rank's parts, or the reverse. */
static pd_status zero_each_peer_share(struct pd_zero *zero, uint32_t bucket, struct tp_exchange *p,
                                      pd_status (*visit)(void *context, const struct pd_zero_share *share,
                                                         struct pd_error *err),
                                      struct pd_error *err)
{
    const uint32_t me = zero->grid->place.tp;
    for (p->peer = 0; p->peer < zero->grid->layout.tp; p->peer++)
        if (p->peer != me)
            PD_TRY(pd_zero_each_share(zero, bucket, p->use, p->is_owner ? p->peer : me, p->is_owner ? me : p->peer, visit, p,
                                      err));
    return PD_OK;
}

/* Adds received elements to the checksum of their part. Each element has one sender. */
static pd_status check_arrived(void *context, const struct pd_zero_share *share, struct pd_error *err)
{
    const struct tp_exchange *p = context;
    const struct pd_zero_side *side = &p->bucket->sides[share->side];
    char *part = pd_zero_term(p->zero, p->bucket->terms->data, side->terms_at + share->part * side->stride),
         *arrived = pd_zero_term(p->zero, part, share->part_at);
    const struct pd_term_run run = {
        .from = arrived, .to = arrived, .n = share->elements, .check = pd_zero_term(p->zero, part, side->stride - 1)};
    return pd_zero_add_run(p->zero, &run, err);
}

pd_status pd_zero_cross(struct pd_zero *zero, uint32_t bucket, enum pd_zero_use use, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    const bool is_term = use == PD_ZERO_TERMS;
    struct tp_exchange p = {.zero = zero, .bucket = s, .use = use, .is_owner = !is_term, .next = zero->tp_pieces};
    if (zero->grid->layout.tp == 1 || (is_term && !s->crosses)) return PD_OK;
    if (is_term) p.apart = pd_zero_term(zero, s->terms->data, pd_zero_terms_end(zero, s));
    PD_TRY(zero_each_peer_share(zero, bucket, &p, add_piece, err));
    struct pd_comm_piece *recvs = p.next;
    p.is_owner = is_term;
    PD_TRY(zero_each_peer_share(zero, bucket, &p, add_piece, err));
    struct pd_comm_op op = {.sends = zero->tp_pieces,
                            .send_count = (uint32_t)(recvs - zero->tp_pieces),
                            .recvs = recvs,
                            .recv_count = (uint32_t)(p.next - recvs),
                            .what = is_term ? "exchange of gradients" : "gather of parameters"};
    PD_TRY(pd_comm_start(zero->grid->tp, &op, err));
    PD_TRY(pd_comm_wait(zero->grid->tp, &op, err));
    return is_term ? zero_each_peer_share(zero, bucket, &p, check_arrived, err) : PD_OK;
}

/* ---- among the ranks that own a copy together ---- */

static void *own_part(const struct pd_zero *zero, const struct pd_zero_terms *terms, uint32_t bucket, uint32_t side)
{
    const struct pd_zero_side *s = &zero->buckets[bucket].sides[side];
    return pd_zero_term(zero, terms->data, s->terms_at + pd_zero_own_part(zero, side) * s->stride);
}

static void *own_sums(const struct pd_zero *zero, uint32_t bucket, uint32_t side)
{
    return pd_zero_term(zero, pd_zero_sums(zero, bucket), zero->buckets[bucket].sides[side].sums_at);
}

static pd_status start_reduce_scatter(const struct pd_zero *zero, struct pd_comm *comm, struct pd_comm_op *op, void *parts,
                                      uint64_t terms, void *sum, struct pd_error *err)
{
    return zero->term_bytes < sizeof(uint64_t) ? pd_comm_start_reduce_scatter_narrow(comm, op, parts, terms, sum, err)
                                               : pd_comm_start_reduce_scatter(comm, op, parts, terms, sum, err);
}

static struct pd_zero_exchange *newest(struct pd_zero *zero)
{
    return &zero->exchanges.flights[zero->exchanges.newest];
}

static struct pd_comm *comm_of(const struct pd_zero *zero, uint32_t side, bool is_second)
{
    if (side == PD_ZERO_SPREAD) return is_second ? zero->grid->expert_gathers : zero->grid->expert_shard;
    return is_second ? zero->grid->gathers : zero->grid->shard;
}

static bool is_in_flight(const struct pd_zero_exchange *x)
{
    return x->in_flight[PD_ZERO_COMMON] || x->in_flight[PD_ZERO_SPREAD];
}

/* The first sums of a step go directly to the sums' memory, later ones are added. A rank alone makes terms there. */
static pd_status zero_exchange_start(struct pd_zero *zero, uint32_t bucket, bool is_last, struct pd_error *err)
{
    struct pd_zero_exchanges *both = &zero->exchanges;
    struct pd_zero_exchange *x = &both->flights[both->newest ^= 1];
    struct pd_zero_bucket *s = &zero->buckets[bucket];
    pd_status st = PD_OK;
    *x = (struct pd_zero_exchange){.bucket = bucket, .is_last = is_last, .terms = s->terms};
    s->filled = 0;
    if (zero->parts == 1) return PD_OK;
    pd_owner_acquire(&x->terms->owner, an_exchange);
    for (uint32_t side = 0; side < PD_ZERO_SIDES && !st; side++) {
        const struct pd_zero_side *d = &s->sides[side];
        void *to = s->has_sums ? own_part(zero, x->terms, bucket, side) : own_sums(zero, bucket, side);
        x->comms[side] = comm_of(zero, side, zero->options.exchanges_two && both->newest);
        if (!d->stride || !x->comms[side]) continue;
        x->ops[side].what = "exchange of gradients";
        st = start_reduce_scatter(zero, x->comms[side], &x->ops[side], pd_zero_term(zero, x->terms->data, d->terms_at),
                                  d->stride, to, err);
        x->in_flight[side] = !st;
    }
    if (st && !is_in_flight(x)) pd_owner_release(&x->terms->owner, an_exchange);
    return st;
}

/* Waits for both sides, and returns the first failure. */
static pd_status wait(struct pd_zero_exchange *x, struct pd_error *err)
{
    const uint64_t begin = pd_trace_begin();
    pd_status st = PD_OK;
    if (!is_in_flight(x)) return PD_OK;
    for (uint32_t side = 0; side < PD_ZERO_SIDES; side++) {
        if (!x->in_flight[side]) continue;
        x->in_flight[side] = false;
        const pd_status now = pd_comm_wait(x->comms[side], &x->ops[side], st ? NULL : err);
        st = st ? st : now;
    }
    pd_owner_release(&x->terms->owner, an_exchange);
    pd_trace_end(begin, "wait", "exchange of gradients", x->bucket);
    return st;
}

/* ---- among replicas ---- */

/* The first `terms` of a side's sums. */
static pd_status add_replicas(struct pd_zero *zero, uint32_t bucket, uint32_t side, uint64_t terms, struct pd_error *err)
{
    /* In stage 0 not all replicas have the same experts. */
    const bool is_apart = side == PD_ZERO_SPREAD && zero->parts == 1;
    struct pd_comm *comm = is_apart ? zero->grid->expert_replicas : zero->grid->replicas;
    struct pd_comm_op op = {.what = "exchange of gradients"};
    if (!comm || !terms) return PD_OK;
    PD_CHECK(!is_in_flight(&zero->exchanges.flights[0]) && !is_in_flight(&zero->exchanges.flights[1]));
    void *sums = own_sums(zero, bucket, side);
    const uint64_t count = pd_round_up(pd_divide_up(terms, comm->size), sizeof(uint64_t) / zero->term_bytes);
    PD_TRY(start_reduce_scatter(zero, comm, &op, sums, count, pd_zero_term(zero, sums, comm->rank * count), err));
    PD_TRY(pd_comm_wait(comm, &op, err));
    PD_TRY(pd_comm_start_all_gather(comm, &op, sums, count * zero->term_bytes, err));
    return pd_comm_wait(comm, &op, err);
}

/* Owners' values plus zeros of all others, added as integers. Uses the sums' memory, still unused. */
static pd_status share_array(struct pd_zero *zero, uint32_t bucket, enum pd_kind kind, struct pd_error *err)
{
    const uint32_t element_bytes = pd_zero_element_bytes(&zero->has, kind);
    const struct pd_zero_side *sides = zero->buckets[bucket].sides;
    const struct pd_term_run zeros = {.to = pd_zero_sums(zero, bucket),
                                      .n = sides[PD_ZERO_COMMON].buffer + sides[PD_ZERO_SPREAD].buffer};
    float *bounce = zero->has.gradient;
    PD_TRY(pd_zero_add_run(zero, &zeros, err));
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = zero->has.first_box[bucket]; i < zero->has.first_box[bucket + 1]; i++) {
            const struct pd_zero_box *b = &zero->has.boxes[i];
            void *held = pd_zero_state(&zero->has, kind, b->offset), *passing = bounce + b->gradient_offset;
            if (turn == !b->owned)
                PD_TRY(pd_math_copy(zero->math, turn ? held : passing, turn ? passing : held, b->elements * element_bytes,
                                    err));
        }
        for (uint32_t side = 0; side < PD_ZERO_SIDES && !turn; side++)
            PD_TRY(add_replicas(zero, bucket, side, pd_divide_up(sides[side].own * sizeof(float), zero->term_bytes), err));
    }
    return PD_OK;
}

pd_status pd_zero_share_state(struct pd_zero *zero, struct pd_error *err)
{
    for (int kind = 0; zero->grid->replicas && kind < PD_KIND_COUNT && zero->has.state[kind]; kind++)
        for (uint32_t bucket = 0; bucket < zero->has.bucket_count; bucket++)
            if (zero->buckets[bucket].count) PD_TRY(share_array(zero, bucket, (enum pd_kind)kind, err));
    return pd_math_sync(zero->math, err);
}

/* ---- the end of a bucket ---- */

/* Each tensor has a quantum of its own. */
static pd_status end_narrow(struct pd_zero *zero, uint32_t bucket, uint32_t side, struct pd_term_sums made,
                            struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    uint32_t *damaged = made.damaged;
    made.damaged = NULL;
    for (uint32_t e = 0; e < s->count; e++) {
        const bool is_elsewhere = pd_zero_is_redirected(zero, bucket, e, PD_ZERO_TERMS);
        if (is_elsewhere || pd_zero_side_of(zero, s->tensors[e]) != side) continue;
        made.n = pd_zero_held_elements(zero, s->tensors[e]);
        made.quantum = pd_zero_quantum(zero, s->tensors[e]).quantum;
        made.largest = &zero->largest[pd_gradient_class(zero->model, s->tensors[e])];
        PD_TRY(pd_term_sums(zero->math, &made, err));
        made.out += made.n;
        made.sums = made.out;
    }
    made.n = 0, made.largest = NULL, made.damaged = damaged;
    return pd_term_sums(zero->math, &made, err);
}

pd_status pd_zero_end_bucket(struct pd_zero *zero, uint32_t bucket, struct pd_error *err)
{
    const struct pd_zero_bucket *s = &zero->buckets[bucket];
    for (uint32_t side = 0; side < PD_ZERO_SIDES && zero->has.makes_terms && s->sides[side].stride; side++) {
        void *sums = own_sums(zero, bucket, side);
        const struct pd_term_sums made = {.n = s->sides[side].own,
                                          .sums = sums,
                                          .out = sums,
                                          .quantum = zero->quantum.quantum,
                                          .check = pd_zero_term(zero, sums, s->sides[side].stride - 1),
                                          .damaged = &zero->marks[2 * zero->model->tensors.count + bucket],
                                          .mark = zero->attempt,
                                          .are_narrow = zero->largest != NULL};
        PD_TRY(zero->largest ? end_narrow(zero, bucket, side, made, err) : pd_term_sums(zero->math, &made, err));
    }
    /* Sums in files are one span. Experts are computed by CPUs alone, so the host may move them. */
    if (pd_zero_has_filed_sums(zero, bucket) && s->sides[PD_ZERO_SPREAD].own)
        memmove((float *)pd_zero_sums(zero, bucket) + s->sides[PD_ZERO_COMMON].own, own_sums(zero, bucket, PD_ZERO_SPREAD),
                s->sides[PD_ZERO_SPREAD].own * sizeof(float));
    return pd_zero_complete(zero, bucket, err);
}

static bool waits_for_mirror(const struct pd_zero *zero, uint32_t bucket)
{
    return zero->is_mirrored && pd_zero_is_end(zero, bucket);
}

static pd_status end_exchange(struct pd_zero *zero, struct pd_zero_exchange *x, struct pd_error *err)
{
    if (x->bucket == PD_ZERO_NO_BUCKET) return PD_OK;
    struct pd_zero_bucket *s = &zero->buckets[x->bucket];
    const uint32_t bucket = x->bucket;
    PD_TRY(wait(x, err));
    x->bucket = PD_ZERO_NO_BUCKET;
    for (uint32_t side = 0; side < PD_ZERO_SIDES && zero->parts > 1; side++) {
        const struct pd_term_run run = {own_part(zero, x->terms, bucket, side), own_sums(zero, bucket, side),
                                        s->sides[side].stride, .adds = s->has_sums};
        if (run.n && (s->has_sums || !x->comms[side])) PD_TRY(pd_zero_add_run(zero, &run, err));
    }
    s->has_sums = true;
    if (!x->is_last) return PD_OK;
    for (uint32_t side = 0; side < PD_ZERO_SIDES; side++)
        PD_TRY(add_replicas(zero, bucket, side, s->sides[side].buffer, err));
    return waits_for_mirror(zero, bucket) ? PD_OK : pd_zero_end_bucket(zero, bucket, err);
}

/* Exchanges ends once a step, as blocks unless memory is short. Pieces are terms before their lane ends. */
static bool exchanges(const struct pd_zero *zero, uint32_t bucket, uint32_t slot)
{
    if (slot + 1 == zero->slots) return true;
    return zero->options.by_lane && !pd_zero_is_end(zero, bucket) && zero->parts > 1 &&
           (zero->pieces > 1 || pd_lanes_any_ends(&zero->lanes, slot));
}

/* Queues an exchange after the last, whose sums are made meanwhile; replicas' sums travel too, and go first. */
pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t bucket, uint32_t slot, struct pd_error *err)
{
    struct pd_zero_exchange *before = newest(zero);
    const bool is_last = slot + 1 == zero->slots;
    if (slot == PD_ZERO_NO_SLOT) return pd_zero_add_micro_batch(zero, bucket, slot, err);
    PD_TRY(pd_zero_add_micro_batch(zero, bucket, slot, err));
    if (!zero->has.makes_terms)
        return is_last && !waits_for_mirror(zero, bucket) ? pd_zero_end_bucket(zero, bucket, err) : PD_OK;
    if (!exchanges(zero, bucket, slot)) return PD_OK;
    if (zero->grid->replicas || zero->buckets[bucket].crosses || before->bucket == bucket)
        PD_TRY(end_exchange(zero, before, err));
    if (!zero->buckets[bucket].filled) PD_TRY(pd_zero_clear_terms(zero, bucket, err));
    PD_TRY(pd_zero_cross(zero, bucket, PD_ZERO_TERMS, err));
    PD_TRY(zero_exchange_start(zero, bucket, is_last, err));
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
        x->bucket = PD_ZERO_NO_BUCKET;
    }
}
