/* Which VFS this process opens when nobody says otherwise. */
#include "ckpt/io/threads.h"
#include "ckpt/io/vfs.h"

#include <stdlib.h>
#include <string.h>

#define AUTO_QUEUE_DEPTH 128u

pd_status pd_vfs_new_auto(struct pd_vfs **ret_vfs, struct pd_error *err)
{
    const char *wish = getenv("PERDURE_IO");
    if (wish && strcmp(wish, "threads") == 0)
        return pd_vfs_new_threads(AUTO_QUEUE_DEPTH, PD_IO_THREADS_DEFAULT, ret_vfs, err);
    if (wish && *wish && strcmp(wish, "uring") != 0 && strcmp(wish, "auto") != 0)
        PD_FAIL(err, PD_INVALID, "PERDURE_IO=%s must be uring, threads or auto", wish);
    return pd_vfs_new_uring(AUTO_QUEUE_DEPTH, ret_vfs, err);
}
