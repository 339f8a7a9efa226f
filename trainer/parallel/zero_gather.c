/* Parameters out: held boxes of this rank's group -> a buffer with what a set needs here. */
#include "ckpt/base/trace.h"
#include "trainer/parallel/zero_internal.h"

static struct pd_zero_buffer *resident(struct pd_zero *zero, uint32_t set)
{
    for (uint32_t i = 0; i < zero->gather.buffer_count; i++)
        if (zero->gather.buffers[i].set == set) return &zero->gather.buffers[i];
    return NULL;
}

/* The set's own place; in stage 3 the end buffer for an end, otherwise the block buffer that was used longest ago. */
static struct pd_zero_buffer *victim(struct pd_zero *zero, uint32_t set)
{
    if (zero->grid->layout.zero_stage < 3) return &zero->gather.buffers[set];
    if (pd_zero_is_end(zero, set)) return &zero->gather.buffers[PD_ZERO_BLOCK_BUFFERS];
    struct pd_zero_buffer *oldest = &zero->gather.buffers[0];
    for (uint32_t i = 1; i < PD_ZERO_BLOCK_BUFFERS; i++)
        if (zero->gather.buffers[i].last_use < oldest->last_use) oldest = &zero->gather.buffers[i];
    return oldest;
}

/* Data ranks that hold one copy of the state between them: a group of zero_shard, or one rank in stage 0. */
struct group {
    uint32_t first, count;
};

static struct group group_of(const struct pd_zero *zero)
{
    if (zero->grid->layout.zero_stage == 0) return (struct group){zero->q, 1};
    return (struct group){zero->q / zero->parts * zero->parts, zero->parts};
}

/* A message of one tensor to or from a peer: runs of what lies here (at), as it is held or gathered. */
static void add_pieces(struct pd_comm_piece *pieces, uint32_t *count, uint32_t peer, char *here,
                       const struct pd_zero_run *runs, uint32_t run_count, bool is_a, uint64_t bytes)
{
    for (uint32_t i = 0; i < run_count; i++)
        pieces[(*count)++] =
            (struct pd_comm_piece){peer, here + (is_a ? runs[i].at_a : runs[i].at_b) * bytes, runs[i].elements * bytes};
}

/* What this rank needs of a tensor of what the data ranks of tensor-parallel rank t hold. */
static void describe_recvs(struct pd_zero *zero, uint32_t set, uint32_t e, uint32_t t, struct pd_zero_buffer *buffer)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    const struct pd_zero_place *places = pd_zero_places(zero, set), *there = &places[t * PD_ZERO_SET_TENSORS_MAX + e];
    const struct pd_zero_slab needed = places[zero->grid->place.tp * PD_ZERO_SET_TENSORS_MAX + e].needed;
    const struct group group = group_of(zero);
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    struct pd_range parts = pd_zero_parts(there, &needed);
    if (zero->grid->layout.zero_stage == 0 && parts.begin < parts.end) parts = (struct pd_range){0, 1};
    for (uint64_t part = parts.begin; part < parts.end; part++) {
        const uint32_t q = zero->grid->layout.zero_stage == 0 ? zero->q : group.first + there->cut.q_first + (uint32_t)part;
        const struct pd_zero_slab held = pd_zero_held_slab(zero, there, q);
        const uint32_t count = pd_zero_runs(zero, zero->sets[set].tensors[e], &held, &needed, runs);
        add_pieces(buffer->recvs, &buffer->op.recv_count, q * zero->grid->layout.tp + t,
                   (char *)buffer->data + zero->sets[set].needed[e] * bytes, runs, count, false, bytes);
    }
}

/* What tensor-parallel rank t needs of what this rank holds of a tensor: the same for all data ranks of the group. */
static void describe_sends(struct pd_zero *zero, uint32_t set, uint32_t e, uint32_t t, struct pd_zero_buffer *buffer)
{
    struct pd_zero_run runs[PD_ZERO_BOXES_MAX];
    const struct pd_zero_place *places = pd_zero_places(zero, set);
    const struct pd_zero_slab held =
        pd_zero_held_slab(zero, &places[zero->grid->place.tp * PD_ZERO_SET_TENSORS_MAX + e], zero->q);
    const struct pd_zero_slab *needed = &places[t * PD_ZERO_SET_TENSORS_MAX + e].needed;
    const struct group group = group_of(zero);
    const uint32_t count = pd_zero_runs(zero, zero->sets[set].tensors[e], &held, needed, runs);
    for (uint32_t q = group.first; count && q < group.first + group.count; q++)
        add_pieces(buffer->sends, &buffer->op.send_count, q * zero->grid->layout.tp + t, pd_zero_parameters(zero, set, e),
                   runs, count, true, pd_dtype_bytes(zero->options.compute));
}

