/* Exchanges with neighbours, over one rank that is its own neighbour: who has the memory when. */
#include "trainer/model/transfers.h"

#include <criterion/criterion.h>
#include <signal.h>

static struct pd_comm_piece sends[1], recvs[1];
static const int sent = 7;
static int arrived;

static struct pd_peer_transfer to_self(struct pd_comm *comm)
{
    struct pd_peer_transfer x = {.comm = comm, .sends = sends, .recvs = recvs, .send_capacity = 1, .recv_capacity = 1};
    pd_peer_transfer_send(&x, 0, &sent, sizeof sent);
    pd_peer_transfer_recv(&x, 0, &arrived, sizeof arrived);
    return x;
}

static pd_status read_after(struct pd_comm *comm, void *waits, struct pd_error *err)
{
    struct pd_peer_transfer x = to_self(comm);
    for (int i = 0; i < 2; i++) {
        arrived = 0;
        PD_TRY(pd_peer_transfer_start(&x, err));
        if (*(const bool *)waits) PD_TRY(pd_peer_transfer_wait(&x, err));
        pd_owner_acquire(&x.owner, "attention");
        cr_assert_eq(arrived, sent);
        pd_owner_release(&x.owner, "attention");
    }
    return PD_OK;
}

static void run(bool waits)
{
    struct pd_error err;
    cr_assert_eq(pd_comm_run_local(1, 1, read_after, &waits, &err), PD_OK, "%s", err.message);
}

Test(transfers, what_arrived_is_read_after_the_wait)
{
    run(true);
}

Test(transfers, reading_before_the_wait_is_caught, .signal = SIGABRT)
{
    run(false);
}

static pd_status start_while_read(struct pd_comm *comm, void *context, struct pd_error *err)
{
    struct pd_peer_transfer x = to_self(comm);
    (void)context;
    pd_owner_acquire(&x.owner, "attention");
    return pd_peer_transfer_start(&x, err);
}

Test(transfers, an_exchange_into_what_is_being_read_is_caught, .signal = SIGABRT)
{
    pd_status st = pd_comm_run_local(1, 1, start_while_read, NULL, NULL);
    (void)st;
}
