/* Rewriting a checkpoint under another layout, offline: one process, bounded memory, no temporary copies.
 *
 * Two layouts with the same virtual_tp have the same chunk streams: the bytes of (tensor, kind, chunk), row after row, are
 * one line in both, cut at other rows. So the source is read stream by stream, verified block by block, and written as it
 * comes into the shards of the new layout, several of them at a time. Reads and writes are in flight together; two threads
 * beside them make HDF5's metadata and finish shards.
 *
 *   memory   the caller's buffers; 8 bytes for each 64 KiB of the shards being written and read; what HDF5 needs for their
 *            metadata. Target shards are taken in groups so that this stays within the limits in rewrite.c and source.c
 *   crash    the store's: without a record there is no checkpoint. The next rewrite clears what a killed one left
 *   errors   PD_INVALID: a layout that the numerics do not admit, another model; PD_CORRUPT: a block mismatched twice;
 *            PD_NO_SPACE, PD_IO, PD_STOPPED. The target store is then as before
 */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/store/store.h"
#include "resharder/rewrite/chunk_stream.h"

#define PD_REWRITE_BUFFER_BYTES_MIN (UINT64_C(16) << 20)
#define PD_REWRITE_BUFFER_BYTES (UINT64_C(80) << 20) /* is fast */

/* Data that comes from somewhere else than a stored checkpoint: an import. The record of the request is then made up: the
 * state to be, under a layout of one rank, and one shard whose data_bytes are those of all tensors.
 *   threads  all three from the one that rewrites */
struct pd_rewrite_feed {
    void *context;
    /* Before the first stretch of a group of targets. What `cursor` will yield is what next has to give, in that order. */
    pd_status (*begin)(void *context, const struct pd_chunk_stream_cursor *cursor, struct pd_error *err);
    /* The next bytes, some multiple of 4, never across the end of a stretch; valid until the next call. */
    pd_status (*next)(void *context, const void **ret_data, uint64_t *ret_bytes, struct pd_error *err);
    void (*end)(void *context); /* of the group, also where begin or next failed */
};

struct pd_rewrite_request {
    const struct pd_rewrite_feed *feed; /* NULL: the checkpoint in `directory` */
    bool reads_back;                    /* every shard is read and verified once it is written, before the commit */
    const char *directory;              /* of the committed checkpoint; with a feed what messages call the source */
    const struct pd_commit *commit;
    const struct pd_tensor_table *tensors; /* of its model */
    const struct pd_layout *layout;        /* virtual_tp and virtual_sp as stored */
    struct pd_shard_codec codec;           /* of the new shards; its pool decompresses too, NULL: this thread does both */
    struct pd_store *target;               /* writable, of this process alone */
    void *buffers;                         /* (buffer_bytes) of the disk's, on PD_VFS_ALIGN; huge pages are faster */
    uint64_t buffer_bytes;                 /* at least the minimum */
    pd_should_stop should_stop;            /* asked between blocks, also of those that are read back */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* now and then; may be NULL */
    void *context;
};

struct pd_rewrite_report {
    uint64_t bytes_read_back;
    uint64_t bytes_read, bytes_written; /* of data: blocks at the edges of a group are read twice */
    uint32_t shards;
    uint32_t decompressed_together; /* the most chunks of a compressed source that were decompressed at once */
    bool has_index;                 /* index.h5 is left out where it would outgrow the memory */
};

PD_MUST_USE pd_status pd_rewrite(struct pd_vfs *vfs, const struct pd_rewrite_request *request,
                                 struct pd_rewrite_report *ret_report, struct pd_error *err);
