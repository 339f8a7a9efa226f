/* Tensors of catalogs, whatever their formats: the difference of two, and statistics of one. In bounded memory.
 *   errors   PD_CORRUPT, PD_IO: name file and tensor; PD_NO_MEMORY */
#pragma once

#include "ckpt/inspect/inspect.h"
#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"

#define PD_COMPARE_BUFFER_BYTES (UINT64_C(64) << 20)

struct pd_compare_side {
    const struct pd_catalog *catalog; /* finished */
    const struct pd_links *links;     /* of the model's tensors; NULL: tensors are known by their names */
};
struct pd_compare_request {
    struct pd_compare_side left, right;
    const struct pd_tensor_table *tensors; /* of the model; NULL without links */
    void *buffers;                         /* (PD_COMPARE_BUFFER_BYTES) on PD_VFS_ALIGN */
    pd_inspect_progress progress;          /* may be NULL */
    void *context;
};

/* Element by element, as fp32. With links a row is a tensor of the model, otherwise a name. The rows' order is that of the
 * model, or of left and then what only right has. */
PD_MUST_USE pd_status pd_compare(struct pd_vfs *vfs, const struct pd_compare_request *request, struct pd_diff *ret_diff,
                                 struct pd_error *err);

/* Of every tensor of left.catalog alone: ret_reports (tensor_count). wanted (tensor_count): those that are read; NULL: all.
 * Digests are of values as fp32, so the same weights have the same digest in every format that keeps them whole. */
PD_MUST_USE pd_status pd_compare_report(struct pd_vfs *vfs, const struct pd_compare_request *request, const bool *wanted,
                                        struct pd_tensor_report *ret_reports, struct pd_error *err);
