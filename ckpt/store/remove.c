/* Removes a checkpoint: first its record, everywhere, then the directory by one rename, then its files. Invariants 5, 6,
 * 7 and 10 of store.c. */
#include "ckpt/store/remove.h"

#include "ckpt/base/fault.h"

#include <stdio.h>
#include <string.h>

/* ---- directories ---- */

static pd_status holds_foreign(const struct store_dir *root, const char *path, bool *ret_holds, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(root->vfs, path, &listing, err));
    bool holds = false;
    for (uint32_t i = 0; i < listing.count; i++)
        holds = holds || !(pd_store_owns_file(listing.names[i]) || strncmp(listing.names[i], ".nfs", 4) == 0);
    pd_listing_deinit(&listing);
    *ret_holds = holds;
    return PD_OK;
}

static struct store_text trash_path(const struct store_files *files, const char *name)
{
    char trash[PD_STORE_NAME_MAX + 8];
    snprintf(trash, sizeof trash, "trash-%s", name);
    return store_pool_at(&files->pool, trash);
}

/* Moves a directory from the root into the pool. If it holds foreign files, or there is no pool, it is emptied where it
 * is. *ret_path: where its files are now; empty if it does not exist. */
static pd_status move_to_trash(const struct store_files *files, const char *name, struct store_text *ret_path,
                               struct pd_error *err)
{
    const struct store_dir *root = &files->dir;
    const struct store_text path = store_at(root, "%s", name), trash = trash_path(files, name);
    bool keeps = !files->pool.fence;
    ret_path->text[0] = 0;
    pd_status st = keeps ? PD_OK : holds_foreign(root, path.text, &keeps, err);
    if (!st && !keeps) st = pd_vfs_rename(root->vfs, path.text, trash.text, err);
    if (st == PD_EXISTS) { /* an earlier removal of the same name was not finished */
        PD_TRY(store_remove_files(root, trash.text, err));
        st = pd_vfs_rename(root->vfs, path.text, trash.text, err);
        keeps = st == PD_EXISTS; /* it holds NFS's file for an open one */
        if (keeps) st = PD_OK;
    }
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    *ret_path = keeps ? path : trash;
    return PD_OK;
}

/* Removes only a symbolic link; its target, which somebody put elsewhere, stays. */
static pd_status drop_link(struct store_dir *root, const char *name, bool *ret_was_link, struct pd_error *err)
{
    const struct store_text path = store_at(root, "%s", name);
    *ret_was_link = store_is_link(root, path.text);
    if (!*ret_was_link) return PD_OK;
    PD_TRY(pd_vfs_unlink(root->vfs, path.text, err));
    return store_sync_dir(root, root->root, err);
}

pd_status store_clear_dir(struct store_files *files, const char *name, struct pd_error *err)
{
    struct store_text path;
    bool was_link;
    PD_TRY(drop_link(&files->dir, name, &was_link, err));
    if (was_link) return PD_OK;
    PD_TRY(move_to_trash(files, name, &path, err));
    return path.text[0] ? store_remove_files(&files->dir, path.text, err) : PD_OK;
}

/* ---- a checkpoint ---- */

/* Renames, not unlinks: a directory with neither record nor mark is not one that we have begun to remove. */
static pd_status remove_record(struct store_dir *root, const char *dir, struct pd_error *err)
{
    bool was_link;
    PD_TRY(drop_link(root, dir, &was_link, err));
    if (was_link) return PD_OK;
    pd_status st = pd_vfs_rename(root->vfs, store_at(root, "%s/commit.h5", dir).text,
                                 store_at(root, "%s/" PD_STORE_REMOVED, dir).text, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    PD_TRY(st);
    pd_fault_point("store.remove.unrecorded");
    return store_sync_dir(root, store_at(root, "%s", dir).text, err);
}

static struct pd_store_name tmp_name_of(const char *name)
{
    struct pd_store_name tmp;
    PD_CHECK((size_t)snprintf(tmp.text, sizeof tmp.text, "%s.tmp", name) < sizeof tmp.text);
    return tmp;
}

/* On one disk the later sync of the root would do, except that an earlier launch may have seen it fail: then a power loss
 * may bring the name back, and with it a record whose shards are in use. */
static pd_status remove_records_here(struct store_dir *root, const char *name, struct pd_error *err)
{
    PD_TRY(remove_record(root, name, err));
    return remove_record(root, tmp_name_of(name).text, err);
}

/* Durable before any file is moved or unlinked: otherwise a power loss might lose the mark first. */
static pd_status trash_here(struct store_files *files, const char *name, struct pd_error *err)
{
    struct store_dir *root = &files->dir;
    struct store_text path;
    PD_TRY(store_clear_dir(files, tmp_name_of(name).text, err));
    PD_TRY(move_to_trash(files, name, &path, err));
    if (!path.text[0]) return PD_OK;
    return store_sync_dir(root, strcmp(path.text, store_at(root, "%s", name).text) == 0 ? path.text : root->root, err);
}

/* Makes the shard of `rank` a free file, out of the trash. If a generation or somebody else has another name for it, only
 * unlinks it. */
static void recycle_shard(struct store_files *files, const char *name, uint32_t rank)
{
    char from[STORE_PATH_MAX];
    int length = snprintf(from, sizeof from, "%s/%s", trash_path(files, name).text, pd_shard_name(rank).text);
    PD_CHECK(length > 0 && (size_t)length < sizeof from);
    (void)!store_free_put(&files->pool, rank, from);
}

static pd_status empty_trash(struct store_files *files, const char *name, struct pd_error *err)
{
    const struct store_dir *root = &files->dir;
    if (files->pool.fence) PD_TRY(store_remove_files(root, trash_path(files, name).text, err));
    /* It still exists if it holds foreign files. */
    return store_remove_files(root, store_at(root, "%s", name).text, err);
}

pd_status store_remove(struct store_files *files, const char *name, bool recycle, struct pd_error *err)
{
    struct store_dir *root = &files->dir;
    const bool leads = root->leads_share;
    PD_TRY(pd_group_agree(root->group, leads ? remove_records_here(root, name, err) : PD_OK, err));
    pd_fault_point("store.remove.hidden");
    PD_TRY(pd_group_agree(root->group, leads ? trash_here(files, name, err) : PD_OK, err));
    if (recycle) {
        /* Recycle what this rank wrote. */
        const struct store_pool *pool = &files->pool;
        const uint32_t rank = pool->dir->group->rank;
        recycle_shard(files, name, rank);
        for (uint32_t i = 0; i < pool->other_count; i++)
            recycle_shard(files, name, pool->others[i]);
        PD_TRY(pd_group_barrier(root->group, err));
    }
    return pd_group_agree(root->group, leads ? empty_trash(files, name, err) : PD_OK, err);
}
