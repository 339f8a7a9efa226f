/* All disk I/O. Every byte of a checkpoint, of its HDF5 metadata and of offloaded state goes through a pd_vfs, so there is
 * one place to make fast and one place for tests to inject failures.
 *
 * Paths are absolute or relative to the process; the simulated disk has a root of its own per host.
 * Statuses: PD_NO_SPACE (ENOSPC, EDQUOT), PD_NOT_FOUND, PD_EXISTS (EEXIST, ENOTEMPTY), PD_BUSY (a held lock), PD_UNSUPPORTED
 * (EOPNOTSUPP, EXDEV, EINVAL of O_DIRECT), PD_IO for the rest. Messages name the path and the operation.
 *
 *   contract  1. a failed sync is final: do not trust the file or sync it again
 *             2. direct files take only offsets, lengths and addresses that are multiples of PD_VFS_ALIGN
 *             3. rename and link are durable only after pd_vfs_sync_dir of the directories that they changed
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
    PD_OPEN_DIRECT = 16,   /* O_DIRECT; if refused, warns once and uses buffered I/O */
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
    const char *what; /* name in traces, such as "write of state"; static. NULL: "read" or "write" */
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

/* Constructors. `queue_depth` requests in flight per queue. The io_uring VFS drops io_uring features that the kernel
 * refuses and becomes a thread-pool VFS if io_uring is forbidden; pd_vfs_describe says what it uses and why. */
