/* What a store sees and does not offer: it is named, alike on every rank, and stays where it could be all that is left. */
#include "ckpt/base/log.h"
#include "tests/helpers/store_cluster.h"
#include "tests/helpers/store_expect.h"

#include <inttypes.h>

TestSuite(store_unusable, .init = set_up);

static struct cluster new_cluster(uint32_t ranks, uint32_t hosts)
{
    struct cluster cluster;
    struct pd_error err = {0};
    expect(cluster_new(&cluster, ranks, hosts, false, &err), PD_OK, &err);
    return cluster;
}

static void launch(struct cluster *cluster, bool writable, cluster_script *script, void *context)
{
    struct pd_error err = {0};
    struct pd_store_options options = cluster_options();
    options.writable = writable;
    expect(cluster_launch_with(cluster, &options, script, context, &err), PD_OK, &err);
}

static pd_status save_two(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(cluster_save(rank, 1, err));
    return cluster_save(rank, 2, err);
}

/* What an open is expected to see. */
struct view {
    uint32_t whole, unusable, quarantined;
    enum pd_store_flaw flaw; /* of the newest that is not usable */
    const char *name, *cause;
};

static struct view one_flaw(uint32_t whole, enum pd_store_flaw flaw, const char *name, const char *cause)
{
    return (struct view){.whole = whole, .unusable = 1, .flaw = flaw, .name = name, .cause = cause};
}

static pd_status sees(struct cluster_rank *rank, struct pd_error *err)
{
    const struct view *view = rank->context;
    uint32_t quarantined, unusable = pd_store_unusable_count(rank->store);
    PD_TRY(pd_store_count_quarantined(rank->store, &quarantined, err));
    if (pd_store_count(rank->store) != view->whole || unusable != view->unusable || quarantined != view->quarantined)
        PD_FAIL(err, PD_BUG, "%u whole, %u unusable, %u in quarantine", pd_store_count(rank->store), unusable, quarantined);
    if (!unusable) return PD_OK;
    const struct pd_store_unusable *newest = pd_store_unusable_at(rank->store, unusable - 1);
    if (newest->flaw != view->flaw || strcmp(newest->name, view->name) != 0)
        PD_FAIL(err, PD_BUG, "%s has flaw %d", newest->name, (int)newest->flaw);
    if (rank->group->rank == 0 && !strstr(newest->cause, view->cause)) PD_FAIL(err, PD_BUG, "cause: %s", newest->cause);
    return PD_OK;
}

static void resize(struct cluster *cluster, uint32_t host, const char *path, uint64_t bytes)
{
    struct pd_vfs *vfs;
    struct pd_file *file;
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster->disk, host, &vfs, &err), PD_OK, &err);
    expect(pd_file_open(vfs, path, PD_OPEN_WRITE, &file, &err), PD_OK, &err);
    expect(pd_file_truncate(file, bytes, &err), PD_OK, &err);
    expect(pd_file_close(file, &err), PD_OK, &err);
    pd_vfs_free(vfs);
}

static void drop(struct cluster *cluster, uint32_t host, const char *path)
{
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster->disk, host, &vfs, &err), PD_OK, &err);
    expect(pd_vfs_unlink(vfs, path, &err), PD_OK, &err);
    pd_vfs_free(vfs);
}

#define FIRST CLUSTER_ROOT "/step-000000000001-1"
#define SECOND CLUSTER_ROOT "/step-000000000002-1"

Test(store_unusable, nothing_in_a_sound_store)
{
    struct cluster cluster = new_cluster(2, 1);
    launch(&cluster, true, sees, &(struct view){0});
    launch(&cluster, true, save_two, NULL);
    launch(&cluster, false, sees, &(struct view){.whole = 2});
    launch(&cluster, true, sees, &(struct view){.whole = 2});
    cluster_free(&cluster);
}

/* On one host with its own disk another size is damage; a look changes nothing about it. */
Test(store_unusable, a_shard_of_another_size)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = one_flaw(1, PD_STORE_INCOMPLETE, "step-000000000002-1",
                                "shard-00001.h5 has 5000 bytes where the commit record says ");
    launch(&cluster, true, save_two, NULL);
    resize(&cluster, 0, SECOND "/shard-00001.h5", 5000);
    launch(&cluster, false, sees, &view);
    view.flaw = PD_STORE_DAMAGED;
    view.quarantined = 1;
    launch(&cluster, true, sees, &view);
    launch(&cluster, true, sees, &(struct view){.whole = 1, .quarantined = 1});
    cluster_free(&cluster);
}

