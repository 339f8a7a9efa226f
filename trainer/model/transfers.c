#include "trainer/model/transfers.h"

void pd_peer_transfer_init(struct pd_peer_transfer *transfer, struct pd_comm *comm, uint32_t send_capacity,
                           uint32_t recv_capacity, struct pd_arena *arena)
{
    *transfer = (struct pd_peer_transfer){.comm = comm, .send_capacity = send_capacity, .recv_capacity = recv_capacity};
    transfer->sends = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, send_capacity * sizeof(struct pd_comm_piece));
    transfer->recvs = pd_arena_take_host(arena, PD_MEMORY_BUFFERS, recv_capacity * sizeof(struct pd_comm_piece));
}

void pd_peer_transfer_clear(struct pd_peer_transfer *transfer)
{
    PD_CHECK(!transfer->in_flight);
    transfer->send_count = transfer->recv_count = 0;
}

void pd_peer_transfer_send(struct pd_peer_transfer *transfer, uint32_t peer, const void *data, uint64_t bytes)
{
    if (!bytes) return;
    PD_CHECK(transfer->send_count < transfer->send_capacity);
    transfer->sends[transfer->send_count++] = (struct pd_comm_piece){peer, (void *)(uintptr_t)data, bytes};
}

void pd_peer_transfer_recv(struct pd_peer_transfer *transfer, uint32_t peer, void *data, uint64_t bytes)
{
    if (!bytes) return;
    PD_CHECK(transfer->recv_count < transfer->recv_capacity);
    transfer->recvs[transfer->recv_count++] = (struct pd_comm_piece){peer, data, bytes};
}

static const char the_exchange[] = "the exchange with a peer";

pd_status pd_peer_transfer_start(struct pd_peer_transfer *transfer, struct pd_error *err)
{
    PD_CHECK(!transfer->in_flight);
    if (transfer->is_rehearsed) return PD_OK;
    transfer->op = (struct pd_comm_op){.sends = transfer->sends,
                                       .recvs = transfer->recvs,
                                       .send_count = transfer->send_count,
                                       .recv_count = transfer->recv_count,
                                       .what = "parts of a micro-batch"};
    pd_owner_acquire(&transfer->owner, the_exchange);
    const pd_status st = pd_comm_start(transfer->comm, &transfer->op, err);
    if (st) pd_owner_release(&transfer->owner, the_exchange);
    transfer->in_flight = !st;
    return st;
}

pd_status pd_peer_transfer_wait(struct pd_peer_transfer *transfer, struct pd_error *err)
{
    if (!transfer->in_flight) return PD_OK;
    transfer->in_flight = false;
    const pd_status st = pd_comm_wait(transfer->comm, &transfer->op, err);
    pd_owner_release(&transfer->owner, the_exchange);
    return st;
}
