/* Removing: record first, everywhere, then the directory by one rename, then its files. Invariants 5, 6, 7 and 10 of
 * store.c. */
#include "ckpt/base/fault.h"
#include "ckpt/base/log.h"
#include "ckpt/store/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- directories ---- */

pd_status store_remove_files(struct pd_store *store, const char *path, struct pd_error *err)
{
    struct pd_listing listing = {0};
    pd_status st = pd_vfs_list(store->vfs, path, &listing, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    uint32_t left = 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        char file[STORE_PATH_MAX];
        int length = snprintf(file, sizeof file, "%s/%s", path, listing.names[i]);
        if (!pd_store_owns_file(listing.names[i]) || length < 0 || (size_t)length >= sizeof file) {
            left++;
            continue;
        }
        pd_status removed = pd_vfs_unlink(store->vfs, file, st == PD_OK ? err : NULL);
        if (st == PD_OK && removed != PD_NOT_FOUND) st = removed;
    }
    pd_listing_deinit(&listing);
    PD_TRY(st);
    st = pd_vfs_rmdir(store->vfs, path, err);
    /* Foreign files, and what NFS leaves behind an open one, keep the directory. */
    if (st == PD_NOT_FOUND || (left && st != PD_OK)) return PD_OK;
    return st;
}

static bool is_of_nfs(const char *name)
{
    return strncmp(name, ".nfs", 4) == 0;
}

static pd_status holds_foreign(struct pd_store *store, const char *path, bool *ret_holds, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(store->vfs, path, &listing, err));
    bool holds = false;
    for (uint32_t i = 0; i < listing.count; i++)
        holds = holds || !(pd_store_owns_file(listing.names[i]) || is_of_nfs(listing.names[i]));
    pd_listing_deinit(&listing);
    *ret_holds = holds;
    return PD_OK;
}

static void trash_path(const struct pd_store *store, const char *name, char ret_path[STORE_PATH_MAX])
{
    char trash[PD_STORE_NAME_MAX + 8];
    snprintf(trash, sizeof trash, "trash-%s", name);
    store_pool_path(store, ret_path, trash);
}

/* Out of the root into the pool, unless it holds something that is not ours: then it is emptied where it is.
 * *ret_path: where its files are now, empty when it is not there. */
