/* Cases on hosts with simulated disks: a cluster or the test fails, and what scripts of ranks have in common. */
#pragma once

#include "tests/helpers/store_cluster.h"
#include "tests/helpers/store_expect.h"

static inline struct cluster new_cluster(uint32_t ranks, uint32_t hosts, bool shared)
{
    struct cluster cluster;
    struct pd_error err = {0};
    expect(cluster_new(&cluster, ranks, hosts, shared, &err), PD_OK, &err);
    return cluster;
}

static inline void launch(struct cluster *cluster, cluster_script *script, void *context, pd_status expected)
{
    struct pd_error err = {0};
    expect(cluster_launch(cluster, script, context, &err), expected, &err);
}

static inline struct pd_vfs *vfs_of(struct cluster *cluster, uint32_t host)
{
    struct pd_vfs *vfs;
    struct pd_error err = {0};
    expect(pd_simulated_disk_vfs(cluster->disk, host, &vfs, &err), PD_OK, &err);
    return vfs;
}

static inline uint32_t count_names(struct pd_vfs *vfs, const char *dir, const char *prefix)
{
    struct pd_listing listing = {0};
    struct pd_error err = {0};
    uint32_t count = 0;
    expect(pd_vfs_list(vfs, dir, &listing, &err), PD_OK, &err);
    for (uint32_t i = 0; i < listing.count; i++)
        count += strncmp(listing.names[i], prefix, strlen(prefix)) == 0;
    pd_listing_deinit(&listing);
    return count;
}

static inline pd_status expect_steps(struct cluster_rank *rank, const uint64_t *steps, uint32_t count, struct pd_error *err)
{
    if (pd_store_count(rank->store) != count)
        PD_FAIL(err, PD_BUG, "%u checkpoints, expected %u", pd_store_count(rank->store), count);
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(rank->store, i);
        if (entry->step != steps[i]) PD_FAIL(err, PD_BUG, "entry %u is %s", i, entry->name);
        PD_TRY(cluster_load(rank, entry, err));
    }
    return PD_OK;
}

static inline pd_status save_three(struct cluster_rank *rank, struct pd_error *err)
{
    for (uint64_t step = 1; step <= 3; step++)
        PD_TRY(cluster_save(rank, step, err));
    return PD_OK;
}
