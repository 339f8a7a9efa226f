#include "ckpt/group/group.h"

#include <stdlib.h>
#include <string.h>

pd_status pd_group_barrier(struct pd_group *group, struct pd_error *err)
{
    return group->ops ? group->ops->barrier(group, err) : PD_OK;
}

pd_status pd_group_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                          struct pd_error *err)
{
    PD_CHECK(root < group->size && (group->rank != root || recv || !bytes));
    if (group->ops) return group->ops->gather(group, root, send, bytes, recv, err);
    if (bytes) memmove(recv, send, bytes);
    return PD_OK;
}

pd_status pd_group_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    PD_CHECK(root < group->size);
    return group->ops ? group->ops->broadcast(group, root, data, bytes, err) : PD_OK;
}

/* One rank alone: receives what it sends. */
static pd_status exchange_alone(const struct pd_group_piece *sends, uint32_t send_count, const struct pd_group_piece *recvs,
                                uint32_t recv_count, struct pd_error *err)
{
    if (send_count != recv_count) PD_FAIL(err, PD_BUG, "exchange: %u pieces sent, %u expected", send_count, recv_count);
    for (uint32_t i = 0; i < send_count; i++) {
        if (sends[i].bytes != recvs[i].bytes)
            PD_FAIL(err, PD_BUG, "exchange: piece %u has %llu bytes, %llu expected", i, (unsigned long long)sends[i].bytes,
                    (unsigned long long)recvs[i].bytes);
        if (sends[i].bytes) memmove(recvs[i].data, sends[i].data, sends[i].bytes);
    }
    return PD_OK;
}

pd_status pd_group_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                            const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    for (uint32_t i = 0; i < send_count; i++)
        PD_CHECK(sends[i].peer < group->size);
    for (uint32_t i = 0; i < recv_count; i++)
        PD_CHECK(recvs[i].peer < group->size);
    if (!group->ops) return exchange_alone(sends, send_count, recvs, recv_count, err);
    return group->ops->exchange(group, sends, send_count, recvs, recv_count, err);
}

pd_status pd_group_gather_all(struct pd_group *group, const void *mine, uint64_t bytes, void **ret_all, struct pd_error *err)
{
    void *all = calloc(group->size, bytes);
    pd_status st = pd_group_agree(group, PD_ALLOCATED(all, err, "no memory for %u ranks", group->size), err);
    if (!st) st = pd_group_gather(group, 0, mine, bytes, all, err);
    if (!st) st = pd_group_broadcast(group, 0, all, group->size * bytes, err);
    if (st)
        free(all);
    else
        *ret_all = all;
    return st;
}

/* Agrees on which rank failed first; `size` if none did. */
static pd_status first_failing_rank(struct pd_group *group, pd_status mine, uint32_t *ret_rank, struct pd_error *err)
{
    uint32_t status = mine, first = group->size;
    uint32_t few[256], *all = group->size <= 256 ? few : NULL;
    if (group->rank == 0 && !all) {
        all = malloc(group->size * sizeof *all);
        if (!all) PD_FAIL(err, PD_NO_MEMORY, "no memory to agree among %u ranks", group->size);
    }
    pd_status st = pd_group_gather(group, 0, &status, sizeof status, all, err);
    if (st == PD_OK && group->rank == 0) {
        for (first = 0; first < group->size && all[first] == PD_OK;)
            first++;
    }
    if (all != few) free(all);
    PD_TRY(st);
    PD_TRY(pd_group_broadcast(group, 0, &first, sizeof first, err));
    *ret_rank = first;
    return PD_OK;
}

pd_status pd_group_agree(struct pd_group *group, pd_status mine, struct pd_error *err)
{
    struct pd_error own = {.status = mine}, lost;
    if (mine != PD_OK && err && err->status == mine) own = *err;
    if (mine != PD_OK && !own.message[0]) pd_error_set(&own, mine, PD_WHERE, 0, "%s", pd_status_name(mine));
    uint32_t failing = 0;
    pd_status st = first_failing_rank(group, mine, &failing, &lost);
    if (st == PD_OK && failing == group->size) return PD_OK;
    /* A broken group carries no messages, so each failing rank reports its own reason. */
    if (st == PD_OK) st = pd_group_broadcast(group, failing, &own, sizeof own, &lost);
    if (st != PD_OK) return mine != PD_OK ? pd_error_pass(err, mine, &own) : pd_error_pass(err, st, &lost);
    (void)pd_error_pass(err, own.status, &own);
    if (group->size == 1) return own.status;
    return pd_error_context_rank(err, own.status, failing);
}

void pd_group_init_single(struct pd_group *ret_group)
{
    *ret_group = (struct pd_group){.size = 1, .host_count = 1};
}
