/* Ranks as threads of one process that share all memory. */
#include "ckpt/base/rank.h"
#include "ckpt/base/thread.h"
#include "ckpt/base/thread_pool.h"
#include "trainer/comm/progress.h"

#include <stdio.h>
#include <stdlib.h>

#define RANK_STACK_BYTES (16u << 20)

static const struct pd_comm_ops local_ops = {.name = "local", PD_PROGRESS_SLOTS, .free = pd_progress_free};

static const struct pd_comm_transport transport_local = {.ops = &local_ops};

struct local_rank {
    struct pd_progress *engine;
    pd_status (*rank_main)(struct pd_comm *, void *context, struct pd_error *);
    void *context;
    pthread_t thread;
    pd_status status;
    struct pd_error error;
};

static void *rank_thread(void *argument)
{
    struct local_rank *rank = argument;
    pd_rank_set_thread((int)rank->engine->comm.rank);
    pd_numerics_thread_init();
    rank->status = rank->rank_main(&rank->engine->comm, rank->context, &rank->error);
    if (rank->status)
        pd_progress_abort(&rank->engine->comm);
    else
        pd_progress_leave(&rank->engine->comm);
    return NULL;
}

static pd_status rank_make(struct local_rank *rank, uint32_t index, uint32_t size, const struct pd_member_info *members,
                           const struct pd_segment_ticket *ticket, struct pd_error *err)
{
    struct pd_segment *segment;
    const struct pd_segment_shape shape = pd_progress_shape(&transport_local, size, size);
    PD_TRY(pd_segment_attach(ticket, &shape, &segment, err));
    pd_segment_enter(segment, index);
    pd_status st = pd_progress_new(&transport_local, NULL, 0, index, size, members, segment, &rank->engine, err);
    if (st) pd_segment_free(segment);
    return st;
}

static pd_status rank_spawn(struct local_rank *rank, uint32_t index, struct pd_error *err)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, RANK_STACK_BYTES);
    int number = pd_thread_start(&rank->thread, &attributes, rank_thread, rank);
    pthread_attr_destroy(&attributes);
    if (number) {
        char thread[40];
        snprintf(thread, sizeof thread, "the thread of rank %u", index);
        PD_FAIL_THREAD(err, number, thread);
    }
    return PD_OK;
}

/* The other ranks see ranks that could not be started as dead. */
static pd_status ranks_run(struct local_rank *ranks, uint32_t size, struct pd_error *err)
{
    uint32_t started = 0;
    pd_status st = PD_OK;
    while (started < size && !(st = rank_spawn(&ranks[started], started, err)))
        started++;
    for (uint32_t r = started; r < size; r++)
        pd_progress_abort(&ranks[r].engine->comm);
    for (uint32_t r = 0; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
    if (st) return st;
    const struct local_rank *worst = NULL;
    for (uint32_t r = 0; r < size; r++) {
        if (!ranks[r].status) continue;
        if (!worst || (worst->status == PD_PEER_LOST && ranks[r].status != PD_PEER_LOST)) worst = &ranks[r];
    }
    if (!worst) return PD_OK;
    if (err) *err = worst->error;
    return pd_error_context_rank(err, worst->status, (uint32_t)(worst - ranks));
}

static pd_status ranks_make_and_run(struct local_rank *ranks, struct pd_member_info *members, uint32_t size,
                                    struct pd_error *err)
{
    struct pd_segment_ticket ticket;
    struct pd_segment *segment;
    const struct pd_segment_shape shape = pd_progress_shape(&transport_local, size, size);
    PD_TRY(pd_segment_make(&shape, &ticket, &segment, err));
    pd_status st = PD_OK;
    for (uint32_t r = 0; r < size && !st; r++)
        st = rank_make(&ranks[r], r, size, members, &ticket, err);
    if (!st) st = ranks_run(ranks, size, err);
    for (uint32_t r = 0; r < size; r++)
        if (ranks[r].engine) pd_progress_free(&ranks[r].engine->comm);
    pd_segment_free(segment);
    return st;
}

pd_status pd_comm_run_local(uint32_t size, uint32_t host_count,
                            pd_status (*rank_main)(struct pd_comm *, void *context, struct pd_error *), void *context,
                            struct pd_error *err)
{
    if (size == 0 || host_count == 0 || host_count > size)
        PD_FAIL(err, PD_INVALID, "%u ranks on %u hosts: give at least one rank a host", size, host_count);
    struct local_rank *ranks = calloc(size, sizeof *ranks);
    struct pd_member_info *members = calloc(size, sizeof *members);
    pd_status st;
    if (ranks && members) {
        for (uint32_t r = 0; r < size; r++) {
            members[r] = (struct pd_member_info){.world = r, .host = (uint32_t)((uint64_t)r * host_count / size)};
            ranks[r].rank_main = rank_main;
            ranks[r].context = context;
        }
        st = ranks_make_and_run(ranks, members, size, err);
    } else {
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%u local ranks", size);
    }
    free(ranks);
    free(members);
    return st;
}
