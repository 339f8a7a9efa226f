/* The one way to the disk. Every byte of a checkpoint, of its HDF5 metadata and of offloaded state goes through a
 * pd_vfs, so that one place is fast and one place can be made to fail.
 *
 * Paths are absolute or relative to the process; the simulated disk has a root of its own per host.
 * Statuses: PD_NO_SPACE (ENOSPC, EDQUOT), PD_NOT_FOUND, PD_EXISTS (EEXIST, ENOTEMPTY), PD_BUSY (a held lock), PD_UNSUPPORTED
 * (EOPNOTSUPP, EXDEV, EINVAL of O_DIRECT), PD_IO for the rest. Messages name the path and the operation.
 *
 *   contract  1. a failed sync is final: the file must never be believed nor synced again
 *             2. direct files take only offsets, lengths and addresses that are multiples of PD_VFS_ALIGN
 *             3. rename and link are durable only after pd_vfs_sync_dir of the directories they changed
 *   threads   a VFS may be used from any thread; a pd_queue belongs to one thread while anything is in flight
 */
#pragma once

#include "ckpt/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_VFS_ALIGN 4096u

struct pd_vfs;
struct pd_file;
struct pd_queue;
struct pd_lock;
struct pd_dir;

enum pd_open_flags {
    PD_OPEN_READ = 1,
    PD_OPEN_WRITE = 2,     /* implies nothing about reading */
    PD_OPEN_CREATE = 4,    /* create when absent */
    PD_OPEN_EXCLUSIVE = 8, /* with CREATE: PD_EXISTS when present */
    PD_OPEN_DIRECT = 16,   /* O_DIRECT; falls back to buffered where it is refused, with one warning */
    PD_OPEN_TRUNCATE = 32,
};

enum pd_entry_type { PD_ENTRY_FILE, PD_ENTRY_DIRECTORY, PD_ENTRY_OTHER };
struct pd_stat {
    enum pd_entry_type type;
    uint64_t bytes, allocated_bytes, inode, device, link_count;
};
struct pd_space {
    uint64_t total_bytes, available_bytes;   /* for an unprivileged user */
    uint64_t total_inodes, available_inodes; /* both 0 where the file system does not count */
    bool in_memory;                          /* tmpfs, ramfs */
    char type_name[16];                      /* "ext4", "xfs", "tmpfs", "nfs", "lustre", "overlay", ... or hexadecimal */
};
struct pd_listing {
    char **names; /* (count), sorted bytewise, without "." and ".." */
    uint32_t count;
};

/* One asynchronous transfer. The caller fills the first part and keeps the struct and the buffer untouched until reaped. */
struct pd_transfer {
    struct pd_file *file;
    void *data;
    uint64_t offset, bytes;
    bool is_write;
    const char *what; /* it is, in traces: "write of state"; as long as the program lives. NULL: "read" or "write" */
    void *user;       /* the caller's */
    pd_status status; /* result; PD_OK means all bytes moved (short transfers are continued inside) */
    int sys_errno;
    struct { /* the VFS's while it owns the transfer */
        struct pd_transfer *next;
        struct pd_queue *queue;
        uint64_t moved;
        uint64_t trace_begin;
        bool was_direct;
    } internal;
};

struct pd_vfs_ops; /* ckpt/io/vfs_ops.h: the table, every slot filled */

/* Constructors. `queue_depth` requests in flight per queue. The io_uring VFS comes down its ladder by itself and ends as a
 * thread-pool VFS where io_uring is forbidden; pd_vfs_describe says which rung and why. */
PD_MUST_USE pd_status pd_vfs_new_uring(uint32_t queue_depth, struct pd_vfs **ret_vfs, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_new_threads(uint32_t queue_depth, uint32_t thread_count, struct pd_vfs **ret_vfs,
                                         struct pd_error *err);
/* PERDURE_IO=uring|threads|auto decides; auto tries uring. */
PD_MUST_USE pd_status pd_vfs_new_auto(struct pd_vfs **ret_vfs, struct pd_error *err);
void pd_vfs_free(struct pd_vfs *vfs);
/* In every VFS, paths that begin with `scheme` ("s3://") go to another one, which `open` makes when the first such path
 * comes. Once a process, before it has threads. A queue of the VFS takes transfers of files of both. */
void pd_vfs_register_remote(const char *scheme, pd_status (*open)(struct pd_vfs **ret_vfs, struct pd_error *err));
bool pd_vfs_is_remote(const char *path); /* it begins with the scheme of the remote one */
/* One line for doctor and logs: "io_uring", or "threads (io_uring: Operation not permitted; ...)". */
const char *pd_vfs_describe(const struct pd_vfs *vfs);

/* What went through the VFS since it was opened. */
struct pd_vfs_counts {
    uint64_t bytes_read, bytes_written; /* of transfers that succeeded */
    uint64_t flushes;                   /* syncs of files and of directories, failed ones too */
};
struct pd_vfs_counts pd_vfs_counts(const struct pd_vfs *vfs);

/* Files. A file that was written is closed with pd_file_close and its result used. */
PD_MUST_USE pd_status pd_file_open(struct pd_vfs *vfs, const char *path, unsigned flags, struct pd_file **ret_file,
                                   struct pd_error *err);
PD_MUST_USE pd_status pd_file_close(struct pd_file *file, struct pd_error *err);
void pd_file_close_readonly(struct pd_file *file); /* NULL is fine */
bool pd_file_is_direct(const struct pd_file *file);
/* Whole transfers: short results are continued; end of file before `bytes` is PD_CORRUPT ("ends at ..."). */
PD_MUST_USE pd_status pd_file_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_file_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes,
                                    struct pd_error *err);
