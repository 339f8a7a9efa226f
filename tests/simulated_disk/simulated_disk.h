/* A machine room whose disks live in memory and misbehave by seed: what every crash test runs on.
 *
 * Each host has a root of its own ("/" exists and is durable); pd_simulated_disk_vfs opens a VFS for one process of a
 * host. Durability is what POSIX promises and nothing more:
 *   - bytes and size of a file are durable after pd_file_sync, and only those written before it
 *   - a name (created, linked, renamed, unlinked, made, removed) is durable after pd_vfs_sync_dir of the directory that
 * holds it; syncing a file does nothing for its name, syncing a directory nothing for its own name in its parent
 *   - a crash keeps any subset of the rest: of unsynced writes in pieces of 512 bytes, overlapping ones in either order; of
 *     size changes a prefix, gaps read as zeros; of unsynced names each on its own, except that a rename within a directory
 * and one of a directory is atomic, and a rename across directories may leave both names but never none
 *   - so a name may survive with empty or torn content, and content without a name is gone
 *   - after a failed sync what it should have kept stays uncertain for ever, whatever later syncs answer
 *   - a tmpfs mount loses everything; a shared mount loses only when all hosts do; processes that die lose nothing written
 *   - locks belong to a file and a VFS, and go with the VFS, its host or pd_vfs_unlock
 * A queue moves its transfers when they are reaped, in random order.
 *
 *   for (uint64_t nth = 1;; nth++) {                        // power fails at the nth operation of a save
 *       struct pd_simulated_disk *disk = fresh_disk_with_one_checkpoint();
 *       pd_simulated_disk_set_fault(disk, &(struct pd_disk_fault){.kind = PD_DISK_FAULT_POWER, .nth = nth});
 *       save(disk);                                         // fails, as everything on a dead host does
 *       bool fired = pd_simulated_disk_fired(disk) > 0;
 *       for (uint64_t seed = 0; fired && seed < 20; seed++) {
 *           struct pd_simulated_disk *after = clone_of(disk);
 *           pd_simulated_disk_crash(after, PD_DISK_ALL_HOSTS, seed);
 *           expect_previous_or_new(after);                  // opens its own VFSs
 *           pd_simulated_disk_free(after);
 *       }
 *       pd_simulated_disk_free(disk);
 *       if (!fired) break;
 *   }
 *   threads   any; deterministic for one thread, and per VFS when faults name a VFS
 */
#pragma once

#include "ckpt/io/vfs.h"

#define PD_DISK_ALL_HOSTS UINT32_MAX
#define PD_DISK_MOUNTS_MAX 4u

struct pd_simulated_disk;

/* What a mounted file system cannot do. */
enum pd_disk_lack {
    PD_DISK_NO_DIRECT_OPEN = 1,     /* EINVAL at open */
    PD_DISK_NO_DIRECT_TRANSFER = 2, /* EINVAL at the first transfer */
    PD_DISK_NO_LINKS = 4,           /* EPERM */
    PD_DISK_NO_PREALLOCATE = 8,     /* EOPNOTSUPP */
    PD_DISK_NO_LOCKS = 16,          /* ENOLCK */
    PD_DISK_NO_SYNC_DIR = 32,       /* EINVAL */
    PD_DISK_READ_ONLY = 64,         /* EROFS */
    PD_DISK_NO_PATHS = 128,         /* EIO for every path */
    PD_DISK_NO_WRITES = 256,        /* EIO for every byte written */
};

struct pd_disk_mount {
    const char *path;        /* "/" or a directory below it such as "/shm"; borrowed for the call */
    bool in_memory;          /* tmpfs: gone after a crash */
    bool shared;             /* one for all hosts */
    uint64_t capacity_bytes; /* 0: no limit */
    uint64_t inode_limit;    /* 0: no limit */
    unsigned lacks;          /* enum pd_disk_lack */
};

struct pd_disk_options {
    uint64_t seed;
    uint32_t host_count;                             /* 0 counts as 1 */
    struct pd_disk_mount mounts[PD_DISK_MOUNTS_MAX]; /* path NULL: unused; "/" is there anyway */
};

PD_MUST_USE pd_status pd_simulated_disk_new(const struct pd_disk_options *options, struct pd_simulated_disk **ret_disk,
                                            struct pd_error *err);
/* All VFSs must have been freed before. */
void pd_simulated_disk_free(struct pd_simulated_disk *disk);
/* A VFS for one process on `host`; pd_vfs_free releases its locks. Files and queues must have been closed. */
PD_MUST_USE pd_status pd_simulated_disk_vfs(struct pd_simulated_disk *disk, uint32_t host, struct pd_vfs **ret_vfs,
                                            struct pd_error *err);
/* The same disks with everything that is still uncertain; no VFSs, no locks, no fault, no trace; hosts stay down. */
PD_MUST_USE pd_status pd_simulated_disk_clone(struct pd_simulated_disk *disk, struct pd_simulated_disk **ret_clone,
                                              struct pd_error *err);