struct heard {
    uint32_t partial, absent_host; /* lines that say so */
};

static void hear(void *context, const char *line, size_t bytes)
{
    struct heard *heard = context;
    heard->partial += memmem(line, bytes, "is committed but incomplete", 27) != NULL;
    heard->absent_host += memmem(line, bytes, "is a host missing?", 18) != NULL;
}

/* What an open in which SECOND is not whole says, after `view`. */
static struct heard listen(struct cluster *cluster, struct view *view)
{
    struct pd_error err = {0};
    struct heard heard = {0};
    expect(pd_log_configure("warn", &err), PD_OK, &err);
    pd_log_set_sink(hear, &heard);
    launch(cluster, true, sees, view);
    pd_log_set_sink(NULL, NULL);
    return heard;
}

/* Between hosts nothing but the cause is said, and nothing changed: the right one may be on a host that is away. One is
 * suspected where shards are absent. */
Test(store_unusable, a_shard_of_another_size_between_hosts)
{
    struct cluster cluster = new_cluster(4, 2);
    struct view view = one_flaw(1, PD_STORE_INCOMPLETE, "step-000000000002-1", "shard-00003.h5 has 0 bytes");
    launch(&cluster, true, save_two, NULL);
    resize(&cluster, 1, SECOND "/shard-00003.h5", 0);
    struct heard heard = listen(&cluster, &view);
    cr_assert_eq(heard.partial, 1);
    cr_assert_eq(heard.absent_host, 0, "it is there, and has another size");
    launch(&cluster, true, sees, &view);
    drop(&cluster, 1, SECOND "/shard-00003.h5");
    view.cause = "shard-00003.h5 is absent";
    heard = listen(&cluster, &view);
    cr_assert_eq(heard.partial, 1);
    cr_assert_eq(heard.absent_host, 1);
    cluster_free(&cluster);
}

static pd_status prune(struct cluster_rank *rank, struct pd_error *err)
{
    PD_TRY(pd_store_prune(rank->store, err));
    return sees(rank, err);
}

Test(store_unusable, absent_shards_stay_while_nothing_is_whole)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = {.unusable = 2,
                        .flaw = PD_STORE_INCOMPLETE,
                        .name = "step-000000000002-1",
                        .cause = "shard-00000.h5 is absent (and 1 more)"};
    launch(&cluster, true, save_two, NULL);
    drop(&cluster, 0, FIRST "/shard-00000.h5");
    drop(&cluster, 0, SECOND "/shard-00000.h5");
    drop(&cluster, 0, SECOND "/shard-00001.h5");
    launch(&cluster, true, prune, &view);
    launch(&cluster, true, prune, &view);
    cluster_free(&cluster);
}

static void rename_in(struct cluster *cluster, uint32_t host, const char *from, const char *to)
{
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster->disk, host, &vfs, &err), PD_OK, &err);
    expect(pd_vfs_rename(vfs, from, to, &err), PD_OK, &err);
    pd_vfs_free(vfs);
}

/* Somebody took a record away: the shards stay and are named, and count again once the record is back, on one host or on all. */
Test(store_unusable, a_record_that_is_taken_away_and_put_back)
{
    for (uint32_t hosts = 1; hosts <= 2; hosts++) {
        struct cluster cluster = new_cluster(2 * hosts, hosts);
        struct view view = one_flaw(1, PD_STORE_UNRECORDED, "step-000000000001-1", "commit.h5 is absent");
        launch(&cluster, true, save_two, NULL);
        for (uint32_t host = 0; host < hosts; host++)
            rename_in(&cluster, host, FIRST "/commit.h5", "/elsewhere");
        launch(&cluster, false, sees, &view);
        launch(&cluster, true, sees, &view);
        launch(&cluster, true, sees, &view);
        rename_in(&cluster, hosts - 1, "/elsewhere", FIRST "/commit.h5");
        launch(&cluster, true, sees, &(struct view){.whole = 2});
        launch(&cluster, false, sees, &(struct view){.whole = 2});
        cluster_free(&cluster);
    }
}

