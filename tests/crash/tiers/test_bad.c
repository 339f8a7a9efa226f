/* A tier that is bad when a launch begins: read-only, unreadable, damaged, absent, somebody else's; or bad later, on one host alone. */
#include "tests/helpers/tier_flow.h"

static void set_up(void)
{
    cr_assert_eq(pd_log_configure("error,tiers=error", NULL), PD_OK);
}

TestSuite(bad_tiers, .init = set_up);

static pd_status save_two_more(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 11, NULL, err));
    return tier_save(rank, 12, NULL, err);
}

/* Steps 1 to 10 lie in all three tiers, 11 and 12 in /net alone. */
static void fill_tiers(struct cluster *cluster)
{
    struct pd_tiers_options options = three_tiers(), net = three_tiers();
    make_cluster(cluster, 0, 0);
    RUN(cluster, &options, save_ten, NULL);
    net.tiers[0] = net.tiers[2];
    net.tiers[0].every = 1;
    net.count = 1;
    RUN(cluster, &net, save_two_more, NULL);
}

static pd_status go_on_without_net(struct tier_rank *rank, struct pd_error *err)
{
    struct found found = {0};
    struct pd_tier_report report;
    struct pd_error why = {0};
    PD_TRY(tier_load_newest(rank, &found.tier, &found.step, err));
    EXPECT(found.tier == 2 && found.step == 12, "what can only be read is read: tier %u step %llu", found.tier,
           (unsigned long long)found.step);
    PD_TRY(pd_tiers_check_space(rank->tiers, SHARD_SPACE, 0, err));
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 13; step <= 20; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    pd_status st = tier_finish(rank, 20, -1, &why);
    pd_tiers_report(rank->tiers, 2, &report);
    EXPECT(st == PD_IO && strstr(why.message, "/net/c did not get the last step, 20, which is safe in /shm/c"), "%s",
           why.message);
    EXPECT(report.failures > 1 && strstr(report.cause, "Read-only"), "%u: %s", report.failures, report.cause);
    PD_TRY(set_lacks(rank, "/net", 0, err));
    PD_TRY(tier_save(rank, 21, NULL, err));
    return tier_finish(rank, 21, -1, err);
}

Test(bad_tiers, one_that_is_read_only_is_read_and_left_out_of_saves_until_it_can_be_written)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    tier_be_quiet();
    fill_tiers(&cluster);
    pd_simulated_disk_set_lacks(cluster.disk, "/net", PD_DISK_READ_ONLY);
    RUN(&cluster, &options, go_on_without_net, NULL);
    options.tiers[0] = options.tiers[2];
    options.count = 1;
    RUN(&cluster, &options, look, &found);
    cr_assert_eq(found.step, 21);
    cluster_free(&cluster);
}

Test(bad_tiers, one_that_cannot_be_read_may_hold_the_newest)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct pd_error err = {0};
    struct found found = {99, 0};
    tier_be_quiet();
    fill_tiers(&cluster);
    pd_simulated_disk_set_lacks(cluster.disk, "/net", PD_DISK_NO_PATHS);
    cr_assert_eq(tier_run(&cluster, &options, look, &found, &err), PD_IO);
    cr_assert(strstr(err.message, "/net/c may hold the newest checkpoint and cannot be read") &&
                  strstr(err.message, "taking it out of checkpoint.tiers"),
              "%s", err.message);
    options.count = 2;
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 0 && found.step == 10, "which is how to continue");
    cluster_free(&cluster);
}

static pd_status quarantine_what_is_damaged(struct tier_rank *rank, struct pd_error *err)
{
    struct found found;
    PD_TRY(tier_load_newest(rank, &found.tier, &found.step, err));
    EXPECT(found.tier == 2 && found.step == 11, "tier %u step %llu", found.tier, (unsigned long long)found.step);
    return PD_OK;
}

Test(bad_tiers, damage_where_nothing_can_be_moved_is_passed_over)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    tier_be_quiet();
    fill_tiers(&cluster);
    cr_assert(pd_simulated_disk_flip(cluster.disk, 0, "/net/c/step-000000000012-2/shard-00001.h5", 40, 3));
    pd_simulated_disk_set_lacks(cluster.disk, "/net", PD_DISK_READ_ONLY);
    RUN(&cluster, &options, quarantine_what_is_damaged, NULL);
    cluster_free(&cluster);
}

