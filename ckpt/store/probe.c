#include "ckpt/store/probe.h"

#include "ckpt/base/fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROBE_PATH_MAX 4096

struct probe_paths {
    char first[PROBE_PATH_MAX], second[PROBE_PATH_MAX];
};

pd_status pd_probe_explain(struct pd_error *err, pd_status status, const char *dir)
{
    if (!err || status == PD_OK) return status;
    if (err->sys_errno == EROFS) {
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, "; %s is mounted read-only: choose another directory",
                 dir);
    }
    if (err->sys_errno == EACCES || err->sys_errno == EPERM) {
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used,
                 "; we are uid %u gid %u: give it write permission (chown %u %s) or choose another directory",
                 (unsigned)geteuid(), (unsigned)getegid(), (unsigned)geteuid(), dir);
    }
    return status;
}

static bool is_network(const struct pd_space *space)
{
    static const char *const local[] = {"ext2", "ext3",  "ext4",  "xfs",     "btrfs",     "zfs",
                                        "f2fs", "tmpfs", "ramfs", "overlay", "simulated", "bcachefs"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
        if (strcmp(space->type_name, local[i]) == 0) return false;
    }
    return true;
}

/* Writes one aligned page durably, with direct I/O if the file system allows it. */
static pd_status write_page(struct pd_vfs *vfs, const char *path, bool *ret_direct, struct pd_error *err)
{
    void *page = aligned_alloc(PD_VFS_ALIGN, PD_VFS_ALIGN);
    if (!page) PD_FAIL(err, PD_NO_MEMORY, "no memory for a page");
    memset(page, 0x5a, PD_VFS_ALIGN);
    struct pd_file *file = NULL;
    pd_status st = pd_file_open(vfs, path, PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_DIRECT, &file, err);
    if (st == PD_OK) {
        st = pd_file_write(file, 0, page, PD_VFS_ALIGN, err);
        if (st == PD_OK) st = pd_file_sync(file, err);
        bool is_direct = pd_file_is_direct(file);
        pd_status closed = pd_file_close(file, st == PD_OK ? err : NULL);
        if (st == PD_OK) st = closed;
        if (st == PD_OK) *ret_direct = is_direct;
    }
    free(page);
    return st;
}

/* PD_OK and *ret_has true if it worked; PD_OK and false if this place does not support it. */
static pd_status as_capability(pd_status st, bool *ret_has)
{
    *ret_has = st == PD_OK;
    return st == PD_UNSUPPORTED ? PD_OK : st;
}

static pd_status probe_steps(struct pd_vfs *vfs, const char *dir, const struct probe_paths *paths, struct pd_probe *probe,
                             struct pd_error *err)
{
    PD_TRY(pd_vfs_space(vfs, dir, &probe->space, err));
    probe->is_network = is_network(&probe->space);
    PD_TRY(write_page(vfs, paths->first, &probe->is_direct, err));
    pd_fault_point("store.probe.written");
    PD_TRY(pd_vfs_rename(vfs, paths->first, paths->second, err));
    PD_TRY(as_capability(pd_vfs_link(vfs, paths->second, paths->first, err), &probe->has_links));
    if (probe->has_links) PD_TRY(pd_vfs_unlink(vfs, paths->first, err));
    const char *path = paths->second;
    struct pd_lock *lock = NULL;
    pd_status st = as_capability(pd_vfs_lock(vfs, path, &lock, err), &probe->has_locks);
    pd_vfs_unlock(lock);
    PD_TRY(st);
    PD_TRY(as_capability(pd_vfs_sync_dir(vfs, dir, err), &probe->syncs_names));
    return pd_vfs_unlink(vfs, paths->second, err);
}

pd_status pd_probe_directory(struct pd_vfs *vfs, const char *dir, const char *tag, struct pd_probe *ret_probe,
                             struct pd_error *err)
{
    struct probe_paths paths;
    snprintf(paths.first, sizeof paths.first, "%s/probe-%s-a", dir, tag);
    snprintf(paths.second, sizeof paths.second, "%s/probe-%s-b", dir, tag);
    struct pd_error own = {0};
    struct pd_probe probe = {0};
    pd_status st = probe_steps(vfs, dir, &paths, &probe, &own);
    if (st == PD_OK) {
        *ret_probe = probe;
        return PD_OK;
    }
    pd_error_context(&own, st, "probing what a save will need in %s", dir);
    pd_probe_explain(&own, st, dir);
    (void)!pd_vfs_unlink(vfs, paths.first, NULL);
    (void)!pd_vfs_unlink(vfs, paths.second, NULL);
    return pd_error_pass(err, st, &own);
}
