#include "trainer/comm/pipe.h"
#include "trainer/comm/progress.h"
#include "trainer/comm/staging.h"

#include <assert.h>

static pd_status check_pieces(const struct pd_comm *comm, const struct pd_comm_piece *pieces, uint32_t count,
                              const char *what, struct pd_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].peer >= comm->size)
            PD_FAIL(err, PD_BUG, "%s %u of an exchange names rank %u of %u", what, i, pieces[i].peer, comm->size);
        if (pieces[i].bytes && !pieces[i].data) PD_FAIL(err, PD_BUG, "%s %u of an exchange has no memory", what, i);
    }
    return PD_OK;
}

static pd_status check_operation(const struct pd_comm *comm, const struct pd_comm_op *op, struct pd_error *err)
{
    PD_TRY(check_pieces(comm, op->sends, op->send_count, "send", err));
    return check_pieces(comm, op->recvs, op->recv_count, "receive", err);
}

/* For pieces in the communicator's own memory. */
static pd_status comm_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    op->memory = comm->memory.copy ? &comm->memory : NULL;
    if (op->memory) PD_TRY(op->memory->ready(op->memory->context, err));
    return comm->ops->start(comm, op, err);
}

pd_status pd_comm_start(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    op->kind = PD_COMM_EXCHANGE;
    PD_TRY(check_operation(comm, op, err));
    return comm_start(comm, op, err);
}

static pd_status check_parts(const struct pd_comm *comm, const void *parts, uint64_t bytes, const void *sum,
                             struct pd_error *err)
{
    const uint8_t *first = parts, *own = first + comm->rank * bytes, *out = sum;
    if (bytes && (!parts || !sum))
        PD_FAIL(err, PD_BUG, "a collective of %llu bytes has no memory", (unsigned long long)bytes);
    if (bytes > UINT64_MAX / comm->size)
        PD_FAIL(err, PD_BUG, "%u parts of %llu bytes", comm->size, (unsigned long long)bytes);
    if (out != own && out < first + comm->size * bytes && first < out + bytes)
        PD_FAIL(err, PD_BUG, "the sum of rank %u lies across its parts", comm->rank);
    return PD_OK;
}

static pd_status start_sums(struct pd_comm *comm, struct pd_comm_op *op, void *parts, uint64_t count, bool is_narrow,
                            void *sum, struct pd_error *err)
{
    const uint64_t bytes = is_narrow ? sizeof(uint32_t) : sizeof(uint64_t);
    if (count > UINT64_MAX / bytes || count * bytes % sizeof(uint64_t))
        PD_FAIL(err, PD_BUG, "a part of %llu integers", (unsigned long long)count);
    *op = (struct pd_comm_op){.kind = PD_COMM_REDUCE_SCATTER,
                              .what = op->what,
                              .parts = parts,
                              .part_bytes = count * bytes,
                              .sum = sum,
                              .adds_narrow = is_narrow};
    PD_TRY(check_parts(comm, parts, op->part_bytes, sum, err));
    return comm_start(comm, op, err);
}

pd_status pd_comm_start_reduce_scatter(struct pd_comm *comm, struct pd_comm_op *op, uint64_t *parts, uint64_t count,
                                       uint64_t *sum, struct pd_error *err)
{
    return start_sums(comm, op, parts, count, false, sum, err);
}

pd_status pd_comm_start_reduce_scatter_narrow(struct pd_comm *comm, struct pd_comm_op *op, uint32_t *parts, uint64_t count,
                                              uint32_t *sum, struct pd_error *err)
{
    return start_sums(comm, op, parts, count, true, sum, err);
}

pd_status pd_comm_start_all_gather(struct pd_comm *comm, struct pd_comm_op *op, void *parts, uint64_t bytes,
                                   struct pd_error *err)
{
    *op = (struct pd_comm_op){.kind = PD_COMM_ALL_GATHER, .what = op->what, .parts = parts, .part_bytes = bytes};
    PD_TRY(check_parts(comm, parts, bytes, (uint8_t *)parts + comm->rank * bytes, err));
    return comm_start(comm, op, err);
}

pd_status pd_comm_wait(struct pd_comm *comm, struct pd_comm_op *op, struct pd_error *err)
{
    return comm->ops->wait(comm, op, err);
}

pd_status pd_comm_all_reduce(struct pd_comm *comm, uint64_t *values, uint32_t count, enum pd_reduce reduce,
                             struct pd_error *err)
{
    return comm->ops->all_reduce(comm, values, count, reduce, err);
}

pd_status pd_comm_broadcast(struct pd_comm *comm, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    if (root >= comm->size) PD_FAIL(err, PD_BUG, "broadcast from rank %u of %u", root, comm->size);
    return comm->ops->broadcast(comm, root, data, bytes, err);
}