static pd_status move_to_trash(struct pd_store *store, const char *name, char ret_path[STORE_PATH_MAX], struct pd_error *err)
{
    char path[STORE_PATH_MAX], trash[STORE_PATH_MAX];
    bool keeps = false;
    store_path(store, path, "%s", name);
    trash_path(store, name, trash);
    ret_path[0] = 0;
    pd_status st = holds_foreign(store, path, &keeps, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    if (keeps) {
        memcpy(ret_path, path, STORE_PATH_MAX);
        return PD_OK;
    }
    st = pd_vfs_rename(store->vfs, path, trash, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    if (st == PD_EXISTS) { /* an earlier removal of the same name could not be finished */
        PD_TRY(store_remove_files(store, trash, err));
        st = pd_vfs_rename(store->vfs, path, trash, err);
    }
    PD_TRY(st);
    memcpy(ret_path, trash, STORE_PATH_MAX);
    return PD_OK;
}

pd_status store_clear_dir(struct pd_store *store, const char *name, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    PD_TRY(move_to_trash(store, name, path, err));
    return path[0] ? store_remove_files(store, path, err) : PD_OK;
}

/* ---- retiring ---- */

static pd_status remove_record(struct pd_store *store, const char *name, const char *suffix, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    store_path(store, path, "%s%s/commit.h5", name, suffix);
    pd_status st = pd_vfs_unlink(store->vfs, path, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    pd_fault_point("store.retire.unrecorded");
    store_path(store, path, "%s%s", name, suffix);
    return store_sync_dir(store, path, err);
}

static pd_status remove_records_here(struct pd_store *store, const char *name, struct pd_error *err)
{
    PD_TRY(remove_record(store, name, "", err));
    return remove_record(store, name, ".tmp", err);
}

static pd_status trash_here(struct pd_store *store, const char *name, struct pd_error *err)
{
    char path[STORE_PATH_MAX], tmp_name[PD_STORE_NAME_MAX + 4];
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp", name);
    PD_TRY(store_clear_dir(store, tmp_name, err));
    return move_to_trash(store, name, path, err);
}

/* A shard that waits for reuse as `rank`'s, out of the trash. One that a generation or somebody else still knows is only
 * unlinked. */
static void recycle_shard(struct pd_store *store, const char *name, uint32_t number, uint32_t rank)
{
    char shard[PD_STORE_NAME_MAX], trash[STORE_PATH_MAX], from[STORE_PATH_MAX];
    pd_shard_name_format(number, shard);
    trash_path(store, name, trash);
    int length = snprintf(from, sizeof from, "%s/%s", trash, shard);
    PD_CHECK(length > 0 && (size_t)length < sizeof from);
    (void)!store_waiting_put(store, rank, from);
}

/* What this rank wrote. What is a link there waits on its own drive. */
static void recycle_shards(struct pd_store *store, const char *name)
{
    const uint32_t rank = store->group->rank, here = store_is_striped(store) ? 1 : store->shards;
    for (uint32_t s = 0; s < here; s++)
        recycle_shard(store, name, rank * store->shards + s, rank);
    for (uint32_t i = 0; i < store->ring.source_count; i++)
        recycle_shard(store, name, store->ring.sources[i], store->ring.sources[i]);
    store_stripes_recycle(store, name);
}

static pd_status empty_trash(struct pd_store *store, const char *name, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    trash_path(store, name, path);
    PD_TRY(store_remove_files(store, path, err));
    store_path(store, path, "%s", name); /* where it is when it holds foreign files */
    PD_TRY(store_remove_files(store, path, err));
    return store_stripes_remove(store, name, err);
}

pd_status store_retire(struct pd_store *store, const char *name, bool recycle, struct pd_error *err)
{
    struct pd_group *group = store->group;
    bool leads = store->leads_domain;
    PD_TRY(pd_group_agree(group, leads ? remove_records_here(store, name, err) : PD_OK, err));
    pd_fault_point("store.retire.hidden");
    pd_status st = pd_group_agree(group, leads ? trash_here(store, name, err) : PD_OK, err);
    if (st == PD_PEER_LOST) return st;
    if (st == PD_OK && recycle) {
        recycle_shards(store, name);
        PD_TRY(pd_group_barrier(group, err));
    }
    if (st == PD_OK) st = pd_group_agree(group, leads ? empty_trash(store, name, err) : PD_OK, err);
    return st;
}

/* ---- retention ---- */

/* Sealed ones by the rule; partial ones once something newer is sealed that stays anyway. */
static void choose_victims(const struct pd_store *store, bool *keep_sealed, uint64_t *steps)
{
    struct pd_retention rule = {.keep_last = store->options.keep_last, .keep_every = store->options.keep_every};
    for (uint32_t i = 0; i < store->sealed.count; i++)
        steps[i] = store->sealed.rows[i].entry.step;
    pd_retention_choose(&rule, steps, store->sealed.count, keep_sealed);
    for (uint32_t i = 0; i < store->sealed.count; i++)
        keep_sealed[i] = keep_sealed[i] || store->sealed.rows[i].pins > 0;
}

/* The record may already be gone where the rest could not be removed: the checkpoint is none any more either way. */
static pd_status prune_one(struct pd_store *store, struct store_items *items, uint32_t index, struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX];
    memcpy(name, items->rows[index].entry.name, sizeof name);
    pd_status st = store_retire(store, name, true, err);
    if (st != PD_OK) return pd_error_context(err, st, "removing checkpoint %s", name);
    store_items_remove(items, name);
    return PD_OK;
}

static pd_status prune_partial(struct pd_store *store, struct pd_error *err)
{
    uint32_t keep_last = store->options.keep_last ? store->options.keep_last : 1;
    if (store->sealed.count < keep_last) return PD_OK;
    const struct pd_store_entry *last = &store->sealed.rows[keep_last - 1].entry;
    for (uint32_t i = store->partial.count; i-- > 0;) {
        const struct pd_store_entry *entry = &store->partial.rows[i].entry;
        bool is_older = entry->lineage < last->lineage || (entry->lineage == last->lineage && entry->step < last->step);
        if (is_older) PD_TRY(prune_one(store, &store->partial, i, err));
    }
    return PD_OK;
}

/* What failed saves could not take away with them. A step that was saved later under the same name is no leftover. */
static void clear_leftovers(struct pd_store *store)
{
    char names[STORE_LEFTOVERS_MAX][PD_STORE_NAME_MAX];
    uint32_t count = store->leftover_count;
    memcpy(names, store->leftovers, sizeof names);
    store->leftover_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!store_is_sealed(store, names[i])) (void)!store_clear_save(store, names[i]);
}

pd_status pd_store_prune(struct pd_store *store, struct pd_error *err)
{
    PD_TRY(pd_store_check_fence(store, err));
    clear_leftovers(store);
    uint32_t count = store->sealed.count;
    bool *keep = calloc((size_t)count + 1, sizeof *keep);
    uint64_t *steps = calloc((size_t)count + 1, sizeof *steps);
    pd_status st =
        keep && steps ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to choose what to remove");
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) choose_victims(store, keep, steps);
    for (uint32_t i = count; st == PD_OK && i-- > 0;) {
        if (!keep[i]) st = prune_one(store, &store->sealed, i, err);
    }
    free(keep);
    free(steps);
    PD_TRY(st);
    return prune_partial(store, err);
}

