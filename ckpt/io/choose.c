/* Chooses the kind of queues for this process's disk. */
#include "ckpt/io/threads.h"
#include "ckpt/io/uring.h"

#include <stdlib.h>
#include <string.h>

#define AUTO_QUEUE_DEPTH 128u

static pd_status new_disk(uint32_t queue_depth, uint32_t thread_count, unsigned refusals, struct pd_vfs **ret_vfs,
                          struct pd_error *err)
{
    struct pd_uring *uring = NULL;
    PD_TRY(pd_uring_new(thread_count, refusals, &uring, err));
    pd_status st = pd_vfs_new(&pd_posix_ops, queue_depth, uring, ret_vfs, err);
    if (st)
        pd_uring_free(uring);
    else
        pd_uring_describe(uring, *ret_vfs);
    return st;
}

pd_status pd_vfs_new_uring_refusing(uint32_t queue_depth, unsigned refusals, struct pd_vfs **ret_vfs, struct pd_error *err)
{
    return new_disk(queue_depth, 0, refusals, ret_vfs, err);
}

pd_status pd_vfs_new_uring(uint32_t queue_depth, struct pd_vfs **ret_vfs, struct pd_error *err)
{
    return new_disk(queue_depth, 0, 0, ret_vfs, err);
}

pd_status pd_vfs_new_threads(uint32_t queue_depth, uint32_t thread_count, struct pd_vfs **ret_vfs, struct pd_error *err)
{
    if (thread_count == 0) PD_FAIL(err, PD_INVALID, "0 I/O threads are outside 1..256");
    return new_disk(queue_depth, thread_count, 0, ret_vfs, err);
}

pd_status pd_vfs_new_auto(struct pd_vfs **ret_vfs, struct pd_error *err)
{
    const char *wish = getenv("PERDURE_IO");
    if (wish && strcmp(wish, "threads") == 0)
        return pd_vfs_new_threads(AUTO_QUEUE_DEPTH, PD_IO_THREADS_DEFAULT, ret_vfs, err);
    if (wish && *wish && strcmp(wish, "uring") != 0 && strcmp(wish, "auto") != 0)
        PD_FAIL(err, PD_INVALID, "PERDURE_IO=%s must be uring, threads or auto", wish);
    return pd_vfs_new_uring(AUTO_QUEUE_DEPTH, ret_vfs, err);
}
