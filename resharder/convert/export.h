/* Converts a checkpoint of any format to another, in bounded memory: plans files, fills them from front to back, syncs,
 * reads them back through the format's own reader to compare digests, then renames.
 *
 *   begin -> (the caller links the model's tensors to begin's catalog) -> run -> end
 *
 *   crash  files are in "<destination>.exporting" until the rename (a one-file format is renamed out of it); the next export
 *          to that destination removes them
 *   lock   "<destination>.exporting.lock", held from begin to end */
#pragma once

#include "ckpt/base/stop.h"
#include "resharder/catalog/view.h"
#include "resharder/formats/format.h"

#define PD_EXPORT_BUFFER_BYTES (UINT64_C(161) << 20)

struct pd_export;

/* `wanted` (names, kinds, shapes, elements, texts, counters) is borrowed until end; begin adds files and pieces and
 * finishes it. `destination` must not exist, its parent must.
 *   errors  PD_USAGE: `destination` exists; PD_BUSY: another process exports to it; PD_UNSUPPORTED: the format cannot hold
 *           a wanted item, which is named; PD_NO_SPACE */
PD_MUST_USE pd_status pd_export_begin(struct pd_vfs *vfs, const struct pd_format *format, struct pd_catalog *wanted,
                                      const char *destination, uint64_t shard_bytes_max, struct pd_export **ret_export,
                                      struct pd_error *err);

struct pd_export_request {
    const char *source;               /* its name in messages */
    const struct pd_catalog *catalog; /* finished: the data */
    const struct pd_tensor_table *tensors;
    const struct pd_links *links; /* from `tensors` to wanted; elements without a link are zeros */
    const struct pd_links
        *source_links;          /* from `tensors` to `catalog`; NULL: it has them unchanged, under their own names */
    bool fresh_optimizer;       /* moments missing in `catalog` become zeros; otherwise it must have all */
    void *buffers;              /* (PD_EXPORT_BUFFER_BYTES) on PD_VFS_ALIGN */
    pd_should_stop should_stop; /* checked between bands, files, and pieces that are read back */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};
struct pd_export_report {
    uint64_t bytes_read, bytes_written, bytes_read_back;
    uint32_t files, tensors;
};
/*   errors  PD_INVALID: a wanted tensor has no link, or one the source lacks; PD_CORRUPT, PD_IO; PD_STOPPED */
PD_MUST_USE pd_status pd_export_run(struct pd_export *export, const struct pd_export_request *request,
                                    struct pd_export_report *ret_report, struct pd_error *err);
/* Renames if `mine` is PD_OK, else removes the files; appends what cannot be removed to the message of *err. */
PD_MUST_USE pd_status pd_export_end(struct pd_export *export, pd_status mine, struct pd_error *err);
