/* What goes into which tier, and where a run finds it again. Four ranks on two hosts unless said otherwise. */
#include "ckpt/base/log.h"
#include "ckpt/tiers/internal.h"
#include "tests/helpers/tier_flow.h"

#include <errno.h>

static void set_up(void)
{
    cr_assert_eq(pd_log_configure("error,tiers=error", NULL), PD_OK);
}

TestSuite(tiers, .init = set_up);

static pd_status look_into_all(struct tier_rank *rank, struct pd_error *err)
{
    for (uint32_t t = 0; t < pd_tiers_count(rank->tiers); t++) {
        struct pd_store *store = rank->cluster.store = pd_tiers_store(rank->tiers, t);
        EXPECT(pd_store_count(store) >= 1 && pd_store_count(store) <= (t == 2 ? 3 : 2), "tier %u holds %u", t,
               pd_store_count(store));
        EXPECT(pd_store_entry_at(store, 0)->step == 10, "tier %u has not the last step", t);
        for (uint32_t i = 0; i < pd_store_count(store); i++)
            PD_TRY(cluster_load(&rank->cluster, pd_store_entry_at(store, i), err));
    }
    return PD_OK;
}

Test(tiers, each_tier_gets_the_last_step_and_keeps_its_own)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, save_ten, NULL);
    RUN(&cluster, &options, look_into_all, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 0 && found.step == 10, "of equal ones the earlier tier's: tier %u step %llu", found.tier,
              (unsigned long long)found.step);
    cluster_free(&cluster);
}

Test(tiers, memory_is_gone_after_a_reboot_and_that_is_no_error)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, save_ten, NULL);
    pd_simulated_disk_crash(cluster.disk, PD_DISK_ALL_HOSTS, 7);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 1 && found.step == 10);
    pd_simulated_disk_crash(cluster.disk, 1, 7); /* one host's memory: the other's half is of no use alone */
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 1 && found.step == 10);
    cluster_free(&cluster);
}

/* ---- a tier that fails ---- */

static pd_status save_past_a_failure(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 12; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    struct pd_error why = {0};
    pd_status st = tier_finish(rank, 12, -1, &why);
    EXPECT(st == PD_NO_SPACE, "a tier that is full at the end is told: %s", pd_status_name(st));
    EXPECT(strstr(why.message, "/net/c did not get the last step, 12, which is safe in /shm/c"), "%s", why.message);
    pd_tiers_report(rank->tiers, 2, &report);
    EXPECT(report.failures > 0 && strstr(report.cause, "space"), "%s", report.cause);
    pd_tiers_report(rank->tiers, 1, &report);
    return report.newest_step == 12 && !report.failures ? PD_OK : pd_error_set(err, PD_BUG, PD_WHERE, 0, "tier 1 lacks it");
}

Test(tiers, a_full_tier_is_passed_over_and_told)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    tier_be_quiet();
    make_cluster(&cluster, 0, 150 << 10);
    RUN(&cluster, &options, save_past_a_failure, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 0 && found.step == 12);
    cluster_free(&cluster);
}

static pd_status fail_first(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = 1, .persistent = true, .vfs = rank->cluster.vfs};
    uint32_t tier = 99;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, &tier, err));
    fault.operations = PD_DISK_MASK(PD_DISK_MKDIR);
    fault.persistent = false;
    PD_TRY(tier_finish(rank, 1, -1, err));
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(rank->cluster.cluster->disk, &fault);
    PD_TRY(pd_group_barrier(&rank->world, err));
    PD_TRY(tier_save(rank, 1001, &tier, err));
    EXPECT(tier == 1, "nothing was read when the first tier failed: tier %u was taken", tier);
    PD_TRY(tier_finish(rank, 1001, -1, err));
    fault.persistent = true;
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(rank->cluster.cluster->disk, &fault);
    PD_TRY(pd_group_barrier(&rank->world, err));
    struct pd_error why = {0};
    pd_status st = tier_save(rank, 1002, &tier, &why); /* rank 0 makes directories in every tier: all fail */
    EXPECT(st == PD_IO, "%s", pd_status_name(st));
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(rank->cluster.cluster->disk, NULL);
    PD_TRY(pd_group_barrier(&rank->world, err));
    PD_TRY(tier_save(rank, 1003, &tier, err));
    EXPECT(tier == 0, "where all failed the one that is due is tried again, and tier %u was taken", tier);
    return tier_finish(rank, 1003, -1, err);
}

