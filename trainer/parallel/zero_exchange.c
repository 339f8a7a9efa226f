/* Gradients in: every rank's micro-batch -> the owners, who add the pieces in micro-batch order.
 *
 * A set is exchanged in rounds of window_elements of what each owner has of it, so the memory that pieces arrive in is
 * bounded by the largest block, whatever the size of the embedding. The first round travels while the next block computes.
 */
#include "ckpt/base/checked.h"
#include "ckpt/base/trace.h"
#include "trainer/math/random_bits.h"
#include "trainer/parallel/zero_internal.h"

static bool is_padding(const struct pd_zero *zero, uint32_t slot, uint32_t dp_rank)
{
    return (uint64_t)slot * zero->grid->layout.dp + dp_rank >= zero->options.micro_batches;
}

/* Neither the next set of a micro-batch nor the next micro-batch of a set is computed where the one before is sent from. */
static uint32_t micro_batch_buffer_index(const struct pd_zero *zero, uint32_t set, uint32_t slot)
{
    return pd_zero_is_end(zero, set) ? PD_ZERO_BLOCK_BUFFERS : (set + slot) % PD_ZERO_BLOCK_BUFFERS;
}

static bool is_last(const struct pd_zero *zero, uint32_t slot)
{
    const uint32_t dp = zero->grid->layout.dp;
    return slot + 1 == (zero->options.micro_batches + dp - 1) / dp;
}

bool pd_zero_makes_sums(const struct pd_zero *zero)
{
    return zero->alone && zero->options.adds_in_place && zero->options.gradient_type == PD_F32;
}

/* Alone, the first micro-batch's gradients are the start of the sums: they are written where the sums live. */
static bool writes_sums(const struct pd_zero *zero, uint32_t slot)
{
    return pd_zero_makes_sums(zero) || (zero->alone && slot == 0 && zero->options.gradient_type == PD_F32);
}

bool pd_zero_adds(const struct pd_zero *zero, uint32_t slot)
{
    return slot > 0 && writes_sums(zero, slot);
}

pd_status pd_zero_micro_batch_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, float *const **ret_gradients,
                                        struct pd_error *err)
{
    const struct pd_zero_exchange *x = &zero->exchange;
    const struct pd_zero_set *s = &zero->sets[set];
    bool is_being_sent = x->set != PD_ZERO_NO_SET &&
                         micro_batch_buffer_index(zero, x->set, x->slot) == micro_batch_buffer_index(zero, set, slot);
    if (is_being_sent) PD_TRY(pd_zero_drain(zero, err));
    if (slot == 0) PD_TRY(pd_zero_make_room(zero, set, err));
    float *base = writes_sums(zero, slot) ? zero->has.gradient + s->gradient[0]
                                          : zero->micro_batch_gradients[micro_batch_buffer_index(zero, set, slot)];
    for (uint32_t e = 0; e < s->count; e++)
        zero->micro_batch_pointers[e] = base + s->computed[e];
    *ret_gradients = zero->micro_batch_pointers;
    return PD_OK;
}

/* The part of a run that lies in the round; at_b counts what the owner has before it. False: nothing. */
static bool clip(const struct pd_zero *zero, const struct pd_zero_exchange *x, struct pd_zero_run *run)
{
    uint64_t begin = x->round * zero->window_elements, end = begin + zero->window_elements;
    uint64_t from = run->at_b > begin ? run->at_b : begin, to = run->at_b + run->elements;
    if (to > end) to = end;
    if (from >= to) return false;
    run->at_a += from - run->at_b;
    run->at_b = from - begin;
    run->elements = to - from;
    return true;
}

static bool is_cut(const struct pd_zero *zero, uint32_t set, uint32_t e)
{
    return zero->model->tensors.tensors[zero->sets[set].tensors[e]].tp_dim >= 0;
}

/* Elements of the set before tensor e on an owner. */
static uint64_t owned_before(struct pd_zero *zero, uint32_t set, uint32_t e, uint32_t q, uint32_t t)
{
    const struct pd_zero_place *places = pd_zero_places(zero, set) + t * PD_ZERO_SET_TENSORS_MAX;
    uint64_t before = 0;
    for (uint32_t i = 0; i < e; i++) {
        const struct pd_zero_slab owned = pd_zero_owned_slab(zero, &places[i], q);
        before += pd_zero_slab_elements(zero, zero->sets[set].tensors[i], &owned);
    }
    return before;
}

