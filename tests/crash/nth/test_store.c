/* Every call of a launch that opens a store, saves, prunes and loads fails once, and from then on: the previous checkpoint or the new
 * one loads, nothing leaks, and the same launch gets through the next time. What fails on one rank fails on all: nobody waits for one
 * that has gone its own way. */
#include "ckpt/base/log.h"
#include "tests/helpers/failing_cluster.h"
#include "tests/helpers/local_group.h"
#include "tests/helpers/store_sweep.h"

#include <sys/resource.h>

static void swallow(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

static struct cluster base_of(const void *context)
{
    const struct world *world = context;
    struct pd_error err = {0};
    struct cluster cluster;
    pd_log_set_sink(swallow, NULL);
    cr_assert_eq(cluster_new_lacking(&cluster, world->ranks, world->hosts, world->shared, world->lacks, &err), PD_OK);
    cr_assert_eq(cluster_launch(&cluster, campaign_base, NULL, &err), PD_OK, "%s", err.message);
    return cluster;
}

static void *set_up(const void *context)
{
    return failing_cluster_new(context, base_of);
}

/* As a run does: the newest one loads, two more are saved, what is too old goes, one is put aside. */
static pd_status live(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t step = 0;
    uint32_t damaged, count;
    pd_store_set_index(rank->store, campaign_index, sizeof campaign_index);
    PD_TRY(cluster_load_newest(rank, &step, &damaged, err));
    for (int i = 0; i < 2; i++) {
        PD_TRY(cluster_save(rank, ++step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    PD_TRY(
        pd_store_quarantine(rank->store, pd_store_entry_at(rank->store, pd_store_count(rank->store) - 1), "by a test", err));
    return pd_store_count_quarantined(rank->store, &count, err);
}

static bool has_replicas; /* on other hosts: then a launch only opens */

static pd_status rank_main(struct pd_group *group, void *context, struct pd_error *err)
{
    struct failing_cluster *l = context;
    struct pd_store_options options = cluster_options();
    options.replicas = has_replicas;
    struct cluster_launch launch = {&l->cluster, has_replicas ? campaign_only_open : live, NULL, &options};
    return l->ended[group->rank] = cluster_rank_main(group, &launch, err);
}

static pd_status act(void *state, struct pd_error *err)
{
    struct failing_cluster *l = state;
    failing_cluster_begin(l);
    const pd_status st = pd_group_run_local(l->cluster.ranks, l->cluster.hosts, rank_main, l, err);
    return failing_cluster_judge(l, st, err);
}

static pd_status check(void *state, struct pd_error *err)
{
    struct failing_cluster *l = state;
    struct campaign_check c = {.least = CAMPAIGN_BASE_STEPS + (has_replicas ? 0 : 2), .most = CAMPAIGN_BASE_STEPS + 4};
    for (uint32_t host = 0; host < l->cluster.hosts; host++)
        pd_simulated_disk_kill(l->cluster.disk, host);
    return cluster_launch(&l->cluster, campaign_look, &c, err);
}

static void sweep_world(int number)
{
    const struct failing_case c = {worlds[number].name,  true,           set_up, act, check, failing_cluster_free,
                                   failing_cluster_disk, &worlds[number]};
    failing_sweep(&c);
}

/* The HDF5 library crashes where memory runs out inside it, so it is asked before each call whether there is any left. */
Test(nth_store, under_a_limit_of_memory)
{
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = (rlim_t)1 << 46;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    failing_only("mmap64");
    sweep_world(ONE_RANK);
}

Test(nth_store, memory_for_replicas)
{
    has_replicas = true;
    failing_only("calloc");
    sweep_world(LOCAL_DISKS);
}

#define EACH(name, world)   \
    Test(nth_store, name)   \
    {                       \
        sweep_world(world); \
    }

EACH(one_rank, ONE_RANK)
EACH(one_rank_without_links, ONE_RANK_NO_LINKS)
EACH(shared_disk, SHARED_DISK)
