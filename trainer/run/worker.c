/* The life of a rank: open, step, close (internal.h), and how a process becomes one rank or holds all of them. */
#include "trainer/run/worker.h"

#include "ckpt/base/fault.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/rank.h"
#include "trainer/engine/rank_device.h"
#include "trainer/run/internal.h"
#include "trainer/run/preempt.h"

#include <stdio.h>
#include <stdlib.h>

static bool has_another(const struct run *r)
{
    return r->device.dev && pd_rank_device_is_spare(&r->device, r->comm->ranks_here, getenv(PD_LAUNCH_ENV_LEFT_OUT));
}

/* Until the end of the run, or until it goes back. Collective. `launched` hears of a failure at once; NULL: nobody. */
static pd_status run_open_rank(const struct pd_config *config, struct pd_comm *comm, const struct pd_launched *launched,
                               struct pd_rollbacks *rollbacks, struct pd_error *err)
{
    struct run r = {.config = config, .comm = comm, .is_thread = !launched, .rollbacks = rollbacks};
    r.threads = pd_launched_threads(config->layout.threads, comm->ranks_here);
    pd_numerics_thread_init();
    pd_status st = pd_run_open(&r, err);
    pd_fault_point("worker.opened");
    if (!st && comm->rank == 0) pd_launched_training();
    const bool doubts = !st && rollbacks->doubts;
    if (doubts) st = pd_run_end_in_doubt(&r, err);
    if (!st) {
        st = pd_run_steps(&r, err);
        if (st == PD_NOT_FOUND) st = pd_error_change(err, PD_IO); /* what a run needs was there when it began */
    }
    if (st == PD_DIVERGED && comm->rank == r.engine->not_finite_rank)
        pd_launched_not_finite(comm->rank, r.device.dev ? r.device.dev->identity : "", has_another(&r));
    const bool is_lost = st == PD_DEVICE_LOST && r.device.dev && (!doubts || comm->rank == rollbacks->wrong_rank);
    if (is_lost) pd_launched_lost_gpu(comm->rank, r.device.dev->identity, has_another(&r));
    if (is_lost || !doubts) st = pd_rank_device_explain_lost(&r.device, st, err);
    /* What ended training is no reason to lose a save of the state before it, while there are peers to commit it with. */
    if (st && st != PD_PEER_LOST && r.saver) pd_saver_wait(r.saver);
    /* Peers may still read from and write to this rank's memory: nobody may before it is freed. */
    if (st) pd_comm_abort(comm);
    if (st && r.nccl) pd_comm_abort(r.nccl);
    if (st && r.engine) pd_engine_abort(r.engine);
    /* Said before the rest is put away: the starter may end this process at any time now, and it is not one that died. */
    if (st == PD_PEER_LOST) pd_launched_misses(pd_comm_missed(comm));
    if (st && launched) pd_launched_end(launched, st, err ? err->message : "");
    pd_run_close(&r);
    return st;
}

/* The whole of `config` on this rank. Going back to an earlier step is closing the rank and opening it before that step: no
 * memory, file or thread of what was computed since is left. */
static pd_status run_rank(const struct pd_config *config, struct pd_comm *comm, const struct pd_launched *launched,
                          struct pd_error *err)
{
    struct pd_rollbacks rollbacks = {.count = 0};
    pd_status st = PD_OK;
    do {
        if (rollbacks.goes_back) pd_heartbeat_enter(PD_HEARTBEAT_SAVING); /* who watches for hangs waits for storage */
        st = run_open_rank(config, comm, launched, &rollbacks, err);
    } while (!st && rollbacks.goes_back);
    return st;
}

static pd_status run_local_rank(struct pd_comm *comm, void *context, struct pd_error *err)
{
    pd_rank_set_thread((int)comm->rank);
    return run_rank(context, comm, NULL, err);
}

pd_status pd_worker_main(const struct pd_config *config, const struct pd_launched *launched, struct pd_error *err)
{
    uint32_t ranks = launched->is_launched ? launched->ranks : config->layout.ranks ? config->layout.ranks : 1;
    enum pd_transport transport = launched->is_launched ? launched->transport : config->layout.transport;
    if (transport != PD_TRANSPORT_MPI) {
        pd_launched_ready(launched);
        struct pd_preempt *preempt = pd_preempt_start(config->preempt.notice, 0);
        pd_status st = pd_comm_run_local(ranks, 1, run_local_rank, (void *)config, err);
        pd_preempt_stop(preempt);
        pd_fault_point("worker.ended");
        return st;
    }
    struct pd_comm *comm;
    PD_TRY(pd_comm_open_mpi(&comm, err));
    pd_rank_set_process((int)comm->rank);
    pd_launched_ready(launched);
    struct pd_preempt *preempt = pd_preempt_start(comm->rank_here ? "" : config->preempt.notice, comm->rank);
    pd_status st = run_rank(config, comm, launched, err);
    pd_preempt_stop(preempt);
    pd_comm_free(comm);
    pd_fault_point("worker.ended");
    return st;
}
