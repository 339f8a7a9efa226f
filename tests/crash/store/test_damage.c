/* A bit of a checkpoint turns, any bit of any of its files: whoever looks sees it, and sees nothing once it is turned back. */
#include "ckpt/base/log.h"
#include "tests/helpers/scale.h"
#include "tests/helpers/store_cluster.h"

#include <criterion/criterion.h>

struct look {
    bool is_offered; /* by its record */
    pd_status loaded;
    struct pd_error error;
};

static pd_status save_one(struct cluster_rank *rank, struct pd_error *err)
{
    return cluster_save(rank, 1, err);
}

static pd_status look_at_it(struct cluster_rank *rank, struct pd_error *err)
{
    struct look *look = rank->context;
    look->is_offered = pd_store_count(rank->store) == 1;
    look->loaded = look->is_offered ? cluster_load(rank, pd_store_entry_at(rank->store, 0), &look->error) : PD_CORRUPT;
    (void)err;
    return PD_OK;
}

static struct look look_at(struct cluster *cluster)
{
    const struct pd_store_options options = {.keep_last = 1};
    struct look look = {.is_offered = false};
    struct pd_error err = {0};
    struct cluster_launch launch = {cluster, look_at_it, &look, &options};
    struct pd_group alone; /* no thread a look: there are many */
    pd_group_init_single(&alone);
    cr_assert_eq(cluster_rank_main(&alone, &launch, &err), PD_OK, "%s", err.message);
    return look;
}

static uint64_t bytes_of(struct cluster *cluster, const char *path)
{
    struct pd_vfs *vfs;
    struct pd_stat stat = {0};
    cr_assert_eq(pd_simulated_disk_vfs(cluster->disk, 0, &vfs, NULL), PD_OK);
    cr_assert_eq(pd_vfs_stat(vfs, path, &stat, NULL), PD_OK, "%s", path);
    pd_vfs_free(vfs);
    return stat.bytes;
}

static bool turn(struct cluster *cluster, const char *path, uint64_t seed)
{
    return pd_simulated_disk_flip(cluster->disk, 0, path, 1, seed);
}

/* Of 100,000 at scale 10: files in turn by their size, so that every byte is as likely. */
Test(store_damage, every_turned_bit_is_found_and_nothing_else)
{
    static const char *const paths[] = {CLUSTER_ROOT "/step-000000000001-1/shard-00000.h5",
                                        CLUSTER_ROOT "/step-000000000001-1/commit.h5"};
    const uint64_t tries = test_scale() >= 10 ? 100000 : 500 * test_scale(), clean_every = 10;
    uint64_t seed = 1, found_by[2] = {0}, clean = 0;
    struct cluster cluster;
    struct pd_error err = {0};
    cr_assert_eq(pd_log_configure("error", NULL), PD_OK);
    cr_assert_eq(cluster_new(&cluster, 1, 1, false, &err), PD_OK, "%s", err.message);
    cr_assert_eq(cluster_launch(&cluster, save_one, NULL, &err), PD_OK, "%s", err.message);
    const uint64_t shard = bytes_of(&cluster, paths[0]), record = bytes_of(&cluster, paths[1]);
    for (uint64_t i = 0; i < tries; i++) {
        seed = cluster_mix(seed);
        const unsigned which = seed % (shard + record) >= shard;
        cr_assert(turn(&cluster, paths[which], seed));
        const struct look look = look_at(&cluster);
        cr_assert_eq(look.loaded, PD_CORRUPT, "%s, seed %llu: %s %s", paths[which], (unsigned long long)seed,
                     pd_status_name(look.loaded), look.error.message);
        found_by[which]++;
        cr_assert(turn(&cluster, paths[which], seed));
        if (i % clean_every) continue;
        const struct look whole = look_at(&cluster);
        cr_assert_eq(whole.loaded, PD_OK, "%s", whole.error.message);
        clean++;
    }
    fprintf(stderr,
            "turned bits: %llu of shards and %llu of records, all found; %llu loads of what is whole, none refused\n",
            (unsigned long long)found_by[0], (unsigned long long)found_by[1], (unsigned long long)clean);
    cluster_free(&cluster);
}
