/* A shard writer: plan.c creates it, one stream at a time writes with it (stream.c). */
#pragma once

#include "ckpt/base/owner.h"
#include "ckpt/shard/chunks.h"

#include <sys/types.h>

#define PD_SHARD_BUFFERS_MIN (2u << 20)
#define PD_SHARD_STREAM_BYTES UINT64_C(8192) /* most heap bytes of a stream, beyond what grows with boxes */

struct pd_shard_writer {
    struct pd_vfs *vfs;
    const struct pd_shard_box *boxes;    /* (box_count), borrowed: index the model's table */
    const struct pd_tensor_table *model; /* borrowed */
    uint32_t box_count;
    struct pd_owner owner;  /* of buffers, pages, table and queue: the writing stream, from its begin to its end */
    unsigned char *buffers; /* borrowed */
    uint64_t buffer_bytes;
    struct pd_thread_pool *pool;    /* borrowed, or NULL */
    struct pd_tensor_table tensors; /* the tensors of this shard, in order of first use */
    struct pd_shard_box *local;     /* (box_count) the boxes, indexing `tensors` */
    struct pd_shard_place *places;  /* (box_count) */
    uint64_t *name_digests;         /* (tensors.count) */
    struct pd_shard_map map;
    struct pd_h5_pages pages; /* metadata, and shared pages of small boxes */
    uint64_t identity_offset; /* of the dataset with the identity for people */
    uint64_t block_count, file_bytes, table_offset, table_bytes;
    struct pd_shard_chunks *chunks;   /* NULL: every box is in one piece, and file_bytes never changes */
    unsigned char *table;             /* (table_bytes + a page) aligned: table, then trailer */
    struct pd_queue *queue;           /* used by queue_thread only; opened by the first write that needs it */
    pid_t queue_thread;               /* kernel thread id */
    void (*on_copied)(void *context); /* or NULL */
    void *copied_context;
    pd_status (*on_written)(void *context, uint64_t bytes, struct pd_error *err); /* or NULL */
    void *written_context;
};
