/* Positioned reads that return all bytes or an error. */
#pragma once

#include "ckpt/base/status.h"

/* Opens a regular file. PD_NOT_FOUND, PD_INVALID (a directory, a pipe; empty, unless allowed), PD_IO; errors name `path`. */
PD_MUST_USE pd_status pd_data_file_open(const char *path, bool may_be_empty, int *ret_fd, uint64_t *ret_bytes,
                                        struct pd_error *err);
/* PD_IO also if the file ends early: it has become shorter. */
PD_MUST_USE pd_status pd_data_file_read(int fd, const char *path, uint64_t offset, void *data, uint64_t bytes,
                                        struct pd_error *err);
/* Path of what lies beside a file: the path and `end`. malloc'ed; NULL: no memory. */
char *pd_data_beside(const char *path, const char *end);
