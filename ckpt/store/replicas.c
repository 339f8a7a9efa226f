/* Replicas: a rank's shard of a committed checkpoint once more, in the same directory of another host. Invariant 13 of
 * store.c.
 *
 *   recycle-R-K ──begin──▶ generation-R-0.h5 ──end──▶ step-…/shard-R.h5 ──removed: record first──▶ recycle-R-K
 *   (free)                 (in use, written)    (committed there)
 *
 * R is the rank whose shard it is; the files lie in the pool of the replica host, which has no rank R of its own.
 */
#include "ckpt/store/files.h"

#include <stdlib.h>
#include <string.h>

/* ---- who keeps whose ---- */

/* The next share in the ring, or the one before. */
static uint32_t neighbour(const struct store_dir *root, uint32_t share, bool forward)
{
    uint32_t wrapped = share, near = share;
    for (uint32_t r = 0; r < root->group->size; r++) {
        const uint32_t s = root->share_of[r];
        if (s != share && (wrapped == share || (forward ? s < wrapped : s > wrapped))) wrapped = s;
        if (forward ? s <= share : s >= share) continue;
        if (near == share || (forward ? s < near : s > near)) near = s;
    }
    return near != share ? near : wrapped;
}

static uint32_t count_members(const struct store_dir *root, uint32_t share, uint32_t before)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < before; r++)
        count += root->share_of[r] == share;
    return count;
}

static uint32_t member_of(const struct store_dir *root, uint32_t share, uint32_t place)
{
    for (uint32_t r = share;; r++)
        if (root->share_of[r] == share && !place--) return r;
}

/* The most shards of other hosts that any rank keeps. members: (size) scratch. */
static uint32_t most_sources(const struct store_dir *root, uint32_t *members)
{
    const uint32_t size = root->group->size;
    uint32_t most = 0, last = 0; /* last: the share whose shards `share` keeps; the highest one's go to the lowest */
    memset(members, 0, size * sizeof *members);
    for (uint32_t r = 0; r < size; r++)
        members[root->share_of[r]]++;
    for (uint32_t share = 0; share < size; share++)
        if (members[share]) last = share;
    for (uint32_t share = 0; share < size; share++) {
        if (!members[share]) continue;
        const uint32_t kept = (members[last] + members[share] - 1) / members[share];
        if (kept > most) most = kept;
        last = share;
    }
    return most;
}

/* Rank i of a host to rank i mod n of the next host, which has n. */
pd_status store_replicas_open(struct pd_store_replicas *replicas, const struct store_dir *root, struct pd_error *err)
{
    const uint32_t size = root->group->size, me = root->group->rank, here = root->share_of[me];
    if (!root->has_other_shares) return PD_OK;
    replicas->sources = calloc(size, sizeof *replicas->sources);
    pd_status st = PD_ALLOCATED(replicas->sources, err, "no memory for the replicas of %u ranks", size);
    PD_TRY(pd_group_agree(root->group, st, err));
    replicas->most = most_sources(root, replicas->sources);
    const uint32_t place = count_members(root, here, me), keepers = count_members(root, here, size);
    const uint32_t next = neighbour(root, here, true), before = neighbour(root, here, false);
    replicas->replica_host = member_of(root, next, place % count_members(root, next, size));
    for (uint32_t r = 0, i = 0; r < size; r++)
        if (root->share_of[r] == before && i++ % keepers == place) replicas->sources[replicas->source_count++] = r;
    return PD_OK;
}

/* ---- one replica ---- */

/* In use as slot 0 of the rank that it is of, which lives elsewhere, so that the pool has no other file of it. */
static struct store_text replica_path(const struct store_pool *pool, uint32_t rank)
{
    return store_pool_at(pool, pd_generation_name(rank, 0).text);
}

pd_status store_replica_begin(struct store_pool *pool, uint32_t rank, char *ret_path, struct pd_error *err)
{
    bool is_ours = false;
    for (uint32_t i = 0; i < pool->other_count; i++)
        is_ours = is_ours || pool->others[i] == rank;
    PD_CHECK(pool->fence && is_ours);
    memcpy(ret_path, replica_path(pool, rank).text, STORE_PATH_MAX);
    /* One that could not be taken away before must not be written: its sync may have failed. */
    pd_status st = pd_vfs_unlink(pool->dir->vfs, ret_path, err);
    if (st != PD_NOT_FOUND) PD_TRY(st);
    (void)!store_free_take(pool, rank, ret_path);
    return PD_OK;
}

/* Under the name that the record gives it. It is durable there, or it was never there: both are fine. */
static pd_status place(struct store_pool *pool, const char *name, uint32_t rank, struct pd_error *err)
{
    const struct store_text to = store_at(pool->dir, "%s/%s", name, pd_shard_name(rank).text);
    PD_TRY(pd_vfs_rename(pool->dir->vfs, replica_path(pool, rank).text, to.text, err));
    return store_sync_dir(pool->dir, store_at(pool->dir, "%s", name).text, err);
}

pd_status store_replica_end(struct store_pool *pool, const char *name, uint32_t rank, pd_status mine, struct pd_error *err)
{
    if (mine == PD_OK) mine = place(pool, name, rank, err);
    if (mine != PD_OK) (void)!pd_vfs_unlink(pool->dir->vfs, replica_path(pool, rank).text, NULL);
    return mine;
}

/* ---- what they take ---- */

static uint64_t bytes_in(const struct store_dir *root, const char *name)
{
    struct pd_listing listing = {0};
    uint64_t bytes = 0;
    if (pd_vfs_list(root->vfs, store_at(root, "%s", name).text, &listing, NULL) != PD_OK) return 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint32_t rank;
        struct pd_stat stat;
        if (!pd_shard_name_parse(listing.names[i], &rank)) continue;
        if (rank < root->group->size && root->share_of[rank] == root->share_of[root->group->rank]) continue;
        if (pd_vfs_stat(root->vfs, store_at(root, "%s/%s", name, listing.names[i]).text, &stat, NULL) == PD_OK)
            bytes += stat.bytes;
    }
    pd_listing_deinit(&listing);
    return bytes;
}

uint64_t store_replica_bytes(const struct store_dir *root, const struct store_items *committed, uint32_t newest)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < committed->count && i < newest; i++)
        bytes += bytes_in(root, committed->rows[i].entry.name);
    return bytes;
}
