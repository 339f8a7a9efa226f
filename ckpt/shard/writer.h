/* A shard writer, as planning, writing and compressing share it. */
#ifndef PD_CKPT_SHARD_WRITER_H
#define PD_CKPT_SHARD_WRITER_H

#include "ckpt/shard/chunks.h"

#include <sys/types.h>

#define PD_SHARD_BUFFERS_MIN (2u << 20)

struct pd_shard_writer {
    struct pd_vfs *vfs;
    const struct pd_shard_box *boxes;    /* (box_count), borrowed: numbers of the model's table */
    const struct pd_tensor_table *model; /* borrowed */
    uint32_t box_count;
    unsigned char *buffers; /* borrowed */
    uint64_t buffer_bytes;
    struct pd_tensor_table tensors; /* those of this shard, in order of first use */
    struct pd_shard_box *local;     /* (box_count) boxes with numbers of `tensors` */
    struct pd_shard_place *places;  /* (box_count) */
    uint64_t *name_digests;         /* (tensors.count) */
    struct pd_shard_map map;
    struct pd_h5_pages pages; /* metadata, and shared pages of small boxes */
    uint64_t identity_offset; /* of the dataset that people read */
    uint64_t block_count, file_bytes, table_offset, table_bytes;
    struct pd_shard_chunks *chunks;   /* or NULL: every box is in one piece, and file_bytes never changes */
    unsigned char *table;             /* (table_bytes + a page) aligned: table, then trailer */
    struct pd_queue *queue;           /* of queue_thread; opened at the first write that needs it */
    pid_t queue_thread;               /* kernel thread */
    void (*on_copied)(void *context); /* or NULL */
    void *copied_context;
};

/* Of the calling thread, over the writer's buffers: w->queue. */
PD_MUST_USE pd_status pd_shard_writer_queue(struct pd_shard_writer *w, struct pd_error *err);
/* Data that is not in memory. */
struct pd_shard_source {
    void *context;
    /* Whole blocks of a box, only its last is short, into dst. */
    pd_status (*read)(void *context, uint32_t box, uint64_t first_block, uint64_t block_count, void *dst,
                      struct pd_error *err);
    /* Before `bytes` more are written: may wait, or give up. */
    pd_status (*pace)(void *context, uint64_t bytes, struct pd_error *err);
};
/* pd_shard_write of a compressed shard. Of `data` and `source` (with buffers of 8 MiB and more) one is NULL. */
PD_MUST_USE pd_status pd_shard_write_chunks(struct pd_shard_writer *writer, const char *path,
                                            const struct pd_identity *identity, uint32_t writer_rank,
                                            const void *const *data, const struct pd_shard_source *source,
                                            struct pd_shard_summary *ret_summary, struct pd_error *err);

#endif