Test(tiers, none_works_and_then_they_do_again)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, fail_first, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 0 && found.step == 1003);
    cluster_free(&cluster);
}

/* ---- a tier that fails in the middle of a save ---- */

static pd_status save_past_a_broken_disk(struct tier_rank *rank, struct pd_error *err)
{
    uint32_t tier = 99;
    struct tier_saving saving;
    struct pd_tiers_save save = tier_saving_init(&saving, rank, 7, true);
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, &tier, err));
    PD_TRY(tier_finish(rank, 1, -1, err));
    PD_TRY(set_lacks(rank, "/shm", PD_DISK_NO_WRITES, err));
    PD_TRY(tier_save(rank, 4, &tier, err));
    EXPECT(tier == 1, "the same step goes to the next tier, not to %u", tier);
    PD_TRY(set_lacks(rank, "/shm", 0, err));
    PD_TRY(tier_save(rank, 5, &tier, err));
    EXPECT(tier == 0, "tier %u", tier);
    PD_TRY(tier_finish(rank, 5, -1, err));
    PD_TRY(set_lacks(rank, "/shm", PD_DISK_NO_WRITES, err));
    if (rank->world.rank == 2) save.hold = NULL;
    struct pd_error why = {0};
    pd_status st = pd_tiers_save(rank->tiers, &save, &tier, &why);
    EXPECT(st == PD_IO, "what one rank does not have any more is not saved: %s", pd_status_name(st));
    PD_TRY(tier_save(rank, 8, &tier, err));
    EXPECT(tier == 1, "tier %u", tier);
    PD_TRY(tier_finish(rank, 8, -1, err)); /* /shm is memory, so nobody misses it now */
    return PD_OK;
}

Test(tiers, a_step_goes_to_the_next_tier_while_it_is_still_there)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, save_past_a_broken_disk, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 1 && found.step == 8, "tier %u step %llu", found.tier, (unsigned long long)found.step);
    cluster_free(&cluster);
}

/* /net has its copy of step 1, so /disk may let go of it with its next job, which fails. */
static pd_status fail_with_an_unpin_pending(struct tier_rank *rank, struct pd_error *err)
{
    uint32_t tier = 99;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(set_lacks(rank, "/shm", PD_DISK_NO_WRITES, err));
    PD_TRY(tier_save(rank, 1, &tier, err));
    EXPECT(tier == 1, "tier %u", tier);
    tier_worker_wait(&rank->tiers->tiers[2].worker, -1);
    PD_TRY(set_lacks(rank, "/disk", PD_DISK_NO_WRITES, err));
    PD_TRY(tier_save(rank, 2, &tier, err));
    EXPECT(tier == 2, "tier %u", tier);
    PD_TRY(set_lacks(rank, "/disk", 0, err));
    for (uint64_t step = 3; step <= 12; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    PD_TRY(tier_finish(rank, 12, -1, err));
    struct pd_store *store = rank->tiers->tiers[1].store;
    EXPECT(pd_store_entry_at(store, 0)->step == 12, "/disk lacks the last step");
    for (uint32_t i = 0; i < pd_store_count(store); i++)
        EXPECT(pd_store_entry_at(store, i)->step != 1, "step 1 is pinned for ever");
    return PD_OK;
}

Test(tiers, a_save_that_fails_leaves_no_pin_behind)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    options.tiers[1].every = options.tiers[2].every = 1;
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, fail_with_an_unpin_pending, NULL);
    cluster_free(&cluster);
}

static pd_status save_slowly(struct tier_rank *rank, uint64_t first, uint64_t last, struct pd_error *err)
{
    for (uint64_t step = first; step <= last; step++) {
        PD_TRY(tier_save(rank, step, NULL, err));
        tier_worker_wait(&rank->tiers->tiers[1].worker, -1);
        PD_TRY(pd_group_barrier(&rank->world, err));
    }
    return PD_OK;
}