pd_status pd_comm_barrier(struct pd_comm *comm, struct pd_error *err)
{
    uint64_t arrived = 1;
    PD_TRY(pd_comm_all_reduce(comm, &arrived, 1, PD_REDUCE_SUM_U64, err));
    PD_CHECK(arrived == comm->size);
    return PD_OK;
}

static pd_status split(struct pd_comm *comm, const struct pd_comm_part *mine, struct pd_comm **ret_comm,
                       struct pd_error *err)
{
    struct pd_comm *part;
    PD_TRY(comm->ops->split(comm, mine, &part, err));
    part->memory = comm->memory;
    *ret_comm = part;
    return PD_OK;
}

pd_status pd_comm_split(struct pd_comm *comm, uint32_t color, uint32_t key, struct pd_comm **ret_comm, struct pd_error *err)
{
    return split(comm, &(struct pd_comm_part){.color = color, .key = key}, ret_comm, err);
}

pd_status pd_comm_split_links(struct pd_comm *comm, uint32_t color, uint32_t key, struct pd_comm **ret_comm,
                              struct pd_error *err)
{
    return split(comm, &(struct pd_comm_part){.color = color, .key = key, .is_link = true}, ret_comm, err);
}

void pd_comm_use_memory(struct pd_comm *comm, const struct pd_comm_memory *memory)
{
    PD_CHECK(!memory->ready == !memory->copy && !memory->copy == !memory->lock && !memory->lock == !memory->unlock);
    comm->ops->unlock(comm);
    comm->memory = *memory;
}

void pd_comm_will_use(struct pd_comm *comm, void *memory, uint64_t bytes)
{
    if (comm->ops->will_use && bytes) comm->ops->will_use(comm, memory, bytes);
}

pd_status pd_comm_look(struct pd_comm *comm, struct pd_error *err)
{
    return comm->ops->look(comm, err);
}

void pd_comm_traffic(struct pd_comm *comm, struct pd_comm_traffic *ret_traffic)
{
    comm->ops->traffic(comm, ret_traffic);
}

void pd_comm_abort(struct pd_comm *comm)
{
    if (comm) comm->ops->abort(comm);
}

void pd_comm_free(struct pd_comm *comm)
{
    if (comm) comm->ops->free(comm);
}

uint64_t pd_comm_bytes(uint32_t size, bool is_processes)
{
    const struct pd_segment_shape shape = {.slots =
                                               is_processes && size > PD_COMM_RANKS_PER_HOST ? PD_COMM_RANKS_PER_HOST : size,
                                           .pair_bytes = sizeof(struct pd_pipe),
                                           .mailbox_bytes = pd_staging_units(size) * PD_STAGING_UNIT_BYTES};
    return pd_progress_bytes(size) + pd_segment_share_bytes(&shape);
}

/* The group for ckpt/ and resharder/. Its pieces have the same layout as the pieces of an exchange. */
static_assert(sizeof(struct pd_group_piece) == sizeof(struct pd_comm_piece) &&
                  offsetof(struct pd_group_piece, peer) == offsetof(struct pd_comm_piece, peer) &&
                  offsetof(struct pd_group_piece, data) == offsetof(struct pd_comm_piece, data) &&
                  offsetof(struct pd_group_piece, bytes) == offsetof(struct pd_comm_piece, bytes),
              "a group piece is a comm piece");

static pd_status group_barrier(struct pd_group *group, struct pd_error *err)
{
    return pd_comm_barrier(group->context, err);
}

static pd_status group_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    return pd_comm_broadcast(group->context, root, data, bytes, err);
}

static pd_status exchange_on_host(struct pd_comm *comm, const struct pd_comm_piece *sends, uint32_t send_count,
                                  const struct pd_comm_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    struct pd_comm_op op = {.sends = sends, .send_count = send_count, .recvs = recvs, .recv_count = recv_count};
    PD_TRY(check_operation(comm, &op, err));
    return comm->ops->exchange(comm, &op, err);
}

static pd_status group_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                                const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    return exchange_on_host(group->context, (const struct pd_comm_piece *)sends, send_count,
                            (const struct pd_comm_piece *)recvs, recv_count, err);
}

static pd_status group_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                              struct pd_error *err)
{
    struct pd_comm *comm = group->context;
    if (root >= comm->size) PD_FAIL(err, PD_BUG, "gather at rank %u of %u", root, comm->size);
    return comm->ops->gather(comm, root, send, bytes, recv, err);
}

static const struct pd_group_ops group_ops = {
    .name = "comm",
    .barrier = group_barrier,
    .gather = group_gather,
    .broadcast = group_broadcast,
    .exchange = group_exchange,
};

void pd_comm_group(struct pd_comm *comm, struct pd_group *ret_group)
{
    *ret_group = (struct pd_group){.ops = &group_ops,
                                   .rank = comm->rank,
                                   .size = comm->size,
                                   .host = comm->host,
                                   .host_count = comm->host_count,
                                   .context = comm};
}