static pd_status begin_without_net(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_error why = {0};
    PD_TRY(pd_tiers_check_space(rank->tiers, SHARD_SPACE, 0, err));
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 10; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    pd_status st = tier_finish(rank, 10, -1, &why);
    EXPECT(st == PD_IO && strstr(why.message, "/net/c did not get the last step"), "%s", why.message);
    PD_TRY(set_lacks(rank, "/net", 0, err));
    PD_TRY(pd_group_agree(&rank->world, pd_vfs_mkdir(rank->cluster.vfs, "/net/c", NULL) == PD_IO ? PD_IO : PD_OK, err));
    for (uint64_t step = 11; step <= 40; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    return tier_finish(rank, 40, -1, err);
}

Test(bad_tiers, one_that_never_was_comes_when_it_can_be_made)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct pd_error err = {0};
    struct found found = {99, 0};
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    pd_simulated_disk_set_lacks(cluster.disk, "/net", PD_DISK_NO_PATHS);
    options.tiers[2].missing_cause = "mkdir: no";
    options.tiers[2].missing = PD_IO;
    cr_assert_eq(tier_run(&cluster, &options, look, &found, &err), PD_IO, "the launch before had it");
    cr_assert(strstr(err.message, "may hold the newest checkpoint and cannot be read"), "%s", err.message);
    options.tiers[2].missing = PD_NOT_FOUND;
    RUN(&cluster, &options, begin_without_net, NULL);
    options.tiers[0] = options.tiers[2];
    options.count = 1;
    RUN(&cluster, &options, look, &found);
    cr_assert_eq(found.step, 40);
    cluster_free(&cluster);
}

static pd_status has_step_four(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    EXPECT(pd_store_count(store) == 1 && pd_store_entry_at(store, 0)->step == 4, "it is gone");
    return PD_OK;
}

static pd_status save_once_more(struct tier_rank *rank, struct pd_error *err)
{
    struct tier_saving saving;
    struct pd_error why = {0};
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 5; step++) {
        struct pd_tiers_save save = tier_saving_init(&saving, rank, step, true);
        uint32_t tier;
        PD_TRY(pd_tiers_save(rank->tiers, &save, &tier, err));
    }
    PD_TRY(set_lacks(rank, "/net", 0, err));
    pd_status st = tier_finish(rank, 5, -1, &why);
    EXPECT(st == PD_INVALID && strstr(why.message, "/net/c holds checkpoints of another run"), "%s: %s", pd_status_name(st),
           why.message);
    return PD_OK;
}

/* A disk that was absent comes back, and somebody else's checkpoints lie on it: none of them may be pruned. */
Test(bad_tiers, one_that_comes_back_with_another_run_is_left_alone)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers(), other = three_tiers();
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    other.tiers[0] = other.tiers[2];
    other.tiers[0].every = 1;
    other.count = 1;
    RUN(&cluster, &other, save_other_run, NULL);
    pd_simulated_disk_set_lacks(cluster.disk, "/net", PD_DISK_NO_PATHS);
    options.tiers[2].missing_cause = "mkdir: no";
    options.tiers[2].missing = PD_NOT_FOUND;
    options.tiers[2].keep_last = 1;
    RUN(&cluster, &options, save_once_more, NULL);
    RUN(&cluster, &other, has_step_four, NULL);
    cluster_free(&cluster);
}

/* ---- what fails on one host fails on all ---- */

static pd_status copy_what_one_host_cannot_read(struct tier_rank *rank, struct pd_error *err)
{
    struct tier_job job = {
        .task = TIER_REPLICATE, .step = 5, .source = "/disk/step-000000000005-1", .name = "step-000000000005-1"};
    struct pd_error why = {0};
    pd_status st = PD_OK;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 5, NULL, err));
    PD_TRY(tier_finish(rank, 5, -1, err));
    if (rank->world.rank == rank->world.size - 1)
        st = pd_vfs_unlink(rank->cluster.vfs, "/disk/step-000000000005-1/commit.h5", err);
    PD_TRY(pd_group_agree(&rank->world, st, err));
    st = tier_replicate(rank->tiers->replicator, &job, &why);
    EXPECT(st == PD_STOPPED, "to the other host: %s: %s", pd_status_name(st), why.message);
    job.task = TIER_COPY;
    st = tier_copy(&rank->tiers->tiers[1], &job, &why);
    EXPECT(st == PD_NOT_FOUND, "to the next tier: %s: %s", pd_status_name(st), why.message);
    return PD_OK;
}

Test(bad_tiers, what_one_host_cannot_read_nobody_copies)
{
    const struct pd_tiers_options options = {.tiers = {{.dir = "/disk", .every = 1, .keep_last = 2, .replicas = 1},
                                                       {.dir = "/net/c", .every = 5, .keep_last = 2}},
                                             .count = 2,
                                             .quarantine_bytes_max = 1 << 20};
    struct cluster cluster;
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, copy_what_one_host_cannot_read, NULL);
    cluster_free(&cluster);
}
