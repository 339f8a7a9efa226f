/* Who owns a store: one launch at a time, the newest where locks do not work, and nothing taken from a worker that lives on.
 */
#include "tests/helpers/store_cluster.h"
#include "tests/helpers/store_expect.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

TestSuite(store_claim, .init = set_up);

static struct cluster cluster_that_lacks(uint32_t ranks, uint32_t hosts, bool shared, unsigned lacks)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 4};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .lacks = lacks, .shared = shared};
    struct cluster cluster = {.ranks = ranks, .hosts = hosts, .shared = shared};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    return cluster;
}

/* A launch of one rank on a host, opened and kept open by hand. */
struct lone_launch {
    struct pd_group group;
    struct pd_vfs *vfs;
    struct pd_store *store;
};

static pd_status lone_open(struct cluster *cluster, uint32_t host, struct lone_launch *launch, struct pd_error *err)
{
    struct pd_store_options options = cluster_options();
    pd_group_init_single(&launch->group);
    launch->store = NULL;
    expect(pd_simulated_disk_vfs(cluster->disk, host, &launch->vfs, err), PD_OK, err);
    return pd_store_open(launch->vfs, CLUSTER_ROOT, &options, &launch->group, &launch->store, err);
}

static void lone_close(struct lone_launch *launch)
{
    pd_store_close(launch->store);
    pd_vfs_free(launch->vfs);
}

static pd_status save_one(struct cluster_rank *rank, struct pd_error *err)
{
    return cluster_save(rank, *(const uint64_t *)rank->context, err);
}

static pd_status fence_is(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t expected = *(const uint64_t *)rank->context;
    if (pd_store_fence(rank->store) != expected)
        PD_FAIL(err, PD_BUG, "fence %llu, expected %llu", (unsigned long long)pd_store_fence(rank->store),
                (unsigned long long)expected);
    return pd_store_check_fence(rank->store, err);
}

Test(store_claim, fences_grow_with_each_launch)
{
    struct cluster cluster = cluster_that_lacks(4, 2, false, 0);
    for (uint64_t fence = 1; fence <= 5; fence++) {
        struct pd_error err = {0};
        expect(cluster_launch(&cluster, fence_is, &fence, &err), PD_OK, &err);
    }
    cluster_free(&cluster);
}

/* Also when somebody deletes the fence files: the names of checkpoints remember. */
Test(store_claim, a_fence_never_comes_twice)
{
    struct cluster cluster = cluster_that_lacks(2, 1, false, 0);
    struct pd_error err = {0};
    uint64_t step = 7, fence = 2;
    struct pd_vfs *vfs;
    expect(cluster_launch(&cluster, save_one, &step, &err), PD_OK, &err);
    expect(pd_simulated_disk_vfs(cluster.disk, 0, &vfs, &err), PD_OK, &err);
    expect(pd_vfs_unlink(vfs, CLUSTER_ROOT "/fence-1", &err), PD_OK, &err);
    pd_vfs_free(vfs);
    expect(cluster_launch(&cluster, fence_is, &fence, &err), PD_OK, &err);
    cluster_free(&cluster);
}

static pd_status expect_busy(struct cluster_rank *rank, struct pd_error *err)
{
    pd_status st = PD_OK;
    if (rank->group->rank == 0) {
        struct lone_launch second;
        struct pd_error why = {0};
        for (uint32_t host = 0; host < rank->group->host_count && st == PD_OK; host++) {
            pd_status found = lone_open(rank->cluster, host, &second, &why);
            if (found != PD_BUSY)
                st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "a second launch gets %s", pd_status_name(found));
            bool is_clear =
                strstr(why.message, "another run or writer is using this directory (rank ") && strstr(why.message, "process ");
            if (!is_clear) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "unclear: %s", why.message);
            lone_close(&second);
        }
    }
    PD_TRY(pd_group_agree(rank->group, st, err));
    /* The attempt has not hurt the first one. */
    PD_TRY(pd_store_check_fence(rank->store, err));
    return cluster_save(rank, 1, err);
}

