/* A file becomes an object, in parts that several threads send at once. Memory is the caller's, whatever the file's size. */
#pragma once

#include "ckpt/io/vfs.h"
#include "ckpt/objects/bucket.h"

#define PD_UPLOAD_MEMORY_BYTES (UINT64_C(64) << 20) /* a good size */

struct pd_upload {
    struct pd_bucket *bucket;
    struct pd_vfs *vfs; /* of `path` */
    void *memory;       /* (memory_bytes) aligned to PD_VFS_ALIGN; 8 MiB at least; borrowed until return */
    uint64_t memory_bytes;
    uint64_t bytes_per_second; /* at most; 0: no limit */
    const _Atomic bool *stop;  /* ends the wait that the limit asks for; may be NULL; what it sends ends with the bucket's */
    _Atomic uint64_t *bytes_sent; /* of all files so far; may be NULL */
};

/* The object is there, whole, when this returns PD_OK, and not at all otherwise: parts of a failed upload are aborted, unless
 * nobody answers (pd_bucket_uploads finds them later).
 *   errors   of reading the file; of pd_bucket_*; PD_INVALID: a file of more than 10,000 parts of an eighth of the memory
 *   threads  one caller at a time; sends from up to eight threads */
PD_MUST_USE pd_status pd_upload_file(struct pd_upload *upload, const char *path, const char *key, struct pd_error *err);
