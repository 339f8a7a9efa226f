/* Loads state under any layout: readers read whole checksum blocks, verify them, and send the pieces to their owners.
 *
 * Collective over the group. Uses the caller's buffers. All ranks together read the wanted stored bytes once (small boxes
 * share pages, so up to two pages each are read; a compressed chunk shared by two readers is read by both). Received
 * pieces are written straight to their destinations.
 *   errors  PD_CORRUPT: a block mismatched twice or a shard is not the one the record names (file, tensor, block); PD_IO,
 *           PD_NOT_FOUND: storage. All ranks return the same status. State at the destinations is then undefined.
 */
#pragma once

#include "ckpt/group/group.h"
#include "resharder/layout.h"

struct pd_thread_pool;

struct pd_load_request {
    const char *directory; /* of the committed checkpoint, as this rank sees it */
    const struct pd_commit *commit;
    const struct pd_tensor_table *tensors; /* of the model: names and shapes must equal the stored ones */
    const struct pd_layout *wanted;        /* one rank of it per rank of the group */
    uint32_t kinds;                        /* bit k: kind k */
    const bool *tensor_wanted;             /* (tensors) or NULL: all */
    void *buffers;                         /* (buffer_bytes) aligned to PD_VFS_ALIGN: windows of rounds */
    uint64_t buffer_bytes;                 /* equal on all ranks; at least 8 * PD_SHARD_BLOCK_BYTES; 64 MiB is fast; below
                                              some 8 MiB compressed boxes allocate memory of their own */
    struct pd_thread_pool *pool;           /* decompresses, verifies and copies; NULL: the caller does */
    bool has_replicas; /* hosts have directories of their own: if a shard is bad on one, another may have a good one */
    /* Returns the start of this rank's wanted box: dense, in the type `tensors` give the kind. Moments stored otherwise
     * are converted: exactly to fp32, to nearest even to bf16. Any thread of
     * the pool may call it. */
    void *(*destination)(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box);
    void *context;
};

struct pd_load_report {
    uint64_t bytes_read;   /* from files, by this rank */
    uint64_t bytes_wanted; /* of items, by this rank */
    uint64_t bytes_stored; /* their size in files; a compressed chunk counts where it begins */
    uint32_t rounds;
};

PD_MUST_USE pd_status pd_load(struct pd_vfs *vfs, struct pd_group *group, const struct pd_load_request *request,
                              struct pd_load_report *ret_report, struct pd_error *err);
