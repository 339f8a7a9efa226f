/* Loading state under any layout: readers read whole checksum blocks, verify them, and hand the pieces to their owners.
 *
 * Collective over the group. Memory: the caller's buffers. Over all ranks the bytes read are the wanted bytes stored, once
 * (small boxes share pages, so up to two pages each are read; a compressed chunk that two readers share is read by both).
 * Received pieces land where the caller wants them.
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
    const struct pd_tensor_table *tensors; /* of the model: names and shapes must be those stored */
    const struct pd_layout *wanted;        /* one rank of it per rank of the group */
    uint32_t kinds;                        /* bit k: kind k */
    const bool *tensor_wanted;             /* (tensors) or NULL: all */
    void *buffers;                         /* (buffer_bytes) aligned to PD_VFS_ALIGN: windows of rounds */
    uint64_t buffer_bytes;                 /* equal on all ranks; at least 8 * PD_SHARD_BLOCK_BYTES; 64 MiB is fast, and
                                              below some 8 MiB compressed boxes take memory of their own */
    struct pd_thread_pool *pool;           /* decompresses; NULL: the caller does */
    bool has_replicas; /* hosts have directories of their own: a shard that is of no use on one may be whole on another */
    /* Start of this rank's wanted box: dense, as `tensors` keep the kind. Moments stored otherwise are converted: exactly to
     * fp32, to nearest even to bf16. */
    void *(*destination)(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box);
    void *context;
};

struct pd_load_report {
    uint64_t bytes_read;   /* from files, by this rank */
    uint64_t bytes_wanted; /* of items, by this rank */
    uint64_t bytes_stored; /* what holds them in files; a compressed chunk counts where it begins */
    uint32_t rounds;
};

PD_MUST_USE pd_status pd_load(struct pd_vfs *vfs, struct pd_group *group, const struct pd_load_request *request,
                              struct pd_load_report *ret_report, struct pd_error *err);
