/* Parameters out: owners' boxes -> a buffer that holds a whole set. */
#include "trainer/parallel/zero_internal.h"

#include <string.h>

static uint64_t compute_bytes(const struct pd_zero *zero)
{
    return pd_dtype_bytes(zero->options.compute);
}

static char *owned_parameters(struct pd_zero *zero)
{
    return zero->compute ? zero->compute : (char *)zero->state[PD_PARAM];
}

static struct pd_zero_buffer *resident(struct pd_zero *zero, uint32_t set)
{
    for (uint32_t i = 0; i <= PD_ZERO_BLOCK_BUFFERS; i++)
        if (zero->buffers[i].set == set) return &zero->buffers[i];
    return NULL;
}

/* The end buffer for an end, otherwise the block buffer that was used longest ago. */
static struct pd_zero_buffer *victim(struct pd_zero *zero, uint32_t set)
{
    if (pd_zero_is_end(zero, set)) return &zero->buffers[PD_ZERO_BLOCK_BUFFERS];
    struct pd_zero_buffer *oldest = &zero->buffers[0];
    for (uint32_t i = 1; i < PD_ZERO_BLOCK_BUFFERS; i++)
        if (zero->buffers[i].last_use < oldest->last_use) oldest = &zero->buffers[i];
    return oldest;
}

/* One run of the set for each of my boxes, sent to every peer; one for each box of every peer, received in place. */
static void describe_gather(struct pd_zero *zero, uint32_t set, struct pd_zero_buffer *buffer)
{
    struct pd_zero_run runs[PD_ZERO_SET_TENSORS_MAX];
    const uint64_t bytes = compute_bytes(zero);
    const uint32_t me = zero->comm->rank;
    char *owned = owned_parameters(zero);
    struct pd_comm_op *op = &buffer->op;
    *op = (struct pd_comm_op){.sends = buffer->sends, .recvs = buffer->recvs};
    for (uint32_t r = 0; r < zero->dp; r++) {
        uint32_t count = pd_zero_runs(zero, set, r, runs);
        for (uint32_t i = 0; i < count && r != me; i++)
            buffer->recvs[op->recv_count++] =
                (struct pd_comm_piece){r, (char *)buffer->data + runs[i].set_offset * bytes, runs[i].elements * bytes};
    }
    const struct pd_zero_set *s = &zero->sets[set];
    uint32_t mine = pd_zero_runs(zero, set, me, runs), i = 0;
    for (uint32_t e = 0; e < s->count && i < mine; e++) {
        if (runs[i].set_offset < s->offsets[e] || runs[i].set_offset >= s->offsets[e + 1]) continue;
        char *from = owned + zero->tensor_offset[s->tensors[e]] * bytes;
        memcpy((char *)buffer->data + runs[i].set_offset * bytes, from, runs[i].elements * bytes);
        for (uint32_t r = 0; r < zero->dp; r++)
            if (r != me) buffer->sends[op->send_count++] = (struct pd_comm_piece){r, from, runs[i].elements * bytes};
        i++;
    }
    PD_CHECK(i == mine);
}

static pd_status settle(struct pd_zero *zero, struct pd_zero_buffer *buffer, struct pd_error *err)
{
    if (!buffer->in_flight) return PD_OK;
    buffer->in_flight = false;
    return pd_comm_wait(zero->comm, &buffer->op, err);
}

pd_status pd_zero_prefetch(struct pd_zero *zero, uint32_t set, struct pd_error *err)
{
    PD_CHECK(set < zero->set_count);
    if (zero->alone || resident(zero, set)) return PD_OK;
    struct pd_zero_buffer *buffer = victim(zero, set);
    PD_TRY(settle(zero, buffer, err));
    describe_gather(zero, set, buffer);
    buffer->set = set;
    buffer->last_use = ++zero->clock;
    for (uint32_t e = 0; e < zero->sets[set].count; e++)
        buffer->pointers[e] = (char *)buffer->data + zero->sets[set].offsets[e] * compute_bytes(zero);
    PD_TRY(pd_comm_start(zero->comm, &buffer->op, err));
    buffer->in_flight = true;
    return PD_OK;
}

static void point_at_owned(struct pd_zero *zero, uint32_t set)
{
    const struct pd_zero_set *s = &zero->sets[set];
    for (uint32_t e = 0; e < s->count; e++)
        zero->alone_pointers[e] = owned_parameters(zero) + zero->tensor_offset[s->tensors[e]] * compute_bytes(zero);
}

pd_status pd_zero_acquire(struct pd_zero *zero, uint32_t set, void *const **ret_weights, struct pd_error *err)
{
    if (zero->alone) {
        point_at_owned(zero, set);
        *ret_weights = zero->alone_pointers;
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
    for (uint32_t i = 0; i <= PD_ZERO_BLOCK_BUFFERS; i++) {
        PD_CHECK(!zero->buffers[i].in_flight);
        zero->buffers[i].set = PD_ZERO_NO_SET;
    }
}
