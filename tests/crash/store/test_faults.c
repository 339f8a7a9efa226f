/* Every operation of a save, of a removal and of an open goes wrong once, or from then on; afterwards a fresh launch finds
 * the previous checkpoint or the new one, complete, and the new one when it had been reported committed.
 *
 * The default run tries every operation of one rank's save and samples the others; PERDURE_TEST_SCALE=10 tries every
 * operation of every save, and of one rank's opens. PERDURE_CAMPAIGN_SEED sets the seed; a failure prints it.
 */
#include "ckpt/base/log.h"
#include "ckpt/shard/copy.h"
#include "tests/helpers/store_sweep.h"

static void empty_cluster_of(const struct world *world, struct cluster *cluster)
{
    struct pd_error err = {0};
    cr_assert_eq(pd_log_configure("error", &err), PD_OK);
    cr_assert_eq(cluster_new_lacking(cluster, world->ranks, world->hosts, world->shared, world->lacks, &err), PD_OK, "%s",
                 err.message);
}

static void base_of(const struct world *world, struct cluster *cluster)
{
    struct pd_error err = {0};
    empty_cluster_of(world, cluster);
    cr_assert_eq(cluster_launch(cluster, campaign_base, NULL, &err), PD_OK, "%s", err.message);
}

/* A run of scale 1 samples where there is much to try. */
static uint64_t stride_of(const struct world *world, uint64_t of_many)
{
    return world->ranks > 1 ? of_many : 1;
}

static void save_campaign(const struct world *world)
{
    struct campaign campaign = {
        .name = "save", .try = campaign_try_save, .stride = test_stride(stride_of(world, 140)), .crashes = 2};
    if (test_scale() >= 10 && world->ranks == 1) campaign.crashes = 6;
    struct cluster cluster;
    base_of(world, &cluster);
    sweep(&campaign, world, &cluster);
    cluster_free(&cluster);
    cr_log_info("save, %s: %llu misfortunes", world->name, (unsigned long long)campaign.tried);
}

static void open_campaign(const struct world *world)
{
    struct campaign campaign = {
        .name = "open", .try = campaign_try_open, .stride = test_stride(10 * stride_of(world, 28)), .crashes = 1};
    struct cluster cluster, wounded;
    struct pd_error err = {0};
    base_of(world, &cluster);
    uint64_t wounds = 2;
    if (test_scale() >= 10) {
        campaign.stride = world->ranks > 1 ? 7 : 1;
        wounds = world->ranks > 1 ? 6 : 10;
    }
    for (uint64_t w = 0; w < wounds; w++) {
        uint64_t dice = cluster_mix(campaign_seed() * 31 + w);
        uint64_t nth = 5 + dice % (40 * world->ranks);
        cr_assert_eq(campaign_wound(&cluster, nth, dice, &wounded, &err), PD_OK, "%s", err.message);
        sweep(&campaign, world, &wounded);
        cluster_free(&wounded);
    }
    cluster_free(&cluster);
    cr_log_info("open, %s: %llu misfortunes", world->name, (unsigned long long)campaign.tried);
}

static void first_open_campaign(const struct world *world)
{
    struct campaign campaign = {
        .name = "first open", .try = campaign_try_first_open, .stride = test_stride(5 * stride_of(world, 13)), .crashes = 1};
    struct cluster cluster;
    empty_cluster_of(world, &cluster);
    sweep(&campaign, world, &cluster);
    cluster_free(&cluster);
    cr_log_info("first open, %s: %llu misfortunes", world->name, (unsigned long long)campaign.tried);
}

/* A disk that gives back another bit somewhere in a record, the HDF5 metadata of it too: nothing of that record is believed. */
static pd_status flip_in_record(struct cluster_rank *rank, struct pd_error *err)
{
    uint64_t *at = rank->context;
    char path[4096];
    unsigned char byte;
    struct pd_stat stat;
    struct pd_file *file = NULL;
    pd_store_entry_path(rank->store, pd_store_entry_at(rank->store, 0), path);
    snprintf(path + strlen(path), 32, "/commit.h5");
    PD_TRY(pd_file_open(rank->vfs, path, PD_OPEN_READ | PD_OPEN_WRITE, &file, err));
    pd_status st = pd_file_stat(file, &stat, err);
    if (st == PD_OK) st = pd_file_read(file, *at % stat.bytes, &byte, 1, err);
    byte ^= (unsigned char)(1u << *at % 8);
    if (st == PD_OK) st = pd_file_write(file, *at % stat.bytes, &byte, 1, err);
    at[0] = stat.bytes;
    at[1] = pd_store_entry_at(rank->store, 0)->step;
    pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
    return st == PD_OK ? closed : st;
}

static pd_status look_at_newest(struct cluster_rank *rank, struct pd_error *err)
{
    uint32_t damaged = 0;
    return cluster_load_newest(rank, rank->context, &damaged, err);
}

