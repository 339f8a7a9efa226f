/* The io_uring VFS, with the hooks that let tests stand on each rung of its ladder. */
#pragma once

#include "ckpt/io/vfs_ops.h"

/* What a pretended kernel refuses. */
enum pd_uring_refusal {
    PD_URING_REFUSE_BUFFERS = 1,  /* ENOMEM: memlock limit */
    PD_URING_REFUSE_FLAGS = 4,    /* EINVAL: no COOP_TASKRUN, before 5.19 */
    PD_URING_REFUSE_RING = 16,    /* EPERM: seccomp, kernel.io_uring_disabled */
    PD_URING_REFUSE_LATER = 32,   /* the first ring works, the queues' rings do not (EMFILE) */
    PD_URING_REFUSE_DIRECT = 64,  /* EINVAL of every direct transfer, as some file systems answer */
    PD_URING_REFUSE_MEMORY = 256, /* ENOMEM of rings: memlock limit, before 5.12 */
    PD_URING_REFUSE_MAPPED = 128, /* EOPNOTSUPP of queues' buffers: memory mapped from a file, before 6.5 */
};

PD_MUST_USE pd_status pd_vfs_new_uring_refusing(uint32_t queue_depth, unsigned refusals, struct pd_vfs **ret_vfs,
                                                struct pd_error *err);