/* ---- quarantine ---- */

struct quarantined {
    struct pd_step_name name;
    uint64_t bytes;
};

static int oldest_first(const void *a, const void *b)
{
    const struct quarantined *x = a, *y = b;
    if (x->name.fence != y->name.fence) return x->name.fence < y->name.fence ? -1 : 1;
    return x->name.step < y->name.step ? -1 : x->name.step > y->name.step;
}

static uint64_t directory_bytes(struct pd_store *store, const char *path)
{
    struct pd_listing listing = {0};
    uint64_t bytes = 0;
    if (pd_vfs_list(store->vfs, path, &listing, NULL) != PD_OK) return 0;
    for (uint32_t i = 0; i < listing.count; i++) {
        char file[STORE_PATH_MAX];
        struct pd_stat stat;
        int length = snprintf(file, sizeof file, "%s/%s", path, listing.names[i]);
        if (length < 0 || (size_t)length >= sizeof file) continue;
        if (pd_vfs_stat(store->vfs, file, &stat, NULL) == PD_OK) bytes += stat.bytes;
    }
    pd_listing_deinit(&listing);
    return bytes;
}

static pd_status remove_quarantined(struct pd_store *store, const struct quarantined *victim, struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX], path[STORE_PATH_MAX];
    pd_step_name_format(&victim->name, name);
    store_path(store, path, "quarantine/%s", name);
    pd_log_info("ckpt", "%s is removed: the quarantine is full", path);
    PD_TRY(store_remove_files(store, path, err));
    return store_stripes_remove(store, name, err);
}

static pd_status enforce_cap(struct pd_store *store, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    struct pd_listing listing = {0};
    store_path(store, path, "quarantine");
    PD_TRY(pd_vfs_list(store->vfs, path, &listing, err));
    struct quarantined *rows = calloc((size_t)listing.count + 1, sizeof *rows);
    uint32_t count = 0;
    uint64_t total = 0;
    for (uint32_t i = 0; rows && i < listing.count; i++) {
        if (!pd_step_name_parse(listing.names[i], &rows[count].name)) continue;
        store_path(store, path, "quarantine/%s", listing.names[i]);
        rows[count].bytes = directory_bytes(store, path);
        total += rows[count++].bytes;
    }
    pd_listing_deinit(&listing);
    if (!rows) PD_FAIL(err, PD_NO_MEMORY, "no memory to list the quarantine");
    qsort(rows, count, sizeof *rows, oldest_first);
    pd_status st = PD_OK;
    /* The newest stays whatever it takes: it is what tells the next launch that there was something to bring back. */
    const uint32_t most = store->options.quarantine_bytes_max && count ? count - 1 : count;
    for (uint32_t i = 0; st == PD_OK && i < most && total > store->options.quarantine_bytes_max; i++) {
        total -= rows[i].bytes;
        st = remove_quarantined(store, &rows[i], err);
    }
    free(rows);
    return st;
}