Test(store_claim, a_second_launch_is_refused_on_every_host)
{
    for (unsigned shared = 0; shared < 2; shared++) {
        struct cluster cluster = cluster_that_lacks(4, 2, shared, 0);
        struct pd_error err = {0};
        expect(cluster_launch(&cluster, expect_busy, NULL, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* The first launch is on host 1 only; the second one's rank 0 finds host 0 free and must still leave. */
Test(store_claim, a_launch_on_another_host_of_ours_is_met)
{
    struct cluster cluster = cluster_that_lacks(4, 2, false, 0);
    struct lone_launch first;
    struct pd_error err = {0};
    uint64_t step = 1;
    expect(lone_open(&cluster, 1, &first, &err), PD_OK, &err);
    expect(cluster_launch(&cluster, save_one, &step, &err), PD_BUSY, &err);
    cr_assert(strstr(err.message, "rank 2: another run or writer is using this directory (rank 0, process"), "%s", err.message);
    expect(pd_store_check_fence(first.store, &err), PD_OK, &err);
    lone_close(&first);
    expect(cluster_launch(&cluster, save_one, &step, &err), PD_OK, &err);
    cluster_free(&cluster);
}

struct racer {
    struct cluster *cluster;
    atomic_uint *open_now;
    unsigned won;
    pthread_t thread;
};

/* Opens again and again; while it has the store nobody else may. */
static void *race(void *argument)
{
    struct racer *racer = argument;
    for (unsigned round = 0; round < 30; round++) {
        struct lone_launch launch;
        struct pd_error err = {0};
        pd_status st = lone_open(racer->cluster, 0, &launch, &err);
        if (st == PD_OK) {
            racer->won++;
            if (atomic_fetch_add(racer->open_now, 1) != 0) racer->won = 1000000;
            (void)!pd_store_check_fence(launch.store, NULL);
            atomic_fetch_sub(racer->open_now, 1);
        } else if (st != PD_BUSY) {
            racer->won = 2000000;
        }
        lone_close(&launch);
    }
    return NULL;
}

Test(store_claim, racing_launches_take_turns)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    atomic_uint open_now = 0;
    struct racer racers[4];
    unsigned won = 0;
    for (unsigned i = 0; i < 4; i++) {
        racers[i] = (struct racer){.cluster = &cluster, .open_now = &open_now};
        cr_assert_eq(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(racers[i].thread, NULL);
        cr_assert_lt(racers[i].won, 1000000u, "racer %u: two at once, or an error that is not PD_BUSY", i);
        won += racers[i].won;
    }
    cr_assert_gt(won, 0u);
    cluster_free(&cluster);
}

/* ---- where locks exclude nobody ---- */

struct zombie {
    struct pd_identity identity;
    struct pd_shard_summary summary;
    struct pd_run_state state;
};

/* Everything but the seal. */
static pd_status write_uncommitted(struct cluster_rank *rank, uint64_t step, struct zombie *zombie, struct pd_error *err)
{
    char path[4096];
    uint32_t r = rank->group->rank;
    *zombie = (struct zombie){.identity = cluster_identity(0, step)};
    cluster_state(rank, &zombie->state, 0, step);
    cluster_fill(rank->values, 0, step, r);
    const void *data[2] = {rank->values, rank->values + CLUSTER_ROWS * 3};
    PD_TRY(pd_store_begin(rank->store, &zombie->identity, path, err));
    return pd_shard_write(rank->writer, path, &zombie->identity, r, data, &zombie->summary, err);
}

static pd_status is_taken_over(pd_status st, struct pd_error *err)
{
    if (st != PD_BUSY) PD_FAIL(err, PD_BUG, "a zombie gets %s", pd_status_name(st));
    if (!strstr(err->message, "launch 2 has taken over " CLUSTER_ROOT " from this one, launch 1: this one must stop"))
        PD_FAIL(err, PD_BUG, "unclear: %s", err->message);
    return PD_OK;
}

/* Written, overtaken, sealing: another launch has come in between. */
static pd_status be_overtaken(struct cluster_rank *rank, struct pd_error *err)
{
    struct zombie zombie;
    struct lone_launch second;
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(cluster_save(rank, step, err));
    PD_TRY(write_uncommitted(rank, 4, &zombie, err));
    PD_TRY(lone_open(rank->cluster, 0, &second, err));
    uint32_t offered = pd_store_count(second.store);
    PD_TRY(is_taken_over(pd_store_commit(rank->store, PD_OK, &zombie.summary, &zombie.state, err), err));
    PD_TRY(is_taken_over(pd_store_prune(rank->store, err), err));
    PD_TRY(is_taken_over(pd_store_quarantine(rank->store, pd_store_entry_at(rank->store, 0), "zombie", err), err));
    PD_TRY(is_taken_over(pd_store_begin(rank->store, &zombie.identity, (char[4096]){0}, err), err));
    PD_TRY(is_taken_over(pd_store_check_fence(rank->store, err), err));
    lone_close(&second);
    if (offered != 3) PD_FAIL(err, PD_BUG, "the second launch sees %u checkpoints", offered);
    return PD_OK;
}

static pd_status three_are_there(struct cluster_rank *rank, struct pd_error *err)
{
    if (pd_store_count(rank->store) != 3) PD_FAIL(err, PD_BUG, "%u checkpoints", pd_store_count(rank->store));
    for (uint32_t i = 0; i < 3; i++)
        PD_TRY(cluster_load(rank, pd_store_entry_at(rank->store, i), err));
    return PD_OK;
}

Test(store_claim, a_zombie_neither_seals_nor_removes)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, PD_DISK_NO_LOCKS);
    struct pd_error err = {0};
    expect(cluster_launch(&cluster, be_overtaken, NULL, &err), PD_OK, &err);
    expect(cluster_launch(&cluster, three_are_there, NULL, &err), PD_OK, &err);
    cluster_free(&cluster);
}

/* Only the fence of the next launch is there yet: nothing else stops the seal. */
static pd_status meet_a_fence(struct cluster_rank *rank, struct pd_error *err)
{
    struct zombie zombie;
    struct pd_stat stat;
    pd_status st = write_uncommitted(rank, 4, &zombie, err);
    if (st == PD_OK && rank->group->rank == 0) {
        struct pd_file *file;
        st = pd_file_open(rank->vfs, CLUSTER_ROOT "/fence-2", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err);
        if (st == PD_OK) st = pd_file_close(file, err);
    }
    PD_TRY(pd_group_agree(rank->group, st, err));
    PD_TRY(is_taken_over(pd_store_commit(rank->store, PD_OK, &zombie.summary, &zombie.state, err), err));
    if (pd_vfs_stat(rank->vfs, CLUSTER_ROOT "/step-000000000004-1", &stat, err) == PD_OK)
        PD_FAIL(err, PD_BUG, "committed under an old fence");
    return PD_OK;
}

Test(store_claim, a_newer_fence_stops_the_seal)
{
    for (unsigned shared = 0; shared < 2; shared++) {
        struct cluster cluster = cluster_that_lacks(4, 2, shared, 0);
        struct pd_error err = {0};
        expect(cluster_launch(&cluster, meet_a_fence, NULL, &err), PD_OK, &err);
        cluster_free(&cluster);
    }
}

/* The launch is dead, but the worker of rank 1 still writes the shard it began: its pool and files are not reused. */
static pd_status outlive(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 3; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return PD_OK;
}

static uint64_t inode_of(struct pd_vfs *vfs, const char *path)
{
    struct pd_stat stat = {0};
    return pd_vfs_stat(vfs, path, &stat, NULL) == PD_OK ? stat.inode : 0;
}

static uint64_t free_inode, found_inode;

static pd_status save_and_note(struct cluster_rank *rank, struct pd_error *err)
{
    char path[128];
    PD_TRY(cluster_save(rank, 9, err));
    snprintf(path, sizeof path, CLUSTER_ROOT "/step-000000000009-%llu/shard-00000.h5",
             (unsigned long long)pd_store_fence(rank->store));
    found_inode = inode_of(rank->vfs, path);
    return PD_OK;
}

/* Ends like a kill: the store is never closed, so its pool stays. */
static void die_with_a_pool(struct cluster *cluster, struct pd_vfs **ret_watcher)
{
    struct pd_error err = {0};
    expect(cluster_launch(cluster, outlive, NULL, &err), PD_OK, &err);
    expect(pd_simulated_disk_vfs(cluster->disk, 0, ret_watcher, &err), PD_OK, &err);
    struct pd_file *file;
    expect(pd_vfs_mkdir(*ret_watcher, CLUSTER_ROOT "/pool-1", &err), PD_OK, &err);
    expect(pd_file_open(*ret_watcher, CLUSTER_ROOT "/pool-1/recycle-00000-0", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err),
           PD_OK, &err);
    expect(pd_file_close(file, &err), PD_OK, &err);
    expect(pd_file_open(*ret_watcher, CLUSTER_ROOT "/pool-1/lock-00000", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err), PD_OK,
           &err);
    expect(pd_file_close(file, &err), PD_OK, &err);
    free_inode = inode_of(*ret_watcher, CLUSTER_ROOT "/pool-1/recycle-00000-0");
}

Test(store_claim, a_dead_launchs_files_are_taken_over)
{
    static const unsigned lacks[] = {0, PD_DISK_NO_LOCKS};
    for (unsigned i = 0; i < 2; i++) {
        struct cluster cluster = cluster_that_lacks(1, 1, false, lacks[i]);
        struct pd_vfs *watcher;
        struct pd_error err = {0};
        die_with_a_pool(&cluster, &watcher);
        expect(cluster_launch(&cluster, save_and_note, NULL, &err), PD_OK, &err);
        cr_assert_eq(found_inode == free_inode, i == 0, "with locks they are reused, without they are not");
        cr_assert_eq(inode_of(watcher, CLUSTER_ROOT "/pool-1"), 0);
        pd_vfs_free(watcher);
        cluster_free(&cluster);
    }
}

Test(store_claim, a_living_workers_files_are_left_alone)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    struct pd_vfs *watcher;
    struct pd_lock *lock;
    struct pd_error err = {0};
    die_with_a_pool(&cluster, &watcher);
    expect(pd_vfs_lock(watcher, CLUSTER_ROOT "/pool-1/lock-00000", &lock, &err), PD_OK, &err);
    expect(cluster_launch(&cluster, save_and_note, NULL, &err), PD_OK, &err);
    cr_assert_neq(found_inode, free_inode);
    cr_assert_eq(inode_of(watcher, CLUSTER_ROOT "/pool-1/recycle-00000-0"), free_inode);
    pd_vfs_unlock(lock);
    expect(cluster_launch(&cluster, outlive, NULL, &err), PD_OK, &err);
    cr_assert_eq(inode_of(watcher, CLUSTER_ROOT "/pool-1"), 0, "the next launch clears it");
    pd_vfs_free(watcher);
    cluster_free(&cluster);
}

/* ---- places that cannot do everything ---- */

Test(store_claim, runs_without_locks_links_or_directory_syncs)
{
    static const unsigned lacks[] = {PD_DISK_NO_LOCKS,       PD_DISK_NO_LINKS,       PD_DISK_NO_SYNC_DIR,
                                     PD_DISK_NO_PREALLOCATE, PD_DISK_NO_DIRECT_OPEN, PD_DISK_NO_DIRECT_TRANSFER};
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
        for (unsigned shared = 0; shared < 2; shared++) {
            struct cluster cluster = cluster_that_lacks(4, 2, shared, lacks[i]);
            struct pd_error err = {0};
            uint64_t step = 1, fence = 2;
            expect(cluster_launch(&cluster, save_one, &step, &err), PD_OK, &err);
            expect(cluster_launch(&cluster, fence_is, &fence, &err), PD_OK, &err);
            cluster_free(&cluster);
        }
    }
}

