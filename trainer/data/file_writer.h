/* A file that appears whole or not at all: written under a temporary name beside its own ("X.packing"), synced, renamed. What a
 * killed process left of that is written over by whoever writes the same file next. */
#pragma once

#include "ckpt/base/status.h"
#include <stdio.h>

struct pd_file_writer {
    char *path, *temporary; /* owned */
    FILE *stream;
    int fd;         /* of the temporary file: holds its lock until it has its name */
    uint64_t bytes; /* written so far */
};

/*   errors  PD_BUSY: another process writes it */
PD_MUST_USE pd_status pd_file_writer_begin(const char *path, struct pd_file_writer *ret_writer, struct pd_error *err);
PD_MUST_USE pd_status pd_file_writer_add(struct pd_file_writer *writer, const void *data, size_t bytes,
                                         struct pd_error *err);
/* Replaces bytes that were written before (a header that is known at the end). */
PD_MUST_USE pd_status pd_file_writer_patch(struct pd_file_writer *writer, uint64_t offset, const void *data, size_t bytes,
                                           struct pd_error *err);
/* Syncs the bytes; the name comes with commit. Nothing may be added any more. */
PD_MUST_USE pd_status pd_file_writer_seal(struct pd_file_writer *writer, struct pd_error *err);
/* Renames and syncs the directory. The writer is done with, whatever the result. */
PD_MUST_USE pd_status pd_file_writer_commit(struct pd_file_writer *writer, struct pd_error *err);
/* The name of a file or directory outlives a power loss once the directory above it is synced. */
PD_MUST_USE pd_status pd_sync_directory_of(const char *path, struct pd_error *err);
/* Fine on a zeroed, committed or aborted one. A temporary file that cannot be removed is named behind what *err says. */
void pd_file_writer_abort(struct pd_file_writer *writer, struct pd_error *err);
