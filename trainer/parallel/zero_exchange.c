/* Gradients in: every rank's leaf -> the owners, who add the pieces in leaf order.
 *
 * A set is exchanged in rounds of window_elements of each owner's runs, so the memory that pieces arrive in is bounded by
 * the largest block, whatever the size of the embedding. The first round travels while the next block computes. */
#include "trainer/parallel/zero_internal.h"

#include <string.h>

static uint64_t gradient_bytes(const struct pd_zero *zero)
{
    return pd_dtype_bytes(zero->options.gradient_type);
}

static bool is_ghost(const struct pd_zero *zero, uint32_t slot, uint32_t rank)
{
    return (uint64_t)slot * zero->dp + rank >= zero->options.leaves;
}

static uint32_t leaf_buffer_index(const struct pd_zero *zero, uint32_t set)
{
    return pd_zero_is_end(zero, set) ? PD_ZERO_BLOCK_BUFFERS : set % PD_ZERO_BLOCK_BUFFERS;
}

/* Alone, the first leaf's gradients are the start of the sums: they are written where the sums live. */
static bool writes_sums(const struct pd_zero *zero, uint32_t slot)
{
    return zero->alone && slot == 0 && zero->options.gradient_type == PD_F32;
}

pd_status pd_zero_leaf_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, float *const **ret_gradients,
                                 struct pd_error *err)
{
    const struct pd_zero_exchange *x = &zero->exchange;
    bool is_being_sent = x->set != PD_ZERO_NO_SET && leaf_buffer_index(zero, x->set) == leaf_buffer_index(zero, set);
    if (is_being_sent) PD_TRY(pd_zero_drain(zero, err));
    float *base = writes_sums(zero, slot) ? zero->gradient + zero->gradient_set_offset[set]
                                          : zero->leaf_gradients[leaf_buffer_index(zero, set)];
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        zero->leaf_pointers[e] = base + zero->sets[set].offsets[e];
    *ret_gradients = zero->leaf_pointers;
    return PD_OK;
}

/* Pieces of the part [begin, end) of a rank's runs, taken one behind the other, inside a buffer that holds the set. */
static uint32_t cut_runs(const struct pd_zero_run *runs, uint32_t count, uint64_t begin, uint64_t end, uint32_t peer,
                         char *data, uint64_t element_bytes, struct pd_comm_piece *ret_pieces)
{
    uint32_t used = 0;
    uint64_t position = 0;
    for (uint32_t i = 0; i < count; position += runs[i].elements, i++) {
        uint64_t from = begin > position ? begin : position;
        uint64_t to = end < position + runs[i].elements ? end : position + runs[i].elements;
        if (from >= to) continue;
        ret_pieces[used++] = (struct pd_comm_piece){peer, data + (runs[i].set_offset + from - position) * element_bytes,
                                                    (to - from) * element_bytes};
    }
    return used;
}

static uint64_t owned_by(const struct pd_zero *zero, uint32_t set, uint32_t rank, struct pd_zero_run *runs, uint32_t *count)
{
    *count = pd_zero_runs(zero, set, rank, runs);
    return pd_zero_runs_elements(runs, *count);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void describe_round(struct pd_zero *zero, struct pd_zero_exchange *x)
{
    struct pd_zero_run runs[PD_ZERO_SET_TENSORS_MAX];
    const uint32_t me = zero->comm->rank;
    const uint64_t bytes = gradient_bytes(zero), begin = x->round * zero->window_elements;
    uint32_t count;
    x->op = (struct pd_comm_op){.sends = x->sends, .recvs = x->recvs};
    for (uint32_t r = 0; r < zero->dp && !is_ghost(zero, x->slot, me); r++) {
        uint64_t owned = owned_by(zero, x->set, r, runs, &count);
        if (r == me || owned <= begin) continue;
        x->op.send_count += cut_runs(runs, count, begin, smaller(owned, begin + zero->window_elements), r, x->data, bytes,
                                     x->sends + x->op.send_count);
    }
    uint64_t owned = owned_by(zero, x->set, me, runs, &count);
    if (owned <= begin) return;
    uint64_t length = smaller(owned - begin, zero->window_elements);
    for (uint32_t r = 0; r < zero->dp; r++)
        if (r != me && !is_ghost(zero, x->slot, r))
            x->recvs[x->op.recv_count++] =
                (struct pd_comm_piece){r, (char *)zero->window + r * zero->window_elements * bytes, length * bytes};
}

static pd_status add_own(struct pd_zero *zero, const struct pd_zero_exchange *x, const struct pd_zero_run *runs,
                         uint32_t count, uint64_t begin, uint64_t end, float *sum, bool first, struct pd_error *err)
{
    struct pd_comm_piece pieces[PD_ZERO_SET_TENSORS_MAX];
    uint32_t n = cut_runs(runs, count, begin, end, 0, x->data, gradient_bytes(zero), pieces);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t elements = pieces[i].bytes / gradient_bytes(zero);
        PD_TRY(pd_add(zero->math, elements, sum, zero->options.gradient_type, pieces[i].data, first, err));
        sum += elements;
    }
    return PD_OK;
}