/* Both ends of a message go through tensors and chunks in the same order. */
static void describe_gather(struct pd_zero *zero, uint32_t set, struct pd_zero_buffer *buffer)
{
    buffer->op = (struct pd_comm_op){.sends = buffer->sends, .recvs = buffer->recvs, .what = "gather of parameters"};
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        for (uint32_t t = 0; t < zero->grid->layout.tp; t++) {
            describe_recvs(zero, set, e, t, buffer);
            describe_sends(zero, set, e, t, buffer);
        }
}

static const char a_gather[] = "a gather", the_compute[] = "the compute";

pd_status pd_zero_wait_gather(struct pd_zero *zero, struct pd_zero_buffer *buffer, struct pd_error *err)
{
    const uint64_t begin = pd_trace_begin();
    if (!buffer->in_flight) return PD_OK;
    buffer->in_flight = false;
    const pd_status st = pd_comm_wait(zero->gathers, &buffer->op, err);
    pd_owner_release(&buffer->owner, a_gather);
    pd_trace_end(begin, "wait", "gather of parameters", buffer->set);
    return st;
}

static pd_status start_gather(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    struct pd_zero_buffer *buffer = victim(zero, set);
    if (zero->gather.lanes[buffer->lane]) PD_TRY(pd_zero_wait_gather(zero, zero->gather.lanes[buffer->lane], err));
    pd_owner_acquire(&buffer->owner, a_gather);
    describe_gather(zero, set, buffer);
    buffer->set = set;
    buffer->last_use = ++zero->gather.clock;
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        buffer->pointers[e] = (char *)buffer->data + zero->sets[set].needed[e] * pd_dtype_bytes(zero->options.compute);
    const pd_status st = pd_comm_start(zero->gathers, &buffer->op, err);
    if (st) pd_owner_release(&buffer->owner, a_gather);
    buffer->in_flight = !st;
    zero->gather.lanes[buffer->lane] = buffer;
    return st;
}

static void let_go(struct pd_zero_gather *gather)
{
    if (gather->acquired) pd_owner_release(&gather->acquired->owner, the_compute);
    gather->acquired = NULL;
}

/* What is in files is read ahead, and gathered once it is there; so is a block that a budget keeps here, since it may be in
 * the files of another rank, and all gather at the same time. */
pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    PD_CHECK(set < zero->has.set_count && zero->sets[set].count);
    if (!zero->in_place && resident(zero, set)) return PD_OK;
    if (pd_zero_is_filed(zero, set)) return pd_zero_fetch(zero, set, err);
    const bool is_filed_elsewhere = zero->options.parameters_in_files && !pd_zero_is_end(zero, set);
    return zero->in_place || is_filed_elsewhere ? PD_OK : start_gather(zero, set, err);
}

pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t set, void *const **ret_weights, struct pd_error *err)
{
    const bool is_gathered = !zero->in_place && resident(zero, set);
    let_go(&zero->gather);
    if (pd_zero_is_filed(zero, set) && !is_gathered) PD_TRY(pd_zero_bring(zero, set, err));
    if (zero->in_place) {
        for (uint32_t e = 0; e < zero->sets[set].count; e++)
            zero->gather.in_place_pointers[e] = pd_zero_parameters(zero, set, e);
        *ret_weights = zero->gather.in_place_pointers;
        return PD_OK;
    }
    if (!is_gathered) PD_TRY(start_gather(zero, set, err));
    struct pd_zero_buffer *buffer = resident(zero, set);
    PD_TRY(pd_zero_wait_gather(zero, buffer, err));
    pd_owner_acquire(&buffer->owner, the_compute);
    zero->gather.acquired = buffer;
    buffer->last_use = ++zero->gather.clock;
    *ret_weights = buffer->pointers;
    return PD_OK;
}

void pd_zero_invalidate(struct pd_zero *zero)
{
    pd_zero_forget_image(zero);
    let_go(&zero->gather);
    for (uint32_t i = 0; i < zero->gather.buffer_count; i++) {
        PD_CHECK(!zero->gather.buffers[i].in_flight);
        zero->gather.buffers[i].set = PD_ZERO_NO_SET;
    }
}
