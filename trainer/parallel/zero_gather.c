/* Parameters out: held boxes of this rank's group -> a buffer with what a set needs here. */
#include "trainer/parallel/zero_internal.h"

static struct pd_zero_buffer *resident(struct pd_zero *zero, uint32_t set)
{
    for (uint32_t i = 0; i < zero->buffer_count; i++)
        if (zero->buffers[i].set == set) return &zero->buffers[i];
    return NULL;
}

/* The set's own place; in stage 3 the end buffer for an end, otherwise the block buffer that was used longest ago. */
static struct pd_zero_buffer *victim(struct pd_zero *zero, uint32_t set)
{
    if (zero->grid->layout.zero_stage < 3) return &zero->buffers[set];
    if (pd_zero_is_end(zero, set)) return &zero->buffers[PD_ZERO_BLOCK_BUFFERS];
    struct pd_zero_buffer *oldest = &zero->buffers[0];
    for (uint32_t i = 1; i < PD_ZERO_BLOCK_BUFFERS; i++)
        if (zero->buffers[i].last_use < oldest->last_use) oldest = &zero->buffers[i];
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

#define RUNS_MAX (PD_ZERO_SET_TENSORS_MAX * PD_ZERO_BOXES_MAX)

static void describe_peer(struct pd_zero *zero, uint32_t set, struct pd_zero_buffer *buffer, uint32_t q, uint32_t tp)
{
    struct pd_zero_run runs[RUNS_MAX];
    const uint32_t peer = q * zero->grid->layout.tp + tp, my_tp = zero->grid->place.tp;
    const uint64_t bytes = pd_dtype_bytes(zero->options.compute);
    struct pd_comm_op *op = &buffer->op;
    uint32_t count = pd_zero_runs(zero, set, PD_ZERO_NEEDED, zero->q, my_tp, PD_ZERO_HELD, q, tp, runs, RUNS_MAX);
    for (uint32_t i = 0; i < count; i++)
        buffer->recvs[op->recv_count++] =
            (struct pd_comm_piece){peer, (char *)buffer->data + runs[i].at_a * bytes, runs[i].elements * bytes};
    count = pd_zero_runs(zero, set, PD_ZERO_NEEDED, q, tp, PD_ZERO_HELD, zero->q, my_tp, runs, RUNS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        char *from = pd_zero_parameters(zero, set, runs[i].tensor);
        buffer->sends[op->send_count++] =
            (struct pd_comm_piece){peer, from + runs[i].at_b * bytes, runs[i].elements * bytes};
    }
}

static void describe_gather(struct pd_zero *zero, uint32_t set, struct pd_zero_buffer *buffer)
{
    const struct group group = group_of(zero);
    buffer->op = (struct pd_comm_op){.sends = buffer->sends, .recvs = buffer->recvs};
    for (uint32_t q = group.first; q < group.first + group.count; q++)
        for (uint32_t tp = 0; tp < zero->grid->layout.tp; tp++)
            describe_peer(zero, set, buffer, q, tp);
}

static pd_status settle(struct pd_zero *zero, struct pd_zero_buffer *buffer, struct pd_error *err)
{
    if (!buffer->in_flight) return PD_OK;
    buffer->in_flight = false;
    return pd_comm_wait(zero->comm, &buffer->op, err);
}

pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    PD_CHECK(set < zero->set_count && zero->sets[set].count);
    if (zero->in_place || resident(zero, set)) return PD_OK;
    struct pd_zero_buffer *buffer = victim(zero, set);
    PD_TRY(settle(zero, buffer, err));
    describe_gather(zero, set, buffer);
    buffer->set = set;
    buffer->last_use = ++zero->clock;
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        buffer->pointers[e] = (char *)buffer->data + zero->sets[set].needed[e] * pd_dtype_bytes(zero->options.compute);
    PD_TRY(pd_comm_start(zero->comm, &buffer->op, err));
    buffer->in_flight = true;
    return PD_OK;
}

pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t set, void *const **ret_weights, struct pd_error *err)
{
    if (zero->in_place) {
        for (uint32_t e = 0; e < zero->sets[set].count; e++)
            zero->in_place_pointers[e] = pd_zero_parameters(zero, set, e);
        *ret_weights = zero->in_place_pointers;
        return PD_OK;
    }
    PD_TRY(pd_zero_prefetch(zero, set, err));
    struct pd_zero_buffer *buffer = resident(zero, set);
    PD_TRY(settle(zero, buffer, err));
    buffer->last_use = ++zero->clock;
    *ret_weights = buffer->pointers;
    return PD_OK;
}

void pd_zero_invalidate(struct pd_zero *zero)
{
    for (uint32_t i = 0; i < zero->buffer_count; i++) {
        PD_CHECK(!zero->buffers[i].in_flight);
        zero->buffers[i].set = PD_ZERO_NO_SET;
    }
}
