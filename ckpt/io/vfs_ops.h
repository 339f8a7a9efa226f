/* The function table of a VFS. An implementation fills every slot.
 *
 * Slots return 0 or an errno and never see a pd_error: the wrappers in vfs.c and queue.c check arguments, continue short
 * transfers, fall back from direct to buffered I/O and name path and operation in the message, once for all implementations.
 *
 *   invariants  1. tables are constant and complete; there is no NULL slot
 *               2. read and write may move less than asked; 0 moved means end of file (read) or no progress (write)
 *               3. queue_submit is given at most `depth - in_flight` transfers, all of them valid and aligned
 *   threads     any thread may call every slot of the VFS; only its owner may call the slots of a queue
 */
#pragma once

#include "ckpt/io/vfs.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define PD_VFS_PATH_MAX 4096u

/* Results of a transfer beside errno values. */
#define PD_MOVE_END_OF_FILE (-1)

struct pd_file {
    struct pd_vfs *vfs;
    char *path;
    unsigned flags;
    _Atomic bool direct;      /* false once the file system has refused it, or if the open slot says so */
    _Atomic bool sync_failed; /* do not trust anything written to it */
    int fd;                   /* of the real VFSs, -1 elsewhere */
    void *context;            /* of the implementation */
};

struct pd_lock {
    struct pd_vfs *vfs;
    char *path;
    int fd;
    void *context;
};

struct pd_dir {
    struct pd_vfs *vfs;
    char path[PD_VFS_PATH_MAX]; /* for messages, and for a VFS without file descriptors */
    int fd;                     /* of the real VFSs, -1 elsewhere */
};

struct pd_queue_ops {
    const char *name;
    int (*submit)(struct pd_queue *queue, struct pd_transfer *const *transfers, uint32_t count);
    /* Calls pd_queue_finish for finished transfers. With `wait`, waits for at least one if any is in flight. */
    int (*reap)(struct pd_queue *queue, bool wait);
    void (*close)(struct pd_queue *queue); /* frees what hangs on context, not the queue */
};

struct pd_queue {
    struct pd_vfs *vfs;
    const struct pd_queue_ops *ops;
    uint32_t depth;
    uint32_t in_flight;            /* accepted by the implementation, not finished */
    struct pd_transfer *done_head; /* finished, not reaped */
    struct pd_transfer *done_tail;
    void *context;
    struct pd_queue *remote; /* queue of the remote VFS; NULL: no remote transfer yet */
};

struct pd_vfs_ops {
    const char *name;
    int (*open)(struct pd_file *file, unsigned flags); /* VFS, path and direct are set; fills fd or context */
    int (*close)(struct pd_file *file);
    int (*read)(struct pd_file *file, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved);
    int (*write)(struct pd_file *file, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved);
    int (*preallocate)(struct pd_file *file, uint64_t bytes);
    int (*truncate)(struct pd_file *file, uint64_t bytes);
    int (*sync)(struct pd_file *file);
    int (*file_stat)(struct pd_file *file, struct pd_stat *ret_stat);
    int (*set_buffered)(struct pd_file *file); /* turn off O_DIRECT */
    int (*rename)(struct pd_vfs *vfs, const char *from, const char *to);
    int (*link)(struct pd_vfs *vfs, const char *from, const char *to);
    int (*readlink)(struct pd_vfs *vfs, const char *path, char ret_target[PD_VFS_PATH_MAX]);
    int (*unlink)(struct pd_vfs *vfs, const char *path);
    int (*mkdir)(struct pd_vfs *vfs, const char *path);
    int (*rmdir)(struct pd_vfs *vfs, const char *path);
    int (*sync_dir)(struct pd_vfs *vfs, const char *path);
    int (*stat)(struct pd_vfs *vfs, const char *path, struct pd_stat *ret_stat);
    int (*space)(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space);
    int (*list)(struct pd_vfs *vfs, const char *path, struct pd_listing *ret_listing); /* in any order */
    /* Opens dir->path if parent is NULL, else `name` in the parent: ELOOP if that is a symbolic link. */
    int (*dir_open)(struct pd_dir *dir, const struct pd_dir *parent, const char *name);
    int (*dir_list)(struct pd_dir *dir, struct pd_listing *ret_listing);
    int (*dir_unlink)(struct pd_dir *dir, const char *name, bool is_directory);
    void (*dir_close)(struct pd_dir *dir);
    int (*lock)(struct pd_vfs *vfs, const char *path, struct pd_lock *lock);
    void (*unlock)(struct pd_lock *lock);
    int (*queue_open)(struct pd_queue *queue, void *buffers, uint64_t buffer_bytes); /* fills ops and context */
    void (*free)(struct pd_vfs *vfs); /* frees what hangs on context, not the VFS */
};