/* ---- faults ---- */

enum pd_disk_operation {
    PD_DISK_OPEN,
    PD_DISK_CLOSE,
    PD_DISK_READ,
    PD_DISK_WRITE,
    PD_DISK_PREALLOCATE,
    PD_DISK_TRUNCATE,
    PD_DISK_SYNC,
    PD_DISK_STAT, /* of a file or a path */
    PD_DISK_RENAME,
    PD_DISK_LINK,
    PD_DISK_SYMLINK,
    PD_DISK_READLINK,
    PD_DISK_UNLINK,
    PD_DISK_MKDIR,
    PD_DISK_RMDIR,
    PD_DISK_SYNC_DIR,
    PD_DISK_SPACE,
    PD_DISK_LIST,
    PD_DISK_LOCK,
    PD_DISK_QUEUE_OPEN,
    PD_DISK_OPERATION_COUNT
};
#define PD_DISK_MASK(operation) (1u << (operation))

enum pd_disk_fault_kind {
    PD_DISK_FAULT_NONE,
    PD_DISK_FAULT_ERROR, /* fails with sys_errno; a failed write leaves some of its pieces behind; a failed sync dooms */
    PD_DISK_FAULT_ERROR_APPLIED, /* happens in full and then fails with sys_errno, as over a network */
    PD_DISK_FAULT_SHORT,         /* a transfer moves a part and says so: nobody may notice */
    PD_DISK_FAULT_TORN,          /* a write lands in part, in pieces of 512 bytes, and reports success */
    PD_DISK_FAULT_LOST,          /* a write reports success and never happens */
    PD_DISK_FAULT_MISDIRECTED,   /* a write lands elsewhere in its file and reports success */
    PD_DISK_FAULT_LOST_SYNC,     /* a sync of a file or directory reports success and keeps nothing */
    PD_DISK_FAULT_FLIP,          /* a read returns one wrong bit; the disk is unharmed */
    PD_DISK_FAULT_POWER,         /* the host stops before the operation; everything on it fails until it is crashed */
    PD_DISK_FAULT_KIND_COUNT
};

struct pd_disk_fault {
    enum pd_disk_fault_kind kind;
    int sys_errno;            /* of the ERROR kinds; 0 counts as EIO */
    uint64_t nth;             /* counted from 1 among the operations it can hit, since it was set */
    bool persistent;          /* that one and all later ones */
    unsigned operations;      /* PD_DISK_MASK bits; 0: all that the kind can hit */
    const struct pd_vfs *vfs; /* NULL: any */
    bool (*picks)(
        enum pd_disk_operation operation); /* decides instead of nth; called under the disk's lock. NULL: nth does */
};

/* Replaces the fault and restarts the count; NULL or PD_DISK_FAULT_NONE: none (operations are still counted). */
void pd_simulated_disk_set_fault(struct pd_simulated_disk *disk, const struct pd_disk_fault *fault);
uint64_t pd_simulated_disk_fired(struct pd_simulated_disk *disk); /* how often it struck since it was set */
uint64_t pd_simulated_disk_count(struct pd_simulated_disk *disk); /* operations it could have hit since it was set */
const char *pd_disk_operation_name(enum pd_disk_operation operation);
const char *pd_disk_fault_kind_name(enum pd_disk_fault_kind kind);

/* From now on the file system mounted at `path` lacks these, on every host: one that goes bad, or is mended, meanwhile. */
void pd_simulated_disk_set_lacks(struct pd_simulated_disk *disk, const char *path, unsigned lacks);

/* Power loss and restart: what was uncertain is decided by `seed` and becomes durable. VFSs opened before are dead (EIO).
 */
void pd_simulated_disk_crash(struct pd_simulated_disk *disk, uint32_t host, uint64_t seed);
/* SIGKILL of all processes of a host: VFSs are dead and locks free, nothing written is lost. */
void pd_simulated_disk_kill(struct pd_simulated_disk *disk, uint32_t host);
/* Changes `count` random bits of a file as it lies there, durably. False: no such file, or empty. */
bool pd_simulated_disk_flip(struct pd_simulated_disk *disk, uint32_t host, const char *path, uint32_t count, uint64_t seed);

/* Of names and bytes that are durable, on all hosts: after a crash of them all equal digests are one state of the disks. */
uint64_t pd_simulated_disk_digest(struct pd_simulated_disk *disk);

/* Makes a symbolic link, through the simulated VFS or on a real file system; what the product never does. */
pd_status pd_simulated_symlink(struct pd_vfs *vfs, const char *target, const char *path);

/* ---- traces ---- */

/* From now on every operation is recorded as a line of text with its result (tests/simulated_disk/disk_trace.h). */
void pd_simulated_disk_trace_start(struct pd_simulated_disk *disk);
/* What was recorded, for the caller to free; NULL when out of memory. Stops recording. */
char *pd_simulated_disk_trace_stop(struct pd_simulated_disk *disk);