Test(store_claim, a_read_only_place_is_refused_clearly)
{
    struct cluster cluster = cluster_that_lacks(2, 1, false, PD_DISK_READ_ONLY);
    struct pd_error err = {0};
    expect(cluster_launch(&cluster, outlive, NULL, &err), PD_IO, &err);
    cr_assert(strstr(err.message, "is mounted read-only: choose another directory"), "%s", err.message);
    cluster_free(&cluster);
}

Test(store_claim, denied_says_who_we_are_and_what_to_do)
{
    static const struct {
        enum pd_disk_operation operation;
        const char *says;
    } table[] = {
        {PD_DISK_MKDIR, "mkdir /ckpt"},
        {PD_DISK_RENAME, "rename /ckpt/pool-1/probe-0-a"},
        {PD_DISK_UNLINK, "unlink /ckpt/pool-1/probe-0-"},
        {PD_DISK_SYNC, "sync"},
        {PD_DISK_LOCK, "lock"},
    };
    char who[64];
    snprintf(who, sizeof who, "we are uid %u gid %u", (unsigned)geteuid(), (unsigned)getegid());
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
        struct pd_error err = {0};
        struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR,
                                      .sys_errno = EACCES,
                                      .nth = 1,
                                      .persistent = true,
                                      .operations = PD_DISK_MASK(table[i].operation)};
        pd_simulated_disk_set_fault(cluster.disk, &fault);
        expect(cluster_launch(&cluster, outlive, NULL, &err), PD_IO, &err);
        cr_assert(strstr(err.message, table[i].says) && strstr(err.message, who) && strstr(err.message, "chown"), "%s: %s",
                  table[i].says, err.message);
        cluster_free(&cluster);
    }
}