/* A save takes a second. /net is due at step 100 and fails for a minute. */
static pd_status fail_for_a_minute(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(set_lacks(rank, "/net", PD_DISK_NO_WRITES, err));
    PD_TRY(save_slowly(rank, 100, 163, err));
    pd_tiers_report(rank->tiers, 1, &report);
    EXPECT(report.failures >= 6 && report.failures <= 8, "%u attempts in a minute", report.failures);
    PD_TRY(set_lacks(rank, "/net", 0, err));
    PD_TRY(save_slowly(rank, 164, 190, err));
    pd_tiers_report(rank->tiers, 1, &report);
    EXPECT(report.newest_step > 163, "it works again and has step %llu", (unsigned long long)report.newest_step);
    return PD_OK;
}

Test(tiers, a_copy_that_fails_is_tried_again_after_seconds_and_not_when_the_tier_is_due_next)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    options.tiers[1] = options.tiers[2];
    options.tiers[1].every = 100;
    options.count = 2;
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, fail_for_a_minute, NULL);
    cluster_free(&cluster);
}

/* Everything of step 2 is written to /net but the name that makes it a checkpoint. */
static pd_status fail_to_commit_a_copy(struct tier_rank *rank, struct pd_error *err)
{
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR,
                                        .nth = 1,
                                        .persistent = true,
                                        .sys_errno = EIO,
                                        .operations = PD_DISK_MASK(PD_DISK_RENAME),
                                        .vfs = rank->cluster.vfs};
    struct pd_simulated_disk *disk = rank->cluster.cluster->disk;
    struct pd_tier_report report;
    struct pd_error why = {0};
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, NULL, err));
    PD_TRY(tier_finish(rank, 1, -1, err));
    PD_TRY(tier_save(rank, 2, NULL, err)); /* /net is not due */
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(disk, &fault);
    PD_TRY(pd_group_barrier(&rank->world, err));
    const pd_status st = tier_finish(rank, 2, -1, &why);
    EXPECT(st == PD_IO && strstr(why.message, "/net/c did not get the last step, 2"), "%s", why.message);
    EXPECT(pd_simulated_disk_fired(disk) > 0, "nothing was renamed");
    pd_tiers_report(rank->tiers, 1, &report);
    EXPECT(report.newest_step == 1 && report.failures == 1, "step %llu is reported, %u failures",
           (unsigned long long)report.newest_step, report.failures);
    PD_TRY(pd_group_barrier(&rank->world, err));
    if (rank->world.rank == 0) pd_simulated_disk_set_fault(disk, NULL);
    PD_TRY(pd_group_barrier(&rank->world, err));
    PD_TRY(tier_save(rank, 3, NULL, err));
    PD_TRY(tier_finish(rank, 3, -1, err));
    pd_tiers_report(rank->tiers, 1, &report);
    EXPECT(report.newest_step == 3, "step %llu is reported", (unsigned long long)report.newest_step);
    return PD_OK;
}

Test(tiers, a_copy_is_reported_when_it_is_committed)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    options.tiers[1] = options.tiers[2];
    options.count = 2;
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, fail_to_commit_a_copy, NULL);
    cluster_free(&cluster);
}

/* /net is a mount point itself: without its file system an empty directory is there. */
static pd_status lose_the_disk(struct tier_rank *rank, struct pd_error *err)
{
    const bool moves = rank->world.rank == 0;
    struct pd_vfs *vfs = rank->cluster.vfs;
    struct pd_tier_report report;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 5, NULL, err));
    PD_TRY(tier_finish(rank, 5, -1, err));
    pd_status st = moves ? pd_vfs_rename(vfs, "/net/c", "/net/away", err) : PD_OK;
    if (moves && !st) st = pd_vfs_mkdir(vfs, "/net/c", err);
    PD_TRY(pd_group_agree(&rank->world, st, err));
    for (uint64_t step = 6; step <= 10; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    struct pd_error why = {0};
    st = tier_finish(rank, 10, -1, &why);
    EXPECT(st == PD_IO && strstr(why.message, "is its file system mounted?"), "%s: %s", pd_status_name(st), why.message);
    pd_tiers_report(rank->tiers, 1, &report);
    EXPECT(report.newest_step == 10, "the others continue");
    PD_TRY(pd_group_barrier(&rank->world, err));
    st = moves ? pd_vfs_rmdir(vfs, "/net/c", err) : PD_OK; /* nothing was written there */
    if (moves && !st) st = pd_vfs_rename(vfs, "/net/away", "/net/c", err);
    PD_TRY(pd_group_agree(&rank->world, st, err));
    for (uint64_t step = 11; step <= 30; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    return tier_finish(rank, 30, -1, err);
}

static void count_recoveries(void *context, const char *line, size_t bytes)
{
    static const char words[] = "/net/c works again: it has step ";
    (void)bytes;
    if (strstr(line, words)) atomic_fetch_add((atomic_uint *)context, 1);
}

Test(tiers, one_that_is_unmounted_meanwhile_is_passed_over_until_it_is_back)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    atomic_uint recoveries = 0;
    cr_assert_eq(pd_log_configure("info", NULL), PD_OK);
    pd_log_set_sink(count_recoveries, &recoveries);
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, lose_the_disk, NULL);
    cr_assert_eq(recoveries, 1u, "%u times", recoveries);
    tier_be_quiet();
    options.tiers[0] = options.tiers[2];
    options.count = 1;
    RUN(&cluster, &options, look, &found);
    cr_assert_eq(found.step, 30);
    cluster_free(&cluster);
}