static bool lies(struct cluster *cluster, const char *path)
{
    struct pd_error err = {0};
    struct pd_stat stat;
    struct pd_vfs *vfs;
    expect(pd_simulated_disk_vfs(cluster->disk, 0, &vfs, &err), PD_OK, &err);
    const pd_status st = pd_vfs_stat(vfs, path, &stat, NULL);
    pd_vfs_free(vfs);
    return st == PD_OK;
}

#define ASIDE CLUSTER_ROOT "/quarantine/step-000000000002-1"

/* What is moved aside may be all that is left of it: when power goes behind the move, it has one name, the new one. */
Test(store_unusable, power_loss_does_not_lose_what_is_aside)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = one_flaw(1, PD_STORE_DAMAGED, "step-000000000002-1", "commit.h5: ");
    view.quarantined = 1;
    launch(&cluster, true, save_two, NULL);
    resize(&cluster, 0, SECOND "/commit.h5", 100);
    launch(&cluster, true, sees, &view);
    for (uint64_t seed = 0; seed < 32; seed++) {
        struct cluster later = cluster;
        struct pd_error err = {0};
        expect(pd_simulated_disk_clone(cluster.disk, &later.disk, &err), PD_OK, &err);
        pd_simulated_disk_crash(later.disk, PD_DISK_ALL_HOSTS, seed);
        cr_assert(lies(&later, ASIDE "/shard-00001.h5") && !lies(&later, SECOND), "seed %" PRIu64, seed);
        cluster_free(&later);
    }
    cluster_free(&cluster);
}

/* Damage in the quarantine does not come back by itself, whether its record is there or not. */
Test(store_unusable, a_damaged_record_stays_aside)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = one_flaw(1, PD_STORE_DAMAGED, "step-000000000002-1", "commit.h5: ");
    view.quarantined = 1;
    launch(&cluster, true, save_two, NULL);
    resize(&cluster, 0, SECOND "/commit.h5", 100);
    launch(&cluster, true, sees, &view);
    launch(&cluster, true, sees, &(struct view){.whole = 1, .quarantined = 1});
    drop(&cluster, 0, CLUSTER_ROOT "/quarantine/step-000000000002-1/commit.h5");
    launch(&cluster, true, sees, &(struct view){.whole = 1, .quarantined = 1});
    cluster_free(&cluster);
}

/* A removal of ours leaves its mark, and something whole: without the latter nothing is cleared. */
Test(store_unusable, an_interrupted_removal)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = one_flaw(1, PD_STORE_UNRECORDED, "step-000000000001-1", "commit.h5 is absent");
    launch(&cluster, true, save_two, NULL);
    rename_in(&cluster, 0, FIRST "/commit.h5", FIRST "/removed.h5");
    launch(&cluster, true, sees, &view);
    launch(&cluster, true, sees, &(struct view){.whole = 1});
    rename_in(&cluster, 0, SECOND "/commit.h5", SECOND "/removed.h5");
    view.whole = 0;
    view.name = "step-000000000002-1";
    launch(&cluster, true, sees, &view);
    launch(&cluster, true, prune, &view);
    cluster_free(&cluster);
}

/* Whatever it is called now: the message says which name would be right, and it stays until it has that again. */
Test(store_unusable, a_renamed_directory)
{
    static const char *const names[] = {
        "step-000000000007-1",    "step-000000000002-1.bak", "step-2", "Xstep-000000000002-1", "old",
        "step-000000000007-1.tmp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct cluster cluster = new_cluster(2, 1);
        struct view view =
            one_flaw(1, PD_STORE_MISNAMED, names[i], "its record is of step-000000000002-1: rename it to that");
        char path[128];
        snprintf(path, sizeof path, CLUSTER_ROOT "/%s", names[i]);
        launch(&cluster, true, save_two, NULL);
        rename_in(&cluster, 0, SECOND, path);
        launch(&cluster, false, sees, &view);
        launch(&cluster, true, prune, &view);
        launch(&cluster, true, sees, &view);
        rename_in(&cluster, 0, path, SECOND);
        launch(&cluster, true, sees, &(struct view){.whole = 2});
        cluster_free(&cluster);
    }
}