Test(store_claim, a_missing_parent_is_named)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    struct lone_launch launch = {0};
    struct pd_store_options options = cluster_options();
    struct pd_error err = {0};
    pd_group_init_single(&launch.group);
    expect(pd_simulated_disk_vfs(cluster.disk, 0, &launch.vfs, &err), PD_OK, &err);
    expect(pd_store_open(launch.vfs, "/no/such/place", &options, &launch.group, &launch.store, &err), PD_NOT_FOUND, &err);
    cr_assert(strstr(err.message, "the directory above /no/such/place does not exist: make it"), "%s", err.message);
    char endless[5000];
    memset(endless, 'x', sizeof endless - 1);
    endless[0] = '/';
    endless[sizeof endless - 1] = 0;
    expect(pd_store_open(launch.vfs, endless, &options, &launch.group, &launch.store, &err), PD_INVALID, &err);
    expect(pd_store_open(launch.vfs, "", &options, &launch.group, &launch.store, &err), PD_INVALID, &err);
    pd_vfs_free(launch.vfs);
    cluster_free(&cluster);
}

/* A dying launch lets go while the next one waits. */
static void *let_go(void *argument)
{
    usleep(200000);
    lone_close(argument);
    return NULL;
}

Test(store_claim, waits_for_a_dying_launch)
{
    struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
    struct lone_launch first;
    struct pd_error err = {0};
    struct pd_store_options options = cluster_options();
    pthread_t thread;
    options.busy_wait_ms = 600000;
    expect(lone_open(&cluster, 0, &first, &err), PD_OK, &err);
    cr_assert_eq(pthread_create(&thread, NULL, let_go, &first), 0);
    expect(cluster_launch_with(&cluster, &options, outlive, NULL, &err), PD_OK, &err);
    pthread_join(thread, NULL);
    cluster_free(&cluster);
}

