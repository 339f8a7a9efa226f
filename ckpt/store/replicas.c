/* Replicas: a copy of a rank's shard of a committed checkpoint, in the same directory on another host. Invariant 13 of
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

/* ---- assignment ---- */

/* The ring goes through shares in ascending order. Rank i of a share is kept by rank i mod n of the next share of n. */
static uint32_t keeper_of(const struct store_dir *root, uint32_t rank)
{
    const uint32_t size = root->group->size, here = root->share_of[rank];
    uint32_t next = UINT32_MAX, lowest = UINT32_MAX, replicas_place = 0, members = 0;
    for (uint32_t r = 0; r < size; r++) {
        const uint32_t share = root->share_of[r];
        replicas_place += r < rank && share == here;
        if (share > here && share < next) next = share;
        if (share < lowest) lowest = share;
    }
    if (next == UINT32_MAX) next = lowest;
    for (uint32_t r = next; r < size; r++)
        members += root->share_of[r] == next;
    replicas_place %= members;
    for (uint32_t r = next;; r++)
        if (root->share_of[r] == next && !replicas_place--) return r;
}

pd_status store_replicas_open(struct pd_store_replicas *replicas, const struct store_dir *root, struct pd_error *err)
{
    const uint32_t size = root->group->size, me = root->group->rank;
    if (!root->has_other_shares) return PD_OK;
    uint32_t *kept = calloc(size, sizeof *kept);
    replicas->sources = calloc(size, sizeof *replicas->sources);
    pd_status st = PD_ALLOCATED(kept && replicas->sources, err, "no memory for the replicas of %u ranks", size);
    for (uint32_t r = 0; !st && r < size; r++) {
        const uint32_t keeper = keeper_of(root, r);
        if (r == me) replicas->replica_host = keeper;
        if (keeper == me) replicas->sources[replicas->source_count++] = r;
        if (++kept[keeper] > replicas->most) replicas->most = kept[keeper];
    }
    free(kept);
    return pd_group_agree(root->group, st, err);
}

/* ---- one replica ---- */

/* In use as slot 0 of the shard's rank, which runs on another host, so the pool has no other file of it. */
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
    /* A leftover must not be overwritten: its sync may have failed. */
    pd_status st = pd_vfs_unlink(pool->dir->vfs, ret_path, err);
    if (st != PD_NOT_FOUND) PD_TRY(st);
    (void)!store_free_take(pool, rank, ret_path);
    return PD_OK;
}

/* Renames it to the name in the record. Afterwards it is durably there, or it never was: both are fine. */
static pd_status replicas_place(struct store_pool *pool, const char *name, uint32_t rank, struct pd_error *err)
{
    const struct store_text to = store_at(pool->dir, "%s/%s", name, pd_shard_name(rank).text);
    PD_TRY(pd_vfs_rename(pool->dir->vfs, replica_path(pool, rank).text, to.text, err));
    return store_sync_dir(pool->dir, store_at(pool->dir, "%s", name).text, err);
}

pd_status store_replica_end(struct store_pool *pool, const char *name, uint32_t rank, pd_status mine, struct pd_error *err)
{
    if (mine == PD_OK) mine = replicas_place(pool, name, rank, err);
    if (mine != PD_OK) (void)!pd_vfs_unlink(pool->dir->vfs, replica_path(pool, rank).text, NULL);
    return mine;
}

/* ---- their bytes ---- */

static bool is_of_another_share(const struct store_dir *root, const char *file)
{
    uint32_t rank;
    if (!pd_shard_name_parse(file, &rank)) return false;
    return rank >= root->group->size || root->share_of[rank] != root->share_of[root->group->rank];
}

uint64_t store_replica_bytes(const struct store_dir *root, const struct store_items *committed, uint32_t newest)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < committed->count && i < newest; i++)
        bytes += store_bytes_in(root, store_at(root, "%s", committed->rows[i].entry.name).text, is_of_another_share);
    return bytes;
}