/* Of a tensor that is not cut every tensor-parallel rank has the gradient: its owner takes its own. */
static void describe_sends(struct pd_zero *zero, struct pd_zero_exchange *x, uint32_t e, uint32_t t)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    const uint64_t bytes = pd_dtype_bytes(zero->sent);
    const uint32_t tensor = zero->sets[x->set].tensors[e], my_tp = zero->grid->place.tp;
    const struct pd_zero_place *places = pd_zero_places(zero, x->set), *owner = &places[t * PD_ZERO_SET_TENSORS_MAX + e];
    const struct pd_zero_slab computed = places[my_tp * PD_ZERO_SET_TENSORS_MAX + e].computed;
    const struct pd_range parts = pd_zero_parts(owner, &computed);
    char *micro_batch = (char *)x->data + zero->sets[x->set].computed[e] * bytes;
    if (t != my_tp && !is_cut(zero, x->set, e)) return;
    for (uint64_t part = parts.begin; part < parts.end; part++) {
        const uint32_t q = owner->cut.q_first + (uint32_t)part;
        const struct pd_zero_slab owned = pd_zero_owned_slab(zero, owner, q);
        const uint64_t before = owned_before(zero, x->set, e, q, t);
        const uint32_t count = pd_zero_runs(zero, tensor, &computed, &owned, runs);
        for (uint32_t i = 0; i < count; i++) {
            runs[i].at_b += before;
            if (clip(zero, x, &runs[i]))
                x->sends[x->op.send_count++] = (struct pd_comm_piece){
                    q * zero->grid->layout.tp + t, micro_batch + runs[i].at_a * bytes, runs[i].elements * bytes};
        }
    }
}

/* What the data ranks with tensor-parallel rank t made of a tensor that this rank owns `before` elements before. */
static void describe_recvs(struct pd_zero *zero, struct pd_zero_exchange *x, uint32_t e, uint32_t t, uint64_t before)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    const struct pd_layout *layout = &zero->grid->layout;
    const uint64_t bytes = pd_dtype_bytes(zero->sent);
    const struct pd_zero_place *places = pd_zero_places(zero, x->set);
    const struct pd_zero_slab owned =
        pd_zero_owned_slab(zero, &places[zero->grid->place.tp * PD_ZERO_SET_TENSORS_MAX + e], zero->q);
    if (t != zero->grid->place.tp && !is_cut(zero, x->set, e)) return;
    const uint32_t count =
        pd_zero_runs(zero, zero->sets[x->set].tensors[e], &places[t * PD_ZERO_SET_TENSORS_MAX + e].computed, &owned, runs);
    for (uint32_t i = 0; i < count; i++) {
        runs[i].at_b += before;
        if (!clip(zero, x, &runs[i])) continue;
        for (uint32_t q = 0; q < zero->data_ranks && !is_padding(zero, x->slot, q / layout->sp); q++)
            x->recvs[x->op.recv_count++] = (struct pd_comm_piece){
                q * layout->tp + t, (char *)zero->window + (q * zero->window_elements + runs[i].at_b) * bytes,
                runs[i].elements * bytes};
    }
}

static const char an_exchange[] = "an exchange of gradients", sums[] = "sums";

/* Both ends of a message go through tensors and chunks in the same order. */
static pd_status start_round(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    const bool sends = !is_padding(zero, x->slot, zero->grid->place.dp);
    pd_owner_acquire(&x->owner, an_exchange);
    x->op = (struct pd_comm_op){.sends = x->sends, .recvs = x->recvs, .what = "exchange of gradients"};
    for (uint32_t e = 0; e < zero->sets[x->set].count; e++) {
        const uint64_t before = owned_before(zero, x->set, e, zero->q, zero->grid->place.tp);
        for (uint32_t t = 0; t < zero->grid->layout.tp; t++) {
            if (sends) describe_sends(zero, x, e, t);
            describe_recvs(zero, x, e, t, before);
        }
    }
    const pd_status st = pd_comm_start(zero->comm, &x->op, err);
    if (st) pd_owner_release(&x->owner, an_exchange);
    x->in_flight = !st;
    return st;
}

pd_status pd_zero_wait_round(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    const uint64_t begin = pd_trace_begin();
    if (!x->in_flight) return PD_OK;
    x->in_flight = false;
    const pd_status st = pd_comm_wait(zero->comm, &x->op, err);
    pd_owner_release(&x->owner, an_exchange);
    pd_trace_end(begin, "wait", "exchange of gradients", x->set);
    return st;
}