/* ---- a launch that leaves nothing ---- */

static pd_status save_or_not(struct cluster_rank *rank, struct pd_error *err)
{
    const uint64_t step = *(const uint64_t *)rank->context;
    return step ? cluster_save(rank, step, err) : PD_OK;
}

/* Of step 0 none is saved. */
static pd_status try_a_launch(struct cluster *cluster, uint64_t step, struct pd_error *err)
{
    struct pd_store_options options = cluster_options();
    options.leaves_nothing = true;
    return cluster_launch_with(cluster, &options, save_or_not, &step, err);
}

static void expect_names(struct cluster *cluster, const char *const *names, uint32_t count)
{
    struct pd_vfs *vfs;
    struct pd_listing listing = {0};
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster->disk, 0, &vfs, &err), PD_OK, &err);
    expect(pd_vfs_list(vfs, CLUSTER_ROOT, &listing, &err), PD_OK, &err);
    cr_expect_eq(listing.count, count, "%u names, the first is %s", listing.count, listing.count ? listing.names[0] : "");
    for (uint32_t i = 0; i < listing.count && i < count; i++)
        cr_expect_str_eq(listing.names[i], names[i]);
    pd_listing_deinit(&listing);
    pd_vfs_free(vfs);
}

Test(store_claim, a_launch_that_leaves_nothing_and_seals_nothing)
{
    static const unsigned lacks[] = {0, PD_DISK_NO_LOCKS};
    for (unsigned i = 0; i < 2; i++) {
        struct cluster cluster = cluster_that_lacks(1, 1, false, lacks[i]);
        struct pd_error err = {0};
        static const char *const committed[] = {"fence-1", "lock", "owner", "step-000000000007-1"};
        static const char *const again[] = {"fence-2", "lock", "owner", "step-000000000007-1"};
        expect(try_a_launch(&cluster, 0, &err), PD_OK, &err);
        expect_names(&cluster, NULL, 0);
        expect(try_a_launch(&cluster, 7, &err), PD_OK, &err);
        expect_names(&cluster, committed, 4);
        expect(try_a_launch(&cluster, 0, &err), PD_OK, &err); /* the numbers of launches stay known where there were any */
        expect_names(&cluster, again, 4);
        cluster_free(&cluster);
    }
}