/* Pieces of this round, in leaf order: rank r of the slot holds leaf slot*dp + r. */
static pd_status add_round(struct pd_zero *zero, const struct pd_zero_exchange *x, struct pd_error *err)
{
    struct pd_zero_run runs[PD_ZERO_SET_TENSORS_MAX];
    uint32_t count;
    const uint32_t me = zero->dp == 1 ? 0 : zero->comm->rank;
    uint64_t begin = x->round * zero->window_elements, owned = owned_by(zero, x->set, me, runs, &count);
    if (owned <= begin) return PD_OK;
    uint64_t length = smaller(owned - begin, zero->window_elements);
    float *sum = zero->gradient + zero->gradient_set_offset[x->set] + begin;
    for (uint32_t r = 0; r < zero->dp && !is_ghost(zero, x->slot, r); r++) {
        bool first = x->slot == 0 && r == 0;
        if (r == me) {
            PD_TRY(add_own(zero, x, runs, count, begin, begin + length, sum, first, err));
            continue;
        }
        char *piece = (char *)zero->window + r * zero->window_elements * gradient_bytes(zero);
        PD_TRY(pd_add(zero->math, length, sum, zero->options.gradient_type, piece, first, err));
    }
    return PD_OK;
}

static uint64_t rounds_of(const struct pd_zero *zero, uint32_t set)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < zero->dp; r++) {
        struct pd_zero_run runs[PD_ZERO_SET_TENSORS_MAX];
        uint32_t count;
        uint64_t owned = owned_by(zero, set, r, runs, &count);
        if (owned > most) most = owned;
    }
    return (most + zero->window_elements - 1) / zero->window_elements;
}

static pd_status start_round(struct pd_zero *zero, struct pd_error *err)
{
    describe_round(zero, &zero->exchange);
    PD_TRY(pd_comm_start(zero->comm, &zero->exchange.op, err));
    zero->exchange.in_flight = true;
    return PD_OK;
}

pd_status pd_zero_drain(struct pd_zero *zero, struct pd_error *err)
{
    struct pd_zero_exchange *x = &zero->exchange;
    if (x->set == PD_ZERO_NO_SET) return PD_OK;
    for (;;) {
        x->in_flight = false;
        PD_TRY(pd_comm_wait(zero->comm, &x->op, err));
        PD_TRY(add_round(zero, x, err));
        if (++x->round == x->rounds) break;
        PD_TRY(start_round(zero, err));
    }
    x->set = PD_ZERO_NO_SET;
    return PD_OK;
}

/* The leaf's gradients as gradient_type: one exchange is in flight at a time, so one rounded copy serves all sets. */
static pd_status round_leaf(struct pd_zero *zero, uint32_t set, float *leaf, void **ret_rounded, struct pd_error *err)
{
    *ret_rounded = leaf;
    if (zero->options.gradient_type == PD_F32) return PD_OK;
    *ret_rounded = zero->rounded;
    uint64_t elements = zero->sets[set].offsets[zero->sets[set].count];
    return pd_cast(zero->math, elements, zero->options.gradient_type, zero->rounded, PD_F32, leaf, err);
}

pd_status pd_zero_push_gradients(struct pd_zero *zero, uint32_t set, uint32_t slot, struct pd_error *err)
{
    PD_TRY(pd_zero_drain(zero, err));
    if (writes_sums(zero, slot)) return PD_OK;
    float *leaf = zero->leaf_gradients[leaf_buffer_index(zero, set)];
    struct pd_zero_exchange *x = &zero->exchange;
    x->slot = slot;
    x->round = 0;
    x->data = leaf;
    if (!is_ghost(zero, slot, zero->alone ? 0 : zero->comm->rank)) PD_TRY(round_leaf(zero, set, leaf, &x->data, err));
    if (zero->alone) {
        const struct pd_zero_set *s = &zero->sets[set];
        return pd_add(zero->math, s->offsets[s->count], zero->gradient + zero->gradient_set_offset[set],
                      zero->options.gradient_type, x->data, slot == 0, err);
    }
    x->set = set;
    x->rounds = rounds_of(zero, set);
    return start_round(zero, err);
}

void pd_zero_settle(struct pd_zero *zero)
{
    for (uint32_t i = 0; i <= PD_ZERO_BLOCK_BUFFERS; i++) {
        struct pd_zero_buffer *buffer = &zero->buffers[i];
        if (buffer->in_flight) (void)!pd_comm_wait(zero->comm, &buffer->op, NULL);
        buffer->in_flight = false;
    }
    if (zero->exchange.in_flight) (void)!pd_comm_wait(zero->comm, &zero->exchange.op, NULL);
    zero->exchange.in_flight = false;
    zero->exchange.set = PD_ZERO_NO_SET;
}
