/* An exchange between one model's neighbours: add pieces, start it, wait for it later.
 *   threads  one caller */
#pragma once

#include "ckpt/base/arena.h"
#include "ckpt/base/owner.h"
#include "trainer/comm/comm.h"

struct pd_peer_transfer {
    /* Owner of the pieces and their memory. From start until wait "the exchange" has them: the communicator's thread, or
     * NCCL's stream, reads what is sent and writes what arrives. A reader may acquire the received data after wait and must
     * release it before the next start. pd_comm_wait orders the two. */
    struct pd_owner owner;
    struct pd_comm *comm;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs; /* arena */
    uint32_t send_capacity, recv_capacity, send_count, recv_count;
    bool in_flight;
    bool is_rehearsed; /* nothing is exchanged */
};

/* Computation that the caller runs during an exchange; it must not touch the exchange's memory. run NULL: none. */
struct pd_beside {
    pd_status (*run)(void *context, struct pd_error *err);
    void *context;
};

/* comm may be NULL on a dry arena. */
void pd_peer_transfer_init(struct pd_peer_transfer *transfer, struct pd_comm *comm, uint32_t send_capacity,
                           uint32_t recv_capacity, struct pd_arena *arena);
/* Removes the pieces of the last exchange. Call after its wait. */
void pd_peer_transfer_clear(struct pd_peer_transfer *transfer);
/* Skips empty pieces. */
void pd_peer_transfer_send(struct pd_peer_transfer *transfer, uint32_t peer, const void *data, uint64_t bytes);
void pd_peer_transfer_recv(struct pd_peer_transfer *transfer, uint32_t peer, void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_peer_transfer_start(struct pd_peer_transfer *transfer, struct pd_error *err);
/* Returns PD_OK if nothing is in flight. */
PD_MUST_USE pd_status pd_peer_transfer_wait(struct pd_peer_transfer *transfer, struct pd_error *err);
