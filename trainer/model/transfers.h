/* An exchange of one model with its neighbours: pieces are added, it is started, and waited for later.
 *   threads  one caller */
#pragma once

#include "ckpt/base/arena.h"
#include "ckpt/base/owner.h"
#include "trainer/comm/comm.h"

struct pd_peer_transfer {
    /* Of the pieces and of the memory that they name. From start until wait "the exchange" has it: the communicator's thread,
     * or NCCL's stream, reads what is sent and writes what arrives. Whoever reads what arrived may acquire it after wait, and
     * releases it before the next start. pd_comm_wait orders them. */
    struct pd_owner owner;
    struct pd_comm *comm;
    struct pd_comm_op op;
    struct pd_comm_piece *sends, *recvs; /* arena */
    uint32_t send_capacity, recv_capacity, send_count, recv_count;
    bool in_flight;
};

/* What its caller computes while an exchange is on its way, and touches nothing of it; run NULL: nothing. */
struct pd_beside {
    pd_status (*run)(void *context, struct pd_error *err);
    void *context;
};

/* comm may be NULL on a dry arena. */
void pd_peer_transfer_init(struct pd_peer_transfer *transfer, struct pd_comm *comm, uint32_t send_capacity,
                           uint32_t recv_capacity, struct pd_arena *arena);
/* Forgets the pieces of the last exchange, which has been waited for. */
void pd_peer_transfer_clear(struct pd_peer_transfer *transfer);
/* Empty pieces are left out. */
void pd_peer_transfer_send(struct pd_peer_transfer *transfer, uint32_t peer, const void *data, uint64_t bytes);
void pd_peer_transfer_recv(struct pd_peer_transfer *transfer, uint32_t peer, void *data, uint64_t bytes);
PD_MUST_USE pd_status pd_peer_transfer_start(struct pd_peer_transfer *transfer, struct pd_error *err);
/* PD_OK when nothing is in flight. */
PD_MUST_USE pd_status pd_peer_transfer_wait(struct pd_peer_transfer *transfer, struct pd_error *err);
