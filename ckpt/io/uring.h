/* Queues of the real disk: io_uring, or threads if rings are refused or not requested. Hooks let tests force every
 * fallback. */
#pragma once

#include "ckpt/io/vfs_ops.h"

/* Features that a simulated kernel refuses. */
enum pd_uring_refusal {
    PD_URING_REFUSE_BUFFERS = 1,  /* ENOMEM: memlock limit */
    PD_URING_REFUSE_FLAGS = 4,    /* EINVAL: no COOP_TASKRUN, before 5.19 */
    PD_URING_REFUSE_RING = 16,    /* EPERM: seccomp, kernel.io_uring_disabled */
    PD_URING_REFUSE_LATER = 32,   /* the first ring works, the queues' rings do not (EMFILE) */
    PD_URING_REFUSE_DIRECT = 64,  /* EINVAL of every direct transfer, as some file systems answer */
    PD_URING_REFUSE_MEMORY = 256, /* ENOMEM of rings: memlock limit, before 5.12 */
    PD_URING_REFUSE_MAPPED = 128, /* EOPNOTSUPP of queues' buffers: memory mapped from a file, before 6.5 */
};

struct pd_uring; /* shared by all queues of a VFS: its context */
/* thread_count 0: use rings; else use that many threads instead. */
PD_MUST_USE pd_status pd_uring_new(uint32_t thread_count, unsigned refusals, struct pd_uring **ret_uring,
                                   struct pd_error *err);
void pd_uring_free(struct pd_uring *uring);
int pd_uring_queue_open(struct pd_uring *uring, struct pd_queue *queue, void *buffers, uint64_t buffer_bytes);
void pd_uring_describe(const struct pd_uring *uring, struct pd_vfs *vfs);

extern const struct pd_vfs_ops pd_posix_ops; /* posix.c */

PD_MUST_USE pd_status pd_vfs_new_uring_refusing(uint32_t queue_depth, unsigned refusals, struct pd_vfs **ret_vfs,
                                                struct pd_error *err);
