/* A queue engine without io_uring: a pool of threads that call the VFS's read and write slots.
 *
 *   threads  an engine serves any number of queues; its workers start with the first one
 */
#pragma once

#include "ckpt/io/vfs_ops.h"
#include <sys/uio.h>

#define PD_IO_THREADS_DEFAULT 8u

struct pd_io_threads;

/* For a VFS where requests are expensive: waiting reads that are adjacent in a file become one request. */
#define PD_IO_JOIN_PIECES_MAX 64u
struct pd_io_join {
    uint64_t bytes_max;
    /* Fills all `pieces` from `offset` on; returns as pd_file_move does. */
    int (*read)(struct pd_file *file, uint64_t offset, const struct iovec *pieces, uint32_t count);
};

/*   join  constant; NULL: each transfer uses the VFS's read and write slots */
PD_MUST_USE pd_status pd_io_threads_new(uint32_t thread_count, const struct pd_io_join *join,
                                        struct pd_io_threads **ret_threads, struct pd_error *err);
void pd_io_threads_free(struct pd_io_threads *threads);
/* Implements the queue_open slot on an engine; returns 0 or an errno. */
int pd_io_threads_queue_open(struct pd_io_threads *threads, struct pd_queue *queue);