static pd_status lack_in_the_first(struct tier_rank *rank, struct pd_error *err)
{
    const unsigned lacks = *(const unsigned *)rank->context;
    struct pd_error why = {0};
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 9, NULL, err));
    PD_TRY(tier_finish(rank, 9, -1, err));
    PD_TRY(set_lacks(rank, "/disk", PD_DISK_NO_WRITES, err));
    PD_TRY(tier_save(rank, 10, NULL, err));
    PD_TRY(set_lacks(rank, "/disk", lacks, err));
    pd_status st = tier_finish(rank, 10, lacks ? 0 : -1, &why);
    EXPECT(!st, "%s", why.message); /* asked again it gets it; who is asked to leave has it on another disk */
    if (!lacks) return PD_OK;
    st = tier_finish(rank, 10, -1, &why);
    EXPECT(st == PD_IO && strstr(why.message, "/disk did not get the last step, 10, which is safe in /net/c"), "%s",
           why.message);
    return PD_OK;
}

/* The faster tier lacks the last step though the slower one has it. */
Test(tiers, the_end_of_a_run_tells_of_a_faster_tier_too)
{
    struct pd_tiers_options options = three_tiers();
    tier_be_quiet();
    options.tiers[0] = options.tiers[1];
    options.tiers[1] = options.tiers[2];
    options.tiers[0].every = options.tiers[1].every = 1;
    options.count = 2;
    for (unsigned lacks = 0; lacks <= PD_DISK_NO_WRITES; lacks += PD_DISK_NO_WRITES) {
        struct cluster cluster;
        make_cluster(&cluster, 0, 0);
        RUN(&cluster, &options, lack_in_the_first, &lacks);
        cluster_free(&cluster);
    }
}

/* Memory that fills up while others work: the next tier takes over. */
static pd_status outgrow_memory(struct tier_rank *rank, struct pd_error *err)
{
    uint32_t tier = 99, elsewhere = 0;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 8; step++) {
        PD_TRY(tier_save(rank, step, &tier, err));
        if (tier) elsewhere = tier;
    }
    EXPECT(elsewhere == 1, "no save went to the second tier");
    return tier_finish(rank, 8, -1, err);
}

Test(tiers, the_next_tier_takes_over)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    options.tiers[0].keep_last = 9;
    tier_be_quiet();
    make_cluster(&cluster, 5 * 32 << 10, 0);
    RUN(&cluster, &options, outgrow_memory, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert_eq(found.step, 8);
    cluster_free(&cluster);
}

/* ---- slow tiers ---- */

static pd_status save_past_a_slow_one(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    for (uint64_t step = 1; step <= 9; step++)
        PD_TRY(tier_save(rank, step, NULL, err));
    pd_tiers_report(rank->tiers, 1, &report);
    EXPECT(report.newest_step == 0 && report.skipped == 7, "%llu are skipped", (unsigned long long)report.skipped);
    struct pd_store *first = pd_tiers_store(rank->tiers, 0);
    EXPECT(pd_store_count(first) == 3, "2 are kept and one is being read, not %u", pd_store_count(first));
    EXPECT(pd_store_entry_at(first, 2)->step == 1, "what is being read is kept");
    rank->tiers->tiers[1].bytes_per_second = 0; /* of the next copy */
    return tier_finish(rank, 9, 0, err);        /* gives up the one that would take for ever */
}

