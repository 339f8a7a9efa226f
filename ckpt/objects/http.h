/* One HTTP request over libcurl: no retries, no credentials, no redirects. */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>
#include <sys/uio.h>

struct pd_http; /* idle connections, for requests of any thread */

struct pd_http_request {
    const char *method; /* GET, HEAD, PUT, POST, DELETE */
    const char *url;
    const char *headers; /* "name: value\n" a line; NULL: none */
    const void *body;    /* borrowed until return */
    uint64_t body_bytes;
    const struct iovec *into; /* where the body of a 200 or 206 goes; NULL: into text */
    uint32_t into_count;
    uint32_t timeout_s;       /* for all of it; 0: as long as bytes move */
    bool ignores_proxy;       /* http_proxy is not for metadata of this machine */
    const _Atomic bool *stop; /* set: the request ends with PD_STOPPED; NULL: it never is */
};

#define PD_HTTP_ETAG_MAX 128u
#define PD_HTTP_TEXT_MAX (UINT64_C(16) << 20)

struct pd_http_response {
    int code; /* 0: none came */
    bool has_length;
    uint64_t length;       /* Content-Length */
    uint64_t moved;        /* bytes that came into `into` */
    uint64_t range_begin;  /* of Content-Range; UINT64_MAX: there is none */
    uint64_t object_bytes; /* of Content-Range */
    uint64_t date_s;       /* of Date; 0: none */
    uint32_t retry_after_s;
    char etag[PD_HTTP_ETAG_MAX], region[64]; /* region: x-amz-bucket-region */
    char *text;                              /* ends with a zero byte; NULL: there was no body */
    size_t text_bytes;
};

PD_MUST_USE pd_status pd_http_new(struct pd_http **ret_http, struct pd_error *err);
void pd_http_free(struct pd_http *http); /* no request is under way */

/* A response, whatever its code. *ret is set in every case and is freed with deinit.
 *   errors  PD_IO: none came, or it was cut; the message names the server and what failed. sys_errno is ENETUNREACH where it was
 *           not reached, EPROTO where its certificate is refused (trying again is no use), else ETIMEDOUT or ECONNRESET
 *           PD_CORRUPT: more bytes than `into` has room for, or than PD_HTTP_TEXT_MAX; PD_STOPPED; PD_NO_MEMORY
 *   threads any */
PD_MUST_USE pd_status pd_http_run(struct pd_http *http, const struct pd_http_request *request, struct pd_http_response *ret,
                                  struct pd_error *err);
void pd_http_response_deinit(struct pd_http_response *it);
