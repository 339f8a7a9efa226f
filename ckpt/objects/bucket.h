/* Calls on one bucket, tried again where that can help.
 *
 * The environment says where it is (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, a profile's endpoint_url; else Amazon's of AWS_REGION)
 * and who we are (credentials.h). A call that fails names the object, the action that was refused and what to do.
 *   errors   PD_INVALID: no such bucket, another region, no credentials; PD_NOT_FOUND: no such object;
 *            PD_IO: refused, or no answer after all tries (sys_errno EACCES where we may not); PD_CORRUPT: an answer that S3
 *            does not give; PD_STOPPED: *stop is set; PD_NO_MEMORY
 *   threads  any; each call runs in the thread that makes it
 *   source   Amazon Simple Storage Service, API Reference */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/objects/http.h"
#include "ckpt/objects/sign.h"

struct pd_bucket;

/* Without a request to the bucket.   stop   ends calls that are under way; NULL: nothing does; borrowed until close */
PD_MUST_USE pd_status pd_bucket_open(const char *name, const _Atomic bool *stop, struct pd_bucket **ret_bucket,
                                     struct pd_error *err);
void pd_bucket_close(struct pd_bucket *bucket); /* NULL is fine */
const char *pd_bucket_endpoint(const struct pd_bucket *bucket);
#define PD_BUCKET_URL_MAX 4608u
/* Of an object, for requests that are not signed. */
void pd_bucket_url(const struct pd_bucket *bucket, const char *key, char ret_url[PD_BUCKET_URL_MAX]);

struct pd_object {
    uint64_t bytes;
    char etag[PD_HTTP_ETAG_MAX]; /* as the server writes it, quotes included */
};
PD_MUST_USE pd_status pd_bucket_head(struct pd_bucket *bucket, const char *key, struct pd_object *ret, struct pd_error *err);
/* The bytes from `offset` on, into all of `into`.   etag   PD_CORRUPT where the object is another one; NULL: any */
PD_MUST_USE pd_status pd_bucket_get(struct pd_bucket *bucket, const char *key, const char *etag, uint64_t offset,
                                    const struct iovec *into, uint32_t into_count, struct pd_error *err);
/* One of at most `bytes_max` bytes (16 MiB at most); the caller frees *ret_text, which ends with a zero byte. */
PD_MUST_USE pd_status pd_bucket_get_small(struct pd_bucket *bucket, const char *key, uint64_t bytes_max, char **ret_text,
                                          size_t *ret_bytes, struct pd_error *err);
/* `only_if_absent`: PD_EXISTS where somebody has put it before, which may have been this call: read it and compare. */
PD_MUST_USE pd_status pd_bucket_put(struct pd_bucket *bucket, const char *key, const void *data, uint64_t bytes,
                                    bool only_if_absent, struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_delete(struct pd_bucket *bucket, const char *key,
                                       struct pd_error *err); /* PD_OK: it was not there */

/* What `prefix` is the beginning of, in the order of the keys.
 *   is_flat   false: what follows the next slash counts as one, reported once with is_directory and without the slash
 *   returns   anything but PD_OK ends the listing with it; PD_STOPPED ends it with PD_OK */
typedef pd_status (*pd_bucket_listed)(void *context, const char *key, uint64_t bytes, bool is_directory,
                                      struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_list(struct pd_bucket *bucket, const char *prefix, bool is_flat, pd_bucket_listed listed,
                                     void *context, struct pd_error *err);

/* An object in parts of 5 MiB and more (the last one may be smaller), at most 10,000. It is there once complete returns PD_OK. */
#define PD_UPLOAD_ID_MAX 1024u
#define PD_UPLOAD_PARTS_MAX 10000u
struct pd_uploaded_part {
    char etag[PD_HTTP_ETAG_MAX], checksum[16]; /* checksum: CRC-32, base64 */
};
PD_MUST_USE pd_status pd_bucket_upload_begin(struct pd_bucket *bucket, const char *key, char ret_id[PD_UPLOAD_ID_MAX],
                                             struct pd_error *err);
/*   number   from 1; parts may come in any order, from any thread
 */
PD_MUST_USE pd_status pd_bucket_upload_part(struct pd_bucket *bucket, const char *key, const char *id, uint32_t number,
                                            const void *data, uint64_t bytes, struct pd_uploaded_part *ret,
                                            struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_upload_complete(struct pd_bucket *bucket, const char *key, const char *id,
                                                const struct pd_uploaded_part *parts, uint32_t count, struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_upload_abort(struct pd_bucket *bucket, const char *key, const char *id,
                                             struct pd_error *err);
/* Uploads that were begun and neither completed nor aborted. */
typedef pd_status (*pd_bucket_uploading)(void *context, const char *key, const char *id, struct pd_error *err);
PD_MUST_USE pd_status pd_bucket_uploads(struct pd_bucket *bucket, const char *prefix, pd_bucket_uploading uploading,
                                        void *context, struct pd_error *err);
