/* Writes a checkpoint, foreign or ours, under any layout, in bounded memory. One thread reads and converts, another
 * hashes and writes. Data whose source has no checksums is read back and verified. Then it commits. */
#pragma once

#include "ckpt/base/stop.h"
#include "ckpt/store/store.h"
#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"
#include "resharder/layout.h"

#define PD_IMPORT_BUFFER_BYTES (UINT64_C(164) << 20)
#define PD_RESHARD_BUFFER_BYTES (UINT64_C(98) << 20) /* for our own checkpoints, which need no transposing */

struct pd_import_request {
    const char *source;                    /* its name in messages */
    const struct pd_catalog *catalog;      /* finished */
    const struct pd_links *links;          /* of the tensors below */
    const struct pd_tensor_table *tensors; /* of the model */
    bool fresh_optimizer;                  /* moments without a link become zeros; otherwise each needs one */
    const struct pd_layout *layout;
    const struct pd_run_state *state; /* state to commit; its layout is ignored */
    const struct pd_commit *ours;     /* record of a checkpoint of ours, whose blocks are verified while reading */
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
    uint32_t zeroed; /* arrays initialised to zero */
    /* Parameters of experts, as they were written. */
    uint64_t expert_tensors, expert_elements, expert_bytes;
    bool has_index; /* false: index.h5 was too large for the memory */
};

/* Checks that every tensor and kind has one link to a catalog tensor that contains its view, with an element type for
 * weights, and that the layout can cut it.   errors  PD_INVALID: by name */
PD_MUST_USE pd_status pd_import_check(const struct pd_import_request *request, struct pd_error *err);
/*   errors  as check; PD_CORRUPT, PD_IO: of the source, by file and tensor; PD_NO_SPACE, PD_STOPPED. The target store is
 *           unchanged then. */
PD_MUST_USE pd_status pd_import(struct pd_vfs *vfs, const struct pd_import_request *request,
                                struct pd_import_report *ret_report, struct pd_error *err);
