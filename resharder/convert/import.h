/* A checkpoint, foreign or of ours, is written under any layout, in bounded memory: read and converted by one thread, hashed
 * and written by another, read back and verified where its source has no checksums, then committed. */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/store/store.h"
#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"
#include "resharder/layout.h"

#define PD_IMPORT_BUFFER_BYTES (UINT64_C(164) << 20)
#define PD_RESHARD_BUFFER_BYTES (UINT64_C(98) << 20) /* of ours: there are no tensors to turn */

struct pd_import_request {
    const char *source;                    /* what messages call it */
    const struct pd_catalog *catalog;      /* finished */
    const struct pd_links *links;          /* of the tensors below */
    const struct pd_tensor_table *tensors; /* of the model */
    bool fresh_optimizer;                  /* moments without a link are zeros; otherwise each must have one */
    const struct pd_layout *layout;
    const struct pd_run_state *state; /* to be; its layout is not looked at */
    const struct pd_commit *ours;     /* the record of a checkpoint of ours, whose blocks are verified as they are read */
    struct pd_shard_codec codec;
    struct pd_store *target; /* writable, of this process alone */
    void *buffers;           /* (PD_IMPORT_BUFFER_BYTES, or PD_RESHARD_BUFFER_BYTES) on PD_VFS_ALIGN */
    pd_should_stop should_stop;
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};

struct pd_import_report {
    uint64_t bytes_read, bytes_written, bytes_read_back;
    uint32_t shards;
    uint32_t zeroed; /* arrays that began at zero */
    bool has_index;  /* index.h5 is left out where it would outgrow the memory */
};

/* Every tensor and kind has one link to a tensor of the catalog that its view lies in, of an element type that weights may have,
 * and the layout can cut it.   errors  PD_INVALID: by name */
PD_MUST_USE pd_status pd_import_check(const struct pd_import_request *request, struct pd_error *err);
/*   errors  as check; PD_CORRUPT, PD_IO: of the source, by file and tensor; PD_NO_SPACE, PD_STOPPED. The target store is then as
 *           before. */
PD_MUST_USE pd_status pd_import(struct pd_vfs *vfs, const struct pd_import_request *request,
                                struct pd_import_report *ret_report, struct pd_error *err);
