/* Directories held open for removing their contents. Names below are resolved from the open directory, one component at a
 * time, so that no symbolic link leads a removal to somebody else's files. */
#include "ckpt/base/heartbeat.h"
#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pd_status dir_open(struct pd_vfs *vfs, const struct pd_dir *parent, const char *name, struct pd_dir **ret_dir,
                          struct pd_error *err)
{
    if (!parent) PD_TRY(pd_vfs_of_path(&vfs, name, err));
    struct pd_dir *dir = calloc(1, sizeof *dir);
    if (!dir) PD_FAIL(err, PD_NO_MEMORY, "no memory to open directory %s", name);
    *dir = (struct pd_dir){.vfs = vfs, .fd = -1};
    const int length = snprintf(dir->path, sizeof dir->path, "%s%s%s", parent ? parent->path : "",
                                parent && strcmp(parent->path, "/") != 0 ? "/" : "", name);
    const bool fits = length > 0 && (size_t)length < sizeof dir->path;
    int result = ENAMETOOLONG;
    if (fits) PD_ON_STORAGE(result = vfs->ops->dir_open(dir, parent, name));
    if (!result) {
        *ret_dir = dir;
        return PD_OK;
    }
    pd_status st =
        result == ELOOP && parent
            ? pd_error_set(err, PD_IO, PD_WHERE, ELOOP,
                           "%s is a symbolic link, and nothing is removed through one: remove the link", dir->path)
            : pd_error_set(err, pd_status_from_errno(result), PD_WHERE, result, "open directory %s", dir->path);
    free(dir);
    return st;
}

pd_status pd_dir_open(struct pd_vfs *vfs, const char *path, const char *below, struct pd_dir **ret_dir, struct pd_error *err)
{
    struct pd_dir *dir = NULL;
    PD_TRY(dir_open(vfs, NULL, path, &dir, err));
    while (*below) {
        char name[256];
        struct pd_dir *next = NULL;
        const size_t length = strcspn(below, "/");
        snprintf(name, sizeof name, "%.*s", (int)length, below);
        const pd_status st = dir_open(vfs, dir, name, &next, err);
        pd_dir_close(dir);
        PD_TRY(st);
        dir = next;
        below += length + (below[length] == '/');
    }
    *ret_dir = dir;
    return PD_OK;
}

void pd_dir_close(struct pd_dir *dir)
{
    if (!dir) return;
    PD_ON_STORAGE(dir->vfs->ops->dir_close(dir));
    free(dir);
}

pd_status pd_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing, struct pd_error *err)
{
    struct pd_listing listing = {0};
    int result;
    PD_ON_STORAGE(result = dir->vfs->ops->dir_list(dir, &listing));
    if (result) {
        pd_listing_deinit(&listing);
        PD_FAIL_ERRNO(err, result, "list directory %s", dir->path);
    }
    pd_listing_sort(&listing);
    *ret_listing = listing;
    return PD_OK;
}

pd_status pd_dir_unlink(struct pd_dir *dir, const char *name, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(result = dir->vfs->ops->dir_unlink(dir, name, false));
    if (result) PD_FAIL_ERRNO(err, result, "unlink %s/%s", dir->path, name);
    return PD_OK;
}

pd_status pd_dir_rmdir(struct pd_dir *dir, const char *name, struct pd_error *err)
{
    int result;
    PD_ON_STORAGE(result = dir->vfs->ops->dir_unlink(dir, name, true));
    if (result) PD_FAIL_ERRNO(err, result, "rmdir %s/%s", dir->path, name);
    return PD_OK;
}

/* ---- trees ---- */

static pd_status dir_remove_all(struct pd_dir *dir, int depth, struct pd_error *err)
{
    struct pd_listing listing;
    if (!depth) PD_FAIL(err, PD_INVALID, "%s: directories lie deeper in each other than they are ever made", dir->path);
    PD_TRY(pd_dir_list(dir, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < listing.count; i++) {
        struct pd_dir *child = NULL;
        struct pd_error own = {0};
        st = dir_open(dir->vfs, dir, listing.names[i], &child, &own);
        if (st && (own.sys_errno == ENOTDIR || own.sys_errno == ELOOP)) { /* a file, or a link, which is itself removed */
            st = pd_dir_unlink(dir, listing.names[i], err);
            continue;
        }
        if (!st) st = dir_remove_all(child, depth - 1, &own);
        pd_dir_close(child);
        if (st)
            st = pd_error_pass(err, st, &own);
        else
            st = pd_dir_rmdir(dir, listing.names[i], err);
    }
    pd_listing_deinit(&listing);
    return st;
}

pd_status pd_vfs_remove_tree(struct pd_vfs *vfs, const char *path, int depth_max, struct pd_error *err)
{
    char parent[PD_VFS_PATH_MAX];
    struct pd_dir *above = NULL, *dir = NULL;
    if ((size_t)snprintf(parent, sizeof parent, "%s", path) >= sizeof parent) PD_FAIL(err, PD_INVALID, "%s: too long", path);
    char *slash = strrchr(parent, '/');
    const char *name = slash ? path + (slash - parent) + 1 : path;
    if (slash) slash[slash == parent] = '\0';
    PD_TRY(pd_dir_open(vfs, slash ? parent : ".", "", &above, err));
    pd_status st = dir_open(vfs, above, name, &dir, err);
    if (!st) st = dir_remove_all(dir, depth_max, err);
    pd_dir_close(dir);
    if (!st) st = pd_dir_rmdir(above, name, err);
    pd_dir_close(above);
    return st;
}