Test(store_faults, a_bit_of_a_record_is_another)
{
    struct cluster cluster;
    struct pd_error err = {0};
    base_of(&worlds[ONE_RANK], &cluster);
    uint64_t bytes = UINT64_MAX;
    for (uint64_t at = campaign_seed() % 97; at < bytes; at += 97) {
        struct cluster one = cluster;
        uint64_t place[2] = {at, 0}, step = 0;
        cr_assert_eq(pd_simulated_disk_clone(cluster.disk, &one.disk, &err), PD_OK, "%s", err.message);
        cr_assert_eq(cluster_launch(&one, flip_in_record, place, &err), PD_OK, "%s", err.message);
        cr_assert_eq(cluster_launch(&one, look_at_newest, &step, &err), PD_OK, "%s", err.message);
        cr_assert_eq(step + 1, place[1], "byte %llu: step %llu loads", (unsigned long long)at, (unsigned long long)step);
        bytes = place[0];
        cluster_free(&one);
    }
    cluster_free(&cluster);
}

/* The directory comes back after the power loss, for the sync that gave it its name failed, and nothing of it may pass for a
 * checkpoint whose record somebody took: that would keep its shards. */
Test(store_faults, a_failed_save_that_was_removed_comes_back_as_removed)
{
    struct cluster cluster;
    struct pd_error err = {0};
    bool fired = false;
    base_of(&worlds[ONE_RANK], &cluster);
    struct misfortune m = {.kind = PD_DISK_FAULT_ERROR,
                           .sys_errno = EIO,
                           .operations = PD_DISK_MASK(PD_DISK_SYNC_DIR),
                           .crash_host = PD_DISK_ALL_HOSTS};
    for (m.nth = 1; m.nth == 1 || fired; m.nth++) {
        for (m.crash_seed = 0; m.crash_seed < 16; m.crash_seed++)
            cr_assert_eq(campaign_try_save(&cluster, &m, &fired, &err), PD_OK, "sync %llu, crash %llu: %s",
                         (unsigned long long)m.nth, (unsigned long long)m.crash_seed, err.message);
    }
    cluster_free(&cluster);
}

static pd_status write_shard_of(struct cluster_rank *rank, uint64_t step, const char *path, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(0, 1);
    const void *data[2] = {rank->values, rank->values + CLUSTER_ROWS * 3};
    struct pd_shard_summary summary;
    cluster_fill(rank->values, 0, step, 0);
    return pd_shard_write(rank->writer, path, &identity, 0, data, &summary, err);
}

/* A disk that loses every write of a copy over an older try at the same step: what lies there is whole, and not the source. */
static pd_status copy_without_a_write(struct cluster_rank *rank, struct pd_error *err)
{
    const struct pd_identity identity = cluster_identity(0, 1);
    struct pd_error why = {0};
    PD_TRY(write_shard_of(rank, 1, "/from.h5", err));
    PD_TRY(write_shard_of(rank, 2, "/to.h5", err));
    pd_simulated_disk_set_fault(rank->cluster->disk,
                                &(struct pd_disk_fault){.kind = PD_DISK_FAULT_LOST, .nth = 1, .persistent = true});
    const pd_status st =
        pd_shard_copy(rank->vfs, "/from.h5", "/to.h5", &identity, rank->buffers, CLUSTER_BUFFER_BYTES, &why);
    const uint64_t fired = pd_simulated_disk_fired(rank->cluster->disk);
    pd_simulated_disk_set_fault(rank->cluster->disk, NULL);
    if (!fired) PD_FAIL(err, PD_BUG, "no write was lost");
    if (st != PD_IO) PD_FAIL(err, PD_BUG, "the copy gets %s: %s", pd_status_name(st), why.message);
    return pd_shard_copy(rank->vfs, "/from.h5", "/to.h5", &identity, rank->buffers, CLUSTER_BUFFER_BYTES, err);
}

Test(store_faults, a_copy_whose_every_write_is_lost)
{
    struct cluster cluster;
    struct pd_error err = {0};
    empty_cluster_of(&worlds[ONE_RANK], &cluster);
    cr_assert_eq(cluster_launch(&cluster, copy_without_a_write, NULL, &err), PD_OK, "%s", err.message);
    cluster_free(&cluster);
}

#define CAMPAIGN(what, name, world)      \
    Test(store_faults, what##_##name)    \
    {                                    \
        what##_campaign(&worlds[world]); \
    }

CAMPAIGN(save, one_rank, ONE_RANK)
CAMPAIGN(save, local_disks, LOCAL_DISKS)
CAMPAIGN(save, shared_disk, SHARED_DISK)
CAMPAIGN(save, without_links, SHARED_NO_LINKS)
CAMPAIGN(open, one_rank, ONE_RANK)
CAMPAIGN(open, local_disks, LOCAL_DISKS)
CAMPAIGN(open, shared_disk, SHARED_DISK)
CAMPAIGN(first_open, one_rank, ONE_RANK)