Test(tiers, a_slow_tier_skips_to_the_newest)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    options.count = 2;
    options.tiers[1].every = 1;
    options.tiers[1].bandwidth = 1;
    tier_be_quiet();
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, save_past_a_slow_one, NULL);
    pd_simulated_disk_crash(cluster.disk, PD_DISK_ALL_HOSTS, 3);
    options.tiers[1].bandwidth = 0;
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 1 && found.step == 9, "tier %u step %llu", found.tier, (unsigned long long)found.step);
    cluster_free(&cluster);
}

/* ---- cluster ---- */

static pd_status check_cluster(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_tier_report report;
    PD_TRY(pd_tiers_check_space(rank->tiers, SHARD_SPACE, 0, err));
    pd_tiers_report(rank->tiers, 0, &report);
    EXPECT(report.is_left_out, "memory that is too small is left out");
    PD_TRY(pd_tiers_start(rank->tiers, err));
    uint32_t tier = 0;
    PD_TRY(tier_save(rank, 1, &tier, err));
    EXPECT(tier == 1, "tier %u was taken", tier);
    PD_TRY(tier_save(rank, 10, &tier, err));
    return tier_finish(rank, 10, -1, err);
}

Test(tiers, memory_that_is_too_small_is_left_out)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct pd_error err = {0};
    struct found found = {99, 0};
    tier_be_quiet();
    make_cluster(&cluster, 9 * SHARD_SPACE, 0); /* two ranks a host: 2 are kept, one is written, two are read: 10 */
    RUN(&cluster, &options, check_cluster, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 1 && found.step == 10);
    options.count = 1;
    options.tiers[0].keep_last = 4;
    cr_assert_eq(tier_run(&cluster, &options, check_cluster, NULL, &err), PD_NO_SPACE, "alone it is refused");
    cr_assert(strstr(err.message, "is in memory"), "%s", err.message);
    cluster_free(&cluster);
}

static pd_status reserve_room(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_store *store = pd_tiers_store(rank->tiers, 0);
    struct pd_tier_report report;
    bool *fits = rank->context;
    for (unsigned times = 0; times < 2; times++) { /* without the files, and beside them */
        PD_TRY(pd_tiers_check_space(rank->tiers, SHARD_SPACE, 0, err));
        pd_tiers_report(rank->tiers, 0, &report);
        if (rank->world.rank == 0) *fits = !report.is_left_out;
        if (report.is_left_out) return PD_OK;
        PD_TRY(pd_group_agree(&rank->world, pd_store_generations_reserve(store, SHARD_SPACE, err), err));
        EXPECT(pd_store_free_bytes(store) == 6ull * SHARD_SPACE, "%llu bytes wait for a rank, in files of %u",
               (unsigned long long)pd_store_free_bytes(store), SHARD_SPACE);
    }
    return PD_OK;
}

/* Two ranks a host: 2 checkpoints are kept, one file is read, one is written, two are copied from: 12. What waits counts, of
 * this launch and of the one before. */
Test(tiers, memory_is_counted_for_state_in_files)
{
    for (uint32_t shards = 11; shards <= 12; shards++) {
        struct cluster cluster;
        struct pd_tiers_options options = three_tiers();
        options.generations = true;
        tier_be_quiet();
        make_cluster(&cluster, (uint64_t)shards * SHARD_SPACE + SHARD_SPACE / 2, 0);
        cr_assert_eq(pd_tiers_checkpoints(options.tiers, 3, 0, true), 6); /* what plans say */
        for (unsigned launches = 0; launches < 2; launches++) {
            bool fits = false;
            RUN(&cluster, &options, reserve_room, &fits);
            cr_assert_eq(fits, shards == 12, "room for %u shards, launch %u", shards, launches);
        }
        cluster_free(&cluster);
    }
}

/* ---- runs and launches ---- */

