/* A rank dies at each operation of its group during a save: what was durable under its final name stays a checkpoint. */
#include "tests/helpers/store_cluster.h"
#include "tests/helpers/store_expect.h"

TestSuite(store_lost_peer, .init = set_up);

/* The group of a rank that dies at its n-th operation: from then on it neither sends nor hears. */
struct dying {
    struct pd_group *group;
    uint32_t left; /* operations */
    bool is_dead;
};

static pd_status next(struct pd_group *group, struct dying **ret_dying, struct pd_error *err)
{
    struct dying *d = *ret_dying = group->context;
    if (!d->left) d->is_dead = true;
    if (d->is_dead) PD_FAIL(err, PD_PEER_LOST, "dead");
    d->left--;
    return PD_OK;
}

static pd_status dying_barrier(struct pd_group *group, struct pd_error *err)
{
    struct dying *d;
    PD_TRY(next(group, &d, err));
    return pd_group_barrier(d->group, err);
}

static pd_status dying_gather(struct pd_group *group, uint32_t root, const void *send, uint64_t bytes, void *recv,
                              struct pd_error *err)
{
    struct dying *d;
    PD_TRY(next(group, &d, err));
    return pd_group_gather(d->group, root, send, bytes, recv, err);
}

static pd_status dying_broadcast(struct pd_group *group, uint32_t root, void *data, uint64_t bytes, struct pd_error *err)
{
    struct dying *d;
    PD_TRY(next(group, &d, err));
    return pd_group_broadcast(d->group, root, data, bytes, err);
}

static pd_status dying_exchange(struct pd_group *group, const struct pd_group_piece *sends, uint32_t send_count,
                                const struct pd_group_piece *recvs, uint32_t recv_count, struct pd_error *err)
{
    struct dying *d;
    PD_TRY(next(group, &d, err));
    return pd_group_exchange(d->group, sends, send_count, recvs, recv_count, err);
}

static const struct pd_group_ops dying_ops = {"dying", dying_barrier, dying_gather, dying_broadcast, dying_exchange};

struct death {
    uint32_t victim, nth;
    bool is_dead;
};

/* The victim's group dies in the save, not in the open before it. */
static pd_status save_and_die(struct cluster_rank *rank, struct pd_error *err)
{
    struct death *death = rank->context;
    const bool is_victim = rank->group->rank == death->victim;
    struct pd_group whole = *rank->group;
    struct dying dying = {.group = &whole, .left = is_victim ? death->nth : UINT32_MAX};
    rank->group->ops = &dying_ops;
    rank->group->context = &dying;
    pd_status st = cluster_save(rank, 1, err);
    *rank->group = whole;
    if (is_victim) death->is_dead = dying.is_dead;
    return st;
}

static pd_status newest(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t *step = rank->context;
    const bool has = pd_store_count(rank->store) > 0;
    if (has) PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, 0), err));
    if (rank->group->rank == 0) *step = has ? pd_store_entry_at(rank->store, 0)->step : 0;
    return PD_OK;
}

/* Of all operations the last ones come after the durable rename: the save is reported as failed, and its checkpoint is there. */
static void die_everywhere(uint32_t ranks, uint32_t hosts, bool shared, uint32_t victim)
{
    uint64_t before = 0;
    for (uint32_t nth = 0;; nth++) {
        struct cluster cluster;
        struct pd_error err = {0};
        struct death death = {victim, nth, false};
        uint64_t step = 0;
        expect(cluster_new(&cluster, ranks, hosts, shared, &err), PD_OK, &err);
        pd_status st = cluster_launch(&cluster, save_and_die, &death, &err);
        expect(st, death.is_dead ? PD_PEER_LOST : PD_OK, &err);
        err = (struct pd_error){0};
        expect(cluster_launch(&cluster, newest, &step, &err), PD_OK, &err);
        cluster_free(&cluster);
        cr_assert(step >= before, "rank %u died at operation %u: the checkpoint is gone", victim, nth);
        if (!death.is_dead) cr_assert_eq(before, 1, "no death after the rename leaves the checkpoint");
        if (!death.is_dead) return;
        before = step;
    }
}

Test(store_lost_peer, on_one_disk)
{
    die_everywhere(2, 1, false, 1);
    die_everywhere(4, 2, true, 2);
}

Test(store_lost_peer, on_disks_of_their_own)
{
    die_everywhere(4, 2, false, 3);
    die_everywhere(4, 2, false, 2);
}

Test(store_lost_peer, the_root)
{
    die_everywhere(2, 1, false, 0);
    die_everywhere(4, 2, false, 0);
}
