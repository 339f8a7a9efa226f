/* Writes a file atomically: to a temporary name beside its own ("X.packing"), then syncs and renames. The next writer of the
 * same file overwrites what a killed process left. */
#pragma once

#include "ckpt/base/status.h"
#include <stdio.h>

struct pd_file_writer {
    char *path, *temporary; /* owned */
    FILE *stream;
    int fd;         /* of the temporary file; holds its lock until the rename */
    uint64_t bytes; /* written so far */
};

/*   errors  PD_BUSY: another process is writing it */
PD_MUST_USE pd_status pd_file_writer_begin(const char *path, struct pd_file_writer *ret_writer, struct pd_error *err);
PD_MUST_USE pd_status pd_file_writer_add(struct pd_file_writer *writer, const void *data, size_t bytes,
                                         struct pd_error *err);
/* Replaces bytes written before (a header known only at the end). */
PD_MUST_USE pd_status pd_file_writer_patch(struct pd_file_writer *writer, uint64_t offset, const void *data, size_t bytes,
                                           struct pd_error *err);
/* Syncs the bytes; commit renames. Nothing can be added afterwards. */
PD_MUST_USE pd_status pd_file_writer_seal(struct pd_file_writer *writer, struct pd_error *err);
/* Renames and syncs the directory. The writer is finished, whatever the result. */
PD_MUST_USE pd_status pd_file_writer_commit(struct pd_file_writer *writer, struct pd_error *err);
/* Syncs the directory above `path`; only then its name survives a power loss. */
PD_MUST_USE pd_status pd_sync_directory_of(const char *path, struct pd_error *err);
/* No effect on a zeroed, committed or aborted writer. If the temporary file cannot be removed, adds its name to *err. */
void pd_file_writer_abort(struct pd_file_writer *writer, struct pd_error *err);
