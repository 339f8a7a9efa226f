/* A queue engine for hosts where io_uring is refused or not requested: a pool of threads that call pread and pwrite.
 *
 *   threads  an engine serves any number of queues; its workers start with the first one
 */
#pragma once

#include "ckpt/io/vfs_ops.h"

#define PD_IO_THREADS_DEFAULT 8u

struct pd_io_threads;

PD_MUST_USE pd_status pd_io_threads_new(uint32_t thread_count, struct pd_io_threads **ret_threads, struct pd_error *err);
void pd_io_threads_free(struct pd_io_threads *threads);
/* Implements the queue_open slot on an engine; returns 0 or an errno. */
int pd_io_threads_queue_open(struct pd_io_threads *threads, struct pd_queue *queue);
