/* Small files, read and written as a whole. */
#ifndef PD_CKPT_STORE_FILE_H
#define PD_CKPT_STORE_FILE_H

#include "ckpt/io/vfs.h"

#define STORE_PATH_MAX 4096u

/* *ret_data is malloc'ed, the caller's. PD_CORRUPT: longer than `bytes_max`. */
PD_MUST_USE pd_status store_file_read(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data,
                                      uint64_t *ret_bytes, struct pd_error *err);

enum store_file_end {
    STORE_FILE_LEAVE,    /* what follows the data stays, and nothing is synced */
    STORE_FILE_SYNC,     /* the data is durable, its name need not be */
    STORE_FILE_CUT_SYNC, /* and the file ends behind it */
};
/* Opens with PD_OPEN_WRITE | flags and writes `bytes` of `data` (none: 0) at the start. */
PD_MUST_USE pd_status store_file_write(struct pd_vfs *vfs, const char *path, unsigned flags, const void *data,
                                       uint64_t bytes, enum store_file_end end, struct pd_error *err);

#endif
