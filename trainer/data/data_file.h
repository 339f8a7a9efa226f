/* Positioned reads that take all or say why not. */
#pragma once

#include "ckpt/base/status.h"

/* A regular file. PD_NOT_FOUND, PD_INVALID (a directory, a pipe; empty, unless that is allowed), PD_IO; `path` is named. */
PD_MUST_USE pd_status pd_data_file_open(const char *path, bool may_be_empty, int *ret_fd, uint64_t *ret_bytes,
                                        struct pd_error *err);
/* PD_IO also when the file ends before `bytes` are read: it is shorter than it was. */
PD_MUST_USE pd_status pd_data_file_read(int fd, const char *path, uint64_t offset, void *data, uint64_t bytes,
                                        struct pd_error *err);
