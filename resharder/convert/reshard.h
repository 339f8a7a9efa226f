/* A checkpoint of ours, written again under another layout: an import from our own format.
 *
 *   errors   PD_INVALID: a layout that the numerics do not admit; PD_CORRUPT: a block mismatched twice, or the shards do not hold
 *            the model; PD_NO_SPACE, PD_IO, PD_STOPPED. The target store is then as before */
#pragma once

#include "resharder/convert/import.h"

struct pd_reshard_request {
    const char *directory;                 /* of the committed checkpoint */
    const struct pd_commit *commit;        /* its record */
    const struct pd_tensor_table *tensors; /* of its model */
    const struct pd_layout *layout;        /* virtual_tp and virtual_sp as stored */
    struct pd_shard_codec codec;           /* of the new shards */
    struct pd_store *target;               /* writable, of this process alone */
    void *buffers;                         /* (PD_RESHARD_BUFFER_BYTES) on PD_VFS_ALIGN */
    pd_should_stop should_stop;
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};

/* ret_report may be NULL. */
PD_MUST_USE pd_status pd_reshard(struct pd_vfs *vfs, const struct pd_reshard_request *request,
                                 struct pd_import_report *ret_report, struct pd_error *err);
