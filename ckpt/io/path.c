/* The checked wrappers of all operations on paths. */
#include "ckpt/base/grow.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pd_status pd_vfs_rename(struct pd_vfs *vfs, const char *from, const char *to, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(result = vfs->ops->rename(vfs, from, to));
    if (result) return pd_error_set(err, pd_vfs_name_status(result), PD_WHERE, result, "rename %s to %s", from, to);
    return PD_OK;
}

pd_status pd_vfs_link(struct pd_vfs *vfs, const char *from, const char *to, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(result = vfs->ops->link(vfs, from, to));
    if (result == EPERM) /* from file systems without links */
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, result, "link %s as %s", from, to);
    if (result) return pd_error_set(err, pd_vfs_name_status(result), PD_WHERE, result, "link %s as %s", from, to);
    return PD_OK;
}

pd_status pd_vfs_readlink(struct pd_vfs *vfs, const char *path, char *ret_target, struct pd_error *err)
{
    char target[PD_VFS_PATH_MAX];
    int result;
    PD_ON_STORAGE(result = vfs->ops->readlink(vfs, path, target));
    if (result) PD_FAIL_ERRNO(err, result, "read the link %s", path);
    memcpy(ret_target, target, sizeof target);
    return PD_OK;
}

pd_status pd_vfs_unlink(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    int result;
    PD_ON_STORAGE(result = vfs->ops->unlink(vfs, path));
    if (result) PD_FAIL_ERRNO(err, result, "unlink %s", path);
    return PD_OK;
}

pd_status pd_vfs_mkdir(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    int result;
    PD_ON_STORAGE(result = vfs->ops->mkdir(vfs, path));
    if (result) return pd_error_set(err, pd_vfs_name_status(result), PD_WHERE, result, "mkdir %s", path);
    return PD_OK;
}

pd_status pd_vfs_rmdir(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(result = vfs->ops->rmdir(vfs, path));
    if (result) return pd_error_set(err, pd_vfs_name_status(result), PD_WHERE, result, "rmdir %s", path);
    return PD_OK;
}

pd_status pd_vfs_sync_dir(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(pd_vfs_count_flush(vfs); result = vfs->ops->sync_dir(vfs, path));
    if (result) PD_FAIL_ERRNO(err, result, "sync directory %s", path);
    return PD_OK;
}

pd_status pd_vfs_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat, struct pd_error *err)
{
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    struct pd_stat st;
    int result;
    PD_ON_STORAGE(result = vfs->ops->stat(vfs, path, &st));
    if (result)
        return pd_vfs_explain(vfs, pd_error_set(err, pd_status_from_errno(result), PD_WHERE, result, "stat %s", path), err);
    *ret_stat = st;
    return PD_OK;
}

pd_status pd_vfs_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space, struct pd_error *err)
{
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    struct pd_space space;
    int result;
    PD_ON_STORAGE(result = vfs->ops->space(vfs, path, &space));
    if (result) PD_FAIL_ERRNO(err, result, "free space of the file system of %s", path);
    *ret_space = space;
    return PD_OK;
}

/* ---- listings ---- */

int pd_listing_add(struct pd_listing *listing, const char *name)
{
    uint32_t count = listing->count;
    if (count >= UINT32_MAX / 2) return EOVERFLOW;
    if (!pd_grow(&listing->names, count, sizeof *listing->names)) return ENOMEM;
    listing->names[count] = strdup(name);
    if (!listing->names[count]) return ENOMEM;
    listing->count++;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void pd_listing_sort(struct pd_listing *listing)
{
    if (listing->count) qsort(listing->names, listing->count, sizeof *listing->names, compare_names);
}

bool pd_vfs_is_in_memory(struct pd_vfs *vfs, const char *path)
{
    char existing[PD_VFS_PATH_MAX];
    struct pd_space space;
    if ((size_t)snprintf(existing, sizeof existing, "%s", path) >= sizeof existing) return false;
    while (pd_vfs_space(vfs, existing, &space, NULL)) {
        char *slash = strrchr(existing, '/');
        if (slash == existing || strcmp(existing, ".") == 0) return false;
        if (slash)
            *slash = '\0';
        else
            snprintf(existing, sizeof existing, "."); /* a relative path */
    }
    return space.in_memory;
}

pd_status pd_vfs_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing, struct pd_error *err)
{
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    struct pd_listing listing = {0};
    int result;
    PD_ON_STORAGE(result = vfs->ops->list(vfs, path, &listing));
    if (result) {
        pd_listing_deinit(&listing);
        return pd_vfs_explain(
            vfs, pd_error_set(err, pd_status_from_errno(result), PD_WHERE, result, "list directory %s", path), err);
    }
    pd_listing_sort(&listing);
    *ret_listing = listing;
    return PD_OK;
}

void pd_listing_deinit(struct pd_listing *listing)
{
    if (!listing) return;
    for (uint32_t i = 0; i < listing->count; i++)
        free(listing->names[i]);
    free(listing->names);
    *listing = (struct pd_listing){0};
}

/* ---- locks ---- */

pd_status pd_vfs_lock(struct pd_vfs *vfs, const char *path, struct pd_lock **ret_lock, struct pd_error *err)
{
    PD_TRY(pd_vfs_of_path(&vfs, path, err));
    struct pd_lock *lock = calloc(1, sizeof *lock);
    char *copy = strdup(path);
    int result = lock && copy ? 0 : ENOMEM;
    if (!result) {
        *lock = (struct pd_lock){.vfs = vfs, .path = copy, .fd = -1};
        PD_ON_STORAGE(result = vfs->ops->lock(vfs, path, lock));
    }
    if (result) {
        free(lock);
        free(copy);
        if (result == ENXIO) PD_FAIL(err, PD_IO, "lock %s: it is not a regular file", path);
        if (result == ENOLCK) /* from file systems without locks */
            return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, result, "lock %s", path);
        if (result == EAGAIN) PD_FAIL(err, PD_BUSY, "lock %s: held by somebody else", path);
        PD_FAIL_ERRNO(err, result, "lock %s", path);
    }
    *ret_lock = lock;
    return PD_OK;
}

void pd_vfs_unlock(struct pd_lock *lock)
{
    if (!lock) return;
    PD_ON_STORAGE(lock->vfs->ops->unlock(lock));
    free(lock->path);
    free(lock);
}
