/* Uploads a file as one object. Several threads send parts at once from the caller's buffer, whatever the file's size. */
#pragma once

#include "ckpt/io/vfs.h"
#include "ckpt/objects/bucket.h"
#include "ckpt/shard/shard.h"

#define PD_UPLOAD_MEMORY_BYTES (UINT64_C(64) << 20) /* a good size */

struct pd_upload {
    struct pd_bucket *bucket;
    struct pd_vfs *vfs; /* of `path` */
    void *memory;       /* (memory_bytes) aligned to PD_VFS_ALIGN; 8 MiB at least; borrowed until return */
    uint64_t memory_bytes;
    uint64_t bytes_per_second;    /* limit; 0: none */
    const _Atomic bool *stop;     /* ends the rate limit's wait; may be NULL; the bucket's own stop ends requests */
    _Atomic uint64_t *bytes_sent; /* total over all files; may be NULL */
    void (*wait)(void *context);  /* called in the caller's thread some ten times a second while parts are sent; or NULL */
    void *wait_context;
    const struct pd_shard *shard; /* the file as a shard, whose blocks are verified as they are read; may be NULL */
};

/* After PD_OK the whole object is there; after a failure nothing is. A failed upload is aborted. If the server does not
 * answer the abort, pd_bucket_uploads finds the upload later.
 *   errors   of reading the file and of pd_bucket_*; PD_INVALID: more than 10,000 parts, each an eighth of the memory
 *   threads  one caller at a time; sends from up to eight threads */
PD_MUST_USE pd_status pd_upload_file(struct pd_upload *upload, const char *path, const char *key, struct pd_error *err);
