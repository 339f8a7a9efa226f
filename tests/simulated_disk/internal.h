/* What the disk and its VFSs share: hosts, mounts, the fault that waits, the trace. Private to the simulation. */
#pragma once

#include "ckpt/io/vfs_ops.h"
#include "tests/simulated_disk/tree.h"

#define PD_SIM_MOUNTS_MAX (PD_DISK_MOUNTS_MAX + 1u)

struct pd_sim_mount {
    char path[64]; /* without slashes at either end; "" is the root */
    bool shared;
    struct pd_sim_volume **volumes; /* (host_count); a shared one repeats */
};

struct pd_sim_host {
    uint64_t generation; /* of processes: raised when all of them die */
    bool powered_off;
};

struct pd_simulated_disk {
    pthread_mutex_t mutex;
    uint64_t random;
    uint32_t host_count, mount_count;
    struct pd_sim_mount mounts[PD_SIM_MOUNTS_MAX];
    struct pd_sim_host *hosts;
    struct pd_disk_fault fault;
    uint64_t counted, fired;
    bool tracing, trace_failed;
    char *trace;
    size_t trace_bytes, trace_capacity;
    uint64_t next_handle;
    bool has_symlinks, next_path;
    char paths[2][PD_VFS_PATH_MAX]; /* of the call that holds the mutex, links replaced */
};

struct pd_sim_vfs {
    struct pd_simulated_disk *disk;
    uint32_t host;
    uint64_t generation;
};

struct pd_sim_handle { /* an open file or a held lock */
    struct pd_sim_node *node;
    uint64_t epoch, id;
    bool direct;
};

/* What happens to one operation. */
struct pd_sim_strike {
    enum pd_disk_fault_kind kind; /* PD_DISK_FAULT_NONE: nothing */
    int sys_errno;
};

/* Locks the disk, counts the operation, lets the fault strike. EIO on a dead host. pd_sim_end unlocks. */
int pd_sim_begin(struct pd_vfs *vfs, enum pd_disk_operation operation, struct pd_sim_strike *ret_strike);
/* What the caller hears, so that a line of the trace can end with it: an error that strikes hides that there is no such name. */
int pd_sim_struck(const struct pd_sim_strike *strike, int result);
int pd_sim_end(struct pd_vfs *vfs, const struct pd_sim_strike *strike, int result);
/* The volume that a path of this host lies on, and the rest of the path. */
struct pd_sim_volume *pd_sim_locate(struct pd_simulated_disk *disk, uint32_t host, const char *path, const char **ret_rest);

/* Trace lines; nothing while not tracing. Spaces in paths become %20. */
void pd_sim_trace(struct pd_simulated_disk *disk, const char *format, ...) PD_PRINTF(2, 3);
void pd_sim_trace_path(struct pd_simulated_disk *disk, const char *path);
void pd_sim_trace_hex(struct pd_simulated_disk *disk, const void *data, uint64_t bytes);

extern const struct pd_vfs_ops pd_sim_vfs_ops;
