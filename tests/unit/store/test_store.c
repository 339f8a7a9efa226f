/* The store on an honest disk: saving, choosing, retention, recycling. Exclusion is in test_claim.c, the
 * campaigns are in tests/crash/store. */
#include "tests/helpers/local_group.h"
#include "tests/helpers/store_cases.h"

#include <errno.h>

TestSuite(store, .init = set_up);

static const struct {
    uint32_t ranks, hosts;
    bool shared;
} worlds[] = {{1, 1, false}, {2, 1, false}, {4, 2, false}, {4, 2, true}, {5, 3, true}, {5, 3, false}};
#define WORLD_COUNT (sizeof worlds / sizeof *worlds)

/* ---- saving and coming back ---- */

static pd_status save_ten(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 10; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return expect_steps(rank, (uint64_t[]){10, 9}, 2, err);
}

static pd_status expect_ten(struct cluster_rank *rank, struct pd_error *err)
{
    return expect_steps(rank, (uint64_t[]){10, 9}, 2, err);
}

Test(store, saves_and_comes_back)
{
    for (size_t i = 0; i < WORLD_COUNT; i++) {
        struct cluster cluster = new_cluster(worlds[i].ranks, worlds[i].hosts, worlds[i].shared);
        struct pd_error err = {0};
        launch(&cluster, save_ten, NULL, PD_OK);
        launch(&cluster, expect_ten, NULL, PD_OK);
        struct pd_store_options look = {.keep_last = 1};
        expect(cluster_launch_with(&cluster, &look, expect_ten, NULL, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* A VFS on host 0 for looking at what lies there between launches. */
static bool exists(struct pd_vfs *vfs, const char *path)
{
    struct pd_stat stat;
    return pd_vfs_stat(vfs, path, &stat, NULL) == PD_OK;
}

static void write_text(struct pd_vfs *vfs, const char *path, const char *text)
{
    struct pd_file *file;
    struct pd_error err = {0};
    expect(pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err), PD_OK, &err);
    expect(pd_file_write(file, 0, text, strlen(text), &err), PD_OK, &err);
    expect(pd_file_close(file, &err), PD_OK, &err);
}

/* ---- a pool that somebody removes ---- */

static pd_status remove_pool(struct pd_vfs *vfs, struct pd_error *err)
{
    struct pd_listing listing = {0};
    char path[256];
    PD_TRY(pd_vfs_list(vfs, CLUSTER_ROOT "/pool-1", &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; st == PD_OK && i < listing.count; i++) {
        snprintf(path, sizeof path, CLUSTER_ROOT "/pool-1/%s", listing.names[i]);
        st = pd_vfs_unlink(vfs, path, err);
    }
    pd_listing_deinit(&listing);
    return st == PD_OK ? pd_vfs_rmdir(vfs, CLUSTER_ROOT "/pool-1", err) : st;
}

static pd_status lose_pool(struct cluster_rank *rank, struct pd_error *err)
{
    char lock[64];
    struct pd_lock *second = NULL;
    snprintf(lock, sizeof lock, CLUSTER_ROOT "/pool-1/lock-%05u", rank->group->rank);
    pd_store_set_index(rank->store, "index", 5);
    for (uint64_t step = 1; step <= 6; step++) {
        if (step == 4)
            PD_TRY(pd_group_agree(rank->group, rank->group->rank == 0 ? remove_pool(rank->vfs, err) : PD_OK, err));
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    if (pd_vfs_lock(rank->vfs, lock, &second, NULL) != PD_BUSY) PD_FAIL(err, PD_BUG, "%s is not locked", lock);
    return expect_steps(rank, (uint64_t[]){6, 5}, 2, err);
}

Test(store, a_pool_that_is_removed_is_made_again)
{
    for (size_t i = 0; i < WORLD_COUNT; i++) {
        struct cluster cluster = new_cluster(worlds[i].ranks, worlds[i].hosts, worlds[i].shared);
        launch(&cluster, lose_pool, NULL, PD_OK);
        cluster_free(&cluster);
    }
}

/* One host misses its pool, the other is another launch's by now: no rank begins. */
static pd_status lose_pool_and_fence(struct cluster_rank *rank, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(0, 2);
    char path[4096];
    pd_status st = PD_OK;
    PD_TRY(cluster_save(rank, 1, err));
    if (rank->group->rank == 0) st = remove_pool(rank->vfs, err);
    if (rank->group->rank == 2) write_text(rank->vfs, CLUSTER_ROOT "/fence-2", "");
    PD_TRY(pd_group_agree(rank->group, st, err));
    st = pd_store_begin(rank->store, &identity, path, err);
    if (st != PD_BUSY) PD_FAIL(err, PD_BUG, "begins with %s", pd_status_name(st));
    return PD_OK;
}

Test(store, a_pool_is_made_again_and_the_launch_is_not_ours)
{
    struct cluster cluster = new_cluster(4, 2, false);
    launch(&cluster, lose_pool_and_fence, NULL, PD_OK);
    cluster_free(&cluster);
}

/* ---- retention, recycling, the index ---- */

static pd_status keep_milestones(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 13; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return expect_steps(rank, (uint64_t[]){13, 12, 10, 5}, 4, err);
}

Test(store, keeps_the_last_and_every_nth)
{
    struct cluster cluster = new_cluster(2, 1, false);
    struct pd_store_options options = cluster_options();
    struct pd_error err = {0};
    options.keep_every = 5;
    expect(cluster_launch_with(&cluster, &options, keep_milestones, NULL, &err), PD_OK, &err);
    cluster_free(&cluster);
}

static uint64_t inode_of(struct cluster_rank *rank, uint64_t step)
{
    char path[256];
    struct pd_stat stat = {0};
    snprintf(path, sizeof path, CLUSTER_ROOT "/step-%012llu-%llu/shard-%05u.h5", (unsigned long long)step,
             (unsigned long long)pd_store_fence(rank->store), rank->group->rank);
    return pd_vfs_stat(rank->vfs, path, &stat, NULL) == PD_OK ? stat.inode : 0;
}

/* The file of a removed checkpoint carries a later one, unless it has a second name. */
static pd_status recycle(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t first = 0, second = 0;
    for (uint64_t step = 1; step <= 4; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
        if (step == 1) first = inode_of(rank, 1);
        if (step == 2) second = inode_of(rank, 2);
        if (step == 2 && rank->group->rank == 0)
            PD_TRY(pd_vfs_link(rank->vfs, CLUSTER_ROOT "/step-000000000002-1/shard-00000.h5", "/backup.h5", err));
    }
    if (inode_of(rank, 4) != first) PD_FAIL(err, PD_BUG, "step 4 does not reuse the file of step 1");
    PD_TRY(cluster_save(rank, 5, err));
    bool is_reused = inode_of(rank, 5) == second;
    if (rank->group->rank == 0 && is_reused) PD_FAIL(err, PD_BUG, "a file with a second name was reused");
    if (rank->group->rank != 0 && !is_reused) PD_FAIL(err, PD_BUG, "step 5 does not reuse the file of step 2");
    return PD_OK;
}

Test(store, recycles_files_nobody_else_knows)
{
    struct cluster cluster = new_cluster(2, 1, false);
    launch(&cluster, recycle, NULL, PD_OK);
    cluster_free(&cluster);
}

/* A shard, or a whole step, that somebody moved to an archive and linked back: retention takes the link, and what it leads to
 * is neither overwritten nor removed. */
static pd_status archive(struct cluster_rank *rank, struct pd_error *err)
{
    static const char shard[] = CLUSTER_ROOT "/step-000000000001-1/shard-00000.h5";
    static const char step[] = CLUSTER_ROOT "/step-000000000002-1";
    struct pd_stat shard_before, step_before, after;
    PD_TRY(cluster_save(rank, 1, err));
    PD_TRY(cluster_save(rank, 2, err));
    PD_TRY(pd_vfs_rename(rank->vfs, shard, "/archived.h5", err));
    PD_TRY(pd_simulated_symlink(rank->vfs, "/archived.h5", shard));
    PD_TRY(pd_vfs_rename(rank->vfs, step, "/archived", err));
    PD_TRY(pd_simulated_symlink(rank->vfs, "/archived", step));
    PD_TRY(pd_vfs_stat(rank->vfs, "/archived.h5", &shard_before, err));
    PD_TRY(pd_vfs_stat(rank->vfs, "/archived/shard-00000.h5", &step_before, err));
    for (uint64_t number = 3; number <= 7; number++) {
        PD_TRY(cluster_save(rank, number, err));
        PD_TRY(pd_store_prune(rank->store, err));
        struct pd_stat stat;
        char path[128];
        snprintf(path, sizeof path, CLUSTER_ROOT "/step-%012llu-1/shard-00000.h5", (unsigned long long)number);
        PD_TRY(pd_vfs_stat(rank->vfs, path, &stat, err));
        if (stat.inode == shard_before.inode || stat.inode == step_before.inode)
            PD_FAIL(err, PD_BUG, "step %llu is written through a link", (unsigned long long)number);
    }
    PD_TRY(pd_vfs_stat(rank->vfs, "/archived.h5", &after, err));
    PD_TRY(pd_vfs_stat(rank->vfs, "/archived/commit.h5", &after, err));
    PD_TRY(pd_vfs_stat(rank->vfs, "/archived/shard-00000.h5", &after, err));
    return after.inode == step_before.inode ? PD_OK : PD_BUG;
}

Test(store, what_is_linked_from_an_archive_stays)
{
    struct cluster cluster = new_cluster(1, 1, false);
    launch(&cluster, archive, NULL, PD_OK);
    cluster_free(&cluster);
}

static pd_status expect_two(struct cluster_rank *rank, struct pd_error *err)
{
    return expect_steps(rank, (uint64_t[]){3, 2}, 2, err);
}

/* A link that retention took away does not come back with a power loss. */
static pd_status remove_link(struct cluster_rank *rank, struct pd_error *err)
{
    static const char step[] = CLUSTER_ROOT "/step-000000000001-1";
    struct pd_simulated_disk **ret_after = rank->context;
    PD_TRY(cluster_save(rank, 1, err));
    PD_TRY(pd_vfs_rename(rank->vfs, step, "/archived", err));
    PD_TRY(pd_simulated_symlink(rank->vfs, "/archived", step));
    PD_TRY(pd_vfs_sync_dir(rank->vfs, "/", err));
    for (uint64_t number = 2; number <= 3; number++)
        PD_TRY(cluster_save(rank, number, err));
    PD_TRY(pd_store_prune(rank->store, err));
    return pd_simulated_disk_clone(rank->cluster->disk, ret_after, err);
}

Test(store, a_link_that_retention_took_stays_away)
{
    struct cluster cluster = new_cluster(1, 1, false);
    struct pd_simulated_disk *after = NULL;
    struct pd_error err = {0};
    launch(&cluster, remove_link, &after, PD_OK);
    for (uint64_t seed = 0; seed < 32; seed++) {
        struct cluster later = cluster;
        expect(pd_simulated_disk_clone(after, &later.disk, &err), PD_OK, &err);
        pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, seed);
        launch(&later, expect_two, NULL, PD_OK);
        cluster_free(&later);
    }
    pd_simulated_disk_free(after);
    cluster_free(&cluster);
}

static pd_status save_on_a_sick_disk(struct cluster_rank *rank, unsigned operations, struct pd_error *err)
{
    struct pd_error why = {0};
    pd_simulated_disk_set_fault(
        rank->cluster->disk,
        &(struct pd_disk_fault){.kind = PD_DISK_FAULT_ERROR, .nth = 1, .persistent = true, .operations = operations});
    const pd_status st = cluster_save(rank, 1, &why);
    pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
    if (st != PD_IO) PD_FAIL(err, PD_BUG, "a save on a sick disk ends with %s: %s", pd_status_name(st), why.message);
    return PD_OK;
}

/* What could not be removed is in the way of what is to be removed later, under the same name: neither stays. */
static pd_status fail_twice(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(save_on_a_sick_disk(rank, PD_DISK_MASK(PD_DISK_SYNC) | PD_DISK_MASK(PD_DISK_UNLINK), err));
    if (count_names(rank->vfs, CLUSTER_ROOT "/pool-1", "trash-") != 1) PD_FAIL(err, PD_BUG, "nothing is in the way");
    PD_TRY(save_on_a_sick_disk(rank, PD_DISK_MASK(PD_DISK_SYNC), err));
    if (count_names(rank->vfs, CLUSTER_ROOT, "step-")) PD_FAIL(err, PD_BUG, "the second save was not removed");
    if (count_names(rank->vfs, CLUSTER_ROOT "/pool-1", "trash-")) PD_FAIL(err, PD_BUG, "what could not be removed stays");
    return cluster_save(rank, 1, err);
}

Test(store, what_could_not_be_removed_is_in_nobodys_way)
{
    struct cluster cluster = new_cluster(1, 1, false);
    launch(&cluster, fail_twice, NULL, PD_OK);
    cluster_free(&cluster);
}

/* Sixty saves leave as many names as ten: nothing piles up. */
static pd_status save_sixty(struct cluster_rank *rank, struct pd_error *err)
{
    uint32_t *counts = rank->context;
    for (uint64_t step = 1; step <= 60; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
        if (step != 10 && step != 60) continue;
        uint32_t *count = &counts[step == 60];
        if (rank->group->rank == 0)
            *count = count_names(rank->vfs, CLUSTER_ROOT, "") + count_names(rank->vfs, CLUSTER_ROOT "/pool-1", "");
        PD_TRY(pd_group_barrier(rank->group, err));
    }
    return PD_OK;
}

Test(store, nothing_piles_up)
{
    struct cluster cluster = new_cluster(4, 2, true);
    uint32_t counts[2] = {0};
    launch(&cluster, save_sixty, counts, PD_OK);
    cr_assert_eq(counts[0], counts[1], "%u names after 10 saves, %u after 60", counts[0], counts[1]);
    struct pd_vfs *vfs = vfs_of(&cluster, 0);
    cr_assert_not(exists(vfs, CLUSTER_ROOT "/pool-1"), "the pool stays after an orderly end");
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

static pd_status save_with_index(struct cluster_rank *rank, struct pd_error *err)
{
    pd_store_set_index(rank->store, "first", 5);
    PD_TRY(cluster_save(rank, 1, err));
    PD_TRY(cluster_save(rank, 2, err));
    pd_store_set_index(rank->store, "second", 6);
    return cluster_save(rank, 3, err);
}

static void expect_text(struct pd_vfs *vfs, const char *path, const char *text)
{
    struct pd_file *file;
    char found[64] = {0};
    struct pd_error err = {0};
    expect(pd_file_open(vfs, path, PD_OPEN_READ, &file, &err), PD_OK, &err);
    expect(pd_file_read(file, 0, found, strlen(text), &err), PD_OK, &err);
    pd_file_close_readonly(file);
    cr_assert_str_eq(found, text);
}

Test(store, index_is_linked_or_copied)
{
    for (unsigned copies = 0; copies < 2; copies++) {
        struct pd_disk_options options = {.seed = 1, .host_count = 1};
        options.mounts[0] = (struct pd_disk_mount){.path = "/", .lacks = copies ? PD_DISK_NO_LINKS : 0};
        struct cluster cluster = {.ranks = 2, .hosts = 1};
        struct pd_error err = {0};
        expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
        launch(&cluster, save_with_index, NULL, PD_OK);
        struct pd_vfs *vfs = vfs_of(&cluster, 0);
        struct pd_stat first, second;
        expect_text(vfs, CLUSTER_ROOT "/step-000000000001-1/index.h5", "first");
        expect_text(vfs, CLUSTER_ROOT "/step-000000000003-1/index.h5", "second");
        expect(pd_vfs_stat(vfs, CLUSTER_ROOT "/step-000000000001-1/index.h5", &first, &err), PD_OK, &err);
        expect(pd_vfs_stat(vfs, CLUSTER_ROOT "/step-000000000002-1/index.h5", &second, &err), PD_OK, &err);
        cr_assert_eq(first.inode == second.inode, !copies);
        pd_vfs_free(vfs);
        cluster_free(&cluster);
    }
}

static pd_status prune_pinned(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(cluster_save(rank, 1, err));
    char name[64];
    memcpy(name, pd_store_entry_at(rank->store, 0)->name, sizeof name);
    pd_store_pin(rank->store, pd_store_entry_at(rank->store, 0));
    for (uint64_t step = 2; step <= 4; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    PD_TRY(expect_steps(rank, (uint64_t[]){4, 3, 1}, 3, err));
    pd_store_unpin(rank->store, name);
    PD_TRY(pd_store_prune(rank->store, err));
    return expect_steps(rank, (uint64_t[]){4, 3}, 2, err);
}

Test(store, what_is_being_loaded_stays)
{
    struct cluster cluster = new_cluster(2, 1, false);
    launch(&cluster, prune_pinned, NULL, PD_OK);
    cluster_free(&cluster);
}

/* ---- choosing ---- */

static pd_status save_lineages(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(cluster_save_lineage(rank, 0, 9, err));
    PD_TRY(cluster_save_lineage(rank, 1, 5, err));
    PD_TRY(cluster_save_lineage(rank, 0, 12, err));
    return expect_steps(rank, (uint64_t[]){5, 12, 9}, 3, err);
}

static pd_status expect_lineages(struct cluster_rank *rank, struct pd_error *err)
{
    return expect_steps(rank, (uint64_t[]){5, 12, 9}, 3, err);
}

Test(store, order_is_lineage_then_step)
{
    struct cluster cluster = new_cluster(1, 1, false);
    launch(&cluster, save_lineages, NULL, PD_OK);
    launch(&cluster, expect_lineages, NULL, PD_OK);
    cluster_free(&cluster);
}

static pd_status newest_is(struct cluster_rank *rank, struct pd_error *err)
{
    const uint64_t *expected = rank->context; /* step, damaged */
    uint64_t step = 0;
    uint32_t damaged = 0;
    PD_TRY(cluster_load_newest(rank, &step, &damaged, err));
    if (step != expected[0] || damaged != expected[1])
        PD_FAIL(err, PD_BUG, "step %llu after %u damaged", (unsigned long long)step, damaged);
    return PD_OK;
}

Test(store, damage_is_quarantined_and_the_one_before_loads)
{
    struct cluster cluster = new_cluster(4, 2, false);
    launch(&cluster, save_three, NULL, PD_OK);
    cr_assert(pd_simulated_disk_flip(cluster.disk, 1, CLUSTER_ROOT "/step-000000000003-1/shard-00002.h5", 1, 7));
    launch(&cluster, newest_is, (uint64_t[]){2, 1}, PD_OK);
    for (uint32_t host = 0; host < 2; host++) {
        struct pd_vfs *vfs = vfs_of(&cluster, host);
        cr_assert(exists(vfs, CLUSTER_ROOT "/quarantine/step-000000000003-1/commit.h5"));
        expect_text(vfs, CLUSTER_ROOT "/quarantine/step-000000000003-1/reason.txt", "found by the test\n");
        pd_vfs_free(vfs);
    }
    launch(&cluster, newest_is, (uint64_t[]){2, 0}, PD_OK);
    cluster_free(&cluster);
}

Test(store, a_damaged_record_is_repaired_from_another_host)
{
    struct cluster cluster = new_cluster(4, 2, false);
    launch(&cluster, save_three, NULL, PD_OK);
    cr_assert(pd_simulated_disk_flip(cluster.disk, 1, CLUSTER_ROOT "/step-000000000003-1/commit.h5", 3, 7));
    launch(&cluster, newest_is, (uint64_t[]){3, 0}, PD_OK);
    pd_simulated_disk_crash(cluster.disk, PD_DISK_ALL_HOSTS, 3);
    cr_assert(pd_simulated_disk_flip(cluster.disk, 0, CLUSTER_ROOT "/step-000000000003-1/commit.h5", 3, 8));
    launch(&cluster, newest_is, (uint64_t[]){3, 0}, PD_OK);
    cluster_free(&cluster);
}

static void lose_record(struct cluster *cluster, uint32_t host)
{
    struct pd_vfs *vfs = vfs_of(cluster, host);
    struct pd_error err = {0};
    expect(pd_vfs_unlink(vfs, CLUSTER_ROOT "/step-000000000003-1/commit.h5", &err), PD_OK, &err);
    expect(pd_vfs_sync_dir(vfs, CLUSTER_ROOT "/step-000000000003-1", &err), PD_OK, &err);
    pd_vfs_free(vfs);
}

/* The record and its name went missing on one host: both are made again, durably, so the other host may lose them next. */
Test(store, a_missing_record_is_made_again)
{
    struct cluster cluster = new_cluster(4, 2, false);
    launch(&cluster, save_three, NULL, PD_OK);
    for (uint32_t host = 0; host < 2; host++) {
        lose_record(&cluster, host);
        launch(&cluster, newest_is, (uint64_t[]){3, 0}, PD_OK);
        for (uint64_t seed = 0; seed < 10; seed++) {
            struct cluster later = cluster;
            struct pd_error err = {0};
            expect(pd_simulated_disk_clone(cluster.disk, &later.disk, &err), PD_OK, &err);
            pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, seed);
            lose_record(&later, 1 - host);
            launch(&later, newest_is, (uint64_t[]){3, 0}, PD_OK);
            cluster_free(&later);
        }
    }
    cluster_free(&cluster);
}

Test(store, a_record_damaged_everywhere_is_quarantined_at_open)
{
    struct cluster cluster = new_cluster(2, 1, false);
    launch(&cluster, save_three, NULL, PD_OK);
    cr_assert(pd_simulated_disk_flip(cluster.disk, 0, CLUSTER_ROOT "/step-000000000003-1/commit.h5", 1, 7));
    launch(&cluster, newest_is, (uint64_t[]){2, 0}, PD_OK);
    struct pd_vfs *vfs = vfs_of(&cluster, 0);
    cr_assert(exists(vfs, CLUSTER_ROOT "/quarantine/step-000000000003-1/shard-00001.h5"));
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

static pd_status quarantine_all(struct cluster_rank *rank, struct pd_error *err)
{
    while (pd_store_count(rank->store))
        PD_TRY(pd_store_quarantine(rank->store, pd_store_entry_at(rank->store, 0), "test", err));
    return PD_OK;
}

Test(store, quarantine_has_a_cap)
{
    static const uint64_t caps[] = {0, 20000, 1 << 20, 1}; /* the last: less than any, which the newest outlives */
    static const uint32_t left[] = {0, 1, 3, 1};
    for (unsigned i = 0; i < 4; i++) {
        struct cluster cluster = new_cluster(1, 1, false);
        struct pd_store_options options = cluster_options();
        struct pd_error err = {0};
        options.quarantine_bytes_max = caps[i];
        launch(&cluster, save_three, NULL, PD_OK);
        struct pd_vfs *vfs = vfs_of(&cluster, 0);
        struct pd_stat shard, commit;
        expect(pd_vfs_stat(vfs, CLUSTER_ROOT "/step-000000000003-1/shard-00000.h5", &shard, &err), PD_OK, &err);
        expect(pd_vfs_stat(vfs, CLUSTER_ROOT "/step-000000000003-1/commit.h5", &commit, &err), PD_OK, &err);
        if (i == 1) options.quarantine_bytes_max = shard.bytes + commit.bytes + 1000;
        expect(cluster_launch_with(&cluster, &options, quarantine_all, NULL, &err), PD_OK, &err);
        cr_assert_eq(count_names(vfs, CLUSTER_ROOT "/quarantine", ""), left[i], "cap %u", i);
        /* The newest to be saved is the last to go. */
        if (left[i] == 1) cr_assert(exists(vfs, CLUSTER_ROOT "/quarantine/step-000000000003-1"), "cap %u", i);
        pd_vfs_free(vfs);
        cluster_free(&cluster);
    }
}

/* ---- what is not ours, and what cannot be read ---- */

Test(store, foreign_files_stay)
{
    struct cluster cluster = new_cluster(2, 1, false);
    struct pd_error err = {0};
    launch(&cluster, save_three, NULL, PD_OK);
    struct pd_vfs *vfs = vfs_of(&cluster, 0);
    expect(pd_vfs_mkdir(vfs, CLUSTER_ROOT "/step-7", &err), PD_OK, &err);
    expect(pd_vfs_mkdir(vfs, CLUSTER_ROOT "/step-000000000007-01", &err), PD_OK, &err);
    expect(pd_vfs_mkdir(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp", &err), PD_OK, &err);
    write_text(vfs, CLUSTER_ROOT "/notes.txt", "mine");
    write_text(vfs, CLUSTER_ROOT "/fence-abc", "mine");
    write_text(vfs, CLUSTER_ROOT "/step-000000000001-1/notes.txt", "mine");
    write_text(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp/notes.txt", "mine");
    write_text(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp/shard-00000.h5", "half");
    pd_vfs_free(vfs);
    launch(&cluster, save_ten, NULL, PD_OK);
    launch(&cluster, expect_ten, NULL, PD_OK);
    vfs = vfs_of(&cluster, 0);
    expect_text(vfs, CLUSTER_ROOT "/notes.txt", "mine");
    expect_text(vfs, CLUSTER_ROOT "/fence-abc", "mine");
    expect_text(vfs, CLUSTER_ROOT "/step-000000000001-1/notes.txt", "mine");
    expect_text(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp/notes.txt", "mine");
    cr_assert(exists(vfs, CLUSTER_ROOT "/step-7") && exists(vfs, CLUSTER_ROOT "/step-000000000007-01"));
    cr_assert_not(exists(vfs, CLUSTER_ROOT "/step-000000000001-1/shard-00000.h5"));
    cr_assert_not(exists(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp/shard-00000.h5"));
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

static pd_status look_only(struct cluster_rank *rank, struct pd_error *err)
{
    (void)rank;
    (void)err;
    return PD_OK;
}

Test(store, looking_changes_nothing)
{
    struct cluster cluster = new_cluster(4, 2, false);
    struct pd_store_options look = {.keep_last = 1};
    struct pd_error err = {0};
    launch(&cluster, save_three, NULL, PD_OK);
    struct pd_vfs *vfs = vfs_of(&cluster, 0);
    expect(pd_vfs_mkdir(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp", &err), PD_OK, &err);
    write_text(vfs, CLUSTER_ROOT "/step-000000000009-1.tmp/shard-00000.h5", "half");
    expect(pd_vfs_unlink(vfs, CLUSTER_ROOT "/step-000000000003-1/commit.h5", &err), PD_OK, &err);
    pd_vfs_free(vfs);
    const unsigned changing = PD_DISK_MASK(PD_DISK_WRITE) | PD_DISK_MASK(PD_DISK_RENAME) | PD_DISK_MASK(PD_DISK_UNLINK) |
                              PD_DISK_MASK(PD_DISK_MKDIR) | PD_DISK_MASK(PD_DISK_RMDIR) | PD_DISK_MASK(PD_DISK_LINK) |
                              PD_DISK_MASK(PD_DISK_TRUNCATE) | PD_DISK_MASK(PD_DISK_LOCK) | PD_DISK_MASK(PD_DISK_SYNC) |
                              PD_DISK_MASK(PD_DISK_SYNC_DIR) | PD_DISK_MASK(PD_DISK_PREALLOCATE);
    struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = 1, .persistent = true, .operations = changing};
    pd_simulated_disk_set_fault(cluster.disk, &fault);
    expect(cluster_launch_with(&cluster, &look, look_only, NULL, &err), PD_OK, &err);
    cr_assert_eq(pd_simulated_disk_count(cluster.disk), 0, "looking made %llu changing operations",
                 (unsigned long long)pd_simulated_disk_count(cluster.disk));
    cluster_free(&cluster);
}

Test(store, looking_at_nothing_says_so)
{
    struct cluster cluster = new_cluster(2, 1, false);
    struct pd_store_options look = {.keep_last = 1};
    struct pd_error err = {0};
    expect(cluster_launch_with(&cluster, &look, look_only, NULL, &err), PD_NOT_FOUND, &err);
    cr_assert(strstr(err.message, CLUSTER_ROOT), "%s", err.message);
    cluster_free(&cluster);
}

/* Reads of the newest record fail for good: going back behind it would throw work away, so open refuses. */
Test(store, an_unreadable_record_is_no_damage)
{
    struct cluster cluster = new_cluster(2, 1, false);
    struct pd_error err = {0};
    launch(&cluster, save_three, NULL, PD_OK);
    struct pd_disk_fault fault = {
        .kind = PD_DISK_FAULT_ERROR, .nth = 2, .persistent = true, .operations = PD_DISK_MASK(PD_DISK_READ)};
    pd_simulated_disk_set_fault(cluster.disk, &fault);
    expect(cluster_launch(&cluster, look_only, NULL, &err), PD_IO, &err);
    cr_assert(strstr(err.message, "step-000000000003-1 is newer than what can be read"), "%s", err.message);
    pd_simulated_disk_set_fault(cluster.disk, NULL);
    launch(&cluster, newest_is, (uint64_t[]){3, 0}, PD_OK);
    cluster_free(&cluster);
}

/* ---- how an open ends on each rank ---- */

struct ends {
    struct cluster_launch launch;
    pd_status ended[4];
    char said[4][1024];
};

static pd_status note_end(struct pd_group *group, void *context, struct pd_error *err)
{
    struct ends *ends = context;
    struct pd_error own = {0};
    const pd_status st = cluster_rank_main(group, &ends->launch, &own);
    ends->ended[group->rank] = st;
    if (st) snprintf(ends->said[group->rank], sizeof ends->said[0], "%s", own.message);
    return pd_error_pass(err, st, &own);
}

static struct ends open_of_four(struct cluster *cluster)
{
    const struct pd_store_options options = cluster_options();
    struct ends ends = {.launch = {cluster, look_only, NULL, &options}};
    (void)!pd_group_run_local(4, 2, note_end, &ends, &(struct pd_error){0});
    return ends;
}

/* The record is missing on one host, and nothing can be done there about it: all ranks end, and say what it was. */
Test(store, a_repair_that_fails_on_one_host_ends_all_alike)
{
    struct cluster cluster = new_cluster(4, 2, false);
    const unsigned changing = PD_DISK_MASK(PD_DISK_RENAME) | PD_DISK_MASK(PD_DISK_SYNC) | PD_DISK_MASK(PD_DISK_SYNC_DIR);
    uint32_t refused = 0;
    launch(&cluster, save_three, NULL, PD_OK);
    lose_record(&cluster, 1);
    for (uint64_t nth = 1; nth <= 16; nth++) {
        struct cluster later = cluster;
        struct pd_error err = {0};
        const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = nth, .operations = changing};
        expect(pd_simulated_disk_clone(cluster.disk, &later.disk, &err), PD_OK, &err);
        pd_simulated_disk_set_fault(later.disk, &fault);
        const struct ends ends = open_of_four(&later);
        refused += ends.ended[0] != PD_OK && strstr(ends.said[0], "rolling step-000000000003-1 forward");
        for (uint32_t r = 1; r < 4; r++)
            cr_assert_eq(ends.ended[r], ends.ended[0], "operation %llu: %s, %s", (unsigned long long)nth, ends.said[r],
                         ends.said[0]);
        cluster_free(&later);
    }
    cr_assert_gt(refused, 0);
    cluster_free(&cluster);
}

/* Records cannot be read: all ranks say why. */
Test(store, what_cannot_be_read_all_ranks_name)
{
    struct cluster cluster = new_cluster(4, 2, false);
    uint32_t refused = 0;
    launch(&cluster, save_three, NULL, PD_OK);
    lose_record(&cluster, 1);
    for (uint64_t nth = 1; nth <= 8; nth++) {
        const struct pd_disk_fault fault = {
            .kind = PD_DISK_FAULT_ERROR, .nth = nth, .persistent = true, .operations = PD_DISK_MASK(PD_DISK_READ)};
        pd_simulated_disk_set_fault(cluster.disk, &fault);
        const struct ends ends = open_of_four(&cluster);
        refused += strstr(ends.said[0], "step-000000000003-1 is newer than what can be read") != NULL;
        for (uint32_t r = 0; r < 4 && ends.ended[0]; r++) {
            cr_assert_eq(ends.ended[r], PD_IO, "%s", ends.said[r]);
            cr_assert(strstr(ends.said[r], "Input/output error"), "%s", ends.said[r]);
        }
    }
    cr_assert_gt(refused, 0);
    cluster_free(&cluster);
}

/* One of two hosts is away: its half is not in sight, nothing is offered and nothing is removed. */
Test(store, an_absent_host_is_no_damage)
{
    struct cluster cluster = new_cluster(4, 2, false), alone;
    struct pd_error err = {0};
    launch(&cluster, save_three, NULL, PD_OK);
    alone = cluster;
    alone.ranks = 2;
    alone.hosts = 1;
    uint64_t none[2] = {0, 0};
    expect(cluster_launch(&alone, newest_is, none, &err), PD_NOT_FOUND, &err);
    launch(&cluster, newest_is, (uint64_t[]){3, 0}, PD_OK);
    cluster_free(&cluster);
}