Test(store_claim, nothing_is_left_wherever_an_open_fails)
{
    uint64_t failed = 0, fired = 1;
    for (uint64_t nth = 1; fired; nth++) {
        struct cluster cluster = cluster_that_lacks(1, 1, false, 0);
        struct lone_launch launch = {0};
        struct pd_store_options options = cluster_options();
        struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = nth};
        struct pd_error err = {0};
        options.leaves_nothing = true;
        pd_group_init_single(&launch.group);
        expect(pd_simulated_disk_vfs(cluster.disk, 0, &launch.vfs, &err), PD_OK, &err);
        expect(pd_vfs_mkdir(launch.vfs, CLUSTER_ROOT, &err), PD_OK, &err);
        pd_simulated_disk_set_fault(cluster.disk, &fault);
        const pd_status st = pd_store_open(launch.vfs, CLUSTER_ROOT, &options, &launch.group, &launch.store, &err);
        fired = pd_simulated_disk_fired(cluster.disk);
        pd_simulated_disk_set_fault(cluster.disk, NULL);
        if (st == PD_OK) lone_close(&launch);
        if (st != PD_OK) pd_vfs_free(launch.vfs);
        if (st != PD_OK) {
            expect_names(&cluster, NULL, 0);
            failed++;
        }
        cluster_free(&cluster);
    }
    cr_assert_gt(failed, 10, "%llu opens failed", (unsigned long long)failed);
}

/* ---- launches that have no host in common ---- */

static pd_status note_fence(struct cluster_rank *rank, struct pd_error *err)
{
    (void)err;
    if (rank->group->rank == 0) *(uint64_t *)rank->context = pd_store_fence(rank->store);
    return PD_OK;
}

static uint64_t fence_of_launch(struct cluster *cluster, uint32_t first_host, uint32_t hosts)
{
    struct pd_error err = {0};
    uint64_t fence = 0;
    cluster->first_host = first_host;
    cluster->hosts = cluster->ranks = hosts;
    expect(cluster_launch(cluster, note_fence, &fence, &err), PD_OK, &err);
    return fence;
}

/* Hosts that go on without others leave the number to chance, as long as they are without them. */
Test(store_claim, hosts_that_are_apart_take_no_fence_twice)
{
    struct cluster cluster = cluster_that_lacks(4, 4, false, 0);
    cr_assert_eq(fence_of_launch(&cluster, 0, 4), 1);
    const uint64_t here = fence_of_launch(&cluster, 0, 2), there = fence_of_launch(&cluster, 2, 2);
    cr_assert(here >= 1000000 && there >= 1000000 && here != there);
    cr_assert_eq(fence_of_launch(&cluster, 0, 2), here + 1, "all of that launch are there");
    const uint64_t alone = fence_of_launch(&cluster, 1, 1);
    cr_assert_gt(alone, here + 1);
    const uint64_t all = fence_of_launch(&cluster, 0, 4);
    cr_assert(all > alone && all > there);
    cr_assert_eq(fence_of_launch(&cluster, 0, 4), all + 1);
    cluster_free(&cluster);
}

static pd_status save_with_lineage(struct cluster_rank *rank, struct pd_error *err)
{
    return cluster_save_lineage(rank, *(const uint64_t *)rank->context, 7, err);
}

static pd_status look_for_both(struct cluster_rank *rank, struct pd_error *err)
{
    if (pd_store_count(rank->store) != 2) PD_FAIL(err, PD_BUG, "%u checkpoints", pd_store_count(rank->store));
    for (uint32_t i = 0; i < 2; i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(rank->store, i);
        if (entry->step != 7 || entry->lineage != 4 - i) PD_FAIL(err, PD_BUG, "%s is not the one expected", entry->name);
    }
    return PD_OK;
}

/* A step that both have saved is there twice when they meet again, each of them whole. */
Test(store_claim, what_hosts_saved_apart_is_whole_when_they_meet)
{
    struct cluster cluster = cluster_that_lacks(4, 4, false, 0);
    struct pd_error err = {0};
    fence_of_launch(&cluster, 0, 4);
    for (uint64_t lineage = 3; lineage <= 4; lineage++) {
        cluster.first_host = lineage == 3 ? 0 : 2;
        cluster.hosts = cluster.ranks = 2;
        expect(cluster_launch(&cluster, save_with_lineage, &lineage, &err), PD_OK, &err);
    }
    cluster.first_host = 0;
    cluster.hosts = cluster.ranks = 4;
    expect(cluster_launch(&cluster, look_for_both, NULL, &err), PD_OK, &err);
    cluster_free(&cluster);
}
