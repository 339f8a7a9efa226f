/* Saves that fail leave nothing behind but cluster; and who says that there is none. */
#include "tests/helpers/store_cases.h"

#include <errno.h>

TestSuite(store_saves, .init = set_up);

/* ---- saves that fail ---- */

static pd_status one_rank_fails(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_identity identity = cluster_identity(0, 1);
    struct pd_shard_summary summary = {0};
    struct pd_run_state state;
    char path[4096];
    cluster_state(rank, &state, 0, 1);
    for (uint32_t attempt = 0; attempt < 3; attempt++) {
        PD_TRY(pd_store_begin(rank->store, &identity, path, err));
        pd_status mine = PD_OK;
        if (rank->group->rank == 2) mine = pd_error_set(err, PD_NO_SPACE, PD_WHERE, 0, "write %s: disk full", path);
        pd_status st = pd_store_commit(rank->store, mine, &summary, &state, err);
        if (st != PD_NO_SPACE) PD_FAIL(err, PD_BUG, "%s instead of PD_NO_SPACE", pd_status_name(st));
        if (!strstr(err->message, "checkpoint step-000000000001-1: rank 2: write /ckpt"))
            PD_FAIL(err, PD_BUG, "unclear: %s", err->message);
    }
    PD_TRY(cluster_save(rank, 1, err));
    pd_status again = pd_store_begin(rank->store, &identity, path, err);
    if (again != PD_EXISTS) PD_FAIL(err, PD_BUG, "the same step is saved twice: %s", pd_status_name(again));
    return expect_steps(rank, (uint64_t[]){1}, 1, err);
}

Test(store_saves, one_failing_rank_fails_the_save_of_all)
{
    struct cluster cluster = new_cluster(4, 2, false);
    launch(&cluster, one_rank_fails, NULL, PD_OK);
    struct pd_vfs *vfs = vfs_of(&cluster, 1);
    cr_assert_eq(count_names(vfs, CLUSTER_ROOT, "step-"), 1);
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

/* Shards of two lineages under one name would be a checkpoint that no load believes. */
static pd_status save_of_two_minds(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_error why = {0};
    PD_TRY(cluster_save(rank, 1, err));
    const pd_status st = cluster_save_lineage(rank, rank->group->rank == 2, 2, &why);
    if (st != PD_BUG || !strstr(why.message, "rank 2 saves another step than rank 0"))
        PD_FAIL(err, PD_INVALID, "%s: %s", pd_status_name(st), why.message);
    if (pd_store_count(rank->store) != 1) PD_FAIL(err, PD_INVALID, "it is committed");
    return cluster_save(rank, 3, err);
}

Test(store_saves, ranks_that_save_different_states)
{
    for (uint32_t hosts = 1; hosts <= 2; hosts++) {
        struct cluster cluster = new_cluster(4, hosts, false);
        launch(&cluster, save_of_two_minds, NULL, PD_OK);
        cluster_free(&cluster);
    }
}

/* Files really fill up: the save fails, the one before stays, and with cluster again the next one works. */
static pd_status fill_up(struct cluster_rank *rank, struct pd_error *err)
{
    char *ballast = calloc(1, 1 << 20);
    struct pd_file *file = NULL;
    PD_TRY(cluster_save(rank, 1, err));
    PD_TRY(pd_file_open(rank->vfs, "/ballast", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    pd_status st = PD_OK;
    for (uint64_t at = 0; st == PD_OK; at += 4096)
        st = pd_file_write(file, at, ballast, 4096, err);
    free(ballast);
    pd_file_close_readonly(file);
    if (st != PD_NO_SPACE) return st;
    for (uint64_t step = 2; step < 5; step++) {
        st = cluster_save(rank, step, err);
        if (st != PD_NO_SPACE) PD_FAIL(err, PD_BUG, "a full disk gives %s", pd_status_name(st));
    }
    PD_TRY(expect_steps(rank, (uint64_t[]){1}, 1, err));
    PD_TRY(pd_vfs_unlink(rank->vfs, "/ballast", err));
    PD_TRY(cluster_save(rank, 5, err));
    return expect_steps(rank, (uint64_t[]){5, 1}, 2, err);
}

Test(store_saves, a_full_disk_is_survived)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 1};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 4 << 20};
    struct cluster cluster = {.ranks = 1, .hosts = 1};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    launch(&cluster, fill_up, NULL, PD_OK);
    cluster_free(&cluster);
}

/* ---- each operation that fails ---- */

struct attempt {
    pd_status (*act)(struct cluster_rank *rank, uint64_t step, struct pd_error *err);
    pd_status ended[4]; /* of each rank */
    uint64_t tried;
};

