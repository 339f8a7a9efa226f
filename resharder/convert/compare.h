/* Compares the tensors of two catalogs of any formats, or computes statistics of one. In bounded memory.
 *   errors   PD_CORRUPT, PD_IO: name file and tensor; PD_NO_MEMORY */
#pragma once

#include "ckpt/inspect/inspect.h"
#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"

#define PD_COMPARE_BUFFER_BYTES (UINT64_C(64) << 20)

struct pd_tensor_report { /* of one tensor and kind */
    uint64_t elements;
    uint64_t digest;               /* pd_tensor_digest of its values as fp32: equal in every layout and format */
    uint64_t nan_count, inf_count; /* excluded from the following statistics */
    double min, max, mean, rms;    /* over finite elements; 0 when there are none */
};

enum pd_difference { PD_SAME, PD_DIFFERENT, PD_ONLY_LEFT, PD_ONLY_RIGHT, PD_OTHER_SHAPE };

struct pd_diff_row { /* of one tensor and kind */
    char name[PD_TENSOR_NAME_MAX];
    enum pd_kind kind;
    enum pd_difference difference;
    uint64_t elements;
    uint64_t differing; /* elements whose bits differ */
    double max_abs;     /* largest |left - right| among them; infinity if one side is NaN or infinite */
    uint64_t first;     /* row-major index of the first differing element; undefined if there is none */
    double left, right; /* its values */
};

struct pd_diff {
    struct pd_diff_row *rows; /* (count), owned */
    uint64_t count;
    uint64_t different_count; /* rows that are not PD_SAME */
};
void pd_diff_deinit(struct pd_diff *diff);

struct pd_compare_side {
    const struct pd_catalog *catalog; /* finished */
    const struct pd_links *links;     /* of the model's tensors; NULL: match tensors by name */
};
struct pd_compare_request {
    struct pd_compare_side left, right;
    const struct pd_tensor_table *tensors; /* of the model; NULL without links */
    void *buffers;                         /* (PD_COMPARE_BUFFER_BYTES) on PD_VFS_ALIGN */
    pd_inspect_progress progress;          /* may be NULL */
    void *context;
    int *bad_side; /* set when reading fails: 0 left, 1 right; may be NULL */
};

/* Compares element by element, as fp32. With links there is a row for each tensor of the model, in its order; without,
 * one for each name: first the names of left, then the names that only right has; types that fp32 does not hold (int64,
 * fp64) are then compared as they are stored. */
PD_MUST_USE pd_status pd_compare(struct pd_vfs *vfs, const struct pd_compare_request *request, struct pd_diff *ret_diff,
                                 struct pd_error *err);

/* Reports on each tensor of left.catalog: ret_reports (tensor_count). wanted (tensor_count): which ones to read; NULL:
 * all.   ret_bytes_read  may be NULL. */
PD_MUST_USE pd_status pd_compare_report(struct pd_vfs *vfs, const struct pd_compare_request *request, const bool *wanted,
                                        struct pd_tensor_report *ret_reports, uint64_t *ret_bytes_read,
                                        struct pd_error *err);
/* Computes pd_state_digest of one of our checkpoints from the reports of all its tensors. */
PD_MUST_USE pd_status pd_compare_state_digest(const struct pd_catalog *catalog, const struct pd_tensor_report *reports,
                                              uint64_t *ret_digest, struct pd_error *err);