/* With all of them renamed nothing is whole, and nothing is cleared. */
Test(store_unusable, renamed_directories_alone)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = {.unusable = 2,
                        .flaw = PD_STORE_MISNAMED,
                        .name = "old2",
                        .cause = "its record is of step-000000000002-1: rename it to that"};
    launch(&cluster, true, save_two, NULL);
    rename_in(&cluster, 0, FIRST, CLUSTER_ROOT "/old1");
    rename_in(&cluster, 0, SECOND, CLUSTER_ROOT "/old2");
    launch(&cluster, true, sees, &view);
    launch(&cluster, true, sees, &view);
    rename_in(&cluster, 0, CLUSTER_ROOT "/old1", FIRST);
    rename_in(&cluster, 0, CLUSTER_ROOT "/old2", SECOND);
    launch(&cluster, true, sees, &(struct view){.whole = 2});
    cluster_free(&cluster);
}

/* Hosts with disks of their own: renamed on one, its shards are out of sight; on both, it is renamed. */
Test(store_unusable, a_renamed_directory_between_hosts)
{
    struct cluster cluster = new_cluster(4, 2);
    struct view view = one_flaw(1, PD_STORE_INCOMPLETE, "step-000000000002-1",
                                "shard-00002.h5 is absent (and 1 more); old has a record of it too");
    launch(&cluster, true, save_two, NULL);
    rename_in(&cluster, 1, SECOND, CLUSTER_ROOT "/old");
    launch(&cluster, true, sees, &view);
    rename_in(&cluster, 0, SECOND, CLUSTER_ROOT "/old");
    view.flaw = PD_STORE_MISNAMED;
    view.name = "old";
    view.cause = "rename it to that";
    launch(&cluster, true, sees, &view);
    cluster_free(&cluster);
}

/* A record that was copied beside the shards of another step is no renamed directory. */
Test(store_unusable, the_record_of_other_shards)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view = {.unusable = 1,
                        .quarantined = 1,
                        .flaw = PD_STORE_DAMAGED,
                        .name = "step-000000000002-1",
                        .cause = "commit.h5 is the record of step-000000000001-1, and the shards beside it are others"};
    launch(&cluster, true, save_two, NULL);
    drop(&cluster, 0, SECOND "/commit.h5");
    rename_in(&cluster, 0, FIRST "/commit.h5", SECOND "/commit.h5");
    drop(&cluster, 0, FIRST "/shard-00000.h5");
    drop(&cluster, 0, FIRST "/shard-00001.h5");
    launch(&cluster, true, sees, &view);
    cluster_free(&cluster);
}

/* What lies aside counts under whatever name: a launch does not begin beside it. */
Test(store_unusable, renamed_in_the_quarantine)
{
    struct cluster cluster = new_cluster(2, 1);
    struct pd_error err = {0};
    struct pd_vfs *vfs;
    launch(&cluster, true, save_two, NULL);
    expect(pd_simulated_disk_vfs(cluster.disk, 0, &vfs, &err), PD_OK, &err);
    expect(pd_vfs_mkdir(vfs, CLUSTER_ROOT "/quarantine", &err), PD_OK, &err);
    pd_vfs_free(vfs);
    rename_in(&cluster, 0, FIRST, CLUSTER_ROOT "/quarantine/old");
    launch(&cluster, true, sees, &(struct view){.whole = 1, .quarantined = 1});
    cluster_free(&cluster);
}

/* A directory, pipe or device in the place of a shard is not an absent one: no host is suspected. */
Test(store_unusable, a_shard_that_is_no_file)
{
    struct cluster cluster = new_cluster(4, 2);
    struct view view = one_flaw(1, PD_STORE_INCOMPLETE, "step-000000000002-1", "shard-00003.h5 is not a regular file");
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    launch(&cluster, true, save_two, NULL);
    drop(&cluster, 1, SECOND "/shard-00003.h5");
    expect(pd_simulated_disk_vfs(cluster.disk, 1, &vfs, &err), PD_OK, &err);
    expect(pd_vfs_mkdir(vfs, SECOND "/shard-00003.h5", &err), PD_OK, &err);
    pd_vfs_free(vfs);
    const struct heard heard = listen(&cluster, &view);
    cr_assert_eq(heard.partial, 1);
    cr_assert_eq(heard.absent_host, 0);
    cluster_free(&cluster);
}

