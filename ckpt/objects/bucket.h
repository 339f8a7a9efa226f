/* Calls on one bucket. Retries temporary failures.
 *
 * The endpoint is AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url, or Amazon S3 in AWS_REGION.
 * credentials.h finds the credentials. An error message names the object, the refused action and what to do.
 *   errors   PD_INVALID: no such bucket, wrong region, no credentials; PD_NOT_FOUND: no such object;
 *            PD_IO: refused, or no answer after all retries (sys_errno is EACCES if permission is missing); PD_CORRUPT: not
 *            a valid S3 answer; PD_STOPPED: *stop is set; PD_NO_MEMORY
 *   threads  any; each call blocks its caller and starts no threads
 *   source   Amazon Simple Storage Service, API Reference */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/objects/http.h"
#include "ckpt/objects/sign.h"

struct pd_bucket;

/* Sends nothing to the bucket.   stop   setting it ends calls that are running; borrowed until close; may be NULL */
PD_MUST_USE pd_status pd_bucket_open(const char *name, const _Atomic bool *stop, struct pd_bucket **ret_bucket,
                                     struct pd_error *err);
void pd_bucket_close(struct pd_bucket *bucket); /* NULL is fine */
const char *pd_bucket_endpoint(const struct pd_bucket *bucket);
#define PD_BUCKET_URL_MAX 4608u
/* The URL of an object, for unsigned requests. */
void pd_bucket_url(const struct pd_bucket *bucket, const char *key, char ret_url[PD_BUCKET_URL_MAX]);

struct pd_object {
    uint64_t bytes;
    char etag[PD_HTTP_ETAG_MAX]; /* as the server writes it, quotes included */
    struct pd_object_sum sum;    /* kind PD_OBJECT_SUM_NONE: the server keeps none of the whole object */
};
PD_MUST_USE pd_status pd_bucket_head(struct pd_bucket *bucket, const char *key, struct pd_object *ret, struct pd_error *err);
/* Fills all of `into` from `offset` on.   etag   PD_CORRUPT if the object has a different ETag; NULL: accept any */
PD_MUST_USE pd_status pd_bucket_get(struct pd_bucket *bucket, const char *key, const char *etag, uint64_t offset,
                                    const struct iovec *into, uint32_t into_count, struct pd_error *err);
/* Reads a whole object of up to `bytes_max` (at most 16 MiB) bytes. The caller frees *ret_text, which is zero-terminated. */
PD_MUST_USE pd_status pd_bucket_get_small(struct pd_bucket *bucket, const char *key, uint64_t bytes_max, char **ret_text,
                                          size_t *ret_bytes, struct pd_error *err);
/* `only_if_absent`: PD_EXISTS if the object exists. An earlier try of this call may have put it: read it and compare. */
PD_MUST_USE pd_status pd_bucket_put(struct pd_bucket *bucket, const char *key, const void *data, uint64_t bytes,
                                    bool only_if_absent, struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_delete(struct pd_bucket *bucket, const char *key,
                                       struct pd_error *err); /* PD_OK if it did not exist */

/* Deletes up to 1,000 keys with one request (DeleteObjects), or one by one if the server refuses such requests. Keys may be
 * absent. After a failure some may be left. */
#define PD_BUCKET_DELETE_MAX 1000u
PD_MUST_USE pd_status pd_bucket_delete_many(struct pd_bucket *bucket, const char *const *keys, uint32_t count,
                                            struct pd_error *err);

/* Lists the keys that begin with `prefix`, in key order.
 *   is_flat   false: keys that share the part up to the next slash are reported once, as a directory, without the slash
 *   listed    PD_OK continues; PD_STOPPED ends the listing, which returns PD_OK; any other status ends it and is returned */
typedef pd_status (*pd_bucket_listed)(void *context, const char *key, uint64_t bytes, bool is_directory,
                                      struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_list(struct pd_bucket *bucket, const char *prefix, bool is_flat, pd_bucket_listed listed,
                                     void *context, struct pd_error *err);

/* Multipart upload: at most 10,000 parts of 5 MiB or more (the last may be smaller). Complete makes the object visible. */
#define PD_UPLOAD_ID_MAX 1024u
#define PD_UPLOAD_PARTS_MAX 10000u
struct pd_uploaded_part {
    char etag[PD_HTTP_ETAG_MAX], checksum[16]; /* checksum: CRC-32, base64 */
};
PD_MUST_USE pd_status pd_bucket_upload_begin(struct pd_bucket *bucket, const char *key, char ret_id[PD_UPLOAD_ID_MAX],
                                             struct pd_error *err);
/*   number   from 1; parts may be sent in any order, from any thread
 *   crc      pd_crc32 of the data, computed while it was in the cache */
PD_MUST_USE pd_status pd_bucket_upload_part(struct pd_bucket *bucket, const char *key, const char *id, uint32_t number,
                                            const void *data, uint64_t bytes, uint32_t crc, struct pd_uploaded_part *ret,
                                            struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_upload_complete(struct pd_bucket *bucket, const char *key, const char *id,
                                                const struct pd_uploaded_part *parts, uint32_t count, struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_upload_abort(struct pd_bucket *bucket, const char *key, const char *id,
                                             struct pd_error *err);
/* Lists uploads that were begun and neither completed nor aborted. */
typedef pd_status (*pd_bucket_uploading)(void *context, const char *key, const char *id, struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_uploads(struct pd_bucket *bucket, const char *prefix, pd_bucket_uploading uploading,
                                        void *context, struct pd_error *err);