static pd_status begin(struct cluster_rank *rank, uint64_t step, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(0, step);
    char path[4096];
    return pd_store_begin(rank->store, &identity, path, err);
}

static pd_status begin_generation(struct cluster_rank *rank, uint64_t step, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(0, step);
    return pd_store_begin_generation(rank->store, &identity, 0, rank->buffers, CLUSTER_BUFFER_BYTES, err);
}

static pd_status ask_for_space(struct cluster_rank *rank, uint64_t step, struct pd_error *err)
{
    (void)step;
    return pd_store_check_space(rank->store, 1 << 20, 3, err);
}

static pd_status give_up(struct cluster_rank *rank, struct pd_error *err)
{
    struct pd_shard_summary summary = {0};
    struct pd_run_state state;
    struct pd_error why = {0};
    cluster_state(rank, &state, 0, 1);
    const pd_status mine = pd_error_set(&why, PD_NO_SPACE, PD_WHERE, 0, "by a test");
    if (pd_store_commit(rank->store, mine, &summary, &state, &why) == PD_NO_SPACE) return PD_OK;
    PD_FAIL(err, PD_BUG, "%s", why.message);
}

static pd_status take_slot(struct cluster_rank *rank, struct pd_error *err)
{
    uint32_t slot;
    char path[4096];
    PD_TRY(pd_store_generation_take(rank->store, &slot, path, err));
    if (slot) PD_FAIL(err, PD_BUG, "slot %u", slot);
    struct pd_file *file;
    PD_TRY(pd_file_open(rank->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    return pd_file_close(file, err);
}

/* The n-th operation of any disk fails, for every n that there is: all ranks hear the same, and meet again behind it. */
static pd_status each_operation_fails(struct cluster_rank *rank, struct pd_error *err)
{
    struct attempt *attempt = rank->context;
    const uint32_t me = rank->group->rank;
    if (attempt->act == begin_generation) PD_TRY(take_slot(rank, err));
    for (uint64_t nth = 1, fired = 1; fired; nth++) {
        const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = nth};
        struct pd_error why = {0};
        PD_TRY(pd_group_barrier(rank->group, err));
        if (me == 0) pd_simulated_disk_set_fault(rank->cluster->disk, &fault);
        PD_TRY(pd_group_barrier(rank->group, err));
        attempt->ended[me] = attempt->act(rank, nth, &why);
        PD_TRY(pd_group_barrier(rank->group, err));
        fired = pd_simulated_disk_fired(rank->cluster->disk);
        if (attempt->ended[me] != attempt->ended[0])
            PD_FAIL(err, PD_BUG, "operation %llu fails: rank %u ends with %s, rank 0 with %s", (unsigned long long)nth, me,
                    pd_status_name(attempt->ended[me]), pd_status_name(attempt->ended[0]));
        PD_TRY(pd_group_barrier(rank->group, err));
        if (me == 0) {
            pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
            attempt->tried = nth;
        }
        PD_TRY(pd_group_barrier(rank->group, err));
        if (attempt->ended[me] == PD_OK && attempt->act != ask_for_space) PD_TRY(give_up(rank, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return PD_OK;
}

Test(store_saves, what_fails_on_one_rank_fails_on_all)
{
    for (int i = 0; i < 6; i++) {
        struct attempt attempt = {.act = i / 2 == 0 ? begin : i / 2 == 1 ? begin_generation : ask_for_space};
        struct cluster cluster = new_cluster(4, 2, i % 2);
        launch(&cluster, each_operation_fails, &attempt, PD_OK);
        cr_expect_gt(attempt.tried, 1, "%d: nothing failed", i);
        cluster_free(&cluster);
    }
}

/* ---- what a file system says ---- */

/* Network file systems say "busy" of files that somebody has open, and "exists" of what a repeated call has made itself. */
static const int no_verdicts[] = {EBUSY, EEXIST, ENOTEMPTY, EAGAIN};
enum { VERDICTS = sizeof no_verdicts / sizeof *no_verdicts };

static struct pd_disk_fault verdict(uint32_t number, uint64_t nth)
{
    return (struct pd_disk_fault){.kind = number % 2 ? PD_DISK_FAULT_ERROR_APPLIED : PD_DISK_FAULT_ERROR,
                                  .sys_errno = no_verdicts[number / 2],
                                  .nth = nth,
                                  .operations = ~PD_DISK_MASK(PD_DISK_LOCK)};
}

static bool is_verdict(pd_status st)
{
    return st == PD_BUSY || st == PD_EXISTS;
}

static pd_status each_operation_says_so(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t step = 0;
    for (uint32_t v = 0; v < 2 * VERDICTS; v++)
        for (uint64_t nth = 1, fired = 1; fired; nth++) {
            const struct pd_disk_fault fault = verdict(v, nth);
            struct pd_error why = {0};
            pd_simulated_disk_set_fault(rank->cluster->disk, &fault);
            pd_status st = cluster_save(rank, ++step, &why);
            if (!st) st = pd_store_prune(rank->store, &why);
            fired = pd_simulated_disk_fired(rank->cluster->disk);
            pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
            if (is_verdict(st)) PD_FAIL(err, PD_BUG, "operation %llu: %s", (unsigned long long)nth, why.message);
            PD_TRY(cluster_save(rank, ++step, err));
        }
    return PD_OK;
}

static pd_status only_open(struct cluster_rank *rank, struct pd_error *err)
{
    (void)rank, (void)err;
    return PD_OK;
}

Test(store_saves, what_a_file_system_says_is_no_verdict)
{
    struct cluster cluster = new_cluster(1, 1, false);
    launch(&cluster, each_operation_says_so, NULL, PD_OK);
    for (uint32_t v = 0; v < 2 * VERDICTS; v++)
        for (uint64_t nth = 1, fired = 1; fired; nth++) {
            const struct pd_disk_fault fault = verdict(v, nth);
            struct pd_error why = {0};
            pd_simulated_disk_set_fault(cluster.disk, &fault);
            const pd_status st = cluster_launch(&cluster, only_open, NULL, &why);
            fired = pd_simulated_disk_fired(cluster.disk);
            pd_simulated_disk_set_fault(cluster.disk, NULL);
            cr_assert(!is_verdict(st), "opening, operation %llu: %s", (unsigned long long)nth, why.message);
            launch(&cluster, only_open, NULL, PD_OK);
        }
    cluster_free(&cluster);
}

/* ---- what is in the way ---- */

static pd_status put_aside(struct cluster_rank *rank, struct pd_error *err)
{
    uint32_t count = 0;
    for (uint32_t times = 1; times <= 3; times++) { /* the same step, under the same name */
        PD_TRY(cluster_save(rank, 7, err));
        PD_TRY(pd_store_quarantine(rank->store, pd_store_entry_at(rank->store, 0), "by a test", err));
        PD_TRY(pd_store_count_quarantined(rank->store, &count, err));
        if (count != times) PD_FAIL(err, PD_BUG, "%u in quarantine instead of %u", count, times);
    }
    return cluster_save(rank, 7, err);
}

Test(store_saves, one_name_goes_to_quarantine_again_and_again)
{
    struct cluster cluster = new_cluster(2, 1, false);
    launch(&cluster, put_aside, NULL, PD_OK);
    struct pd_vfs *vfs = vfs_of(&cluster, 0);
    cr_assert_eq(count_names(vfs, CLUSTER_ROOT "/quarantine", "step-000000000007-1"), 3);
    cr_assert_eq(count_names(vfs, CLUSTER_ROOT "/quarantine/step-000000000007-1.3", "reason.txt"), 1);
    pd_vfs_free(vfs);
    launch(&cluster, only_open, NULL, PD_OK);
    cluster_free(&cluster);
}

/* NFS keeps an open file that was unlinked, and with it the directory that an earlier removal of this name has emptied. */
static pd_status leave_behind(struct cluster_rank *rank, struct pd_error *err)
{
    static const char trash[] = CLUSTER_ROOT "/pool-1/trash-step-000000000001-1";
    struct pd_file *file = NULL;
    PD_TRY(pd_vfs_mkdir(rank->vfs, trash, err));
    PD_TRY(pd_file_open(rank->vfs, CLUSTER_ROOT "/pool-1/trash-step-000000000001-1/.nfs0001", PD_OPEN_WRITE | PD_OPEN_CREATE,
                        &file, err));
    PD_TRY(pd_file_close(file, err));
    for (uint64_t step = 1; step <= 4; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return expect_steps(rank, (uint64_t[]){4, 3}, 2, err);
}

Test(store_saves, what_nfs_leaves_behind_stops_no_pruning)
{
    struct cluster cluster = new_cluster(1, 1, false);
    launch(&cluster, leave_behind, NULL, PD_OK);
    struct pd_vfs *vfs = vfs_of(&cluster, 0);
    cr_assert_eq(count_names(vfs, CLUSTER_ROOT, "step-"), 2);
    pd_vfs_free(vfs);
    cluster_free(&cluster);
}

static pd_status save_one(struct cluster_rank *rank, struct pd_error *err)
{
    return cluster_save(rank, 1, err);
}

static pd_status has_one(struct cluster_rank *rank, struct pd_error *err)
{
    return expect_steps(rank, (uint64_t[]){1}, 1, err);
}

/* Somebody has made the directory and not synced where its name lies: a power loss takes it, unless the launch has. */
Test(store_saves, a_directory_that_was_there_is_durable)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct cluster cluster = new_cluster(1, 1, false);
        struct pd_error err = {0};
        struct pd_vfs *vfs = vfs_of(&cluster, 0);
        expect(pd_vfs_mkdir(vfs, "/above", &err), PD_OK, &err);
        expect(pd_vfs_mkdir(vfs, "/above/ckpt", &err), PD_OK, &err);
        pd_vfs_free(vfs);
        cluster.root = "/above/ckpt";
        launch(&cluster, save_one, NULL, PD_OK);
        pd_simulated_disk_crash(cluster.disk, 0, seed);
        launch(&cluster, has_one, NULL, PD_OK);
        cluster_free(&cluster);
    }
}

/* ---- space ---- */

static pd_status check_space(struct cluster_rank *rank, struct pd_error *err)
{
    const uint64_t *bytes = rank->context;
    return pd_store_check_space(rank->store, *bytes, 3, err);
}

Test(store_saves, space_is_summed_over_the_ranks_of_a_disk)
{
    for (unsigned shared = 0; shared < 2; shared++) {
        struct pd_disk_options options = {.seed = 1, .host_count = 2};
        options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 100 << 20, .shared = shared};
        struct cluster cluster = {.ranks = 4, .hosts = 2, .shared = shared};
        struct pd_error err = {0};
        expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
        uint64_t fits = (shared ? 8 : 16) << 20, exceeds = (shared ? 9 : 17) << 20, absurd = UINT64_MAX / 2;
        launch(&cluster, check_space, &fits, PD_OK);
        expect(cluster_launch(&cluster, check_space, &exceeds, &err), PD_NO_SPACE, &err);
        cr_assert(strstr(err.message, shared ? "needs 108.0 MiB: 3 checkpoints of 36.0 MiB"
                                             : "needs 102.0 MiB: 3 checkpoints of 34.0 MiB"),
                  "%s", err.message);
        cr_assert(strstr(err.message, "checkpoint.keep_last"), "%s", err.message);
        cr_assert(!strstr(err.message, "exist already"), "it names files that do not exist: %s", err.message);
        launch(&cluster, check_space, &absurd, PD_NO_SPACE);
        cluster_free(&cluster);
    }
}

/* A launch that comes back needs room for one new checkpoint only: the old ones make room for the others. */
static pd_status save_then_check(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(save_three(rank, err));
    uint64_t each = pd_store_entry_at(rank->store, 0)->bytes;
    struct pd_space space;
    PD_TRY(pd_vfs_space(rank->vfs, CLUSTER_ROOT, &space, err));
    uint64_t bytes = space.available_bytes - each / 2;
    PD_TRY(pd_store_check_space(rank->store, bytes, 1, err));
    PD_TRY(pd_store_check_space(rank->store, (space.available_bytes + 2 * each) / 3, 3, err));
    pd_status st = pd_store_check_space(rank->store, (space.available_bytes + 2 * each) / 3 + 1, 3, err);
    if (st != PD_NO_SPACE) PD_FAIL(err, PD_BUG, "too much fits: %s", pd_status_name(st));
    if (!strstr(err->message, "of them exist already")) PD_FAIL(err, PD_BUG, "unclear: %s", err->message);
    return PD_OK;
}

Test(store_saves, what_is_there_counts_as_space)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 1};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .capacity_bytes = 4 << 20};
    struct cluster cluster = {.ranks = 1, .hosts = 1};
    struct pd_error err = {0};
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    launch(&cluster, save_then_check, NULL, PD_OK);
    cluster_free(&cluster);
}

Test(store_saves, inodes_are_counted)
{
    struct pd_disk_options options = {.seed = 1, .host_count = 1};
    options.mounts[0] = (struct pd_disk_mount){.path = "/", .inode_limit = 20};
    struct cluster cluster = {.ranks = 1, .hosts = 1};
    struct pd_error err = {0};
    uint64_t bytes = 10;
    expect(pd_simulated_disk_new(&options, &cluster.disk, &err), PD_OK, &err);
    expect(cluster_launch(&cluster, check_space, &bytes, &err), PD_NO_SPACE, &err);
    cr_assert(strstr(err.message, "inodes free and 23 are needed"), "%s", err.message);
    cluster_free(&cluster);
}