/* For people; the checkpoint is aside with or without it. */
static void write_reason(struct pd_store *store, const char *dir, const char *reason)
{
    char path[STORE_PATH_MAX];
    struct pd_file *file = NULL;
    store_path(store, path, "quarantine/%s/reason.txt", dir);
    if (pd_file_open(store->vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_TRUNCATE, &file, NULL) != PD_OK) return;
    pd_status st = pd_file_write(file, 0, reason, strlen(reason), NULL);
    if (st == PD_OK) st = pd_file_write(file, strlen(reason), "\n", 1, NULL);
    if (pd_file_close(file, NULL) != PD_OK || st != PD_OK) pd_log_warn("ckpt", "%s could not be written", path);
}

pd_status store_quarantine_here(struct pd_store *store, const char *name, const char *reason, struct pd_error *err)
{
    char from[STORE_PATH_MAX], to[STORE_PATH_MAX];
    store_path(store, to, "quarantine");
    pd_status st = pd_vfs_mkdir(store->vfs, to, err);
    if (st != PD_EXISTS) PD_TRY(st);
    PD_TRY(store_stripes_quarantine(store, err));
    store_path(store, from, "%s", name);
    store_path(store, to, "quarantine/%s", name);
    st = pd_vfs_rename(store->vfs, from, to, err);
    if (st == PD_NOT_FOUND) return PD_OK; /* this host had no part in it */
    PD_TRY(st);
    write_reason(store, name, reason);
    store_path(store, to, "quarantine");
    PD_TRY(store_sync_dir(store, to, err));
    PD_TRY(store_sync_dir(store, store->root, err));
    return enforce_cap(store, err);
}

pd_status pd_store_quarantine(struct pd_store *store, const struct pd_store_entry *entry, const char *reason,
                              struct pd_error *err)
{
    char name[PD_STORE_NAME_MAX];
    memcpy(name, entry->name, sizeof name);
    if (!store->fence) {
        store_items_remove(&store->sealed, name);
        return PD_OK;
    }
    PD_TRY(pd_store_check_fence(store, err));
    pd_status st = store->leads_domain ? store_quarantine_here(store, name, reason, err) : PD_OK;
    st = pd_group_agree(store->group, st, err);
    if (st != PD_OK) return pd_error_context(err, st, "moving damaged checkpoint %s aside", name);
    store_items_remove(&store->sealed, name);
    return PD_OK;
}

static pd_status count_quarantined_here(struct pd_store *store, uint32_t *ret_count, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    struct pd_listing listing = {0};
    struct pd_step_name name;
    *ret_count = 0;
    store_path(store, path, "quarantine");
    pd_status st = pd_vfs_list(store->vfs, path, &listing, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    for (uint32_t i = 0; i < listing.count; i++)
        *ret_count += pd_step_name_parse(listing.names[i], &name);
    pd_listing_deinit(&listing);
    return PD_OK;
}

pd_status pd_store_count_quarantined(struct pd_store *store, uint32_t *ret_count, struct pd_error *err)
{
    uint32_t size = store->group->size, mine = 0, most = 0, *all = calloc(size, sizeof *all);
    pd_status st = all ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u ranks", size);
    if (st == PD_OK && store->leads_domain) st = count_quarantined_here(store, &mine, err);
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) st = store_gather_all(store, &mine, sizeof mine, all, err);
    for (uint32_t r = 0; st == PD_OK && r < size; r++)
        most = all[r] > most ? all[r] : most;
    free(all);
    PD_TRY(st);
    *ret_count = most;
    return PD_OK;
}
