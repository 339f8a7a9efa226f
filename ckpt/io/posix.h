/* The slots that every real VFS shares: plain system calls on file descriptors. */
#pragma once

#include "ckpt/io/vfs_ops.h"

int pd_posix_open(struct pd_file *file, unsigned flags);
int pd_posix_close(struct pd_file *file);
int pd_posix_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved);
int pd_posix_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved);
int pd_posix_preallocate(struct pd_file *file, uint64_t bytes);
int pd_posix_truncate(struct pd_file *file, uint64_t bytes);
int pd_posix_sync(struct pd_file *file);
int pd_posix_file_stat(struct pd_file *file, struct pd_stat *ret_stat);
int pd_posix_set_buffered(struct pd_file *file);
int pd_posix_rename(struct pd_vfs *vfs, const char *from, const char *to);
int pd_posix_link(struct pd_vfs *vfs, const char *from, const char *to);
int pd_posix_readlink(struct pd_vfs *vfs, const char *path, char ret_target[PD_VFS_PATH_MAX]);
int pd_posix_unlink(struct pd_vfs *vfs, const char *path);
int pd_posix_mkdir(struct pd_vfs *vfs, const char *path);
int pd_posix_rmdir(struct pd_vfs *vfs, const char *path);
int pd_posix_sync_dir(struct pd_vfs *vfs, const char *path);
int pd_posix_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat);
int pd_posix_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space);
int pd_posix_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing);
int pd_posix_dir_open(struct pd_dir *dir, const struct pd_dir *parent, const char *name);
int pd_posix_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing);
int pd_posix_dir_unlink(struct pd_dir *dir, const char *name, bool is_directory);
void pd_posix_dir_close(struct pd_dir *dir);
int pd_posix_lock(struct pd_vfs *vfs, const char *path, struct pd_lock *lock);
void pd_posix_unlock(struct pd_lock *lock);

/* What a VFS of system calls has in its table: all but who closes files, its queues and its end. */
#define PD_POSIX_SLOTS                                                                                                      \
    .open = pd_posix_open, .read = pd_posix_read, .write = pd_posix_write, .preallocate = pd_posix_preallocate,             \
    .truncate = pd_posix_truncate, .sync = pd_posix_sync, .file_stat = pd_posix_file_stat,                                  \
    .set_buffered = pd_posix_set_buffered, .rename = pd_posix_rename, .link = pd_posix_link, .readlink = pd_posix_readlink, \
    .unlink = pd_posix_unlink, .mkdir = pd_posix_mkdir, .rmdir = pd_posix_rmdir, .sync_dir = pd_posix_sync_dir,             \
    .stat = pd_posix_stat, .space = pd_posix_space, .list = pd_posix_list, .dir_open = pd_posix_dir_open,                   \
    .dir_list = pd_posix_dir_list, .dir_unlink = pd_posix_dir_unlink, .dir_close = pd_posix_dir_close,                      \
    .lock = pd_posix_lock, .unlock = pd_posix_unlock