struct pd_vfs {
    const struct pd_vfs_ops *ops;
    uint32_t queue_depth;
    void *context;
    _Atomic uint64_t bytes_read, bytes_written, flushes; /* the wrappers add, in any thread */
    pthread_mutex_t mutex;                               /* guards the fields below */
    char texts[4][256];                                  /* descriptions: a published one never changes */
    uint32_t text_count;
    _Atomic(const char *) description;
    struct pd_error failure; /* the last error text that an implementation set */
    struct pd_vfs *remote;   /* NULL: no remote path yet */
    int failure_errno;       /* errno that goes with `failure`; 0: none */
};

/* For calls that create or remove a name; other calls do not map EEXIST to PD_EXISTS. */
static inline pd_status pd_vfs_name_status(int sys_errno)
{
    return sys_errno == EEXIST || sys_errno == ENOTEMPTY ? PD_EXISTS : pd_status_from_errno(sys_errno);
}

/* For implementations. */
PD_MUST_USE pd_status pd_vfs_new(const struct pd_vfs_ops *ops, uint32_t queue_depth, void *context, struct pd_vfs **ret_vfs,
                                 struct pd_error *err);
void pd_vfs_set_description(struct pd_vfs *vfs, const char *format, ...) PD_PRINTF(2, 3);
/* For wrappers: sets *vfs to the remote VFS if the path is remote. */
PD_MUST_USE pd_status pd_vfs_of_path(struct pd_vfs **vfs, const char *path, struct pd_error *err);
/* Keeps the server's text for an error that a slot will return as `sys_errno`. pd_vfs_explain appends it to the message. */
void pd_vfs_set_failure(struct pd_vfs *vfs, int sys_errno, const struct pd_error *failure);
/* For wrappers.   returns  `st`, or the status of the kept failure if its errno is err->sys_errno */
pd_status pd_vfs_explain(struct pd_vfs *vfs, pd_status st, struct pd_error *err);
/* Appends a copied name; for the list slot.  errors  ENOMEM */
int pd_listing_add(struct pd_listing *listing, const char *name);
void pd_listing_sort(struct pd_listing *listing);

/* Moves `bytes` through the read and write slots. Continues short transfers and falls back if direct I/O is refused.
 * Returns 0, an errno or PD_MOVE_END_OF_FILE; always sets *ret_moved. */
int pd_file_move(struct pd_file *file, bool is_write, uint64_t offset, void *data, uint64_t bytes, uint64_t *ret_moved);
/* Returns true if EINVAL meant "no direct I/O here" and the file is buffered now: retry the transfer. */
bool pd_file_fall_back(struct pd_file *file, bool was_direct, int sys_errno);
/* How many bytes of a short transfer count: direct files continue at a multiple of PD_VFS_ALIGN. 0: no progress. */
uint64_t pd_file_progress(const struct pd_file *file, uint64_t moved, uint64_t asked);

/* Wrappers of file sync (vfs.c) and directory sync (path.c) call it before the slot. */
void pd_vfs_count_flush(struct pd_vfs *vfs);
/* The reap slot calls it in the owner's thread; `result` as pd_file_move returns it. Decrements in_flight. */
void pd_queue_finish(struct pd_queue *queue, struct pd_transfer *transfer, int result);
