/* Downloads objects as files, several requests at once: looks them all up, then reads them in parts.
 *
 *   with    If-Match of the ETag that the lookup found, so a file never mixes two versions of its object; the checksum of the
 *           whole object, if the server keeps one, is compared
 *   memory  128 MiB: 16 threads, each with a buffer of one part */
#pragma once

#include "ckpt/objects/bucket.h"

struct pd_download {
    const char *url;         /* s3://bucket/key */
    const char *path;        /* the new file; pd_downloads_run only */
    bool is_there;           /* set by pd_downloads_look: there is such an object */
    struct pd_object object; /* set if is_there; with an ETag */
};

/* The calling thread calls it ten times a second.   returns  true: end with PD_STOPPED */
typedef bool (*pd_download_watch)(void *context, uint64_t bytes_done);

/*   errors  of pd_bucket_head; PD_UNSUPPORTED: the server sends no ETags */
PD_MUST_USE pd_status pd_downloads_look(struct pd_download *files, uint32_t count, struct pd_error *err);
/* Writes and syncs every file. After a failure files may be incomplete.
 *   watch   may be NULL
 *   errors  of pd_bucket_get; PD_CORRUPT: an object was replaced meanwhile, or has another checksum; PD_NO_SPACE; PD_IO */
PD_MUST_USE pd_status pd_downloads_run(const struct pd_download *files, uint32_t count, pd_download_watch watch,
                                       void *context, struct pd_error *err);
