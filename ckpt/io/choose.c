/* Which door this process opens when nobody says otherwise. */
#include "ckpt/io/door.h"
#include "ckpt/io/threads.h"

#include <stdlib.h>
#include <string.h>

#define AUTO_QUEUE_DEPTH 128u

pd_status pd_door_new_auto(struct pd_door **ret_door, struct pd_error *err)
{
    const char *wish = getenv("PERDURE_IO");
    if (wish && strcmp(wish, "threads") == 0)
        return pd_door_new_threads(AUTO_QUEUE_DEPTH, PD_IO_THREADS_DEFAULT, ret_door, err);
    if (wish && *wish && strcmp(wish, "uring") != 0 && strcmp(wish, "auto") != 0)
        PD_FAIL(err, PD_INVALID, "PERDURE_IO=%s is none of uring, threads, auto", wish);
    return pd_door_new_uring(AUTO_QUEUE_DEPTH, ret_door, err);
}