/* Adds `length` elements of a micro-batch to the sums of the owned boxes of the set, `begin` elements into them. */
static pd_status add_to_boxes(struct pd_zero *zero, uint32_t set, uint64_t begin, uint64_t length, const char *piece,
                              bool first, struct pd_error *err)
{
    const uint64_t bytes = pd_dtype_bytes(zero->options.gradient_type);
    const struct pd_zero_set *s = &zero->sets[set];
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    uint64_t before = 0;
    for (uint32_t e = 0; e < s->count; e++) {
        uint32_t count = pd_zero_own_runs(zero, s->tensors[e], runs);
        for (uint32_t i = 0; i < count; before += runs[i].elements, i++) {
            uint64_t from = before > begin ? before : begin, to = before + runs[i].elements;
            if (to > begin + length) to = begin + length;
            if (from >= to) continue;
            float *sum = zero->has.gradient + s->gradient[e] + runs[i].at_b + (from - before);
            PD_TRY(
                pd_add(zero->math, to - from, sum, zero->options.gradient_type, piece + (from - begin) * bytes, first, err));
        }
    }
    return PD_OK;
}

/* ---- one rounding of a micro-batch's gradient ---- */

void pd_zero_begin_step(struct pd_zero *zero, uint64_t step)
{
    zero->step = step;
}

/* Elements of a micro-batch as they lie in memory, rounded where they are needed. */
struct rounding {
    uint32_t set;
    uint64_t micro_batch;
    const float *x;
    uint16_t *out;
};

static uint64_t key_of(const struct pd_zero *zero, const struct rounding *r, uint32_t tensor)
{
    const uint64_t parts[] = {zero->step, r->micro_batch, r->set, tensor};
    uint64_t key = zero->options.seed;
    for (int i = 0; i < 4; i++)
        key = pd_random_key(key, parts[i]);
    return key;
}

/* Elements [from, to) of a slab of the set's tensor number e; x and out lie at `from`. */
static pd_status round_slab(struct pd_zero *zero, const struct rounding *r, uint32_t e, const struct pd_zero_slab *slab,
                            uint64_t from, uint64_t to, struct pd_error *err)
{
    const uint32_t number = zero->sets[r->set].tensors[e];
    const struct pd_tensor *tensor = &zero->model->tensors.tensors[number];
    for (uint32_t chunk = slab->chunk_begin; chunk < slab->chunk_end && from < to; chunk++) {
        uint64_t column, column_end;
        pd_layout_chunk_columns(&zero->grid->layout, tensor, chunk, &column, &column_end);
        if (column == column_end) break;
        const uint64_t at = pd_zero_slab_offset(zero, number, slab, chunk, slab->row_begin);
        const uint64_t end = at + (slab->row_end - slab->row_begin) * (column_end - column);
        const uint64_t begin = pd_max_u64(from, at), stop = pd_min_u64(to, end);
        if (begin >= stop) continue;
        const struct pd_round one = {.n = stop - begin,
                                     .x = r->x + (begin - from),
                                     .out = r->out + (begin - from),
                                     .key = key_of(zero, r, number),
                                     .first = begin - at,
                                     .columns = column_end - column,
                                     .origin = slab->row_begin * tensor->shape[1] + column,
                                     .stride = tensor->shape[1]};
        PD_TRY(pd_round(zero->math, &one, err));
    }
    return PD_OK;
}

/* Elements [begin, begin + length) of what this rank computes of the set, or owns. */
static pd_status round_elements(struct pd_zero *zero, uint32_t set, uint64_t micro_batch, bool is_owned, uint64_t begin,
                                uint64_t length, const float *x, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    uint64_t before = 0;
    if (!zero->options.rounds_at_random)
        return pd_cast(zero->math, length, zero->options.gradient_type, zero->rounded, PD_F32, x, err);
    for (uint32_t e = 0; e < s->count; e++) {
        const struct pd_zero_place place = pd_zero_place_of(zero, s->tensors[e], zero->grid->place.tp);
        const struct pd_zero_slab slab = is_owned ? pd_zero_owned_slab(zero, &place, zero->q) : place.computed;
        const uint64_t elements = pd_zero_slab_elements(zero, s->tensors[e], &slab);
        const uint64_t from = pd_max_u64(before, begin), to = pd_min_u64(before + elements, begin + length);
        const struct rounding r = {set, micro_batch, x + (from - begin), (uint16_t *)zero->rounded + (from - begin)};
        if (from < to) PD_TRY(round_slab(zero, &r, e, &slab, from - before, to - before, err));
        before += elements;
    }
    return PD_OK;
}

