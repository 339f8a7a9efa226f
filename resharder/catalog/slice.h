/* Reads boxes of foreign tensors as they are stored, from any number of threads at once.
 *
 * Only what a box needs is read: whole blocks of 64 KiB where the catalog verifies them, else whole pages. Reads go to the
 * buffered file, since callers often come back for the next rows; large ones may go past the page cache.
 *
 *   memory   1 MiB a thread (4 MiB from a bucket); a piece with strides is read whole
 *   threads  any; three descriptors a file, at most PD_SLICER_FILES_MAX of each open between calls */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "resharder/catalog/catalog.h"

#define PD_SLICER_FILES_MAX 64u

struct pd_slice {
    uint32_t tensor; /* in the catalog */
    uint64_t start[PD_FOREIGN_DIMS_MAX], count[PD_FOREIGN_DIMS_MAX];
    void *to;    /* dense, row-major: stored elements, or fp32 */
    bool as_f32; /* converts to fp32 */
};

/* Called in the caller's thread between parts of the work; a status other than PD_OK ends it. May be NULL. */
typedef pd_status (*pd_slicer_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes, struct pd_error *err);

struct pd_slicer;
/* `catalog` is finished and borrowed. */
PD_MUST_USE pd_status pd_slicer_new(struct pd_vfs *vfs, const struct pd_catalog *catalog, struct pd_slicer **ret_slicer,
                                    struct pd_error *err);
void pd_slicer_free(struct pd_slicer *slicer); /* NULL is fine */
/* From now on reads of 256 KiB and more go past the page cache, unless they are in it: they would need as much memory again.
 * Only of catalogs that verify. Before the first read. */
void pd_slicer_read_direct(struct pd_slicer *slicer);
/* Bytes read from files for slices so far. */
uint64_t pd_slicer_bytes(const struct pd_slicer *slicer);

/* Checks that a slice lies inside its tensor and cuts no block of a quantised type. errors PD_INVALID: by name */
PD_MUST_USE pd_status pd_slice_check(const struct pd_catalog *catalog, const struct pd_slice *slice, struct pd_error *err);
uint64_t pd_slice_bytes(const struct pd_catalog *catalog, const struct pd_slice *slice); /* at `to` */

/* Reads checked slices, whose `to` do not overlap. The pool (or NULL) is used by this call alone.
 *   errors  PD_CORRUPT: names file, tensor and block; PD_IO; the status of progress. Contents of `to` are then undefined */
PD_MUST_USE pd_status pd_slicer_read(struct pd_slicer *slicer, const struct pd_slice *slices, uint64_t count,
                                     struct pd_thread_pool *pool, pd_slicer_progress progress, void *context,
                                     struct pd_error *err);