PD_MUST_USE pd_status pd_vfs_new_uring(uint32_t queue_depth, struct pd_vfs **ret_vfs, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_new_threads(uint32_t queue_depth, uint32_t thread_count, struct pd_vfs **ret_vfs,
                                         struct pd_error *err);
/* Chooses by PERDURE_IO=uring|threads|auto; auto tries uring. */
PD_MUST_USE pd_status pd_vfs_new_auto(struct pd_vfs **ret_vfs, struct pd_error *err);
void pd_vfs_free(struct pd_vfs *vfs);
/* Every VFS then sends paths that begin with `scheme` ("s3://") to a remote VFS, which `open` creates at the first such
 * path. Call it once per process, before it starts threads. A queue of the VFS takes transfers for files of both. */
void pd_vfs_register_remote(const char *scheme, pd_status (*open)(struct pd_vfs **ret_vfs, struct pd_error *err));
bool pd_vfs_is_remote(const char *path); /* true if it begins with the registered scheme */
/* One line for doctor and logs: "io_uring", or "threads (io_uring: Operation not permitted; ...)". */
const char *pd_vfs_describe(const struct pd_vfs *vfs);

/* Totals since the VFS was opened. */
struct pd_vfs_counts {
    uint64_t bytes_read, bytes_written; /* of transfers that succeeded */
    uint64_t flushes;                   /* syncs of files and directories, including failed ones */
};
struct pd_vfs_counts pd_vfs_counts(const struct pd_vfs *vfs);

/* Files. Close a file that you wrote with pd_file_close and check the result. */
PD_MUST_USE pd_status pd_file_open(struct pd_vfs *vfs, const char *path, unsigned flags, struct pd_file **ret_file,
                                   struct pd_error *err);
PD_MUST_USE pd_status pd_file_close(struct pd_file *file, struct pd_error *err);
void pd_file_close_readonly(struct pd_file *file); /* NULL is fine */
bool pd_file_is_direct(const struct pd_file *file);
/* Move all bytes: continue short transfers. If the file ends before `bytes`: PD_CORRUPT ("ends at ..."). */
PD_MUST_USE pd_status pd_file_read(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_file_write(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes,
                                    struct pd_error *err);
/* PD_UNSUPPORTED if the file system cannot; never emulated. Extends the file if it is shorter. */
PD_MUST_USE pd_status pd_file_preallocate(struct pd_file *file, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_file_truncate(struct pd_file *file, uint64_t bytes, struct pd_error *err);
PD_MUST_USE pd_status pd_file_sync(struct pd_file *file, struct pd_error *err); /* fdatasync */
PD_MUST_USE pd_status pd_file_stat(struct pd_file *file, struct pd_stat *ret_stat, struct pd_error *err);

/* Names. */
PD_MUST_USE pd_status pd_vfs_rename(struct pd_vfs *vfs, const char *from, const char *to, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_link(struct pd_vfs *vfs, const char *from, const char *to, struct pd_error *err);
/* Reads the target of the symbolic link `path` into ret_target (4096 bytes). PD_UNSUPPORTED if `path` is not a link. */
PD_MUST_USE pd_status pd_vfs_readlink(struct pd_vfs *vfs, const char *path, char *ret_target, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_unlink(struct pd_vfs *vfs, const char *path, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_mkdir(struct pd_vfs *vfs, const char *path, struct pd_error *err); /* under the umask */
PD_MUST_USE pd_status pd_vfs_rmdir(struct pd_vfs *vfs, const char *path, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_sync_dir(struct pd_vfs *vfs, const char *path, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_stat(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat, struct pd_error *err);
PD_MUST_USE pd_status pd_vfs_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space, struct pd_error *err);
/* True if `path`, or the place where it would be created, is in a memory file system. False if that is unknown. */
bool pd_vfs_is_in_memory(struct pd_vfs *vfs, const char *path);
PD_MUST_USE pd_status pd_vfs_list(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing,
                                  struct pd_error *err);
void pd_listing_deinit(struct pd_listing *listing);

/* To remove the contents of a directory, hold it open and resolve names relative to it, so that a symbolic link cannot lead
 * a removal elsewhere. `path` may go through links. No component of `below` ("a/b", or "") may be a link: PD_IO, with errno
 * ELOOP. */
PD_MUST_USE pd_status pd_dir_open(struct pd_vfs *vfs, const char *path, const char *below, struct pd_dir **ret_dir,
                                  struct pd_error *err);
void pd_dir_close(struct pd_dir *dir); /* NULL is fine */
PD_MUST_USE pd_status pd_dir_list(struct pd_dir *dir, struct pd_listing *ret_listing, struct pd_error *err);
PD_MUST_USE pd_status pd_dir_unlink(struct pd_dir *dir, const char *name, struct pd_error *err);
PD_MUST_USE pd_status pd_dir_rmdir(struct pd_dir *dir, const char *name, struct pd_error *err);
/* Removes a directory and its contents. Its last component must not be a link; links inside are removed, not followed.
 * PD_INVALID if directories are nested deeper than `depth_max`; some of the tree is left then. */
PD_MUST_USE pd_status pd_vfs_remove_tree(struct pd_vfs *vfs, const char *path, int depth_max, struct pd_error *err);

/* Takes an exclusive advisory lock on a file, which it creates if absent. PD_BUSY if somebody holds it, PD_UNSUPPORTED if
 * the file system has no locks. The lock ends with the process. */
PD_MUST_USE pd_status pd_vfs_lock(struct pd_vfs *vfs, const char *path, struct pd_lock **ret_lock, struct pd_error *err);
void pd_vfs_unlock(struct pd_lock *lock);

/* A queue of asynchronous transfers for one thread. Registers `buffers` (buffer_bytes) with the kernel if it can. Transfers
 * may use any address; addresses in `buffers` are faster. */
PD_MUST_USE pd_status pd_queue_open(struct pd_vfs *vfs, void *buffers, uint64_t buffer_bytes, struct pd_queue **ret_queue,
                                    struct pd_error *err);
/* Does not wait: reap everything first. */
void pd_queue_close(struct pd_queue *queue);
/* Takes ownership of the transfers until reaped. Blocks only while the queue is at its depth. */
PD_MUST_USE pd_status pd_queue_submit(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count,
                                      struct pd_error *err);
/* Returns up to `capacity` finished transfers, each with its own status. Waits for at least one if anything is in flight. 0
 * finished: nothing was in flight. */
PD_MUST_USE pd_status pd_queue_reap(struct pd_queue *queue, struct pd_transfer **ret_done, uint32_t capacity,
                                    uint32_t *ret_count, struct pd_error *err);
/* The same without waiting: 0 finished may mean that all are still in flight. */
PD_MUST_USE pd_status pd_queue_poll(struct pd_queue *queue, struct pd_transfer **ret_done, uint32_t capacity,
                                    uint32_t *ret_count, struct pd_error *err);
uint32_t pd_queue_depth(const struct pd_queue *queue);
/* Returns the status of a reaped transfer; the message names the file, the operation and the offset. */
PD_MUST_USE pd_status pd_transfer_error(const struct pd_transfer *transfer, struct pd_error *err);
