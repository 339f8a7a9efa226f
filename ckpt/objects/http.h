/* One HTTP request over libcurl: no retries, no credentials, no redirects. */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/objects/object_sum.h"
#include <stdint.h>
#include <sys/uio.h>

struct pd_http; /* a pool of idle connections; threads: any */

struct pd_http_request {
    const char *method; /* GET, HEAD, PUT, POST, DELETE */
    const char *url;
    const char *headers; /* "name: value\n" a line; NULL: none */
    const void *body;    /* borrowed until return */
    uint64_t body_bytes;
    const struct iovec *into; /* receives the body of a 200 or 206; NULL: the body goes to text */
    uint32_t into_count;
    uint32_t timeout_s;       /* for the whole request; 0: no limit while bytes move */
    bool ignores_proxy;       /* set for instance metadata, which http_proxy must not see */
    const _Atomic bool *stop; /* setting it ends the request with PD_STOPPED; may be NULL */
};

#define PD_HTTP_ETAG_MAX 128u
#define PD_HTTP_TEXT_MAX (UINT64_C(16) << 20)

struct pd_http_response {
    int code; /* HTTP status; 0: no response */
    bool has_length;
    uint64_t length;       /* Content-Length */
    uint64_t moved;        /* bytes received into `into` */
    uint64_t range_begin;  /* from Content-Range; UINT64_MAX: absent */
    uint64_t object_bytes; /* total, from Content-Range */
    uint64_t date_s;       /* from Date, seconds since 1970; 0: absent */
    uint32_t retry_after_s;
    char etag[PD_HTTP_ETAG_MAX], region[64]; /* region: x-amz-bucket-region */
    struct pd_object_sum sum;                /* of the whole object; x-amz-checksum-*, x-goog-hash */
    bool sum_is_full_object;                 /* x-amz-checksum-type: FULL_OBJECT */
    char *text;                              /* ends with a zero byte; NULL: no body */
    size_t text_bytes;
};

PD_MUST_USE pd_status pd_http_new(struct pd_http **ret_http, struct pd_error *err);
void pd_http_free(struct pd_http *http); /* call it when no request is running */

/* Runs one request. PD_OK means a response arrived, with any HTTP status. *ret is always set; free it with deinit.
 *   errors  PD_IO: no response, or the connection broke; the message names server and cause. sys_errno is ENETUNREACH
 *           (no connection), EPROTO (certificate refused; do not retry), ETIMEDOUT or ECONNRESET
 *           PD_CORRUPT: more bytes than `into` holds, or than PD_HTTP_TEXT_MAX; PD_STOPPED; PD_NO_MEMORY
 *   threads any */
PD_MUST_USE pd_status pd_http_run(struct pd_http *http, const struct pd_http_request *request, struct pd_http_response *ret,
                                  struct pd_error *err);
void pd_http_response_deinit(struct pd_http_response *it);
