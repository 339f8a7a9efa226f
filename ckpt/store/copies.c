/* Second copies: a rank's shard of a sealed checkpoint once more, in the same directory of another host. Invariant 13 of
 * store.c.
 *
 *   recycle-R-K ──begin──▶ generation-R-0.h5 ──end──▶ step-…/shard-R.h5 ──retired: record first──▶ recycle-R-K
 *   (waits)                (held, written)     (sealed there)
 *
 * R is the rank whose shard it is; the files lie in the pool of the rank that keeps the copy, which has no rank R of its
 * own.
 */
#include "ckpt/store/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- who keeps whose ---- */

/* Domains are named by their lowest rank. The next one in the ring, or the one before. */
static uint32_t neighbour_domain(const struct pd_store *store, uint32_t domain, bool forward)
{
    uint32_t wrapped = domain, near = domain;
    for (uint32_t r = 0; r < store->group->size; r++) {
        const uint32_t d = store->domain_of[r];
        if (d != domain && (wrapped == domain || (forward ? d < wrapped : d > wrapped))) wrapped = d;
        if (forward ? d <= domain : d >= domain) continue;
        if (near == domain || (forward ? d < near : d > near)) near = d;
    }
    return near != domain ? near : wrapped;
}

static uint32_t count_members(const struct pd_store *store, uint32_t domain, uint32_t before)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < before; r++)
        count += store->domain_of[r] == domain;
    return count;
}

static uint32_t member_of(const struct pd_store *store, uint32_t domain, uint32_t place)
{
    uint32_t r = domain;
    for (;; r++)
        if (store->domain_of[r] == domain && !place--) return r;
}

/* The most shards of other hosts that any rank keeps. */
static uint32_t most_sources(const struct pd_store *store)
{
    const uint32_t size = store->group->size;
    uint32_t most = 0;
    for (uint32_t r = 0; r < size; r++) {
        if (store->domain_of[r] != r) continue;
        const uint32_t keepers = count_members(store, neighbour_domain(store, r, true), size);
        const uint32_t kept = (count_members(store, r, size) + keepers - 1) / keepers;
        if (kept > most) most = kept;
    }
    return most;
}

/* Rank i of a host to rank i mod n of the next host, which has n. */
pd_status store_make_ring(struct pd_store *store, struct pd_error *err)
{
    struct pd_store_ring *ring = &store->ring;
    const uint32_t size = store->group->size, me = store->group->rank;
    if (!store->options.copies || !store->has_other_domains) return PD_OK;
    ring->sources = calloc(size, sizeof *ring->sources);
    pd_status st =
        ring->sources ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a ring of %u ranks", size);
    PD_TRY(pd_group_agree(store->group, st, err));
    const uint32_t here = store->domain_of[me], place = count_members(store, here, me);
    const uint32_t next = neighbour_domain(store, here, true), before = neighbour_domain(store, here, false);
    ring->holder = member_of(store, next, place % count_members(store, next, size));
    const uint32_t keepers = count_members(store, here, size);
    for (uint32_t r = 0, i = 0; r < size; r++)
        if (store->domain_of[r] == before && i++ % keepers == place) ring->sources[ring->source_count++] = r;
    ring->most = most_sources(store);
    return PD_OK;
}

const struct pd_store_ring *pd_store_ring(const struct pd_store *store)
{
    return store->ring.sources ? &store->ring : NULL;
}

bool pd_store_is_shared(const struct pd_store *store)
{
    return !store->has_other_domains;
}

bool store_keeps_copy_of(const struct pd_store *store, uint32_t rank)
{
    for (uint32_t i = 0; i < store->ring.source_count; i++)
        if (store->ring.sources[i] == rank) return true;
    return false;
}

/* ---- one copy ---- */

static void held_path(const struct pd_store *store, uint32_t rank, char ret_path[STORE_PATH_MAX])
{
    char name[PD_STORE_NAME_MAX];
    pd_generation_name_format(rank, 0, name);
    store_pool_path(store, ret_path, name);
}

pd_status pd_store_copy_begin(struct pd_store *store, uint32_t rank, char *ret_path, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    PD_CHECK(store->fence && store_keeps_copy_of(store, rank));
    held_path(store, rank, path);
    /* One that could not be taken away before must not be written: its sync may have failed. */
    pd_status st = pd_vfs_unlink(store->vfs, path, err);
    if (st != PD_NOT_FOUND) PD_TRY(st);
    (void)!store_waiting_take(store, rank, path);
    memcpy(ret_path, path, sizeof path);
    return PD_OK;
}

/* Under the name that the record gives it. It is durable there, or it was never there: both are fine. */
static pd_status place(struct pd_store *store, const char *name, uint32_t rank, struct pd_error *err)
{
    char from[STORE_PATH_MAX], to[STORE_PATH_MAX], shard[PD_STORE_NAME_MAX];
    held_path(store, rank, from);
    pd_shard_name_format(rank, shard);
    store_path(store, to, "%s/%s", name, shard);
    PD_TRY(pd_vfs_rename(store->vfs, from, to, err));
    store_path(store, to, "%s", name);
    return store_sync_dir(store, to, err);
}

pd_status pd_store_copy_end(struct pd_store *store, const char *name, uint32_t rank, pd_status mine, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    if (mine == PD_OK) mine = place(store, name, rank, err);
    if (mine == PD_OK) return PD_OK;
    held_path(store, rank, path);
    (void)!pd_vfs_unlink(store->vfs, path, NULL);
    return mine;
}

bool pd_store_has_record(const struct pd_store *store, const char *name)
{
    char path[STORE_PATH_MAX];
    struct pd_stat stat;
    store_path(store, path, "%s/commit.h5", name);
    return pd_vfs_stat(store->vfs, path, &stat, NULL) == PD_OK;
}

/* ---- what they take ---- */

static uint64_t copied_bytes_in(const struct pd_store *store, const char *name)
{
    struct pd_listing listing = {0};
    char path[STORE_PATH_MAX];
    uint64_t bytes = 0;
    store_path(store, path, "%s", name);
    if (pd_vfs_list(store->vfs, path, &listing, NULL) != PD_OK) return 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        uint32_t rank;
        struct pd_stat stat;
        if (!pd_shard_name_parse(listing.names[i], &rank)) continue;
        if (rank < store->group->size && store->domain_of[rank] == store->domain_of[store->group->rank]) continue;
        store_path(store, path, "%s/%s", name, listing.names[i]);
        if (pd_vfs_stat(store->vfs, path, &stat, NULL) == PD_OK) bytes += stat.bytes;
    }
    pd_listing_deinit(&listing);
    return bytes;
}

uint64_t pd_store_copied_bytes(const struct pd_store *store, uint32_t newest)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; store->ring.sources && i < store->sealed.count && i < newest; i++)
        bytes += copied_bytes_in(store, store->sealed.rows[i].entry.name);
    return bytes;
}