/* Parts of one micro-batch from the sp ranks become one: a tree, then one rounding. `begin` elements of the set lie before. */
static pd_status join_parts(struct pd_zero *zero, uint32_t set, uint64_t micro_batch, float *parts, uint64_t begin,
                            uint64_t length, void **ret_piece, struct pd_error *err)
{
    const uint32_t sp = zero->grid->layout.sp;
    for (uint32_t width = 1; width < sp; width *= 2)
        for (uint32_t i = 0; i + width < sp; i += 2 * width)
            PD_TRY(pd_add(zero->math, length, parts + i * zero->window_elements, PD_F32,
                          parts + (i + width) * zero->window_elements, false, err));
    *ret_piece = parts;
    if (zero->options.gradient_type == PD_F32) return PD_OK;
    *ret_piece = zero->rounded;
    return round_elements(zero, set, micro_batch, true, begin, length, parts, err);
}

/* Pieces of this round, in micro-batch order: dp rank r of the slot has micro-batch slot*dp + r. */
static pd_status add_round(struct pd_zero *zero, const struct pd_zero_exchange *x, struct pd_error *err)
{
    const struct pd_layout *layout = &zero->grid->layout;
    const uint64_t begin = x->round * zero->window_elements,
                   owned = owned_before(zero, x->set, zero->sets[x->set].count, zero->q, zero->grid->place.tp);
    if (owned <= begin) return PD_OK;
    const uint64_t length = pd_min_u64(owned - begin, zero->window_elements);
    for (uint32_t r = 0; r < layout->dp && !is_padding(zero, x->slot, r); r++) {
        void *piece = (char *)zero->window + r * layout->sp * zero->window_elements * pd_dtype_bytes(zero->sent);
        const uint64_t micro_batch = (uint64_t)x->slot * layout->dp + r;
        if (layout->sp > 1) PD_TRY(join_parts(zero, x->set, micro_batch, piece, begin, length, &piece, err));
        PD_TRY(add_to_boxes(zero, x->set, begin, length, piece, x->slot == 0 && r == 0, err));
    }
    return PD_OK;
}

pd_status pd_zero_drain(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    if (x->set == PD_ZERO_NO_SET) return PD_OK;
    for (;;) {
        PD_TRY(pd_zero_wait_round(zero, err));
        pd_owner_acquire(&x->owner, sums);
        const pd_status st = add_round(zero, x, err);
        pd_owner_release(&x->owner, sums);
        PD_TRY(st);
        if (++x->round == x->rounds) break;
        PD_TRY(start_round(zero, err));
    }
    const uint32_t set = x->set;
    x->set = PD_ZERO_NO_SET;
    return is_last(zero, x->slot) ? pd_zero_complete(zero, set, err) : PD_OK;
}

/* The micro-batch's gradients as they are sent: one exchange is in flight at a time, so one rounded copy serves all sets. */
static pd_status round_micro_batch(struct pd_zero *zero, uint32_t set, uint32_t slot, float *micro_batch, void **ret_data,
                                   struct pd_error *err)
{
    const struct pd_grid *g = zero->grid;
    const struct pd_zero_set *s = &zero->sets[set];
    *ret_data = zero->sent == PD_F32 ? micro_batch : zero->rounded;
    if (zero->sent == PD_F32) return PD_OK;
    return round_elements(zero, set, (uint64_t)slot * g->layout.dp + g->place.dp, false, 0, s->computed[s->count],
                          micro_batch, err);
}

pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err)
{
    const struct pd_zero_set *s = &zero->sets[set];
    PD_TRY(pd_zero_drain(zero, err));
    if (writes_sums(zero, slot)) return is_last(zero, slot) ? pd_zero_complete(zero, set, err) : PD_OK;
    float *micro_batch = zero->micro_batch_gradients[micro_batch_buffer_index(zero, set, slot)];
    struct pd_zero_exchange *x = &zero->exchange;
    x->slot = slot;
    x->round = 0;
    x->data = micro_batch;
    const bool padding = is_padding(zero, slot, zero->grid->place.dp);
    if (padding && zero->alone) return PD_OK;
    if (!padding) PD_TRY(round_micro_batch(zero, set, slot, micro_batch, &x->data, err));
    if (zero->alone) {
        PD_TRY(pd_add(zero->math, s->computed[s->count], zero->has.gradient + s->gradient[0], zero->sent, x->data, slot == 0,
                      err));
        return is_last(zero, slot) ? pd_zero_complete(zero, set, err) : PD_OK;
    }
    x->set = set;
    x->rounds = (s->owned_most + zero->window_elements - 1) / zero->window_elements;
    if (!x->rounds) x->rounds = 1;
    return start_round(zero, err);
}
