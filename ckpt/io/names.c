/* The checked wrappers of everything that goes by a path. */
#include "ckpt/io/door_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

pd_status pd_door_rename(struct pd_door *door, const char *from, const char *to, struct pd_error *err)
{
    int result = door->ops->rename(door, from, to);
    if (result) PD_FAIL_ERRNO(err, result, "rename %s to %s", from, to);
    return PD_OK;
}

pd_status pd_door_link(struct pd_door *door, const char *from, const char *to, struct pd_error *err)
{
    int result = door->ops->link(door, from, to);
    if (result == EPERM) /* what file systems without links answer */
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, result, "link %s as %s", from, to);
    if (result) PD_FAIL_ERRNO(err, result, "link %s as %s", from, to);
    return PD_OK;
}

pd_status pd_door_symlink(struct pd_door *door, const char *target, const char *path, struct pd_error *err)
{
    int result = door->ops->symlink(door, target, path);
    if (result == EPERM) /* what file systems without links answer */
        return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, result, "symbolic link %s to %s", path, target);
    if (result) PD_FAIL_ERRNO(err, result, "symbolic link %s to %s", path, target);
    return PD_OK;
}

pd_status pd_door_readlink(struct pd_door *door, const char *path, char *ret_target, struct pd_error *err)
{
    char target[PD_DOOR_PATH_MAX];
    int result = door->ops->readlink(door, path, target);
    if (result) PD_FAIL_ERRNO(err, result, "read the link %s", path);
    memcpy(ret_target, target, sizeof target);
    return PD_OK;
}

pd_status pd_door_unlink(struct pd_door *door, const char *path, struct pd_error *err)
{
    int result = door->ops->unlink(door, path);
    if (result) PD_FAIL_ERRNO(err, result, "unlink %s", path);
    return PD_OK;
}

pd_status pd_door_mkdir(struct pd_door *door, const char *path, struct pd_error *err)
{
    int result = door->ops->mkdir(door, path);
    if (result) PD_FAIL_ERRNO(err, result, "mkdir %s", path);
    return PD_OK;
}

pd_status pd_door_rmdir(struct pd_door *door, const char *path, struct pd_error *err)
{
    int result = door->ops->rmdir(door, path);
    if (result) PD_FAIL_ERRNO(err, result, "rmdir %s", path);
    return PD_OK;
}

pd_status pd_door_sync_dir(struct pd_door *door, const char *path, struct pd_error *err)
{
    int result = door->ops->sync_dir(door, path);
    if (result) PD_FAIL_ERRNO(err, result, "sync directory %s", path);
    return PD_OK;
}

pd_status pd_door_stat(struct pd_door *door, const char *path, struct pd_stat *ret_stat, struct pd_error *err)
{
    struct pd_stat st;
    int result = door->ops->stat(door, path, &st);
    if (result) PD_FAIL_ERRNO(err, result, "stat %s", path);
    *ret_stat = st;
    return PD_OK;
}

pd_status pd_door_space(struct pd_door *door, const char *path, struct pd_space *ret_space, struct pd_error *err)
{
    struct pd_space space;
    int result = door->ops->space(door, path, &space);
    if (result) PD_FAIL_ERRNO(err, result, "free space of the file system of %s", path);
    *ret_space = space;
    return PD_OK;
}

/* ---- listings ---- */

/* The array grows when the count reaches a power of two, so no capacity needs to be kept. */
int pd_listing_add(struct pd_listing *listing, const char *name)
{
    uint32_t count = listing->count;
    if (count >= UINT32_MAX / 2) return EOVERFLOW;
    if ((count & (count - 1)) == 0) {
        size_t capacity = count ? (size_t)count * 2 : 1;
        char **names = realloc(listing->names, capacity * sizeof *names);
        if (!names) return ENOMEM;
        listing->names = names;
    }
    listing->names[count] = strdup(name);
    if (!listing->names[count]) return ENOMEM;
    listing->count++;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

pd_status pd_door_list(struct pd_door *door, const char *path, struct pd_listing *ret_listing, struct pd_error *err)
{
    struct pd_listing listing = {0};
    int result = door->ops->list(door, path, &listing);
    if (result) {
        pd_listing_deinit(&listing);
        PD_FAIL_ERRNO(err, result, "list directory %s", path);
    }
    if (listing.count) qsort(listing.names, listing.count, sizeof *listing.names, compare_names);
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

pd_status pd_door_lock(struct pd_door *door, const char *path, struct pd_lock **ret_lock, struct pd_error *err)
{
    struct pd_lock *lock = calloc(1, sizeof *lock);
    char *copy = strdup(path);
    int result = lock && copy ? 0 : ENOMEM;
    if (!result) {
        *lock = (struct pd_lock){.door = door, .path = copy, .fd = -1};
        result = door->ops->lock(door, path, lock);
    }
    if (result) {
        free(lock);
        free(copy);
        PD_FAIL_ERRNO(err, result, result == EAGAIN ? "lock %s: held by somebody else" : "lock %s", path);
    }
    *ret_lock = lock;
    return PD_OK;
}

void pd_door_unlock(struct pd_lock *lock)
{
    if (!lock) return;
    lock->door->ops->unlock(lock);
    free(lock->path);
    free(lock);
}