/* Records of one step that are valid and differ prove that somebody mixed two checkpoints. */
Test(store_unusable, records_that_differ_between_hosts)
{
    struct cluster cluster = new_cluster(4, 2);
    struct view view = one_flaw(1, PD_STORE_INCOMPLETE, "step-000000000002-1", "commit.h5 is not the same on every host");
    struct pd_vfs *vfs;
    struct pd_file *file;
    struct pd_stat stat;
    struct pd_commit commit = {0};
    struct pd_error err = {0};
    void *data;
    uint64_t bytes;
    launch(&cluster, true, save_two, NULL);
    expect(pd_simulated_disk_vfs(cluster.disk, 1, &vfs, &err), PD_OK, &err);
    expect(pd_commit_read(vfs, SECOND "/commit.h5", &commit, &err), PD_OK, &err);
    commit.state.samples++;
    expect(pd_commit_encode(&commit, &data, &bytes, &err), PD_OK, &err);
    expect(pd_file_open(vfs, SECOND "/commit.h5", PD_OPEN_WRITE, &file, &err), PD_OK, &err);
    expect(pd_file_stat(file, &stat, &err), PD_OK, &err);
    cr_assert_eq(stat.bytes, bytes);
    expect(pd_file_write(file, 0, data, bytes, &err), PD_OK, &err);
    expect(pd_file_close(file, &err), PD_OK, &err);
    free(data);
    pd_commit_deinit(&commit);
    pd_vfs_free(vfs);
    launch(&cluster, false, sees, &view);
    launch(&cluster, true, sees, &view);
    cluster_free(&cluster);
}

static pd_status save_second(struct cluster_rank *rank, struct pd_error *err)
{
    return cluster_save(rank, 2, err);
}

static pd_status save_eight(struct cluster_rank *rank, struct pd_error *err)
{
    return cluster_save(rank, 8, err);
}

static pd_status save_and_prune(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 3; step <= 6; step++) {
        PD_TRY(cluster_save(rank, step, err));
        PD_TRY(pd_store_prune(rank->store, err));
    }
    return PD_OK;
}

/* Another run's checkpoint, copied here by mistake, is newer than all of ours: it is named and neither chosen nor removed. */
Test(store_unusable, a_checkpoint_of_another_run)
{
    struct cluster cluster = new_cluster(2, 1);
    struct view view =
        one_flaw(2, PD_STORE_OF_ANOTHER_RUN, "step-000000000008-2", "it belongs to run 00000000000012350000000000005678");
    launch(&cluster, true, save_two, NULL);
    cluster_run = 1;
    launch(&cluster, true, save_eight, NULL);
    cluster_run = 0;
    launch(&cluster, false, sees, &view);
    launch(&cluster, true, sees, &view);
    launch(&cluster, true, save_and_prune, NULL);
    view.whole = cluster_options().keep_last;
    launch(&cluster, true, sees, &view);
    cluster_free(&cluster);
}

/* Nobody can tell whose directory this is. */
Test(store_unusable, as_many_checkpoints_of_another_run)
{
    struct cluster cluster = new_cluster(2, 1);
    struct pd_error err = {0};
    struct pd_store_options options = cluster_options();
    struct view view =
        one_flaw(1, PD_STORE_OF_ANOTHER_RUN, "step-000000000002-1", "it belongs to run 00000000000012340000000000005678");
    options.writable = true;
    launch(&cluster, true, save_second, NULL);
    cluster_run = 1;
    launch(&cluster, true, save_eight, NULL);
    cluster_run = 0;
    expect(cluster_launch_with(&cluster, &options, sees, &view, &err), PD_INVALID, &err);
    cr_assert(strstr(err.message, "step-000000000002-1 and step-000000000008-2 are checkpoints of two runs"), "%s",
              err.message);
    launch(&cluster, false, sees, &view);
    cluster_free(&cluster);
}
