/* Writes a checkpoint under a layout, offline: one process, bounded memory, no temporary copies. The data comes from a feed of
 * the caller's, stretch by stretch in the order of a cursor, and goes as it comes into the shards of the layout, several of
 * them at a time. Two threads beside it make HDF5's metadata and finish shards.
 *
 *   memory   the caller's buffers; 8 bytes for each 64 KiB of the shards being written; what HDF5 needs for their metadata.
 *            Shards are taken in groups so that this stays within the limits in rewrite.c
 *   crash    the store's: without a record there is no checkpoint. The next rewrite clears what a killed one left
 *   errors   PD_NO_SPACE, PD_IO, PD_STOPPED, and the feed's own. The target store is then as before
 */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/store/store.h"
#include "resharder/rewrite/chunk_stream.h"

#define PD_REWRITE_BUFFER_BYTES_MIN (UINT64_C(16) << 20)

/* The record of the request has the state to be, under a layout of one rank, and one shard: data_bytes counts all tensors,
 * file_bytes the source's files.
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
    const struct pd_rewrite_feed *feed;
    bool reads_back;    /* every shard is read and verified once it is written, before the commit */
    const char *source; /* as messages call it */
    const struct pd_commit *commit;
    const struct pd_tensor_table *tensors; /* of its model */
    const struct pd_layout *layout;        /* virtual_tp and virtual_sp as in the record */
    struct pd_shard_codec codec;           /* of the new shards; pool NULL: this thread compresses */
    struct pd_store *target;               /* writable, of this process alone */
    void *buffers;                         /* (buffer_bytes) of the disk's, on PD_VFS_ALIGN; huge pages are faster */
    uint64_t buffer_bytes;                 /* at least the minimum */
    pd_should_stop should_stop;            /* asked between blocks, also of those that are read back */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* now and then; may be NULL */
    void *context;
};

struct pd_rewrite_report {
    uint64_t bytes_read_back, bytes_written;
    uint32_t shards;
    bool has_index; /* index.h5 is left out where it would outgrow the memory */
};

PD_MUST_USE pd_status pd_rewrite(struct pd_vfs *vfs, const struct pd_rewrite_request *request,
                                 struct pd_rewrite_report *ret_report, struct pd_error *err);