/* Never emulated: PD_UNSUPPORTED where the file system cannot. Extends the file when it is shorter. */
PD_MUST_USE pd_status pd_file_preallocate(struct pd_file *file, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_file_truncate(struct pd_file *file, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_file_sync(struct pd_file *file, struct pd_error *err); /* fdatasync */
PD_MUST_USE pd_status pd_file_stat(struct pd_file *file, struct pd_stat *ret_stat, struct pd_error *err);

/* Names. */
PD_MUST_USE pd_status pd_vfs_rename(struct pd_vfs *vfs, const char *from, const char *to, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_link(struct pd_vfs *vfs, const char *from, const char *to, struct pd_error *err);
/* Where the symbolic link at `path` leads; ret_target has room for 4096 bytes. PD_UNSUPPORTED where `path` is not a link. */
PD_MUST_USE pd_status pd_vfs_readlink(struct pd_vfs *vfs, const char *path, char *ret_target, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_unlink(struct pd_vfs *vfs, const char *path, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_mkdir(struct pd_vfs *vfs, const char *path, struct pd_error *err); /* under the umask */
PD_MUST_USE pd_status pd_vfs_rmdir(struct pd_vfs *vfs, const char *path, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_sync_dir(struct pd_vfs *vfs, const char *path, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space, struct pd_error *err);
/* Whether `path`, or where it would lie, is a file system in memory. False when that cannot be told: it is then a disk. */
bool pd_vfs_is_in_memory(struct pd_vfs *vfs, const char *path);
PD_MUST_USE pd_status pd_vfs_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing,
                                  struct pd_error *err);
void pd_listing_deinit(struct pd_listing *listing);

/* Removing what is in a directory. It is held open, and names in it are reached from there, so that a symbolic link cannot
 * lead a removal elsewhere. `path` is the caller's and may go through links; no part of `below` (names with slashes between
 * them, or "") may be one: PD_IO, with errno ELOOP. */
PD_MUST_USE pd_status pd_dir_open(struct pd_vfs *vfs, const char *path, const char *below, struct pd_dir **ret_dir,
                                  struct pd_error *err);
void pd_dir_close(struct pd_dir *dir); /* NULL is fine */
PD_MUST_USE pd_status pd_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing, struct pd_error *err);
PD_MUST_USE pd_status pd_dir_unlink(struct pd_dir *dir, const char *name, struct pd_error *err);
PD_MUST_USE pd_status pd_dir_rmdir(struct pd_dir *dir, const char *name, struct pd_error *err);
/* A directory and all that is in it. Its last name must not be a link; links in it are removed, not followed. PD_INVALID where
 * more than `depth_max` directories lie in each other: something is left then. */
PD_MUST_USE pd_status pd_vfs_remove_tree(struct pd_vfs *vfs, const char *path, int depth_max, struct pd_error *err);

/* An exclusive advisory lock on a file that is created when absent; PD_BUSY when somebody holds it, PD_UNSUPPORTED where
 * there are no locks. Dies with the process. */
PD_MUST_USE pd_status pd_vfs_lock(struct pd_vfs *vfs, const char *path, struct pd_lock **ret_lock, struct pd_error *err);
void pd_vfs_unlock(struct pd_lock *lock);

/* Bulk transfers of one thread. `buffers` (bytes buffer_bytes) is registered with the kernel where that works; transfers may
 * use any address, those inside it are faster. */
PD_MUST_USE pd_status pd_queue_open(struct pd_vfs *vfs, void *buffers, uint64_t buffer_bytes, struct pd_queue **ret_queue,
                                    struct pd_error *err);
/* Waits for nothing; everything must have been reaped. */
void pd_queue_close(struct pd_queue *queue);
/* Takes ownership of the transfers until reaped. Blocks only while the queue is at its depth. */
PD_MUST_USE pd_status pd_queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count,
                                      struct pd_error *err);
/* Waits for at least one completion when anything is in flight; returns up to `capacity` finished transfers, each with its
 * own status. 0 finished: nothing was in flight. */
PD_MUST_USE pd_status pd_queue_reap(struct pd_queue *queue, struct pd_transfer **ret_done, uint32_t capacity,
                                    uint32_t *ret_count, struct pd_error *err);
/* The same without waiting: 0 finished may mean that all of it is still in flight. */
PD_MUST_USE pd_status pd_queue_poll(struct pd_queue *queue, struct pd_transfer **ret_done, uint32_t capacity,
                                    uint32_t *ret_count, struct pd_error *err);
uint32_t pd_queue_depth(const struct pd_queue *queue);
/* The status of a reaped transfer, with a message that names file, operation and place. */
PD_MUST_USE pd_status pd_transfer_error(const struct pd_transfer *transfer, struct pd_error *err);