Test(tiers, two_runs_in_one_list_are_refused)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers(), other = three_tiers();
    struct pd_error err = {0};
    make_cluster(&cluster, 0, 0);
    options.count = 2;
    RUN(&cluster, &options, save_ten, NULL);
    other.tiers[0] = other.tiers[2];
    other.tiers[0].every = 1;
    other.count = 1;
    RUN(&cluster, &other, save_other_run, NULL);
    options.count = 3;
    cr_assert_eq(tier_run(&cluster, &options, save_ten, NULL, &err), PD_INVALID);
    cr_assert(strstr(err.message, "/net/c of run"), "%s", err.message);
    cluster_free(&cluster);
}

static pd_status only_finish(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    return tier_finish(rank, 10, -1, err);
}

Test(tiers, what_an_earlier_launch_saved_comes_from_memory_at_the_end)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    make_cluster(&cluster, 0, 0);
    options.count = 1;
    RUN(&cluster, &options, save_ten, NULL);
    options.count = 3;
    RUN(&cluster, &options, only_finish, NULL);
    RUN(&cluster, &options, look_into_all, NULL);
    cluster_free(&cluster);
}

/* Intervals need not divide each other: what is due in a later tier alone is saved there. */
static pd_status save_odd(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    static const uint32_t expected[] = {99, 99, 1, 0, 99, 1, 99, 0, 1, 99, 99, 0};
    for (uint64_t step = 1; step <= 12; step++) {
        uint32_t tier = 99;
        if (pd_tiers_is_due(rank->tiers, step)) PD_TRY(tier_save(rank, step, &tier, err));
        EXPECT(tier == expected[step - 1], "step %llu: tier %u", (unsigned long long)step, tier);
    }
    return tier_finish(rank, 12, -1, err);
}

Test(tiers, intervals_that_do_not_divide)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct found found = {99, 0};
    options.tiers[0].every = 4;
    options.tiers[1].every = 3;
    options.tiers[2].every = 0;
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, save_odd, NULL);
    RUN(&cluster, &options, look, &found);
    cr_assert(found.tier == 0 && found.step == 12);
    cluster_free(&cluster);
}

/* ---- two launches, on machines that share nothing but /net ---- */

static pd_status be_disturbed(struct tier_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 5, NULL, err));
    PD_TRY(tier_start_second(rank, rank->context, err));
    PD_TRY(tier_save(rank, 6, NULL, err));
    return tier_finish(rank, 6, -1, err);
}

Test(tiers, a_second_launch_is_refused_by_any_tier_they_share)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct tier_second second = {.cluster = &cluster, .first_host = 2, .options = &options, .script = save_ten};
    make_cluster(&cluster, 0, 0);
    RUN(&cluster, &options, be_disturbed, &second);
    cr_assert_eq(second.status, PD_BUSY, "%s", second.error.message);
    cr_assert(strstr(second.error.message, "/net/c"), "%s", second.error.message);
    cluster_free(&cluster);
}

static pd_status be_overtaken(struct tier_rank *rank, struct pd_error *err)
{
    struct pd_error why = {0};
    pd_status st = PD_OK;
    PD_TRY(pd_tiers_start(rank->tiers, err));
    PD_TRY(tier_save(rank, 1, NULL, err));
    PD_TRY(tier_start_second(rank, rank->context, err));
    for (uint64_t step = 2; step <= 10 && !st; step++)
        st = tier_save(rank, step, NULL, &why);
    if (!st) st = tier_finish(rank, 10, -1, &why);
    EXPECT(st == PD_BUSY && strstr(why.message, "has taken over"), "%s: %s", pd_status_name(st), why.message);
    return PD_OK;
}

Test(tiers, a_launch_that_was_overtaken_in_one_tier_stops)
{
    struct cluster cluster;
    struct pd_tiers_options options = three_tiers();
    struct tier_second second = {.cluster = &cluster, .first_host = 2, .options = &options, .script = save_ten};
    struct pd_error err = {0};
    struct found found = {99, 0};
    tier_be_quiet();
    cr_assert_eq(tier_cluster_new(&cluster, 4, 2, 0, 0, PD_DISK_NO_LOCKS, &err), PD_OK, "%s", err.message);
    RUN(&cluster, &options, be_overtaken, &second);
    cr_assert_eq(second.status, PD_OK, "%s", second.error.message);
    options.tiers[0] = options.tiers[2];
    options.count = 1;
    RUN(&cluster, &options, look, &found);
    cr_assert_eq(found.step, 10, "what the second has sealed stays");
    cluster_free(&cluster);
}
