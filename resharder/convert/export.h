/* A checkpoint of any format becomes one of another, in bounded memory: planned, filled from front to back,
 * synced, read back through the format's own reader with the digests of what was written, then renamed.
 *
 *   begin -> (the caller links the model's tensors to begin's catalog) -> run -> end
 *
 *   crash  files lie in "<destination>.exporting" until the rename, of a format of one file until that is renamed out of it; the
 *          next export to that place clears them away
 *   lock   "<destination>.exporting.lock", held from begin to end */
#pragma once

#include "ckpt/base/stop.h"
#include "resharder/catalog/view.h"
#include "resharder/formats/format.h"

#define PD_EXPORT_BUFFER_BYTES (UINT64_C(161) << 20)

struct pd_export;

/* `wanted` (names, kinds, shapes, elements, texts, counters) is borrowed until the end; begin adds files and pieces and finishes
 * it. `destination` must not exist, its parent must.
 *   errors  PD_USAGE: `destination` is there; PD_BUSY: another process exports to it; PD_UNSUPPORTED: the format has no place
 *           for something wanted, by name; PD_NO_SPACE */
PD_MUST_USE pd_status pd_export_begin(struct pd_vfs *vfs, const struct pd_format *format, struct pd_catalog *wanted,
                                      const char *destination, uint64_t shard_bytes_max, struct pd_export **ret_export,
                                      struct pd_error *err);

struct pd_export_request {
    const char *source;               /* what messages call it */
    const struct pd_catalog *catalog; /* finished: the data */
    const struct pd_tensor_table *tensors;
    const struct pd_links *links; /* of `tensors` to what is wanted; what no link fills is zeros */
    const struct pd_links
        *source_links;          /* of `tensors` to `catalog`; NULL: it has them as they are, under their own names */
    bool fresh_optimizer;       /* moments that `catalog` does not have are zeros; otherwise it must have each */
    void *buffers;              /* (PD_EXPORT_BUFFER_BYTES) on PD_VFS_ALIGN */
    pd_should_stop should_stop; /* asked between bands, files, and pieces that are read back */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};
struct pd_export_report {
    uint64_t bytes_read, bytes_written, bytes_read_back;
    uint32_t files, tensors;
};
/*   errors  PD_INVALID: a tensor that is wanted has no link, or one that the source does not have; PD_CORRUPT, PD_IO;
 *           PD_STOPPED */
PD_MUST_USE pd_status pd_export_run(struct pd_export *export, const struct pd_export_request *request,
                                    struct pd_export_report *ret_report, struct pd_error *err);
/* Renames where `mine` is PD_OK, else removes what was made; what cannot be removed is named behind what *err says. */
PD_MUST_USE pd_status pd_export_end(struct pd_export *export, pd_status mine, struct pd_error *err);
